"""A TimeShardQueue that others have removed and made anew, as a process sees it that lives on."""

from __future__ import annotations

from typing import Any

import pytest

from support.servers import AnyServer
from support.set_clock import SetClock
from workstealing.errors import ConfigurationError
from workstealing.structures import RedisStore, TimeShardQueue


def queue_of(server: AnyServer, shards: int) -> Any:
    return TimeShardQueue(RedisStore(server.client()), "letters", shards, clock=SetClock())


@pytest.mark.parametrize("call", ["put", "take", "stats", "delete"])
def test_who_was_refused_is_so_only_as_long_as_the_other_one_is_there(
    any_server: AnyServer, call: str
) -> None:
    """A worker that outlives the old queue would otherwise be refused until it is restarted."""
    four, six = queue_of(any_server, 4), queue_of(any_server, 6)
    four.put("old")
    calls = {
        "put": lambda: six.put("new"),
        "take": lambda: six.take("worker", drain_all=True),
        "stats": six.stats,
        "delete": six.delete,
    }
    with pytest.raises(ConfigurationError, match="has 4 time shards"):
        calls[call]()
    four.delete()
    calls[call]()
    made = queue_of(any_server, 6)
    made.put("newer")
    assert b"newer" in [each.message for each in six.take_many("worker", 10, drain_all=True)]
    with pytest.raises(ConfigurationError, match="has 6 time shards"):
        four.put("older")
