"""What a log's appends, reads and seeks cost, beside a Redis stream with the same entries.

A log is read in each of its forms: blocks that are lists, sealed ones (raw), compressed ones that
are decoded at each read (cold), and compressed ones from the client's cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from figures import Figure
from log_groups import group_costs
from log_sides import FIELD, Comparison, Meter, fill_log, fill_stream, stream_id
from servers import RedisServer

from support.log_entries import entries
from workstealing.structures import Log

APPENDED = 10_000
STORED = 100_000
ROUNDS = 20
MIDDLE = 10
SEEKS = 200
FORMS = {"list": "list", "raw": "raw", "cold": "zstd", "cached": "zstd"}
READ_AT_LEAST = 1.2
SEEK_AT_MOST = {"raw": 2.0, "cold": 6.0, "cached": 1.2}


def measure(server: RedisServer) -> list[Figure]:
    """Measure appends, those beside groups too, and reads of 1,000 and of ten in each form."""
    client = server.client()
    meter = Meter(client)
    figures = [*_appends(client, meter), *group_costs(client, meter)]
    content = entries(STORED)
    fill_stream(client, "stream", content)
    for form, stored_as in FORMS.items():
        log = fill_log(client, form, content, stored_as)
        if form == "cold":
            log = Log(client, form, cache_blocks=0)
        figures += _reads(client, meter, log, form)
        log.delete()
    return figures


def _appends(client: Any, meter: Meter) -> list[Figure]:
    content = entries(APPENDED)
    batches = [content[first : first + 1_000] for first in range(0, APPENDED, 1_000)]
    log: Any = Log(client, "appended")

    def thousands() -> None:
        for batch in batches:
            log.append(*batch)

    def ones() -> None:
        for entry in batches[0]:
            log.append(entry)

    def streamed_thousands() -> None:
        for batch in batches:
            pipeline = client.pipeline(transaction=False)
            for entry in batch:
                pipeline.xadd("streamed", {FIELD: entry})
            pipeline.execute()

    def streamed_ones() -> None:
        for entry in batches[0]:
            client.xadd("streamed", {FIELD: entry})

    many = Comparison(meter, thousands, streamed_thousands, APPENDED, ROUNDS)
    one = Comparison(meter, ones, streamed_ones, 1_000, ROUNDS)
    if not log.length() == client.xlen("streamed") == (ROUNDS + 1) * (APPENDED + 1_000):
        raise AssertionError("not everything was appended")
    log.delete()
    client.delete("streamed")
    return [
        *many.speeds("log_append_1000", "XADD, 1,000 by pipeline", 3.0),
        *one.speeds("log_append_1", "XADD"),
    ]


def _reads(client: Any, meter: Meter, log: Any, form: str) -> list[Figure]:
    rng = random.Random(11)
    # As few blocks as the client's cache holds; and none of them twice in turn where it is cold.
    blocks = STORED // 1_000
    read_from = [1_000 * (number * 37 % (blocks - 1)) + 123 for number in range(40)]
    seek_to = [rng.randrange(STORED - MIDDLE) for _ in range(SEEKS)]
    if form == "cached":
        read_from = [1_000 * (50 + number % 8) + 123 for number in range(40)]
        seek_to = [50_000 + number * 37 % 8_000 for number in range(SEEKS)]

    def read(count: int, offsets: list[int]) -> Callable[[], None]:
        def run() -> None:
            for offset in offsets:
                found = log.read(offset, count)
                if len(found) != count:
                    raise AssertionError(f"{len(found)} of {count} entries were read")

        return run

    def ranged(count: int, offsets: list[int]) -> Callable[[], None]:
        ids = [stream_id(offset) for offset in offsets]

        def run() -> None:
            for at in ids:
                found = client.xrange("stream", min=at, count=count)
                if len(found) != count:
                    raise AssertionError(f"{len(found)} of {count} entries were found")

        return run

    long = Comparison(
        meter, read(1_000, read_from), ranged(1_000, read_from), len(read_from), ROUNDS
    )
    short = Comparison(meter, read(MIDDLE, seek_to), ranged(MIDDLE, seek_to), SEEKS, ROUNDS)
    return [
        *long.speeds(f"log_read_1000_{form}", "XRANGE, 1,000", READ_AT_LEAST),
        *short.costs(f"log_seek_10_{form}", "XRANGE, ten in the middle", SEEK_AT_MOST.get(form)),
    ]
