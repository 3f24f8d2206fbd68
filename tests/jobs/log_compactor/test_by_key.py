"""Compaction by key: the newest entry of each key stays at its offset."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.breaks import KINDS, every_break
from support.deaths import every_death
from support.faults import client_of
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import Aborted, ConfigurationError, DamagedBlockError, LayoutError
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.jobs.shared.log_keys import KeyCompactor
from workstealing.recruiting import Slice
from workstealing.store.attempt import Attempt
from workstealing.structures import Log
from workstealing.structures.log.blocks import entries_of

BLOCK = 4
Entry = dict[str, Any]


def log_of(client: Any, compact_by: Any = "user", **options: Any) -> Log:
    return Log(client, "l", BLOCK, codec="json", compact_by=compact_by, **options)


def job_of(client: Any, compact_by: Any = "user", **options: Any) -> LogCompactor:
    return LogCompactor(log_of(client, compact_by), 20, **{"cold": 0, "superseded": 0, **options})


def keep_up(job: LogCompactor) -> None:
    """Work until there is nothing to be done."""
    for _ in range(10_000):
        if not job.backlog().count:
            return
        job.perform(Slice(20, 10.0))
    pytest.fail(f"{job.backlog()} is left")


def expected(written: list[Entry], first: int = 0) -> list[Entry | None]:
    """Return the entries of whole blocks as they are when each superseded one is a hole."""
    stop = len(written) // BLOCK * BLOCK
    newest = {each["user"]: offset for offset, each in enumerate(written[:stop]) if "user" in each}
    return [
        None
        if offset < first or (offset < stop and "user" in each and newest[each["user"]] != offset)
        else each
        for offset, each in enumerate(written)
    ]


def written_by(rng: random.Random, number: int, start: int = 0) -> list[Entry]:
    users: list[Any] = ["a", "b", "c", 1, "1", ""]
    return [
        {"n": each, "user": rng.choice(users)} if rng.random() < 0.8 else {"n": each}
        for each in range(start, start + number)
    ]


def entries_there(client: Any, first: int = 0) -> list[Any]:
    return log_of(client, None).read(first, 10_000)


@pytest.mark.contract
class TestOnEachServer:
    def test_the_newest_of_each_key_stays_at_its_offset(self, any_server: AnyServer) -> None:
        client = any_server.client()
        written = [{"user": user, "n": n} for n, user in enumerate("abacabdbac")]
        written[5] = {"n": 5}
        log = log_of(client)
        log.append(*written)
        job = job_of(client)
        keep_up(job)
        assert entries_there(client) == expected(written)
        assert list(log) == expected(written)
        assert list(reversed(log)) == expected(written)[::-1]
        # One by one, too, and without what this client keeps.
        for offset, each in enumerate(expected(written)):
            assert log_of(client, None, cache_blocks=0).read(offset) == [each]
        assert (log.first(), log.last(), log.length()) == (0, 9, 10)
        # The open block is left alone until it is full.
        written += [{"user": "a", "n": 10}, {"user": "b", "n": 11}]
        assert log.append(*written[10:]) == 10
        keep_up(job)
        assert entries_there(client) == expected(written)
        assert log.delete()
        assert list(client.scan_iter("*")) == []

    def test_groups_pass_the_holes_and_lose_nothing(self, any_server: AnyServer) -> None:
        client = any_server.client()
        log = log_of(client)
        written = [{"user": "a", "n": n} for n in range(6 * BLOCK)]
        written[2 * BLOCK + 1] = {"n": 2 * BLOCK + 1}
        log.append(*written)
        held = log.group("old", ack=True).read(3, member="who dies")
        assert [each.offset for each in held] == [0, 1, 2]
        keep_up(job_of(client))
        left = [offset for offset, each in enumerate(expected(written)) if each is not None]
        assert left == [9, 23]
        for cache_blocks in (16, 0):
            fresh = log_of(client, None, cache_blocks=cache_blocks)
            plain = fresh.group(f"plain {cache_blocks}")
            # A read of one entry goes over however many holes there are.
            assert [each.offset for each in plain.read()] == left[:1]
            assert [each.offset for each in plain.read()] == left[1:]
            assert plain.read() == []
            careful = fresh.group(f"careful {cache_blocks}", ack=True)
            found = [each for _ in left for each in careful.read()]
            assert [each.offset for each in found] == left
            # Nobody has to acknowledge a hole.
            assert [each.offset for each in careful.pending()] == left
            assert careful.ack(*found) == 2
            assert (careful.stats().pending, careful.stats().lag) == (0, 0)
            assert careful.stats().lost == plain.stats().lost == 0
        old = log_of(client, None, clock_shift_ms=100_000).group("old", ack=True)
        found = [each for _ in left for each in old.read()]
        assert [each.offset for each in found] == left
        # The three that were held are settled as holes, by whoever gets them next.
        assert old.ack(*found) == 2
        assert old.stats().pending == old.stats().dead == 0
        assert old.ack(*held) == 0

    @pytest.mark.slow
    def test_any_run_of_calls_ends_as_the_model_says(self, any_server: AnyServer) -> None:
        client = any_server.client()
        for seed in range(4):
            client.flushall()
            rng = random.Random(seed)
            written: list[Entry] = []
            log, first = log_of(client), 0
            jobs = [job_of(client), job_of(client, codec="none"), job_of(client, codec="zlib")]
            kept = log_of(client)
            for _ in range(60):
                what = rng.random()
                if what < 0.4 or not written:
                    more = written_by(rng, rng.randint(1, 6), len(written))
                    assert log.append(*more) == len(written)
                    written += more
                elif what < 0.45:
                    log.evict(offset := rng.randrange(len(written)))
                    first = max(first, offset + 1)
                else:
                    rng.choice(jobs).perform(Slice(rng.randint(1, 3), 10.0))
                self.check(log_of(client, None), written, first)
                # One that keeps blocks shows an entry or a hole, and nothing else.
                self.check(kept, written, first)
            keep_up(rng.choice(jobs))
            assert entries_there(client) == expected(written, first)

    @staticmethod
    def check(log: Log, written: list[Entry], first: int) -> None:
        newest = expected(written, first)
        found = log.read(0, len(written) + 5)
        assert len(found) == len(written)
        for offset, each in enumerate(found):
            if newest[offset] is not None:
                assert each == written[offset], offset
            else:
                assert each is None or (each == written[offset] and offset >= first), offset

    def test_notes_of_evicted_entries_are_forgotten(self, any_server: AnyServer) -> None:
        client = any_server.client()
        log, job = log_of(client), job_of(client)
        for round_ in range(30):
            log.append(*({"user": f"{round_}.{n}"} for n in range(BLOCK)))
            # Half of a block is superseded, for which `superseded=1` waits in vain.
            keep_up(job_of(client, superseded=1) if round_ % 2 else job)
            log.evict(keep=2 * BLOCK)
        log.append(*({"user": "x"} for _ in range(40 * BLOCK)))
        keep_up(job)
        # "x" and four facts; and the keys of the last two blocks, which are still there.
        assert client.hlen(log.keys.latest) <= 5 + 2 * BLOCK
        log.evict(keep=0)
        log.append(*({"user": "y"} for _ in range(40 * BLOCK)))
        keep_up(job)
        assert client.zcard(log.keys.superseded) == 0
        assert entries_there(client)[-1] == {"user": "y"}


def test_a_function_says_the_key(redis7: RedisServer) -> None:
    client = redis7.client()
    log = Log(client, "l", BLOCK, compact_by=lambda data: data.partition(b"=")[0])
    log.append(b"a=1", b"b=1", "a=2", b"", b"a=3", b"c=1", b"", b"c=2")
    keep_up(LogCompactor(log, cold=0, superseded=0))
    assert Log(client, "l").read(0, 9) == [None, b"b=1", None, None, b"a=3", None, b"", b"c=2"]


def test_entries_that_the_codec_cannot_read_have_no_key(redis7: RedisServer) -> None:
    client = redis7.client()
    Log(client, "l", BLOCK).append(*[b"no JSON"] * BLOCK, *[b"[1]", b'{"user":null}'] * BLOCK)
    keep_up(job_of(client))
    assert Log(client, "l").read(0, 99) == [b"no JSON"] * BLOCK + [b"[1]", b'{"user":null}'] * BLOCK
    # A log without holes stays one that older releases read.
    assert client.hget(log_of(client).keys.meta, "mark") == b"1"


def test_what_is_refused(redis7: RedisServer) -> None:
    client = redis7.client()
    with pytest.raises(ConfigurationError, match="names a field, and entries without a codec"):
        Log(client, "l", compact_by="user")
    with pytest.raises(ConfigurationError, match="compact_by"):
        log_of(client, 7)
    for share in (-0.1, 1.5, "all", True):
        with pytest.raises(ConfigurationError, match="is no share"):
            job_of(client, superseded=share)
    log = log_of(client)
    log.append(*[{"user": "a"}] * BLOCK)
    keep_up(job_of(client))
    before = client.dump(log.keys.latest)
    for other in ("name", len):
        with pytest.raises(ConfigurationError, match="give all compactors of a log the same"):
            job_of(client, other).perform(Slice(1, 5.0))
    log.append(*[{"user": "a"}] * BLOCK)
    client.delete(log.keys.latest)
    with pytest.raises(ConfigurationError, match="compact_by returned a int"):
        keep_up(job_of(client, lambda _: 7))
    assert before
    assert client.exists(log.keys.latest) == 0


def test_few_superseded_entries_do_not_rewrite_a_block(redis7: RedisServer) -> None:
    client = redis7.client()
    written = [{"user": user} for user in "abcdaefg"]
    log_of(client).append(*written)
    keep_up(job_of(client, superseded=0.5))
    assert entries_there(client) == written
    keep_up(job_of(client, superseded=0.25))
    assert entries_there(client) == [None, *written[1:]]


def test_a_dry_run_changes_nothing(redis7: RedisServer) -> None:
    client = redis7.client()
    log_of(client).append(*[{"user": "a"}] * 3 * BLOCK)
    keep_up(LogCompactor(log_of(client, None), 20, cold=0))
    before = {key: client.dump(key) for key in client.keys("*")}
    job = job_of(client, dry_run=True)
    assert job.backlog().count == job.perform(Slice(20, 5.0)) == 3
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_a_release_that_knows_no_holes_refuses_the_log(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_of(client)
    log.append(*[{"user": "a"}] * 3 * BLOCK)
    keep_up(job_of(client))
    assert client.hmget(log.keys.meta, "mark", "readable_from", "writable_from") == [b"2"] * 3

    def older(script: str) -> Any:
        """Run a script as the release before had it."""
        body = log.script(script).body
        assert body.count("HOLES_VERSION = '2'") == 1
        old = body.replace("HOLES_VERSION = '2'", "HOLES_VERSION = '1'")
        keys = (log.keys.meta, log.keys.news, log.keys.full, log.keys.raw)
        return client.eval(old, len(keys), *keys)

    before = client.hgetall(log.keys.meta)
    with pytest.raises(redis.ResponseError, match=r"which this release .* cannot read: upgrade"):
        older("stats")
    assert client.hgetall(log.keys.meta) == before
    # This one appends by its short path, trims and has groups as before.
    assert log.append({"user": "b"}) == log.append({"user": "c"}) - 1
    assert LogTrimmer(log, max_entries=BLOCK).perform(Slice(9, 5.0)) == 2
    assert [each.offset for each in log.group("g").read(9)] == [11, 12, 13]


def test_another_writer_comes_first(redis7: RedisServer, monkeypatch: Any) -> None:
    """Between the reads of an attempt and its EXEC, which is then aborted."""
    client = redis7.client()
    commit = Attempt.commit

    def compact_meanwhile(client: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Attempt, "commit", commit)
            keep_up(job_of(client))

    others: dict[str, Callable[[Any], Any]] = {
        "delete": lambda client: log_of(client).delete(),
        "evict": lambda client: log_of(client).evict(2 * BLOCK - 1),
        "compactor": compact_meanwhile,
        "made anew": lambda client: (
            log_of(client).delete(),
            log_of(client).append(*[{"user": "z", "n": n} for n in range(3 * BLOCK)]),
        ),
        "append": lambda client: log_of(client).append({"user": "a", "n": -1}),
    }
    for rewriting in (False, True):
        for name, other in others.items():
            client.flushall()
            log = log_of(client)
            written = [{"user": "a", "n": n} for n in range(2 * BLOCK)]
            log.append(*written)
            # Sealed and compressed: so that only compaction by key is left.
            keep_up(LogCompactor(log_of(client, None), 20, cold=0))
            while rewriting and not client.zcard(log.keys.superseded):
                job_of(client, superseded=1).perform(Slice(1, 5.0))
            done: list[str] = []

            def late(current: Attempt, *commands: Any) -> Any:
                if not done:  # noqa: B023 - called within this turn
                    done.append(name)  # noqa: B023
                    other(client)  # noqa: B023
                return commit(current, *commands)

            with monkeypatch.context() as patch:
                patch.setattr(Attempt, "commit", late)
                job = job_of(client)
                if name == "append":
                    job.perform(Slice(1, 5.0))
                else:
                    with pytest.raises(Aborted):
                        job.perform(Slice(1, 5.0))
            assert done == [name]
            keep_up(job_of(client))
            if name == "delete":
                assert list(client.scan_iter("*")) == []
            elif name == "made anew":
                assert entries_there(client)[-1] == {"user": "z", "n": 3 * BLOCK - 1}
                assert entries_there(client)[:-1] == [None] * (3 * BLOCK - 1)
            else:
                first = 2 * BLOCK if name == "evict" else 0
                more = [{"user": "a", "n": -1}] if name == "append" else []
                assert entries_there(client) == expected(written + more, first)


@pytest.mark.parametrize("rewriting", [False, True])
@pytest.mark.parametrize("other", ["seal", "compress", "evict", "delete", "damage"])
def test_another_writer_comes_between_two_reads(
    redis7: RedisServer, monkeypatch: Any, other: str, rewriting: bool
) -> None:
    """Of an attempt: then the block is another one than it was told, and no damage."""
    client = redis7.client()
    log = log_of(client)
    log.append(*[{"user": "a", "n": n} for n in range(2 * BLOCK)])
    key = log.keys.block(0)
    if other != "seal":
        keep_up(LogCompactor(log_of(client, None), 20, cold=0, codec="none"))
    # By key, and what is to be rewritten comes before what is to be noted.
    job = LogCompactor(log_of(client), 1, cold=0, superseded=0, random=lambda: 0.0)
    while rewriting and not client.zcard(log.keys.superseded):
        job.perform(Slice(1, 5.0))
    others: dict[str, Callable[[], Any]] = {
        "seal": lambda: keep_up(LogCompactor(log_of(client, None), 20, cold=0)),
        "compress": lambda: keep_up(LogCompactor(log_of(client, None), 20, cold=0)),
        "evict": lambda: log_of(client).evict(2 * BLOCK - 1),
        "delete": lambda: log_of(client).delete(),
        "damage": lambda: None,
    }
    if other == "damage":
        client.set(key, client.get(key)[:-1])
    read = Attempt.read

    def late(current: Attempt, *commands: Any) -> Any:
        if commands[0] in (("GET", key), ("LRANGE", key, 0, -1)):
            monkeypatch.setattr(Attempt, "read", read)
            others[other]()
        return read(current, *commands)

    monkeypatch.setattr(Attempt, "read", late)
    with pytest.raises(DamagedBlockError if other == "damage" else Aborted):
        job.perform(Slice(1, 5.0))
    assert Attempt.read is read


def deleted_by_an_older_release(client: Any) -> None:
    """Leave the notes of a log that a release without compaction by key has deleted."""
    log = log_of(client)
    log.append(*[{"user": user} for user in "qaaaraaz"])
    keep_up(job_of(client, superseded=1))
    assert client.zcard(log.keys.superseded) == 2
    # Without a hole its version is still the older one.
    assert client.hget(log.keys.meta, "mark") == b"1"
    notes = (log.keys.latest, log.keys.superseded)
    client.delete(*set(client.keys()).difference(notes))


def test_notes_of_a_log_that_an_older_release_has_deleted_go(redis7: RedisServer) -> None:
    client = redis7.client()
    deleted_by_an_older_release(client)
    dry = job_of(client, dry_run=True)
    assert dry.backlog().count == dry.perform(Slice(20, 5.0)) == 1
    assert len(client.keys()) == 2
    assert job_of(client).perform(Slice(20, 5.0)) == 1
    assert client.keys() == []
    assert job_of(client).perform(Slice(20, 5.0)) == 0


def test_notes_of_a_log_that_an_older_release_has_deleted_say_nothing_of_the_next(
    redis7: RedisServer,
) -> None:
    client = redis7.client()
    deleted_by_an_older_release(client)
    written = [{"user": user, "n": n} for n, user in enumerate("baccbzde")]
    log_of(client).append(*written)
    keep_up(job_of(client))
    assert entries_there(client) == expected(written)
    assert client.hlen(log_of(client).keys.latest) == len("abcdez") + 3


@pytest.mark.parametrize("rewriting", [False, True])
@pytest.mark.parametrize("other", ["compactor", "evict", "delete", "anew", "anew, more a block"])
def test_another_writer_comes_between_a_look_and_its_attempt(
    redis7: RedisServer, monkeypatch: Any, other: str, rewriting: bool
) -> None:
    """Then the attempt goes by what it sees itself: another log has other keys at its offsets."""
    client = redis7.client()
    log = log_of(client)
    written = [{"user": "a", "n": n} for n in range(4 * BLOCK)]
    log.append(*written)
    job = LogCompactor(log_of(client), 1, cold=0, superseded=0, random=lambda: 0.0)
    while rewriting and not client.zcard(log.keys.superseded):
        job.perform(Slice(1, 5.0))
    anew = [{"user": "b", "n": 0}, {"user": "a", "n": 1}, *[{"user": "c", "n": 2}] * BLOCK]

    def make_anew(block: int) -> None:
        log_of(client).delete()
        Log(client, "l", block, codec="json").append(*anew)

    others: dict[str, Callable[[], Any]] = {
        "compactor": lambda: keep_up(job_of(client)),
        "evict": lambda: log_of(client).evict(BLOCK + 1),
        "delete": lambda: log_of(client).delete(),
        "anew": lambda: make_anew(BLOCK),
        "anew, more a block": lambda: make_anew(BLOCK + 1),
    }
    attempt_look = KeyCompactor._attempt_look

    def late(self: KeyCompactor, *args: Any) -> Any:
        if KeyCompactor._attempt_look is late:
            monkeypatch.setattr(KeyCompactor, "_attempt_look", attempt_look)
            others[other]()
        return attempt_look(self, *args)

    monkeypatch.setattr(KeyCompactor, "_attempt_look", late)
    job.perform(Slice(1, 5.0))
    assert KeyCompactor._attempt_look is attempt_look
    if other == "delete":
        assert client.keys() == []
        return
    block = BLOCK + (other == "anew, more a block")
    for _ in range(2):
        found = Log(client, "l", block, codec="json").read(0, 99)
        if "anew" in other:
            assert found[:2] == anew[:2]
            assert found[block - 1 :] == anew[block - 1 :]
        else:
            assert found[-1] == written[-1]
        keep_up(job)
    assert found[2 : block - 1] == [None] * (block - 3) if "anew" in other else True


class TestBroken:
    WRITTEN = ({"user": "a", "n": 0}, {"user": "b", "n": 1}, *[{"user": "a", "n": 2}] * 6)

    @classmethod
    def prepared(cls, client: Any, *, rewriting: bool) -> None:
        client.flushdb()
        log_of(client).append(*cls.WRITTEN)
        keep_up(LogCompactor(log_of(client, None), 20, cold=0))
        if rewriting:
            while int(client.hget(log_of(client).keys.latest, "noted") or 0) < 2 * BLOCK:
                LogCompactor(log_of(client), 1, cold=0, superseded=0, random=lambda: 0.9).perform(
                    Slice(1, 5.0)
                )

    @classmethod
    def check(cls, client: Any) -> None:
        last = len(cls.WRITTEN) - 1
        found = entries_there(client)
        assert found[1] == cls.WRITTEN[1]
        assert found[last] == cls.WRITTEN[last]
        assert all(each in (None, whole) for each, whole in zip(found, cls.WRITTEN, strict=True))
        keep_up(job_of(client))
        assert entries_there(client) == expected(list(cls.WRITTEN))
        log_of(client).delete()
        assert list(client.scan_iter("*")) == []

    @pytest.mark.slow
    @pytest.mark.real
    @pytest.mark.parametrize("rewriting", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_connection_that_breaks_at_each_command(
        self, backend: RedisServer, faulty: FaultyServer, kind: str, rewriting: bool
    ) -> None:
        direct = backend.client(db=1)
        self.prepared(direct, rewriting=rewriting)
        assert job_of(client_of(faulty.port)).perform(Slice(1, 5.0)) == 1
        names = faulty.names()
        assert names[-1] == "EXEC"

        def work(client: redis.Redis) -> None:
            job_of(client).perform(Slice(1, 5.0))

        def prepare() -> None:
            self.prepared(direct, rewriting=rewriting)

        for _ in every_break(faulty, kind, names, prepare, work):
            self.check(direct)

    @pytest.mark.slow
    @pytest.mark.real
    @pytest.mark.parametrize("rewriting", [False, True])
    def test_a_compactor_that_is_killed_at_each_command(
        self, redis7: RedisServer, rewriting: bool
    ) -> None:
        direct = redis7.client()
        deaths = 0
        with FaultyServer(redis7.port) as door:

            def work() -> None:
                job_of(redis.Redis(port=door.port, protocol=2)).perform(Slice(1, 5.0))

            for _ in every_death([door], work, lambda: self.prepared(direct, rewriting=rewriting)):
                self.check(direct)
                deaths += 1
        assert deaths >= 20


def test_a_block_with_holes_is_one_that_is_compressed(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_of(client)
    log.append(*[{"user": "a", "text": "x" * 100}] * 3 * BLOCK)
    keep_up(job_of(client))
    assert log.stats().compressed == 3
    assert entries_of(client.get(log.keys.block(0))) == [None] * BLOCK
    assert json.loads(entries_of(client.get(log.keys.block(2)))[-1] or b"")["user"] == "a"
    with pytest.raises(LayoutError, match="no flags but 1: upgrade workstealing"):
        entries_of(client.getrange(log.keys.block(0), 0, 4) + b"\x03" + bytes(10))


def test_a_compressed_block_that_gets_holes_is_compressed_again(redis7: RedisServer) -> None:
    """Also if the compactor that makes the holes compresses nothing."""
    client = redis7.client()
    log = log_of(client)
    log.append(*[{"user": "a", "text": "x" * 100}] * 2 * BLOCK)
    keep_up(LogCompactor(log_of(client, None), 20, cold=0))
    assert log.stats().compressed == 2
    keep_up(job_of(client, codec="none"))
    # In the order in which the blocks were rewritten, which is any.
    assert (log.stats().compressed, {*client.zrange(log.keys.raw, 0, -1)}) == (0, {b"0", b"1"})
    keep_up(LogCompactor(log_of(client, None), 20, cold=0))
    assert log.stats().compressed == 2


def test_two_compactors_note_a_block_once(redis7: RedisServer, monkeypatch: Any) -> None:
    """Also one in which nothing is superseded."""
    client = redis7.client()
    log_of(client).append(*[{"user": user} for user in "abcdefgh"])
    keep_up(LogCompactor(log_of(client, None), 20, cold=0))
    commit = Attempt.commit

    def late(current: Attempt, *commands: Any) -> Any:
        monkeypatch.setattr(Attempt, "commit", commit)
        assert job_of(client).perform(Slice(1, 5.0)) == 1
        return commit(current, *commands)

    monkeypatch.setattr(Attempt, "commit", late)
    with pytest.raises(Aborted):
        job_of(client).perform(Slice(1, 5.0))


def test_evicted_blocks_are_no_backlog(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_of(client)
    log.append(*[{"user": "a"}] * 6 * BLOCK)
    keep_up(LogCompactor(log_of(client, None), 20, cold=0))
    assert job_of(client).backlog().count == 6
    log.evict(3 * BLOCK + 1)
    assert job_of(client).backlog().count == 3


def test_a_block_that_is_too_large_is_passed(redis7: RedisServer) -> None:
    client = redis7.client()
    large = {"user": "a", "text": "x" * 5000}
    written = [large, large, *[{"user": "b"}] * (BLOCK - 2), *[{"user": "a"}] * BLOCK]
    log_of(client).append(*written)
    job = job_of(client, most_bytes=2000)
    for _ in range(30):
        job.perform(Slice(20, 5.0))
    assert job.too_large >= 1
    assert entries_there(client) == [*written[:BLOCK], *[None] * (BLOCK - 1), {"user": "a"}]


def test_a_newer_version_that_may_be_written_stays_the_newer_one(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_of(client)
    log.append(*[{"user": "a"}] * 2 * BLOCK)
    newer = {"mark": "3", "readable_from": "2", "writable_from": "2"}
    client.hset(log.keys.meta, mapping=newer)
    keep_up(job_of(client))
    assert entries_there(client)[:-1] == [None] * (2 * BLOCK - 1)
    assert client.hmget(log.keys.meta, *newer) == [b"3", b"2", b"2"]
