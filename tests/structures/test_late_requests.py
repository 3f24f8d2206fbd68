"""A request for a grant that comes late: sent again by a client, or after its asker has gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.askers import ASKERS
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.store.scripts import load

pytestmark = pytest.mark.real

SCRIPTS = (
    *("durable_keys/acquire", "sharded_ick/take", "time_shard_queue/take"),
    *("shuffle_queue/read", "shuffle_queue/next", "volatile_hashes/hsetnx"),
)
GRANTING = {load(name).sha: name for name in SCRIPTS}
STRUCTURES = ["durable keys", "sharded ick", "shuffle queue", "time shard queue"]


class Relay:
    """A client's requests for grants, which a test looks at, holds up, and sends again.

    Attributes: sent: the words of each that was sent; held: those that are still under way.
    Arguments: client; passing: after so many the next one is held up, and its connection is cut.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.passing = 1_000_000
        self.sent: list[tuple[Any, ...]] = []
        self.held: list[tuple[Any, ...]] = []
        send = client.execute_command

        def relay(*words: Any, **options: Any) -> Any:
            if words[0] == "EVALSHA" and words[1] in GRANTING:
                if self.passing == 0:
                    self.held.append(words)
                    raise redis.ConnectionError("cut while the request was under way")
                self.passing -= 1
                self.sent.append(words)
            return send(*words, **options)

        client.execute_command = relay  # type: ignore[method-assign]


@pytest.mark.parametrize("is_full_still", [True, False], ids=["full", "freed"])
@pytest.mark.parametrize("version", [7, pytest.param("6.2", marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_request_that_a_full_server_gets_after_its_withdrawal_is_granted_nothing(
    start_redis: Callable[..., RedisServer], structure: str, version: Any, is_full_still: bool
) -> None:
    """The server refused to note the withdrawal, and let the request pass."""
    server = start_redis(version)
    direct, client = server.client(), server.client()
    direct.config_set("maxmemory-policy", "noeviction")
    for name in SCRIPTS:
        direct.script_load(load(name).body)
    relay = Relay(client)
    asker = ASKERS[structure](client, direct)
    asker.ask()
    assert asker.is_free()
    requests = len(relay.sent)
    assert requests
    for passing in range(requests):
        relay.passing = passing
        direct.config_set("maxmemory", 1)
        with pytest.raises(redis.OutOfMemoryError):
            direct.set("x", 1)
        # A call of several pieces returns those that came.
        try:
            asker.ask()
        except redis.ConnectionError as error:
            assert "under way" in str(error)
        assert relay.held
        if not is_full_still:
            direct.config_set("maxmemory", 0)
        for words in relay.held:
            refused_or(lambda words=words: direct.execute_command(*words))
        relay.held.clear()
        direct.config_set("maxmemory", 0)
        assert asker.is_free(), passing


def refused_or(call: Callable[[], Any]) -> None:
    with contextlib.suppress(redis.OutOfMemoryError):
        call()
