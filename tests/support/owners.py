"""Other programs whose garbage is collected: jobs of their rules, and their sightings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from support.servers import wait_until
from workstealing.errors import Aborted
from workstealing.jobs.leftovers import Item, Leftovers, Rule
from workstealing.recruiting import Slice


def collected(job: Leftovers, slices: int = 60) -> int:
    """Walk by all rules of a job from the beginning; return how many items were removed."""
    job.restart()
    total = 0
    for _ in range(slices):
        try:
            total += job.perform(Slice(100, 30.0))
        except Aborted:
            continue
    return total


def age(client: Any, seconds: float = 60 * 86_400) -> int:
    """Let all sightings be older; return how many there are."""
    names = set(client.scan_iter("*:seen:*", count=1000))
    for name in names:
        since, _, fingerprint = client.get(name).partition(b":")
        client.set(name, b"%d:%b" % (int(since) - seconds, fingerprint), keepttl=True)
    return len(names)


def chosen(seed: int = 1) -> Any:
    """Return a random that draws the same rules in each run."""
    return random.Random(seed).random


def owned(client: Any) -> dict[bytes, bytes]:
    """Return all keys but ours, with their values."""
    names = [key for key in client.scan_iter(count=1000) if b":ws:" not in key]
    return {key: value for key in names if (value := client.dump(key)) is not None}


def waited(is_so: Callable[[], Any]) -> None:
    """Wait until the owner's processes have done something."""
    wait_until(lambda: bool(is_so()), "a process of the owner's", 120.0)


def attempt_by(client: Any, rule: Rule, item: Item) -> None:
    """Do an attempt on one item; for `refute`."""
    job = Leftovers(client, [rule], name="refuted", dry_run=False, random=lambda: 0.0)
    seconds, micros = client.time()
    job.remover.remove(rule, [item], [b""], seconds + micros / 1e6, Slice(10, 3600.0))


def slices_by(client: Any, rules: Sequence[Rule]) -> None:
    """Do one slice by a single rule; for `refute`."""
    job = Leftovers(client, rules, name="refuted", dry_run=False, random=lambda: 0.0)
    job.perform(Slice(10, 3600.0))
