"""A further kind of queue is one class: with it, each verb of `workstealing queue` works."""

from __future__ import annotations

import argparse
from typing import Any, Self

import pytest

from support.servers import RedisServer
from workstealing.cli.output import Picture
from workstealing.cli.queue import opening
from workstealing.cli.queue.kind import Draft, InHand, OpenQueue
from workstealing.recruiting import FunctionJob, Job

pytestmark = pytest.mark.real


class ListKind(OpenQueue):
    """A list of Redis: what is taken lies in a second list until it is settled."""

    kind = "list"
    called = "ListQueue"
    own_options = frozenset({"group"})

    def __init__(self, client: Any, name: bytes) -> None:
        self._client, self._key, self._taken = client, b"list:" + name, b"taken:" + name
        self.name = name.decode()

    @classmethod
    def is_there(cls, client: Any, name: bytes) -> bool:
        return bool(client.exists(b"list:" + name))

    @classmethod
    def on_redis(cls, client: Any, name: bytes, options: argparse.Namespace) -> Self:
        return cls(client, name)

    def look(self) -> dict[str, Any]:
        return {"queue": self.name, "kind": self.kind, "length": self._client.llen(self._key)}

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        return [Picture(f"{self.title}: {seen['length']}")]

    def begin(self) -> None:
        self._client.ping()

    def put(self, draft: Draft) -> str:
        return str(self._client.rpush(self._key, draft.body))

    def take(self, seconds: float) -> InHand | None:
        body = self._client.lmove(self._key, self._taken, "LEFT", "RIGHT")
        return None if body is None else InHand("1", body.decode(), None, 1, 0.0, body)

    def finish(self, message: InHand) -> bool:
        return bool(self._client.lrem(self._taken, 1, message.own))

    def give_back(self, message: InHand, seconds: float) -> bool:
        is_ours = self.finish(message)
        self._client.rpush(self._key, message.own)
        return is_ours

    @property
    def lease(self) -> float:
        return 60.0

    def job(self) -> Job:
        return FunctionJob(lambda slice: 0, name="list_keeper")

    def left(self) -> int:
        return int(self._client.llen(self._key))


@pytest.fixture
def kept(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    monkeypatch.setitem(opening.KINDS, ListKind.kind, ListKind)
    return redis7.client()


def test_each_verb_works_with_it(command: Any, kept: Any) -> None:
    assert "give --kind shuffle or --kind fair or --kind time or --kind list" in command.refused(
        "queue", "produce", "q"
    )
    many = ("--count", "9", "--per-second", "max")
    assert command.json("queue", "produce", "q", "--kind", "list", *many)["put"] == 9
    assert command("queue", "observe", "q", "--once") == "ListQueue q: 9\n\n"
    said = command.json(
        *("queue", "consume", "q", "--until-empty", "--fail", "0.3", "--seed", "2"),
        *("--enlist", "0.5", "--poll", "1ms"),
    )
    assert (said["done"], said["ended_by"], said["kind"]) == (9, "empty", "list")
    assert said["given_back"] > 0
    assert kept.keys("*") == []


def test_options_of_other_kinds_are_refused(command: Any, kept: Any) -> None:
    kept.rpush("list:q", "x")
    said = command.refused("queue", "produce", "q", "--due-in", "5")
    assert "--due-in is for a TimeShardQueue, and this is a ListQueue: leave it out" in said
    said = command.refused("queue", "consume", "q", "--drain-all")
    assert "--drain-all is for a TimeShardQueue, and this is a ListQueue: leave it out" in said
    at = ("--cassandra", "cassandra://h/k")
    said = command.refused("queue", "observe", "q", "--kind", "list", *at)
    assert "--cassandra has no ListQueue: leave out --kind list, or give --url" in said
