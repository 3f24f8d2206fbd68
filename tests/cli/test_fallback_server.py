"""The embedded server without a server: fakeredis over a socket, fit for pipelines and errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from workstealing.store import EmbeddedServer


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of an embedded server, started where no redis-server can be found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda *_, **__: None)
        patch.setattr("workstealing.store.embedded.server_of_wheel", lambda: None)
        server = EmbeddedServer().start()
    try:
        assert not server.is_real
        yield server.url
    finally:
        server.stop()


@pytest.mark.fake
def test_an_error_reply_leaves_the_connection_open(url: str) -> None:
    with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), single_connection_client=True) as c:
        before = c.client_id()
        for _ in range(20):
            with pytest.raises(redis.exceptions.NoScriptError):
                c.evalsha("0" * 40, 0)
            with pytest.raises(redis.ResponseError, match="unknown command"):
                c.execute_command("NONSENSE")
            assert c.client_id() == before


@pytest.mark.fake
def test_many_replies_at_once_come_in_order(url: str) -> None:
    with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
        with client.pipeline(transaction=False) as queue:
            for number in range(200):
                queue.echo(str(number))
            replies = queue.execute()
        assert replies == [str(number).encode() for number in range(200)]
