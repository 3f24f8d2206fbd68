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
from workstealing.jobs.family_leftovers import DeadTags, KeysWithoutTtl
from workstealing.jobs.leftovers import Basis, Call, Leftovers
from workstealing.jobs.leftovers.job import PAGES_A_SLICE
from workstealing.jobs.leftovers.walk import KEYS_A_PAGE
from workstealing.recruiting.forecast import (
    HIGHEST_UTILISATION,
    choose_rate_at_random,
    forecast,
    round_up,
)
from workstealing.recruiting.job import counted
from workstealing.survey.families import NAMES, Family, pattern_of, shown
from workstealing.survey.garbage import CERTAIN, DECLARED, ENDLESS, LIKELY, REPORTED
from workstealing.survey.owners import CERTAIN as SURE
from workstealing.survey.owners import OWN, UNKNOWN, certainty_of
from workstealing.survey.sizing import Estimate, Finding, total_of
from workstealing.survey.surveying import Survey

FORMAT = 2
"""The layout of the JSON."""

NONE = "none"
_KEYS_A_SLICE = KEYS_A_PAGE * PAGES_A_SLICE
_RATE = re.compile(r", rate=[\d.e-]+\)$")
_TIME_TO_LIVE = KeysWithoutTtl("*")
# A backlog is taken for the garbage of so long. It is to be gone in a day, or in minutes if that
# takes no more than a small rate.
_CAME_IN, _GONE_IN, _LAG = 30 * 86_400.0, 86_400.0, 3_600.0
_GONE_SOON, _SMALL_RATE = 600.0, 0.001
_LEAST_ENDLESS = 100
OWN_KEYS = "workstealing's own keys"
# A list, a sorted set or a stream may be a queue or a schedule, and its work is never let end.
_MAY_END = frozenset({"string", "hash", "set"})
# Of so many members that were looked at, a part must be there and a part gone.
_LEAST_TAGS = 16


def report_of(survey: Survey, traffic: float) -> dict[str, Any]:
    """Return the result of a survey as plain data.

    Arguments:
        survey: one that has run.
        traffic: callers who enlist, a second, for the rates.

    Returns: a dict for JSON. Each estimate is a list of the value and the two ends of its interval
    of 95 %. No round trip.
    """
    total = survey.families.keys
    families = _families(survey, traffic)
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
            "database": survey.database,
            "other_databases": {
                str(number): keys for number, keys in sorted(survey.other_databases.items())
            },
        },
        "keys": total,
        "bytes": list(total_of([Estimate(*each["bytes"]) for each in families])),
        "freed": freed,
        "families": families,
        "hints": list(_hints(survey)),
        "traffic_per_s": traffic,
        "seconds": survey.seconds,
        "server_seconds": survey.reader.seconds,
        "load": survey.reader.seconds / survey.seconds if survey.seconds else 0.0,
        "commands": survey.reader.commands,
        "notes": [*_databases(survey), *survey.reader.notes],
    }


def _databases(survey: Survey) -> Iterator[str]:
    """Yield a sentence if the server has databases that were not read."""
    others = survey.other_databases
    if others:
        told = ", ".join(f"{number} ({keys:,} keys)" for number, keys in sorted(others.items()))
        yield (
            f"only database {survey.database} was read; the server has more: {told}: give the URL"
            " of each, which ends with its number"
        )


def _families(survey: Survey, traffic: float) -> list[dict[str, Any]]:
    """Return all families; workstealing's own keys are one."""
    found: list[dict[str, Any]] = []
    own = Family()
    shapes = 0
    for shape, each in survey.families.shapes():
        if _most(each.owners) == OWN:
            own.merge(each)
            shapes += 1
        else:
            found.append(_family(survey, shape, each, traffic))
    if shapes:
        merged = _family(survey, OWN_KEYS, own, traffic)
        found.append({**merged, "pattern": "", "findings": [], "garbage": NONE})
    return found


def _most(counts: Mapping[str, int]) -> str:
    return max(counts, key=lambda each: counts[each], default=UNKNOWN)


def _owner(family: Family, types: Sequence[str]) -> tuple[str, str]:
    """Return a family's owner, and how sure that is."""
    owner = _most(family.owners)
    if owner == OWN:
        return OWN, SURE
    if owner == UNKNOWN:
        return UNKNOWN, ""
    proofs = family.proofs.get(owner, [0, 0])
    certainty = certainty_of(owner, family.examples[0], types, proofs)
    return (owner, certainty) if certainty else (UNKNOWN, "")


def _hints(survey: Survey) -> Iterator[dict[str, Any]]:
    """Yield what looks like garbage to a person, and what no rule says.

    Sets that nobody knows, whose members name keys of which some are there and some are gone.
    """
    for shape, family in survey.families.shapes():
        there, looked = family.tags
        if looked < _LEAST_TAGS or not 0 < there < looked or _most(family.owners) != UNKNOWN:
            continue
        tags = DeadTags("*", "zset" if "zset" in family.types else "set")
        install = tags.offer().job.text(pattern_of(shape))
        yield {
            "family": shown(shape),
            "looked_at": looked,
            "gone": looked - there,
            "says": (
                f"of {looked:,} members that were looked at, {looked - there:,} name keys that are"
                f" not there, and {there:,} name keys that are: if these are tags, and their owner"
                " writes key and member at once, a job removes the dead ones"
            ),
            "install": f"recruiter.install({install}, rate={_SMALL_RATE:g})",
        }


def _family(survey: Survey, shape: str, family: Family, traffic: float) -> dict[str, Any]:
    types = sorted(family.types, key=lambda each: -family.types[each])
    owner, certainty = _owner(family, types)
    size = family.bytes.of(family.keys)
    endless = family.endless.of_share(family.keys)
    findings = [
        _finding(survey, name, shape, found, traffic)
        for name, found in sorted(family.findings.items())
        if found.items or found.unknown
    ]
    if not any(each["items"] for each in findings):
        findings += _ttl_offer(survey, shape, family, traffic)
    age, known_by = _oldest(family)
    kinds = {each["kind"] for each in findings if each["items"]}
    return {
        "family": shown(shape),
        "pattern": pattern_of(shape),
        "owner": owner,
        "owner_certainty": certainty,
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
    asked = survey.judges.asked[name]
    rule, offer = asked.rule, asked.offer
    gap = rule.certainty.gap if rule.certainty.basis is Basis.SEEN_TWICE else 0.0
    size = found.size.of(found.items)
    items = found.estimate
    if size.value and not items.is_exact:
        # The number of items is uncertain, too.
        size = _product(size, items)
    job = offer.job.result(survey.client, pattern_of(shape))
    rate, seconds = _plan(survey, job, found.items, traffic, gap)
    reports = asked.kind == REPORTED
    return {
        "rule": rule.name,
        "finds": rule.finds,
        "kind": asked.kind,
        "declares": offer.declares,
        "versions": rule.versions,
        "unit": rule.unit,
        "items": round(found.items),
        "items_interval": [round(items.low), round(items.high)],
        "is_exact": found.is_exact,
        "bytes": [0.0, 0.0, 0.0] if reports else list(size),
        "measured": found.size.measured,
        "unknown": round(found.unknown),
        "why_unknown": found.why,
        "install": "" if reports else _installed(offer.job, shape, rate),
        "removes": "" if reports else _installed(offer.job, shape, rate, removes=True),
        "rate": None if reports else rate,
        "seconds": None if reports else seconds,
    }


def _ttl_offer(
    survey: Survey, shape: str, family: Family, traffic: float
) -> Iterator[dict[str, Any]]:
    """Yield the offer to give the keys of a family a time to live, where many have none.

    Nothing says that they are garbage, so the user must know. The offer is made only for families
    without a known owner: the programs that are known keep primary data and work without an end, or
    end their keys by themselves.
    """
    endless = family.endless.of_share(family.keys)
    if (
        endless.value < _LEAST_ENDLESS
        or _most(family.owners) != UNKNOWN
        or not set(family.types) <= _MAY_END
        or not any(each in NAMES for each in shape)
        or pattern_of(shape) == "*"
    ):
        return
    size = family.bytes.of(family.keys)
    share = endless.value / family.keys
    rule, call = _TIME_TO_LIVE, _TIME_TO_LIVE.offer().job
    job = call.result(survey.client, pattern_of(shape))
    rate, seconds = _plan(survey, job, endless.value, traffic, 0.0)
    yield {
        "rule": rule.name,
        "finds": rule.finds,
        "kind": ENDLESS,
        "declares": "ttl",
        "versions": "",
        "unit": rule.unit,
        "items": round(endless.value),
        "items_interval": [round(endless.low), round(endless.high)],
        "is_exact": endless.is_exact,
        "bytes": [share * each for each in size],
        "measured": family.bytes.measured,
        "unknown": 0,
        "why_unknown": "",
        "install": _installed(call, shape, rate),
        "removes": _installed(call, shape, rate, removes=True),
        "rate": rate,
        "seconds": seconds,
    }


def _installed(job: Call, shape: str, rate: float, *, removes: bool = False) -> str:
    line = job.text(pattern_of(shape), removes=removes)
    return f"recruiter.install({line}, rate={min(1.0, rate):g})"


def _product(size: Estimate, items: Estimate) -> Estimate:
    """Return a size with the uncertainty of its number of items added; both are relative."""
    below = math.hypot(1 - size.low / size.value, 1 - items.low / items.value)
    above = math.hypot(size.high / size.value - 1, items.high / items.value - 1)
    return Estimate(size.value, size.value * max(0.0, 1 - below), size.value * (1 + above))


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

    Arguments:
        items: of garbage.
        keys: of the server, past which its walks lead.
        rules: of the job, among which a slice chooses.
        traffic: callers who enlist, a second.
        gap: between two sightings, in seconds.
        limit: the items of a slice.

    The backlog is taken for the garbage of 30 days, and goes within a day where the traffic allows
    it. A rate above 1 means that it does not.
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


def about_text(estimate: Sequence[float]) -> str:
    """Return an estimate of bytes with its interval, for people: "1.2 MB ±3 %"."""
    return " ".join(filter(None, (size_text(estimate[0]), error_text(estimate))))


def frees_text(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the bytes that some findings free, for people."""
    if not any(each["measured"] for each in findings):
        return UNKNOWN
    return about_text(total_of([Estimate(*each["bytes"]) for each in findings]))


def amount_text(estimate: Sequence[float], unit: str) -> str:
    """Return a number of items with its interval, for people: "about 15,000 members ±3 %"."""
    spread = error_text(estimate)
    told = counted(estimate[0], unit)
    return f"about {told} {spread}" if spread else told


def where_text(report: Mapping[str, Any]) -> str:
    """Return which server and database a survey has read, for people."""
    server = report["server"]
    product = " ".join(filter(None, (server["product"], server["version"]))) or "a server"
    nodes = f" of {server['nodes']} nodes" if server["nodes"] > 1 else ""
    return f"database {server['database']} of {product}{nodes}"


def share_text(report: Mapping[str, Any]) -> str:
    """Return the share of the server's used memory that the keys have; empty if unknown."""
    used = report["server"]["used_bytes"]
    if not used:
        return ""
    share = 100 * report["bytes"][0] / used
    return f"{share:.2g} % of the server's used_memory, {size_text(used)}"


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
    """Return a family's owner and its version, for people; "probably" if its name alone says so."""
    probably = "probably" if family["owner_certainty"] == "probable" else ""
    return " ".join(filter(None, (probably, family["owner"], family["version"])))


def oldest_text(family: Mapping[str, Any]) -> str:
    """Return how old a family's oldest key is, and how that is known, for people."""
    age = family["oldest_seconds"]
    by = {"idle": " idle", "ttl": " by TTL"}.get(family["oldest_by"], "")
    return UNKNOWN if age is None else f"{span_text(age)}{by}"


def error_text(estimate: Sequence[float]) -> str:
    """Return how wide an estimate's interval is, for people; empty for an exact one."""
    value, low, high = estimate
    half = max(value - low, high - value)
    if not value or half <= 0.0005 * value:
        return ""
    percent = 100 * half / value
    return f"±{percent:.1g} %" if percent < 9.5 else f"±{percent:.0f} %"


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


def endless_text(family: Mapping[str, Any]) -> str:
    """Return how many keys of a family have no time to live, for people."""
    value, low, high = family["without_ttl"]
    return f"{'' if low == high else 'about '}{value:,.0f}"


def items_of(finding: Mapping[str, Any]) -> Estimate:
    """Return the number of a finding's items with its interval."""
    return Estimate(finding["items"], *finding["items_interval"])


def items_text(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return how many items some findings are, by their units, for people."""
    return ", ".join(amount_text(*each) for each in amounts_of(findings))


def amounts_of(findings: Sequence[Mapping[str, Any]]) -> list[tuple[Estimate, str]]:
    """Return how many items some findings are, with the interval: those of each unit together."""
    found: dict[str, list[Estimate]] = {}
    for each in findings:
        if each["items"]:
            found.setdefault(each["unit"], []).append(items_of(each))
    return [(total_of(some), unit) for unit, some in found.items()]


def rows(report: Mapping[str, Any], most: int) -> list[tuple[str, ...]]:
    """Return the table's rows, the largest family first.

    Arguments:
        most: how many.
    """
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
                endless_text(each),
                oldest_text(each),
                each["garbage"],
                items_text(sure),
                frees_text(sure) if sure else "",
            )
        )
    return found


def ways(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines by which garbage is collected, each once, with what it frees.

    Several rules and families share a line. The kinds that are surer come first, then what frees
    more; keys without a time to live, which nothing calls garbage, come last.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for family in report["families"]:
        for each in family["findings"]:
            if each["items"] and each["install"]:
                # One line collects what is certain and what is likely.
                kind = "" if each["kind"] in (CERTAIN, LIKELY) else each["kind"]
                found.setdefault((_RATE.sub("", each["install"]), kind), []).append(each)
    order = (CERTAIN, LIKELY, DECLARED, ENDLESS)
    ways = []
    for (line, _), some in found.items():
        rate = max(each["rate"] for each in some)
        shown_rate = f", rate={min(1.0, rate):g})"
        ways.append(
            {
                "line": line + shown_rate,
                "removes": _RATE.sub("", some[0]["removes"]) + shown_rate,
                "kinds": sorted({each["kind"] for each in some}, key=order.index),
                "declares": some[0]["declares"],
                "amounts": amounts_of(some),
                "bytes": list(total_of([Estimate(*each["bytes"]) for each in some])),
                "measured": sum(each["measured"] for each in some),
                "rate": rate,
                "seconds": max(each["seconds"] for each in some),
                "finds": list(dict.fromkeys(each["finds"] for each in some)),
            }
        )
    return sorted(ways, key=lambda each: (order.index(each["kinds"][0]), -each["bytes"][0]))


HOW_TO = (
    "Each first line is a dry run: it counts, and changes nothing. The second one, with"
    " dry_run=False, does it: take it when the counts are right."
)
_NO_GARBAGE = (
    "Nothing says that they are garbage, and primary data may be among them. If you know that they"
    " may end, a line gives them a time to live."
)
SECTIONS: Sequence[tuple[tuple[str, ...], str, str]] = (
    ((CERTAIN, LIKELY), "To remove it", ""),
    ((DECLARED,), "Garbage, if what you declare in <> makes it that", ""),
    ((ENDLESS,), "Keys without a time to live", _NO_GARBAGE),
)
"""The sections of a result: the kinds of the lines in it, a heading, and a sentence below."""


def way_text(way: Mapping[str, Any]) -> str:
    """Return what a line does, for people, in one sentence."""
    amounts = ", ".join(amount_text(*each) for each in way["amounts"])
    size = about_text(way["bytes"]) if way["measured"] else "of an unknown size"
    late = "; this traffic is too small" if way["rate"] > 1 else ""
    if way["kinds"] == [ENDLESS]:
        span = span_text(way["seconds"])
        return f"{amounts}, {size}, would get half to double of the TTL, within {span}{late}"
    kinds = [each for each in way["kinds"] if each != DECLARED]
    kind = f"{' and '.join(kinds)}: " if kinds else ""
    assumed = f", assuming {way['declares']}" if "=" in way["declares"] else ""
    return f"{kind}{amounts}, {size}{assumed}; gone in {span_text(way['seconds'])}{late}"


def load_report(path: Path) -> dict[str, Any]:
    """Return the result that --json has printed into a file.

    Raises: ConfigurationError if there is none.
    """
    try:
        with path.open(encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be read as the result of a survey: {type(error).__name__}"
        ) from error
    layout = report.get("survey") if isinstance(report, dict) else None
    if isinstance(layout, int) and layout != FORMAT:
        raise ConfigurationError(
            f"{str(path)!r} is of another version of the survey (layout {layout}, and not"
            f" {FORMAT}): run workstealing survey --json anew"
        )
    if layout != FORMAT:
        raise ConfigurationError(f"{str(path)!r} is no result of workstealing survey --json")
    found: dict[str, Any] = report
    return found
