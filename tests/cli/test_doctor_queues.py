"""`workstealing doctor` and `queue` where a queue's own keys are somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.structures import FairQueue, ShuffleQueue

pytestmark = pytest.mark.real

MakeApp = Callable[[str], str]
JOB = "job shuffle_queue_reaper.mails"
META = "mails/queue/{mails}/meta"


@pytest.fixture
def queue(redis7: RedisServer) -> Any:
    return ShuffleQueue(redis7.client(), "mails")


@pytest.fixture
def doctor(command: Any, app_module: MakeApp, redis7: RedisServer) -> Any:
    name = app_module(
        f"""
        import redis
        from workstealing import Recruiter
        from workstealing.jobs import ShuffleQueueReaper
        from workstealing.structures import ShuffleQueue
        client = redis.Redis.from_url({redis7.url!r})
        recruiter = Recruiter(seconds=5.0)
        recruiter.install(ShuffleQueueReaper(ShuffleQueue(client, "mails")), rate=0.01)
        """
    )

    def say(status: int = 1) -> tuple[str, str]:
        said = command.json("doctor", "--app", name, status=status)
        (found,) = [each for each in said["checks"] if each["what"] == JOB]
        return found["level"], found["said"]

    return say


def test_a_queue_that_is_right_is_well(doctor: Any, queue: Any) -> None:
    assert doctor(0)[0] == "note"
    queue.write("t", {"a": 1})
    assert doctor(0) == ("ok", "namespace shuffle_queues: streams, layout version 1")


def test_a_queue_that_is_another_namespaces_is_a_fault(
    doctor: Any, queue: Any, redis7: RedisServer
) -> None:
    """Every write of this process would be refused."""
    ShuffleQueue(redis7.client(), "mails", namespace="shop").write("t", {"a": 1})
    # That this process's own namespace is in use makes it no better.
    for _ in range(2):
        assert doctor() == (
            "fault",
            "queue mails: belongs to the namespace shop, and this process says shuffle_queues",
        )
        ShuffleQueue(redis7.client(), "others").write("t", {"a": 1})


def test_a_newer_queue_is_a_fault(doctor: Any, queue: Any, redis7: RedisServer) -> None:
    queue.write("t", {"a": 1})
    redis7.client().hset(META, "mark", "2")
    level, said = doctor()
    assert level == "fault"
    assert f"the key {META} says 2 where 1 was expected" in said
    redis7.client().hset(META, mapping={"readable_from": 1, "writable_from": 1})
    assert doctor(0)[0] == "ok"


def test_a_foreign_key_is_a_fault(doctor: Any, redis7: RedisServer) -> None:
    redis7.client().set(META, "x")
    level, said = doctor()
    assert level == "fault"
    assert f"one of the keys {META}* holds another type" in said


FAIR_META = "mails/fair/{mails}/meta"


@pytest.fixture
def fair_doctor(command: Any, app_module: MakeApp, redis7: RedisServer) -> Any:
    name = app_module(
        f"""
        import redis
        from workstealing import Recruiter
        from workstealing.jobs import FairQueueReaper
        from workstealing.structures import FairQueue
        client = redis.Redis.from_url({redis7.url!r})
        recruiter = Recruiter(seconds=5.0)
        recruiter.install(FairQueueReaper(FairQueue(client, "mails")), rate=0.01)
        """
    )

    def say(status: int = 1) -> tuple[str, str]:
        said = command.json("doctor", "--app", name, status=status)
        (found,) = [
            each for each in said["checks"] if each["what"] == "job fair_queue_reaper.mails"
        ]
        return found["level"], found["said"]

    return say


class TestAFairQueue:
    def test_that_is_right_is_well(self, fair_doctor: Any, redis7: RedisServer) -> None:
        assert fair_doctor(0)[0] == "note"
        FairQueue(redis7.client(), "mails").write("t", {"a": 1})
        level, said = fair_doctor(0)
        assert level == "ok"
        assert said.startswith("namespace fair_queues: ")

    def test_that_is_another_namespaces_is_a_fault(
        self, fair_doctor: Any, redis7: RedisServer
    ) -> None:
        FairQueue(redis7.client(), "mails", namespace="shop").write("t", {"a": 1})
        assert fair_doctor() == (
            "fault",
            "queue mails: belongs to the namespace shop, and this process says fair_queues",
        )

    def test_that_is_newer_is_a_fault(self, fair_doctor: Any, redis7: RedisServer) -> None:
        FairQueue(redis7.client(), "mails").write("t", {"a": 1})
        redis7.client().hset(FAIR_META, "mark", "2")
        level, said = fair_doctor()
        assert level == "fault"
        assert f"the key {FAIR_META} says 2 where 1 was expected" in said
        redis7.client().hset(FAIR_META, mapping={"readable_from": 1, "writable_from": 1})
        assert fair_doctor(0)[0] == "ok"

    def test_whose_key_is_foreign_is_a_fault(self, fair_doctor: Any, redis7: RedisServer) -> None:
        redis7.client().set(FAIR_META, "x")
        level, said = fair_doctor()
        assert level == "fault"
        assert f"one of the keys {FAIR_META}* holds another type" in said


def test_what_is_no_layout_of_a_queue_by_due_time_is_bad_input(
    command: Any, redis7: RedisServer
) -> None:
    redis7.client().set("ws:time_shard_queue:layout:mails", "x")
    said = command.refused("queue", "observe", "mails", "--kind", "time", "--url", redis7.url)
    assert "does not hold the layout of a TimeShardQueue" in said
    assert redis7.client().keys() == [b"ws:time_shard_queue:layout:mails"]
