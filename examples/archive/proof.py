"""What must be true at the end, asked of the database and of Redis itself."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archive.parts import Parts, lock_name, page_key
from archive.store import words_of
from archive.web import FRONT_PAGE


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


def dashboard_says(address: str, word: str) -> bool:
    """Say whether the dashboard's page has a word on it."""
    with urllib.request.urlopen(f"{address}/workstealing/", timeout=30) as answer:  # noqa: S310
        return word in answer.read().decode()
