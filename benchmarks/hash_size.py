"""What volatile hashes take of memory: an emulated namespace beside a native one, on one server."""

from __future__ import annotations

import random
from typing import Any

from figures import Figure, Target
from servers import RedisServer

from workstealing.structures import VolatileHashes

HASHES, A_CALL = 20_000, 500
# The fields of a hash, and the bytes of a value.
SHAPES = ((10, 16), (10, 32), (10, 64), (1, 32))
# Promised for hashes of ten fields. Where values are short it is missed: each field has an entry of
# about 20 bytes in the deadlines, and each hash one of 100 in the due index.
AT_MOST = 1.45


def measure(server: RedisServer, stored: int = HASHES) -> list[Figure]:
    """Measure the bytes of a hash, by used_memory, and their ratio to native."""
    figures = []
    for fields, size in SHAPES:
        mine, theirs = (
            _bytes(server, backend, stored, fields, size) for backend in ("emulated", "native")
        )
        target = Target(most=AT_MOST) if fields == 10 else None
        values = {"ours": round(mine / stored, 1), "reference": round(theirs / stored, 1)}
        name = f"hash_bytes_{fields}_fields_of_{size}"
        ratio = round(mine / theirs, 3)
        figures.append(Figure(name, ratio, ratio, ratio, 1, "native", target, values))
    return figures


def _bytes(server: RedisServer, backend: str, stored: int, fields: int, size: int) -> int:
    client: Any = server.client()
    client.flushall()
    hashes = VolatileHashes(client, namespace="items", backend=backend)
    hashes.open()
    before = int(client.info("memory")["used_memory"])
    rng = random.Random(1)
    for first in range(0, stored, A_CALL):
        with hashes.pipeline(transaction=False) as p:
            for number in range(first, first + A_CALL):
                values = {f"field:{each}": rng.randbytes(size // 2).hex() for each in range(fields)}
                p.hsetex(f"item:{number}", mapping=values, px=rng.randrange(3_600_000, 7_200_000))
            p.execute()
    # What connections hold is no part of the hashes.
    client.client_kill_filter(_type="normal", skipme=True)
    used = int(client.info("memory")["used_memory"]) - before
    client.flushall()
    return used
