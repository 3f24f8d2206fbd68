"""Consumers killed by SIGKILL at random moments, servers killed and failed over, by histories.

With the quick tests 200 consumers die, with the slow ones 1,000, and 10,000 in a run of `make prove
PROVE_ARGS="--only consumers"`. `support.mortal_consumers` forks and kills them, and
`support.fair_histories` reads what they and the server have recorded.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.fair_histories import Notes, Replay, numbers_in
from support.fair_queues import drained, got, leftovers
from support.mortal_consumers import CAPS, queue_at
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, spawn
from support.proof import seed, tried
from support.servers import RedisServer, wait_until
from workstealing.jobs import FairQueueReaper
from workstealing.recruiting.slice import Slice

SLOW = pytest.mark.slow
Start = Callable[..., RedisServer]
TESTS = Path(__file__).resolve().parents[2]
# Its whole history is kept, and what a client was told is on the disk.
DURABLE = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": 0}
FEW, MANY = 200, 1_000
NUMBERS = [10_000] if "PROVE_SEED" in os.environ else [FEW, pytest.param(MANY, marks=SLOW)]
PATIENCE, LONG_MS = 600.0, 60_000
DEATH = "a consumer of a recorded history killed (SIGKILL) at a random moment"
FAILOVER = "a consumer of a recorded history killed (SIGKILL) beside a failover"


class Run:
    """Consumers that die, on a server that the test chooses, and what they note."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder = folder
        self._counts: Counter[bytes] = Counter()
        self._at, self._rest = 0, b""
        self.go_to(server)

    def go_to(self, server: RedisServer) -> None:
        """Let all processes find another server from now on."""
        (self.folder / "next").write_text(str(server.port))
        (self.folder / "next").rename(self.folder / "port")

    @contextmanager
    def deaths(self, many: int) -> Iterator[None]:
        """Let so many die meanwhile, and wait for that at the end."""
        command = [sys.executable, "-m", "support.mortal_consumers"]
        arguments = [str(self.folder), str(many), str(seed())]
        process = spawn([*command, *arguments], cwd=TESTS, env={**os.environ, "PYTHONPATH": "."})
        try:
            yield
            self.until("killed", many)
            assert process.wait(PATIENCE) == 0
        finally:
            end(process)

    def count(self, kind: str) -> int:
        """Return how often something was noted so far."""
        path = self.folder / "notes"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._at)
                found = file.read()
            self._at += len(found)
            *lines, self._rest = (self._rest + found).split(b"\n")
            self._counts.update(line.partition(b" ")[0] for line in lines)
        return self._counts[kind.encode()]

    def until(self, kind: str, many: int) -> None:
        """Wait until something was noted so often."""
        until = time.monotonic() + PATIENCE + many / 5
        while self.count(kind) < many:
            assert time.monotonic() < until, f"waited in vain for {many} notes of {kind}"
            time.sleep(0.02)


def finished(server: RedisServer) -> set[int]:
    """See that no slot is held and nothing stays; return the messages that were there."""
    client = server.client()
    soon = queue_at(client, LONG_MS, lease=3600.0)
    there = numbers_in(client, soon)
    job = FairQueueReaper(soon)
    idle, until = 0, time.monotonic() + PATIENCE
    while idle < 3:
        idle = 0 if job.perform(Slice(100, 60.0)) else idle + 1
        assert time.monotonic() < until
    leaked = [each for each in soon.accounts() if each.in_flight]
    assert (leaked, soon.stats()["pending"]) == ([], 0)
    found: set[int] = set()
    while soon.length():
        # As many as the caps let through at once, and as the rate lets through by now.
        some = drained(soon, "last")
        assert soon.ack(*some) == len(some)
        found |= {int(each.fields[b"n"]) for each in some}
        assert time.monotonic() < until, soon.stats()
    for each in soon.dead(10_000):
        found.add(int(each.fields[b"n"]))
        soon.discard(each.id)
    idle = 0
    while idle < 20:
        idle = 0 if job.perform(Slice(100, 60.0)) else idle + 1
    assert leftovers(soon) == {}
    assert found >= set(there.values())
    return found


def judged(server: RedisServer) -> Replay:
    """Replay the server's history; see that it is right, and that it ends as the server is."""
    queue = queue_at(server.client())
    replay = Replay(server.directory, queue, CAPS)
    assert replay.wrong == []
    assert replay.most == CAPS, "no cap was reached"
    assert replay.messages == numbers_in(queue.client, queue)
    assert replay.leases == set(queue.client.zrange(queue.keys.of("leases"), 0, -1))
    return replay


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("deaths", NUMBERS)
def test_nothing_is_lost_and_no_cap_is_exceeded_while_consumers_and_server_are_killed(
    start_redis: Start, tmp_path: Path, deaths: int
) -> None:
    server = start_redis(7, **DURABLE)
    run = Run(tmp_path, server)

    with run.deaths(deaths):
        for share in (1, 2):
            run.until("killed", deaths * share // 3)
            server.kill()
            faults = run.count("fault")
            run.until("fault", faults + 2)
            server.restart()
    notes, replay = Notes(tmp_path), judged(server)
    found = finished(server)
    assert notes.counts["broken"] == 0
    assert notes.counts["killed"] >= deaths
    assert notes.in_hand > deaths // 10, "hardly any had messages in hand"
    # What somebody was told is so in the server's history.
    assert notes.got <= replay.granted
    assert notes.wrote <= replay.written <= notes.attempted | {0}
    assert notes.ended.keys() <= replay.ended
    assert set(notes.ended.values()) == {1}, "a message was ended twice"
    lost = notes.wrote - notes.ending - found
    tried(DEATH, notes.counts["killed"], lost=len(lost))
    assert lost == set()


def test_the_judge_sees_a_cap_exceeded_and_a_message_in_two_hands(start_redis: Start) -> None:
    server = start_redis(7, **DURABLE)
    queue = queue_at(server.client(), lease=3600.0)
    queue.set_rule("one", max_in_flight=1)
    ids = [queue.write("one", {"n": number}) for number in range(2)]
    first = got(queue.read("c"))
    assert queue.read("c") is None
    replay = Replay(server.directory, queue, CAPS)
    assert (replay.wrong, replay.most["one"]) == ([], 1)
    assert replay.messages == numbers_in(queue.client, queue)
    assert replay.granted == {(first.id.encode(), first.delivery.encode())}
    # What a script with a fault would do.
    queue.client.zadd(queue.keys.of("leases"), {ids[1]: 1e15})
    text = queue.client.hget(queue.keys.of("held"), first.id)
    assert text is not None
    _, _, rest = text.partition(b" ")
    queue.client.hset(queue.keys.of("held"), first.id, b"1 " + rest)
    queue.client.hdel(queue.keys.of("messages"), ids[1])
    replay = Replay(server.directory, queue, CAPS)
    assert replay.most["one"] == 2
    assert any("held 2 leases" in each for each in replay.wrong)
    assert any("while it was in hand" in each for each in replay.wrong)
    assert replay.ended == {1}


@SLOW
def test_after_a_failover_at_most_what_the_replica_lacked_is_missing_or_repeated(
    start_redis: Start, tmp_path: Path
) -> None:
    """The replica is promoted while clients still use the old server, which dies a moment later."""
    old, new = start_redis(7, **DURABLE), start_redis(7, **DURABLE)
    follow(new, old)
    run = Run(tmp_path, old)
    with run.deaths(FEW):
        run.until("killed", FEW // 4)
        new.client().replicaof("NO", "ONE")
        had = Replay(new.directory, queue_at(new.client()), CAPS)
        for kind in ("wrote", "ended"):
            run.until(kind, run.count(kind) + 20)
        old.kill()
        run.go_to(new)
    notes = Notes(tmp_path)
    # What was told on the old server is on its disk.
    was = Replay(old.directory, queue_at(new.client()), CAPS)
    now = judged(new)
    assert (was.wrong, had.wrong) == ([], [])
    found = finished(new)
    lacked_writes, lacked_ends = was.written - had.written, was.ended - had.ended
    missing = notes.wrote - notes.ending - found
    repeated = {number for number, times in notes.ended.items() if times > 1}
    # They are listed in the test's output: `pytest -rP` shows it, and a failure does.
    sys.stderr.write(
        f"the replica lacked the writing of {sorted(lacked_writes)}\n"
        f"and the end of {sorted(lacked_ends)}\n"
        f"missing: {sorted(missing)}; repeated: {sorted(repeated)}\n"
    )
    assert missing <= lacked_writes, sorted(missing - lacked_writes)
    assert repeated <= lacked_ends, sorted(repeated - lacked_ends)
    # The failover has cost something, so the test could have seen more.
    assert missing
    assert lacked_ends
    assert notes.counts["broken"] == 0
    assert notes.got <= was.granted | now.granted
    tried(FAILOVER, notes.counts["killed"], lost=len(missing - lacked_writes))


def follow(replica: RedisServer, primary: RedisServer) -> None:
    """Make a server the replica of another one, and wait until its own history begins there."""
    replica.client().replicaof("127.0.0.1", primary.port)

    def is_up() -> bool:
        link, kept = (replica.client().info(part) for part in ("replication", "persistence"))
        return link["master_link_status"] == "up" and not (
            kept["aof_rewrite_in_progress"] or kept["aof_rewrite_scheduled"]
        )

    wait_until(is_up, "the replica to follow")
