"""Whether a seek to ten entries in the middle of a log costs the same however long the log is.

A seek in a log of 100,000 entries is the reference, in each form. The long logs are made of the
same blocks again and again, written as they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from figures import Figure
from log_sides import Comparison, Meter, blocks_of, fill_blocks
from servers import RedisServer

from support.log_entries import entries

SHORT = 100_000
SIZES = {"list": [1_000_000], "raw": [1_000_000], "zstd": [1_000_000, 10_000_000]}
# 1 GB each for lists and raw blocks, 2.5 GB for compressed ones.
LARGE = {"list": [10_000_000], "raw": [10_000_000], "zstd": [100_000_000]}
AT_MOST = 1.2
ROUNDS = 20
SEEKS = 200


def measure(server: RedisServer) -> list[Figure]:
    """Measure seeks in logs of 10^5 entries beside those in longer ones, for each form."""
    return _measured(server, SIZES)


def measure_large(server: RedisServer) -> list[Figure]:
    """Measure them in logs of 10^7 and, compressed, 10^8 entries; takes 3 GB of memory."""
    return _measured(server, LARGE)


def _measured(server: RedisServer, sizes: dict[str, list[int]]) -> list[Figure]:
    client = server.client()
    meter = Meter(client)
    content = entries(SHORT)
    figures = []
    for form, longs in sizes.items():
        blocks = blocks_of(content, form)
        short = fill_blocks(client, f"{form}-{SHORT}", blocks, SHORT)
        for entries_in_all in longs:
            long = fill_blocks(client, f"{form}-{entries_in_all}", blocks, entries_in_all)
            costs = Comparison(
                meter, _seeks(long, entries_in_all), _seeks(short, SHORT), SEEKS, ROUNDS
            )
            figures += costs.costs(
                f"log_seek_in_{entries_in_all:.0e}_{form}", "the seek in 10^5", AT_MOST
            )
            long.delete()
        short.delete()
    return figures


def _seeks(log: Any, entries_in_all: int) -> Callable[[], None]:
    rng = random.Random(5)

    def run() -> None:
        for _ in range(SEEKS):
            found = log.read(rng.randrange(entries_in_all - 10), 10)
            if len(found) != 10 or None in found:
                raise AssertionError("a seek has not found its entries")

    return run
