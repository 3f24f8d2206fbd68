"""Waiting for messages: none is missed, whatever falls between the look and the wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.fair_queues import drained, got, queue_on, reap
from support.patience import GUARD_SECONDS, ROUNDING_SECONDS
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.jobs import FairQueueReaper
from workstealing.structures.fair_queue import AsyncFairQueue, FairMessage, FairQueue, NewMessage

# Far beyond what a busy machine may take, far below the block.
BLOCK_SECONDS, SOON_S = 150.0, GUARD_SECONDS
# A sleeper looks again after a lease; here that is no help.
LEASE = 600.0


class Scene:
    """What stands before the look, and what comes between the look and the wait."""

    def before(self, queue: FairQueue) -> None:
        """Make a queue in which nothing has a turn."""

    def between(self, queue: FairQueue) -> None:
        """Let something have a turn, now or soon."""


class Write(Scene):
    def between(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})


class WriteMany(Scene):
    def between(self, queue: FairQueue) -> None:
        queue.write_many([NewMessage("a", {"n": n}) for n in range(3)])


class DelayedWrite(Scene):
    def between(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1}, delay=1.0)


class DelayedIsDue(Scene):
    """It was there at the look, and nobody tells when its time comes."""

    def before(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1}, delay=1.0)


class Held(Scene):
    """A message is in another's hand, of an account whose cap is reached; a further one waits."""

    def before(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_in_flight=1)
        queue.write("a", {"n": 1}, tracking_id="t")
        queue.write("a", {"n": 2})
        self.message = got(queue.read("other"))


class Ack(Held):
    def between(self, queue: FairQueue) -> None:
        assert queue.ack(self.message) == 1


class Exchange(Scene):
    """It frees two slots, and takes one."""

    def before(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_in_flight=2)
        queue.write_many([NewMessage("a", {"n": n}) for n in range(4)])
        self.held = drained(queue)

    def between(self, queue: FairQueue) -> None:
        assert len(queue.exchange(*self.held, consumer="other").messages) == 1


class Nack(Held):
    def between(self, queue: FairQueue) -> None:
        assert queue.nack(self.message) == 1


class NackWithDelay(Held):
    def before(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        self.message = got(queue.read("other"))

    def between(self, queue: FairQueue) -> None:
        assert queue.nack(self.message, delay=0.05) == 1


class Cancel(Held):
    def between(self, queue: FairQueue) -> None:
        assert queue.cancel("t")


class CapIsLifted(Held):
    def between(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_in_flight=2)


class RuleIsRemoved(Held):
    def between(self, queue: FairQueue) -> None:
        queue.remove_rule("a")


class LeaseIsShort(Held):
    """The lease of the message ends while others sleep."""

    def before(self, queue: FairQueue) -> None:
        super().before(queue)
        # Long enough for one look of another consumer on a busy machine.
        short = queue_on(queue.client, lease=1.0)
        assert short.extend(self.message) == 1


class Reaped(Held):
    def between(self, queue: FairQueue) -> None:
        reap(queue_on(queue.client, 601_000, lease=LEASE))


class Revived(Scene):
    def before(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        dying = queue_on(queue.client, max_attempts=1)
        assert dying.nack(got(dying.read("other"))) == 1

    def between(self, queue: FairQueue) -> None:
        (dead,) = queue.dead()
        assert queue.revive(dead.id) == 1


class Paused(Scene):
    def before(self, queue: FairQueue) -> None:
        queue.pause("a*")
        queue.write("a1", {"n": 1})

    def between(self, queue: FairQueue) -> None:
        queue.resume("a*")


class Limited(Scene):
    """The rate of an account lets it be served again soon, and nobody tells."""

    def before(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=10)
        queue.write("a", {"n": 1})
        queue.write("a", {"n": 2})
        queue.ack(got(queue.read("other")))


class RateIsRaised(Scene):
    def before(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=0.001)
        queue.write("a", {"n": 1})
        queue.write("a", {"n": 2})
        queue.ack(got(queue.read("other")))

    def between(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=0.001, burst=2)


class PausedBecomesLimited(RateIsRaised):
    """A sleeper knows no moment of a paused account; after that it is to learn of one."""

    def before(self, queue: FairQueue) -> None:
        super().before(queue)
        queue.pause("a")

    def between(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=20, burst=1)


class LimitedBecomesSooner(RateIsRaised):
    def between(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=20)


class Withdrawn(Held):
    """Another's read was cut off, and is given back."""

    def before(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        read, self.keys = queue._script("read"), queue.all_keys()
        args = ("other", 7, queue.keys.receipt(b"x"), 1, 600_000, 5, 0, 1)
        assert queue.client.eval(read.body, len(self.keys), *self.keys, *args)[0] == 0

    def between(self, queue: FairQueue) -> None:
        body = queue._script("withdraw").body
        assert queue.client.eval(body, len(self.keys), *self.keys, 7, 1, b"read:x") == 1


SCENES = (
    *(Write, WriteMany, DelayedWrite, DelayedIsDue, Ack, Exchange, Nack, NackWithDelay, Cancel),
    *(CapIsLifted, RuleIsRemoved, LeaseIsShort, Reaped, Revived, Paused, Limited, RateIsRaised),
    *(PausedBecomesLimited, LimitedBecomesSooner, Withdrawn),
)


@pytest.mark.parametrize("kind", SCENES)
def test_what_comes_between_the_look_and_the_wait_ends_the_wait(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: type[Scene]
) -> None:
    """A sleeper that waits from the newest notification on sleeps through what came before it."""
    queue, other = (queue_on(redis7.client(), lease=LEASE) for _ in range(2))
    scene = kind()
    scene.before(other)
    assert queue.read("c") is None
    waits: list[float] = []
    real = FairQueue._wait

    def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            scene.between(other)
        return real(self, step)

    monkeypatch.setattr(FairQueue, "_wait", wait)
    started = time.monotonic()
    message = queue.read("c", block=BLOCK_SECONDS)
    assert got(message).account in {"a", "a1"}
    assert time.monotonic() - started < SOON_S
    # It does not spin instead of sleeping.
    assert 1 <= len(waits) <= 8


@pytest.mark.parametrize("kind", SCENES)
async def test_on_asyncio_too(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: type[Scene]
) -> None:
    other = queue_on(redis7.client(), lease=LEASE)
    scene = kind()
    scene.before(other)
    waits: list[float] = []
    real = AsyncFairQueue._wait

    async def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            scene.between(other)
        return await real(self, step)

    monkeypatch.setattr(AsyncFairQueue, "_wait", wait)
    async with redis7.async_client() as client:
        queue: Any = AsyncFairQueue(client, "q", lease=LEASE)
        started = time.monotonic()
        found = await queue.read_many("c", 1, block=BLOCK_SECONDS)
        assert {each.account for each in found} <= {"a", "a1"}
        assert len(found) == 1
        assert time.monotonic() - started < SOON_S
        assert 1 <= len(waits) <= 8
        await queue.aclose()


@pytest.mark.parametrize("kind", [Write, Ack, DelayedIsDue, LeaseIsShort])
def test_an_exchange_that_waits_is_woken_too(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, kind: type[Scene]
) -> None:
    """It says its own message done before it sleeps, and once only."""
    queue, other = (queue_on(any_server.client(), lease=LEASE) for _ in range(2))
    scene = kind()
    other.write("mine", {"n": 0})
    mine = got(queue.read("c"))
    scene.before(other)
    waits: list[int] = []
    real = FairQueue._wait

    def wait(self: Any, step: Any) -> Any:
        waits.append(1)
        if len(waits) == 1:
            assert other.ack(mine) == 0
            scene.between(other)
        return real(self, step)

    monkeypatch.setattr(FairQueue, "_wait", wait)
    result = queue.exchange(mine, consumer="c", block=BLOCK_SECONDS)
    assert (result.done, len(result.messages)) == (1, 1)
    # Their moment may have come before the exchange, on a busy machine.
    assert waits or kind in (DelayedIsDue, LeaseIsShort)


def test_an_exchange_frees_the_slot_that_its_own_next_message_needs(
    any_server: AnyServer,
) -> None:
    queue = queue_on(any_server.client(), lease=LEASE)
    queue.set_rule("a", max_in_flight=1)
    queue.write("a", {"n": 0})
    queue.write("a", {"n": 1})
    result = queue.exchange(got(queue.read("c")), consumer="c", block=BLOCK_SECONDS)
    assert (result.done, len(result.messages)) == (1, 1)


@pytest.mark.real
def test_each_of_several_sleepers_is_woken(redis7: RedisServer) -> None:
    admin = redis7.client()
    found: list[FairMessage | None] = []

    def read(number: int) -> None:
        queue = queue_on(redis7.client(), lease=LEASE)
        found.append(queue.read(f"c{number}", block=BLOCK_SECONDS))

    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for each in readers:
        each.start()
    wait_until(lambda: admin.info("clients")["blocked_clients"] == 4, "all to sleep")
    writer = queue_on(redis7.client())
    # One script, one notification.
    writer.write_many([NewMessage("a", {"n": n}) for n in range(4)])
    for each in readers:
        each.join(SOON_S)
        assert not each.is_alive()
    assert sorted(int(got(each).fields[b"n"]) for each in found) == [0, 1, 2, 3]


@pytest.mark.real
def test_sleepers_whose_account_is_capped_are_woken_one_by_one(redis7: RedisServer) -> None:
    admin = redis7.client()
    queue_on(redis7.client()).set_rule("a", max_in_flight=1)
    served: list[int] = []

    def work() -> None:
        queue = queue_on(redis7.client(), lease=LEASE)
        while (message := queue.read("c", block=BLOCK_SECONDS)) is not None:
            if message.account == "stop":
                queue.ack(message)
                return
            served.append(int(message.fields[b"n"]))
            queue.ack(message)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for each in workers:
        each.start()
    wait_until(lambda: admin.info("clients")["blocked_clients"] == 3, "all to sleep")
    writer = queue_on(redis7.client())
    for n in range(30):
        writer.write("a", {"n": n})
    wait_until(lambda: len(served) == 30, "all to be served")
    for _ in range(3):
        writer.write("stop", {"n": 0})
    for each in workers:
        each.join(SOON_S)
        assert not each.is_alive()
    assert served == sorted(served)


def test_without_a_message_a_read_ends_when_its_time_is_over(any_server: AnyServer) -> None:
    queue = queue_on(any_server.client())
    started = time.monotonic()
    assert queue.read("c", block=0.12) is None
    assert queue.read_many("c", 3, block=0.001) == []
    assert queue.exchange(consumer="c", block=0.001).messages == []
    assert 0.12 - ROUNDING_SECONDS <= time.monotonic() - started < SOON_S


def test_without_notifications_the_queue_is_looked_at_again(any_server: AnyServer) -> None:
    queue = queue_on(any_server.client(), notify=False)
    assert queue.read("c") is None
    writer = threading.Timer(0.05, lambda: queue.write("a", {"n": 1}))
    writer.start()
    assert got(queue.read("c", block=BLOCK_SECONDS)).fields == {b"n": b"1"}
    writer.join()
    assert queue.client.exists(queue.keys.notifications) == 0


@pytest.mark.parametrize("state", ["paused", "capped", "limited"])
def test_what_has_no_turn_lets_its_readers_sleep(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Nothing is due sooner than the end of the lease or of the rate: nobody looks before."""
    queue = queue_on(redis7.client(), lease=LEASE)
    rule: dict[str, Callable[[], Any]] = {
        "paused": lambda: queue.pause("a"),
        "capped": lambda: queue.set_rule("a", max_in_flight=1),
        "limited": lambda: queue.set_rule("a", rate=0.002),
    }
    rule[state]()
    for n in range(30):
        queue.write("a", {"n": n})
    drained(queue)
    waits: list[float] = []

    def wait(_: Any, step: Any) -> Any:
        waits.append(step.seconds)
        raise TimeoutError

    monkeypatch.setattr(FairQueue, "_wait", wait)
    with pytest.raises(TimeoutError):
        queue.read("c", block=BLOCK_SECONDS)
    assert 20 < waits[0] <= BLOCK_SECONDS


def test_a_wait_says_nothing_of_the_length_of_a_round_trip(redis7: RedisServer) -> None:
    # Or slices take the server for distant, and end before they begin.
    queue = FairQueue(redis7.client(), "q")
    job = FairQueueReaper(queue)
    assert queue.read("w", block=0.05) is None
    assert job.dependency.round_trip() is None
