"""What must be true at the end, asked of the database and of Redis itself."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archive.parts import Parts, lock_name, page_key, with_jobs
from archive.store import words_of
from archive.web import FRONT_PAGE
from workstealing import Recruiter
from workstealing.metrics.minutes import total
from workstealing.metrics.reading import read
from workstealing.recruiting.slice import OUTCOMES


@dataclass(frozen=True)
class Claim:
    """Something that must hold.

    Fields: text: of it; lost: how many pages, marks or entries contradict it; 0: it is proved.
    """

    text: str
    lost: int


def claims(mine: Parts, acknowledged: Mapping[str, int]) -> Iterator[Claim]:
    """Yield the claims; nobody writes any more.

    Arguments:
        mine: the parts, here of a process that did none of the work.
        acknowledged: the highest version of each page whose capture was answered.
    """
    pages = {
        str(page): (int(str(version)), str(body))
        for page, version, body in mine.store.rows("SELECT id, version, body FROM pages")
    }
    index = {
        str(page): (version, words)
        for page, version, words in mine.store.rows("SELECT id, version, words FROM search")
    }
    nothing = (0, "")
    yield Claim(
        f"the database has every capture that was acknowledged ({len(acknowledged)} pages)",
        sum(pages.get(page, nothing)[0] < version for page, version in acknowledged.items()),
    )
    yield Claim(
        f"the index has the last version of each page, word by word ({len(pages)} pages)",
        sum(
            index.get(page) != (version, words_of(body)) for page, (version, body) in pages.items()
        ),
    )
    yield Claim("no task is left in the database", mine.store.count("tasks WHERE state = 'queued'"))
    stats = mine.dirty.stats() or {}
    yield Claim(
        "the Ick holds nothing: none waits, none is in a dead hand, none is set aside",
        sum(stats.get(each, 0) for each in ("pset_size", "cset_size", "dead_size")),
    )
    yield Claim("the TrackedSet names no page as queued, and none is", mine.queued.count())
    # By Redis itself: the structures would not show what has expired.
    yield Claim("no lock is left, not even of the killed worker", len(lock_keys(mine)))
    yield Claim(
        "no expired field takes memory: the front page alone is cached", len(cache_keys(mine))
    )


def lock_keys(mine: Parts) -> list[bytes]:
    """Return the keys in Redis that belong to locks, whether or not these have ended."""
    return _keys(mine, lock_name("*"))


def cache_keys(mine: Parts) -> list[bytes]:
    """Return the keys in Redis that belong to cached pages, but for the front page's."""
    front = page_key(FRONT_PAGE).encode()
    return [key for key in _keys(mine, page_key("*")) if not key.endswith(front)]


def _keys(mine: Parts, pattern: str) -> list[bytes]:
    # With the keys that the package keeps beside a user's key; its name is a part of theirs.
    return list(mine.client.scan_iter(match=f"*{pattern}", count=500))


def slices(mine: Parts) -> dict[str, int]:
    """Return how many slices of each job the fleet's ledger has counted in the last hour."""
    counted = total(read(mine.client))
    return {
        name: sum(getattr(counted[name], outcome) for outcome in OUTCOMES) if name in counted else 0
        for name in with_jobs(Recruiter(), mine, 1.0).jobs()
    }


def dashboard(address: str) -> str:
    """Return the dashboard's page, as a browser gets it."""
    with urllib.request.urlopen(f"{address}/workstealing/", timeout=30) as answer:  # noqa: S310
        page: str = answer.read().decode()
    return page


_ROW = re.compile(
    r'<tr data-id=.*?data-field="name">([^<]*)</bdi>.*?data-field="outcomes">([^<]*)</span>', re.S
)


def shown(page: str) -> dict[str, int]:
    """Return how many slices the dashboard's page shows in each job's row, such as "3 worked"."""
    return {
        name: sum(int(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", outcomes))
        for name, outcomes in _ROW.findall(page)
    }


def dashboard_claim(page: str, least: Mapping[str, int], most: Mapping[str, int]) -> Claim:
    """Claim that the dashboard has a row for each job, with the slices that the ledger counted.

    Arguments:
        page: that was asked for between the two counts of the ledger.
    """
    rows = shown(page)
    return Claim(
        f"the dashboard shows each of the {len(least)} jobs, with its slices by the ledger"
        f" ({sum(rows.get(job, 0) for job in least)})",
        sum(not 0 < least[job] <= rows.get(job, 0) <= most[job] for job in least),
    )


def visitors_claim(counts: Mapping[str, int]) -> Claim:
    """Claim that no visitor was answered with an error.

    Arguments:
        counts: of `Traffic`.
    """
    asked = sum(counts.values())
    return Claim(f"no visitor was answered with an error ({asked} requests)", counts["error"])
