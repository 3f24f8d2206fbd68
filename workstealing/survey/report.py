"""The result of a survey: as plain data for JSON, and as a table for people."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.jobs.family_leftovers import FamilyLeftovers
from workstealing.jobs.leftovers import Basis, Leftovers
from workstealing.jobs.leftovers.job import PAGES_A_SLICE
from workstealing.jobs.leftovers.walk import KEYS_A_PAGE
from workstealing.recruiting.forecast import (
    HIGHEST_UTILISATION,
    choose_rate_at_random,
    forecast,
    round_up,
)
from workstealing.survey.families import NAMES, Family, pattern_of, shown
from workstealing.survey.garbage import (
    CERTAIN,
    CLIENT,
    DECLARED,
    LIKELY,
    PATTERN,
    REPORTED,
    Call,
    Declared,
)
from workstealing.survey.owners import OWN, UNKNOWN, has_layout
from workstealing.survey.sizing import Estimate, Finding, total_of
from workstealing.survey.surveying import Survey

FORMAT = 1
"""The layout of the JSON."""

NONE = "none"
_KEYS_A_SLICE = KEYS_A_PAGE * PAGES_A_SLICE
_TIME_TO_LIVE = Call(FamilyLeftovers, CLIENT, PATTERN, ttl=Declared("TTL"))
# A backlog is taken for the garbage of so long. It is to be gone in a day, or in minutes if that
# takes no more than a small rate.
_CAME_IN, _GONE_IN, _LAG = 30 * 86_400.0, 86_400.0, 3_600.0
_GONE_SOON, _SMALL_RATE = 600.0, 0.001
_LEAST_ENDLESS = 100
# Programs that count on keys without a time to live.
_ENDS_ITS_OWN = frozenset({"cacheops", "BullMQ", "Sidekiq", "RQ", "Celery (kombu)", OWN})


def report_of(survey: Survey, traffic: float) -> dict[str, Any]:
    """Return the result of a survey as plain data.

    Arguments: survey: one that has run; traffic: callers who enlist, a second, for the rates.
    Returns: a dict for JSON. Each estimate is a list of the value and the two ends of its interval
    of 95 %. No round trip.
    """
    total = survey.families.keys
    families = [_family(survey, shape, each, traffic) for shape, each in survey.families.shapes()]
    families.sort(key=lambda each: (-each["bytes"][0], -each["keys"], each["family"]))
    facts = list(survey.facts.values())
    freed = {
        kind: list(
            total_of(
                [
                    Estimate(*finding["bytes"])
                    for each in families
                    for finding in each["findings"]
                    if finding["kind"] == kind
                ]
            )
        )
        for kind in (CERTAIN, LIKELY)
    }
    return {
        "survey": FORMAT,
        "at": time.time(),
        "server": {
            "product": facts[0].product,
            "version": facts[0].version,
            "nodes": len(facts),
            "is_replica": any(each.is_replica for each in facts),
            "policy": facts[0].policy,
            "keys": survey.keys,
            "used_bytes": _sum([each.used for each in facts]),
        },
        "keys": total,
        "bytes": list(total_of([Estimate(*each["bytes"]) for each in families])),
        "freed": freed,
        "families": families,
        "traffic_per_s": traffic,
        "seconds": survey.seconds,
        "server_seconds": survey.reader.seconds,
        "load": survey.reader.seconds / survey.seconds if survey.seconds else 0.0,
        "commands": survey.reader.commands,
        "notes": list(survey.reader.notes),
    }


def _family(survey: Survey, shape: str, family: Family, traffic: float) -> dict[str, Any]:
    types = sorted(family.types, key=lambda each: -family.types[each])
    owner = max(family.owners, key=lambda each: family.owners[each], default=UNKNOWN)
    if owner not in (UNKNOWN, OWN) and not has_layout(owner, family.examples[0], types):
        owner = UNKNOWN
    size = family.bytes.of(family.keys)
    endless = family.endless.of(family.keys)
    findings = [
        _finding(survey, name, shape, found, traffic)
        for name, found in sorted(family.findings.items())
        if found.items or found.unknown
    ]
    if not any(each["items"] for each in findings):
        findings += _ttl_offer(survey, shape, family, owner, traffic)
    age, known_by = _oldest(family)
    kinds = {each["kind"] for each in findings if each["items"]}
    return {
        "family": shown(shape),
        "pattern": pattern_of(shape),
        "owner": owner,
        "version": survey.owners.versions.get(owner, ""),
        "types": types,
        "keys": family.keys,
        "measured": family.bytes.measured,
        "bytes": list(size),
        "without_ttl": list(endless),
        "oldest_seconds": age,
        "oldest_by": known_by,
        "garbage": next((each for each in (CERTAIN, LIKELY) if each in kinds), NONE),
        "findings": findings,
        "largest": {
            "bytes": family.largest[0],
            "key": family.largest[1].decode("utf-8", "backslashreplace"),
        },
        "examples": [each.decode("utf-8", "backslashreplace") for each in family.examples],
    }


def _oldest(family: Family) -> tuple[float | None, str | None]:
    """Return how old a family's oldest key is, and how that is known."""
    if family.oldest is not None:
        return family.oldest, family.oldest_by
    low, high, number = family.ttls
    # Where all keys began with the same time to live, it tells their ages.
    if number >= _LEAST_ENDLESS and not family.endless.mean:
        return high - low, "ttl"
    return None, None


def _finding(
    survey: Survey, name: str, shape: str, found: Finding, traffic: float
) -> dict[str, Any]:
    offer = survey.judges.offers[name]
    rule = offer.rule
    gap = rule.certainty.gap if rule.certainty.basis is Basis.SEEN_TWICE else 0.0
    size = found.size.of(found.items)
    job = offer.job.result(survey.client, shape)
    rate, seconds = _plan(survey, job, found.items, traffic, gap)
    reports = offer.kind == REPORTED
    return {
        "rule": rule.name,
        "finds": rule.finds,
        "kind": offer.kind,
        "declares": offer.declares,
        "versions": rule.versions,
        "items": round(found.items),
        "is_exact": found.is_exact,
        "bytes": [0.0, 0.0, 0.0] if reports else list(size),
        "measured": found.size.measured,
        "unknown": round(found.unknown),
        "why_unknown": found.why,
        "install": "" if reports else _installed(offer.job, shape, rate),
        "rate": None if reports else rate,
        "seconds": None if reports else seconds,
    }


def _ttl_offer(
    survey: Survey, shape: str, family: Family, owner: str, traffic: float
) -> Iterator[dict[str, Any]]:
    """Yield the offer to give the keys of a family a time to live, where many have none."""
    endless = family.endless.of(family.keys)
    if (
        endless.value < _LEAST_ENDLESS
        or owner in _ENDS_ITS_OWN
        or not any(each in NAMES for each in shape)
        or pattern_of(shape) == "*"
    ):
        return
    size = family.bytes.of(family.keys)
    share = family.endless.mean
    job = _TIME_TO_LIVE.result(survey.client, shape)
    rate, seconds = _plan(survey, job, endless.value, traffic, 0.0)
    yield {
        "rule": "families.without_ttl",
        "finds": "Keys of a declared family without a time to live.",
        "kind": DECLARED,
        "declares": "ttl",
        "versions": "",
        "items": round(endless.value),
        "is_exact": endless.is_exact,
        "bytes": [share * each for each in size],
        "measured": family.bytes.measured,
        "unknown": 0,
        "why_unknown": "",
        "install": _installed(_TIME_TO_LIVE, shape, rate),
        "rate": rate,
        "seconds": seconds,
    }


def _installed(job: Call, shape: str, rate: float) -> str:
    return f"recruiter.install({job.text(shape)}, rate={min(1.0, rate):g})"


def _plan(
    survey: Survey, job: Leftovers, items: float, traffic: float, gap: float
) -> tuple[float, float]:
    # A rule that only reports gets no slices, but for those of a dry run.
    rules = sum(not each.reports_only for each in job.rules)
    return plan(items, survey.families.keys, max(1, rules), traffic, gap, limit=job.limit)


def plan(
    items: float, keys: int, rules: int, traffic: float, gap: float, *, limit: int
) -> tuple[float, float]:
    """Return the rate for a job, and the seconds until its backlog is gone.

    Arguments: items: of garbage; keys: of the server, past which its walks lead; rules: of the job,
    among which a slice chooses; traffic: callers who enlist, a second; gap: between two sightings,
    in seconds; limit: the items of a slice. The backlog is taken for the garbage of 30 days, and
    goes within a day where the traffic allows it. A rate above 1 means that it does not.
    """
    inflow = items / _CAME_IN
    laps = rules * (1 + math.ceil(keys / _KEYS_A_SLICE))
    slices = (rules * math.ceil(items / limit) + 2 * laps) / (HIGHEST_UTILISATION * traffic)
    rate = round_up(
        max(
            rules * choose_rate_at_random(traffic, inflow, limit, _LAG),
            slices / _GONE_IN,
            min(_SMALL_RATE, slices / _GONE_SOON),
        )
    )
    said = forecast(traffic / rules, inflow, limit, min(1.0, rate))
    walk = laps / (traffic * min(1.0, rate))
    return rate, gap + walk + said.drain_seconds(items)


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(each or 0 for each in values)


# ---- for people ----------------------------------------------------------------------------------

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(size: float) -> str:
    """Return bytes for people."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def frees_text(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the bytes that some findings free, for people."""
    if not any(each["measured"] for each in findings):
        return UNKNOWN
    return size_text(sum(each["bytes"][0] for each in findings))


def span_text(seconds: float) -> str:
    """Return a duration for people."""
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return (
                f"{seconds / length:,.3g} {unit}"
                if seconds < 1000 * length
                else (f"{seconds / length:,.0f} {unit}")
            )
    return f"{seconds:.3g} s"


def owner_text(family: Mapping[str, Any]) -> str:
    """Return a family's owner and its version, for people."""
    return " ".join(filter(None, (family["owner"], family["version"])))


def oldest_text(family: Mapping[str, Any]) -> str:
    """Return how old a family's oldest key is, and how that is known, for people."""
    age = family["oldest_seconds"]
    by = {"idle": " idle", "ttl": " by TTL"}.get(family["oldest_by"], "")
    return UNKNOWN if age is None else f"{span_text(age)}{by}"


def error_text(estimate: Sequence[float]) -> str:
    """Return how wide an estimate's interval is, for people; empty for an exact one."""
    value, low, high = estimate
    half = max(value - low, high - value)
    return f"±{100 * half / value:.1g} %" if value and half > 0.0005 * value else ""


HEADINGS = (
    "family",
    "owner",
    "type",
    "keys",
    "bytes",
    "",
    "no TTL",
    "oldest",
    "garbage",
    "items",
    "frees",
)


def rows(report: Mapping[str, Any], most: int) -> list[tuple[str, ...]]:
    """Return the table's rows, the largest family first. Arguments: most: how many."""
    found: list[tuple[str, ...]] = []
    for each in report["families"][:most]:
        sure = [one for one in each["findings"] if one["kind"] == each["garbage"]]
        found.append(
            (
                each["family"],
                owner_text(each),
                "/".join(each["types"]) or UNKNOWN,
                f"{each['keys']:,}",
                size_text(each["bytes"][0]) if each["measured"] else UNKNOWN,
                error_text(each["bytes"]),
                f"{each['without_ttl'][0]:,.0f}",
                oldest_text(each),
                each["garbage"],
                f"{sum(one['items'] for one in sure):,}" if sure else "",
                frees_text(sure) if sure else "",
            )
        )
    return found


def ways(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines by which garbage is collected, each once, with what it frees.

    Several rules and families share a line. The kinds that are surer come first, then what frees
    more.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for family in report["families"]:
        for each in family["findings"]:
            if not each["items"] or not each["install"]:
                continue
            line = re.sub(r", rate=[\d.e-]+\)$", "", each["install"])
            # One line collects what is certain and what is likely.
            of = (line, "" if each["kind"] in (CERTAIN, LIKELY) else each["kind"])
            known = found.setdefault(
                of,
                {
                    "line": line,
                    "kinds": [],
                    "declares": each["declares"],
                    "items": 0,
                    "bytes": 0.0,
                    "measured": 0,
                    "rate": 0.0,
                    "seconds": 0.0,
                    "finds": [],
                },
            )
            known["items"] += each["items"]
            known["bytes"] += each["bytes"][0]
            known["measured"] += each["measured"]
            known["rate"] = max(known["rate"], each["rate"])
            known["seconds"] = max(known["seconds"], each["seconds"])
            if each["kind"] not in known["kinds"]:
                known["kinds"].append(each["kind"])
            if each["finds"] not in known["finds"]:
                known["finds"].append(each["finds"])
    order = (CERTAIN, LIKELY, DECLARED)
    for each in found.values():
        each["kinds"].sort(key=order.index)
        each["line"] = f"{each['line']}, rate={min(1.0, each['rate']):g})"
    return sorted(found.values(), key=lambda each: (order.index(each["kinds"][0]), -each["bytes"]))


def load_report(path: Path) -> dict[str, Any]:
    """Return the result that --json has printed into a file.

    Arguments: path. Raises: ConfigurationError if there is none.
    """
    try:
        with path.open(encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be read as the result of a survey: {type(error).__name__}"
        ) from error
    if not isinstance(report, dict) or report.get("survey") != FORMAT:
        raise ConfigurationError(f"{str(path)!r} is no result of workstealing survey --json")
    return report
