"""`workstealing queue move`: messages become those of a FairQueue, once, killed anywhere."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.deaths import deaths_among, doors_of, every_death
from support.fair_queues import drained
from support.faulty_server import FaultyServer
from support.pages import blocks_of
from support.servers import RedisCluster3, RedisServer
from workstealing.cli import main
from workstealing.cli.queue import move as moving
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import FairQueue, ShuffleQueue


def shuffle_on(client: Any, **options: Any) -> ShuffleQueue:
    return ShuffleQueue(client, "old", streams=4, max_attempts=10**6, **options)


def fair_on(client: Any, **options: Any) -> FairQueue:
    return FairQueue(client, "new", **options)


def begun(client: Any) -> tuple[ShuffleQueue, FairQueue]:
    """Return both queues, with a reader that has come to each."""
    queues = shuffle_on(client), fair_on(client)
    assert queues[0].read("g", "app") is None
    assert queues[1].read("app") is None
    return queues


def _die(old: ShuffleQueue, many: int) -> None:
    """Write messages, and set them aside."""
    once = ShuffleQueue(old.client, "old", streams=4, max_attempts=1)
    for n in range(many):
        once.write("a", {"n": n})
    once.nack(*once.read_many("g", "app", many))
    assert len(once.dead("g")) == many


def lapse(client: Any) -> None:
    """Bring back what consumers of the old queue have, as if their lease were over."""
    reaper = ShuffleQueueReaper(shuffle_on(client), lease=0.001)
    for _ in range(200):
        reaper.perform(Slice(25, 10.0))
        if shuffle_on(client).stats("g")["pending"] == 0:
            return
    raise AssertionError("messages stay pending")


class Read:
    """A reader of the new queue that takes all that is there, and notes it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.numbers: Counter[int] = Counter()

    def all(self) -> None:
        queue = fair_on(self._client)
        for message in drained(queue):
            self.numbers[int(message.fields[b"n"])] += 1
            assert queue.ack(message) == 1


@pytest.fixture
def here(redis7: RedisServer) -> tuple[str, ...]:
    return ("--url", redis7.url)


class TestMove:
    def test_a_message_comes_as_it_was(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        old, new = begun(redis7.client())
        deadline = time.time() + 3600.001
        body = bytes(range(256))
        old.write("bulk 1", {"n": 1, "raw": body}, deadline, "order 1", account="whole")
        old.write("alice", {"n": 2})
        said = command("queue", "move", "old", "new", "--account", "bulk*=bulk", *here)
        assert "carried 2 messages over" in said
        one, other = sorted(drained(new), key=lambda each: each.fields[b"n"])
        assert (one.tenant, one.account, one.tracking_id) == ("bulk 1", "bulk", "order 1")
        assert one.deadline == int(deadline * 1000) / 1000
        assert one.fields == {b"n": b"1", b"raw": body}
        assert (other.tenant, other.account, other.deadline) == ("alice", "alice", None)
        assert other.tracking_id is None
        assert new.cancel("order 1")
        assert old.length() == 0

    def test_order_within_a_tenant_stays(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        client = redis7.client()
        old, new = ShuffleQueue(client, "old", streams_per_tenant=1), fair_on(client)
        for n in range(25):
            old.write("a", {"n": n})
        command("queue", "move", "old", "new", "--begin", "--slice", "10", *here)
        assert [int(each.fields[b"n"]) for each in drained(new)] == list(range(25))

    def test_a_dry_run_counts_and_changes_nothing(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        client = redis7.client()
        old, new = begun(client)
        for n in range(5):
            old.write("a", {"n": n})
        held = old.read("g", "app")
        assert held is not None
        before = {key: client.dump(key) for key in client.scan_iter()}
        seen = command.json("queue", "move", "old", "new", "--dry-run", *here)
        assert (seen["would_move"], seen["pending"], seen["dead"]) == (4, 1, 0)
        assert "would carry over 4 messages" in command(
            "queue", "move", "old", "new", "--dry-run", *here
        )
        assert {key: client.dump(key) for key in client.scan_iter()} == before
        assert new.length() == 0

    def test_what_others_have_stays_and_the_status_says_so(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        old, new = begun(redis7.client())
        for n in range(4):
            old.write("a", {"n": n})
        held, retried, dead = old.read_many("g", "app", 3)
        old.nack(retried, delay=3600)
        ShuffleQueue(old.client, "old", max_attempts=1).nack(dead)
        seen = command.json("queue", "move", "old", "new", *here, status=3)
        left = {"waiting": 0, "returned": 0, "delayed": 1, "pending": 1, "dead": 1}
        assert (seen["moved"], seen["left"], seen["ended_by"]) == (1, left, "empty")
        assert old.ack(held) == 1
        # With --dead they come too, and once.
        seen = command.json("queue", "move", "old", "new", "--dead", *here, status=3)
        assert (seen["moved"], seen["left"]) == (1, {**left, "pending": 0, "dead": 0})
        assert new.length() == 2

    def test_it_waits_for_what_others_have(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        old, new = begun(redis7.client())
        for n in range(3):
            old.write("a", {"n": n})
        held, retried = old.read_many("g", "app", 2)
        old.nack(retried, delay=0.2)
        done = threading.Timer(1.0, old.nack, (held,))
        done.start()
        seen = command.json("queue", "move", "old", "new", "--wait", *here)
        done.join()
        assert (seen["moved"], seen["left"]["delayed"], seen["left"]["pending"]) == (3, 0, 0)
        assert new.length() == 3

    def test_a_lease_brings_back_what_the_dead_had(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        old, new = begun(redis7.client())
        for n in range(3):
            old.write(f"t{n}", {"n": n})
        assert len(old.read_many("g", "dead", 3)) == 3
        # A lease's end is the server's clock's: nothing comes before it.
        seen = command.json("queue", "move", "old", "new", "--lease", "1h", *here, status=3)
        assert (seen["moved"], seen["left"]["pending"]) == (0, 3)
        seen = command.json(
            *("queue", "move", "old", "new", "--lease", "10ms", "--wait", "--seconds", "60"), *here
        )
        assert (seen["moved"], seen["left"]["pending"]) == (3, 0)
        assert new.length() == 3

    def test_messages_of_a_plain_stream_get_a_tenant(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        client = redis7.client()
        client.xadd("old", {"n": 1}, id="5-1")
        assert "1 message" in command("queue", "move", "old", "new", "--begin", *here)
        # The same id again, in a stream that was made anew, is another message.
        client.delete("old")
        client.xadd("old", {"n": 2}, id="5-1")
        command("queue", "move", "old", "new", "--tenant", "plain", *here)
        found = {each.tenant: int(each.fields[b"n"]) for each in drained(fair_on(client))}
        assert found == {"tenant": 1, "plain": 2}

    def test_a_message_that_is_refused_keeps_no_other_back(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        client = redis7.client()
        old, new = begun(client)
        client.xadd("old", {"n": 0, "ws:later": "x"})
        new.set_rule("full", max_length=1)
        for n in range(1, 6):
            old.write("full" if n % 2 else "a", {"n": n})
        seen = command.json("queue", "move", "old", "new", *here, status=1)
        assert (seen["moved"], len(seen["refused"])) == (3, 3)
        assert any("ws:" in why for why in seen["refused"].values())
        assert any("max_length" in why for why in seen["refused"].values())
        # Given back, not set aside, not lost.
        assert (old.length(), old.stats("g")["pending"], len(old.dead("g"))) == (3, 0, 0)
        new.remove_rule("full")
        seen = command.json("queue", "move", "old", "new", *here, status=1)
        assert (seen["moved"], old.length(), new.length()) == (2, 1, 5)

    def test_dead_messages_that_are_left_are_told(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        old, _ = begun(redis7.client())
        _die(old, 3)
        move = ("queue", "move", "old", "new", *here, "--dead", "--slice", "1")
        seen = command.json(*move, "--count", "1", status=3)
        assert (seen["moved"], seen["left"]["dead"]) == (1, 2)
        # They were not asked for.
        assert command.json("queue", "move", "old", "new", *here)["left"]["dead"] == 2
        assert command.json(*move)["moved"] == 2

    def test_too_many_refused_dead_messages_end_it(
        self,
        command: Any,
        redis7: RedisServer,
        here: tuple[str, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(moving, "MOST_REFUSED", 3)
        old, new = begun(redis7.client())
        new.set_rule("a", max_length=1)
        _die(old, 9)
        seen = command.json(
            "queue", "move", "old", "new", *here, "--dead", "--slice", "2", status=1
        )
        assert (seen["moved"], seen["ended_by"]) == (1, "refusal")
        assert len(seen["refused"]) in (4, 5)
        assert seen["left"]["dead"] == 8

    @pytest.mark.slow
    def test_producers_go_on_meanwhile_and_two_movers_share(
        self, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        client = redis7.client()
        old, _ = begun(client)
        stop = threading.Event()
        written = 0

        def write() -> None:
            nonlocal written
            while not stop.is_set():
                shuffle_on(client).write(f"t{written % 7}", {"n": written})
                written += 1

        producer = threading.Thread(target=write)
        producer.start()
        movers = [subprocess.Popen([sys.executable, *_MOVE, *here]) for _ in range(2)]
        assert all(each.wait(120) in (0, 3) for each in movers)
        stop.set()
        producer.join()
        assert main(["queue", "move", "old", "new", *here]) == 0
        read = Read(client)
        read.all()
        assert read.numbers == Counter(range(written))
        assert written > 0
        assert old.length() == 0

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("none", "new"), "no ShuffleQueue 'none'"),
            (("old", "none"), "no FairQueue 'none'"),
            (("old", "new", "--group", "none"), "no group 'none'"),
            (("old", "new", "--slice", "101"), "give 100 at most"),
            (("old", "new", "--account", "bulk"), "bulk-*=bulk"),
            (("old", "new", "--lease", "2d"), "--remember must be longer"),
        ],
    )
    def test_bad_input_changes_nothing(
        self,
        command: Any,
        redis7: RedisServer,
        here: tuple[str, ...],
        arguments: tuple[str, ...],
        said: str,
    ) -> None:
        old, new = begun(redis7.client())
        old.write("a", {"n": 1})
        command("queue", "move", *arguments, *here, status=2)
        assert said in command.err
        assert (old.length(), new.length()) == (1, 0)
        assert old.groups() == ["g"]

    def test_several_groups_are_asked_for(
        self, command: Any, redis7: RedisServer, here: tuple[str, ...]
    ) -> None:
        old, new = begun(redis7.client())
        assert old.read("h", "app") is None
        old.write("a", {"n": 1})
        command("queue", "move", "old", "new", *here, status=2)
        assert "one of g, h" in command.err
        command("queue", "move", "old", "new", "--group", "h", *here)
        # The other group has its message still.
        assert (old.length(), new.length()) == (1, 1)
        assert old.read("g", "app") is not None


_MOVE = (
    *("-P", "-m", "workstealing", "queue", "move", "old", "new"),
    *("--slice", "5", "--seconds", "2"),
)
MESSAGES = 7


def test_the_commands_of_the_page(command: Any, redis7: RedisServer) -> None:
    """Each line of docs/fair_queue.md runs; the last one waits for nothing here."""
    client = redis7.client()
    old = ShuffleQueue(client, "renderings-before")
    old.write("bulk-1", {"n": 1})
    new = FairQueue(client, "renderings")
    assert new.read("c") is None
    (block,) = blocks_of("docs/fair_queue.md", ("console",))
    lines = [each.removeprefix("$ workstealing ") for each in block.code.splitlines()]
    assert len(lines) == 3
    said = [command(*shlex.split(each), "--url", redis7.url) for each in lines]
    assert "would carry over 1 messages" in said[0]
    assert "carried 1 message over" in said[1]
    assert "carried 0 messages over" in said[2]
    assert [each.account for each in drained(new)] == ["bulk"]


def test_a_mover_that_was_stopped_gives_its_slice_back(
    command: Any,
    redis7: RedisServer,
    here: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After half a lease another may have the messages, so it does not write them."""
    old, new = begun(redis7.client())
    for n in range(3):
        old.write("a", {"n": n})
    times = [0.0, moving.LEASE]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return times.pop(0) if times else 0.0

    written = []
    given = ShuffleQueue.nack

    def nack(queue: ShuffleQueue, *messages: Any, **options: Any) -> int:
        written.append(new.length())
        return given(queue, *messages, **options)

    monkeypatch.setattr(moving, "time", Clock)
    monkeypatch.setattr(ShuffleQueue, "nack", nack)
    seen = command.json("queue", "move", "old", "new", *here)
    assert written == [0]
    assert (seen["moved"], old.length(), new.length()) == (3, 0, 3)


def test_a_write_of_which_nobody_knows_is_not_made_twice(
    command: Any,
    redis7: RedisServer,
    here: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = redis7.client()
    old, new = begun(client)
    for n in range(3):
        old.write("a", {"n": n})
    write = FairQueue.write_many

    def cut(queue: FairQueue, messages: Any) -> list[str]:
        write(queue, messages)
        raise redis.TimeoutError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(FairQueue, "write_many", cut)
        seen = command.json("queue", "move", "old", "new", *here, status=1)
    assert (seen["moved"], seen["in_doubt"], seen["left"]) == (0, 3, None)
    assert old.stats("g")["pending"] == 3
    read = Read(client)
    read.all()
    lapse(client)
    seen = command.json("queue", "move", "old", "new", *here)
    assert (seen["moved"], new.length(), old.length()) == (3, 0, 0)
    read.all()
    assert read.numbers == Counter(range(3))


def moves(monkeypatch: pytest.MonkeyPatch, client: Any, *more: str) -> Callable[[], None]:
    """Return a whole run of the command on a client."""

    def work() -> None:
        monkeypatch.setattr(moving, "client_at", lambda _: client)
        assert main(["queue", "move", "old", "new", "--slice", "3", "--dead", *more]) in (0, 3)

    return work


def prepare(client: Any) -> None:
    """Begin both queues anew; two of the messages are dead."""
    shuffle_on(client).delete()
    fair_on(client).delete()
    old, _ = begun(client)
    for n in range(MESSAGES):
        old.write(f"t{n % 3}", {"n": n}, time.time() + 3600, str(n))
    ShuffleQueue(client, "old", streams=4, max_attempts=1).nack(*old.read_many("g", "app", 2))


def check_a_death(client: Any, work: Callable[[], None], at: str, *, is_read: bool) -> None:
    """All are in the new queue, once, when what the dead mover had has lapsed.

    Arguments:
        is_read: a reader of the new queue is done with what is there before the next mover comes.
    """
    read = Read(client)
    old = shuffle_on(client)
    written = fair_on(client).length()
    assert written + old.length() + len(old.dead("g")) >= MESSAGES, at
    if is_read:
        read.all()
    lapse(client)
    work()
    read.all()
    assert read.numbers == Counter(range(MESSAGES)), at
    assert (old.length(), len(old.dead("g")), fair_on(client).length()) == (0, 0, 0), at


@pytest.fixture(params=[False, True], ids=["read later", "read at once"])
def is_read(request: pytest.FixtureRequest) -> Iterator[bool]:
    return request.param


@pytest.mark.slow
def test_killed_at_every_command(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    client = redis7.client()
    deaths = 0
    with FaultyServer(redis7.port) as door:
        killed = moves(monkeypatch, redis.Redis(port=door.port, protocol=2))
        calm = moves(monkeypatch, redis.Redis(port=redis7.port))
        for at in every_death([door], killed, lambda: prepare(client)):
            check_a_death(client, calm, at, is_read=is_read)
            deaths += 1
    assert deaths > 20


@pytest.mark.slow
def test_killed_again_and_again_on_a_cluster(
    cluster: RedisCluster3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues lie on different masters; the next mover goes on where the last one has died."""
    client = cluster.client()
    read = Read(client)
    with doors_of(cluster) as (doors, through):
        begun(client)
        sent = 0

        def work(at: int) -> Callable[[], None]:
            nonlocal sent
            old = shuffle_on(client)
            for _ in range(4):
                old.write(f"t{sent % 3}", {"n": sent})
                sent += 1
            lapse(client)
            if at % 2:
                read.all()
            return moves(monkeypatch, through)

        nodes = {client.get_node_from_key(f"{{{name}}}").name for name in ("old", "new")}
        assert len(nodes) == 2
        deaths = deaths_among(doors, 25, work)
    lapse(client)
    moves(monkeypatch, client)()
    read.all()
    assert read.numbers == Counter(range(sent))
    assert deaths > 20
    assert shuffle_on(client).length() == 0
