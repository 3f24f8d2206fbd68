"""What the load generator asks for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

POPULAR_ITEMS = 400
EXPONENT = 1.1
ONCE = 0.15
CONDITIONAL = 0.25
SEED = 2


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its target, and whether it shows the ETag of its last answer."""

    target: str
    conditional: bool = False


def zipf_requests(
    count: int,
    *,
    seed: int = SEED,
    popular: int = POPULAR_ITEMS,
    exponent: float = EXPONENT,
    once: float = ONCE,
    conditional: float = CONDITIONAL,
) -> list[Request]:
    """Return requests for Zipf-distributed items with a long tail that is visited once.

    Arguments: count; seed; popular, how many items are visited again and again, the one at rank r
    with weight r ** -exponent; once, the share of requests for an item that nobody else asks for;
    conditional, the share of requests that show an ETag. The same arguments give the same requests.
    """
    chance = random.Random(seed)
    bounds = list(itertools.accumulate(rank**-exponent for rank in range(1, popular + 1)))
    ranks = chance.choices(range(1, popular + 1), cum_weights=bounds, k=count)
    requests = []
    for number, rank in enumerate(ranks):
        target = f"/item/once-{number}" if chance.random() < once else f"/item/{rank}"
        requests.append(Request(target, conditional=chance.random() < conditional))
    return requests


def looped(requests: Sequence[Request], count: int) -> list[Request]:
    """Return `count` requests: those given, over and over."""
    return list(itertools.islice(itertools.cycle(requests), count))
