"""Nobody stores an older result: late requests, clocks set back, full memory, forks, failovers."""

from __future__ import annotations

from typing import Any

import pytest

from support.computing import leased_fields
from support.servers import RedisServer
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes.commands import LEASE, STORE

LONG: dict[str, Any] = {"ttl": 600.0, "wait": 60.0, "lease": 600.0, "key": "row", "field": "f"}


def hashes_on(server: RedisServer, **options: Any) -> Any:
    return VolatileHashes(server.client(), namespace="cached", **options)


class TestLateRequests:
    """A request that a client has sent again may come once more, however late."""

    @pytest.mark.parametrize("backend", ["emulated", "native"])
    @pytest.mark.parametrize("by", ["a call", "refresh"])
    @pytest.mark.parametrize("then", ["invalidate", "delete", "refresh"])
    @pytest.mark.parametrize("late", ["before the store", "before the store comes again"])
    def test_a_lease_that_was_voided_comes_not_back(
        self, redis8: RedisServer, backend: str, by: str, then: str, late: str
    ) -> None:
        hashes, sent = hashes_on(redis8, backend=backend), []
        other = hashes.cached(**LONG)(lambda: "new")

        @hashes.cached(**LONG)
        def row() -> str:
            if late == "before the store":
                forget()
                hashes.execute_command(*sent[0])
            return "old"

        def forget() -> None:
            if then == "refresh":
                other.refresh()
            hashes.delete("row") if then == "delete" else other.invalidate()

        send = row._send

        def noting(request: Any) -> Any:
            if isinstance(request, tuple) and request[0] in (LEASE, STORE):
                sent.append(request)
            return send(request)

        row._send = noting
        assert (row() if by == "a call" else row.refresh()) == "old"
        if late != "before the store":
            forget()
            for request in sent:
                hashes.execute_command(*request)
        assert [each[0] for each in sent] == [LEASE, STORE]
        assert hashes.hget("row", "f") is None
        if late == "before the store":
            assert not leased_fields(hashes, "row")
