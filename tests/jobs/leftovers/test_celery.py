"""Celery's and kombu's leftovers, made by their own processes, and their own writers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from kombu import Connection
from kombu.common import maybe_declare
from kombu.pidbox import Mailbox

from support.owners import age, chosen, collected, owned, slices_by, waited
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.jobs import CeleryLeftovers
from workstealing.jobs.celery_leftovers import (
    REPLIES,
    SEPARATOR,
    DeadBindings,
    ReplyLists,
    RpcReplies,
)
from workstealing.jobs.leftovers import Garbage, Item, Rule, Verdicts, key_removed
from workstealing.testing import ShiftedTime, assert_safe

TESTS = Path(__file__).parents[2]
PATIENCE = 90.0
GAP = 30 * 86_400
OTHER = {"global_keyprefix": "shop:", "sep": "::"}

pytestmark = pytest.mark.real


@pytest.fixture
def client(redis7: RedisServer) -> Any:
    return redis7.client()


class Owner:
    """Celery's processes with certain options of the transport."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.options = options
        environment = {"REDIS_URL": url, "OPTIONS": json.dumps(options), "PYTHONPATH": str(TESTS)}
        self._environment = {**os.environ, **environment}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "support.celery_owner", *args]
        self._started.append(spawn(command, env=self._environment))
        return self._started[-1]

    def killed(self, kind: str) -> None:
        assert self.start(kind).wait(PATIENCE) == -9

    def end(self) -> None:
        for each in self._started:
            end(each)

    def leftovers(self, client: Any, **options: Any) -> CeleryLeftovers:
        named = {"prefix": self.options.get("global_keyprefix", "")}
        named["sep"] = self.options.get("sep", SEPARATOR)
        options = {"dry_run": False, **named, **options}
        return CeleryLeftovers(client, random=chosen(), **options)


@pytest.fixture
def app(redis7: RedisServer) -> Iterator[Celery]:
    made = Celery("mine", broker=redis7.url, backend="rpc://", set_as_current=False)
    yield made
    made.close()


@pytest.fixture
def channel(redis7: RedisServer) -> Iterator[Any]:
    with Connection(redis7.url) as connection:
        yield connection.channel()


def published(app: Celery, oid: str) -> None:
    """Store a result of a task as a worker does, for a client's list."""
    number = str(uuid.uuid4())
    request = Context(id=number, reply_to=oid, correlation_id=number)
    app.backend.store_result(number, 3, "SUCCESS", request=request)


def replied(channel: Any, oid: str | None = None) -> str:
    """Send a reply as a worker does, to a client that has bound its queue; return its list."""
    mailbox = Mailbox("celery", type="fanout", connection=channel.connection.client)
    if oid is None:
        maybe_declare(mailbox.reply_queue(channel))
        oid = mailbox.oid
    node = mailbox.Node("one@here", channel=channel)
    to = mailbox.reply_exchange.name
    node.reply({"one@here": {"ok": "pong"}}, exchange=to, routing_key=oid, ticket="a")
    return f"{oid}.{REPLIES}"


@pytest.fixture(
    params=[pytest.param({}, id="plain", marks=pytest.mark.smoke), pytest.param(OTHER, id="prefix")]
)
def owner(request: pytest.FixtureRequest, redis7: RedisServer) -> Iterator[Owner]:
    made = Owner(redis7.url, request.param)
    yield made
    made.end()


@pytest.mark.slow
class TestKilled:
    @pytest.mark.slow
    def test_what_dead_clients_leave_goes_and_nothing_else(self, client: Any, owner: Owner) -> None:
        prefix = owner.options.get("global_keyprefix", "")
        table = f"{prefix}_kombu.binding.{REPLIES}"

        def lists(ending: str, least: int) -> list[bytes]:
            form = re.compile(f"{re.escape(prefix)}[0-9a-f-]{{36}}{ending}".encode())
            names = [name for name in client.scan_iter(count=1000) if form.fullmatch(name)]
            return [name for name in names if client.llen(name) >= least]

        owner.start("worker", "one@here")
        owner.killed("results")
        waited(lambda: lists("", 3))
        (results,) = lists("", 3)
        owner.killed("replies")
        waited(lambda: lists(f".{REPLIES}", 1))
        (replies,) = lists(f".{REPLIES}", 1)
        owner.killed("binding")
        assert client.ttl(results) == client.ttl(replies) == -1
        assert client.scard(table) == 2

        cleaner = owner.leftovers(client, gap=GAP, wait=GAP, life=GAP)
        assert collected(cleaner) == 0
        # Both lists, and the binding that has none.
        assert age(client) == 3
        living = owner.start("lives", "8")
        removed = 0
        while living.poll() is None:
            removed += collected(cleaner, 5)
        assert living.returncode == 0
        assert removed + collected(cleaner) == 3
        assert not client.exists(results, replies)
        # The binding whose list has gone now is seen without it for the first time.
        assert client.scard(table) == 1
        assert age(client) >= 4
        assert collected(cleaner) == 1
        assert not client.exists(table)
        assert owner.start("lives", "1").wait(PATIENCE) == 0

    def test_a_live_client_goes_on_after_its_late_replies_are_gone(
        self, client: Any, redis7: RedisServer
    ) -> None:
        owner = Owner(redis7.url, {})
        connection = Connection(redis7.url)
        try:
            owner.start("worker", "one@here")
            waited(lambda: client.exists("_kombu.binding.celery.pidbox"))
            mailbox = Mailbox("celery", type="fanout", connection=connection)
            while not mailbox.multi_call("ping", timeout=5, limit=1):
                pass
            # Its call breaks off between the request and the first look at the replies.
            collect = mailbox._collect
            mailbox._collect = lambda *_, **__: []
            mailbox.multi_call("ping")
            mailbox._collect = collect
            name = f"{mailbox.oid}.{REPLIES}"
            waited(lambda: client.llen(name))
            cleaner = owner.leftovers(client, gap=GAP)
            assert collected(cleaner) == 0
            age(client)
            assert collected(cleaner) == 1
            # Its channel believes that the queue is bound, and binds it no more.
            assert len(mailbox.multi_call("ping", timeout=PATIENCE, limit=1)) == 1
        finally:
            connection.release()
            owner.end()

    def test_messages_in_flight_are_counted_and_never_touched(
        self, client: Any, redis7: RedisServer
    ) -> None:
        owner = Owner(redis7.url, {})
        try:
            assert owner.start("holds").wait(PATIENCE) == 0
            worker = owner.start("worker", "one@here")
            waited(lambda: client.hlen("unacked"))
            worker.kill()
            worker.wait()
            before = {name: client.dump(name) for name in ("unacked", "unacked_index")}
            cleaner = owner.leftovers(client, gap=GAP, wait=GAP, life=GAP)
            collected(cleaner)
            age(client)
            collected(cleaner)
            assert {name: client.dump(name) for name in before} == before
            # They are no backlog of a job that will never remove them; a dry run counts them.
            assert cleaner.backlog(60.0).count == 0
            assert owner.leftovers(client, name="dry", dry_run=True).backlog(60.0).count >= 1
        finally:
            owner.end()


def leftovers(client: Any, **options: Any) -> CeleryLeftovers:
    times = {"gap": GAP, "wait": GAP, "life": GAP}
    return CeleryLeftovers(client, dry_run=False, random=chosen(), **times, **options)


def gone(client: Any, cleaner: CeleryLeftovers) -> int:
    """Collect with two sightings of everything."""
    assert collected(cleaner) == 0
    age(client)
    return collected(cleaner)


def test_what_is_not_celerys_stays(client: Any, app: Celery, channel: Any) -> None:
    # A queue of tasks may have any name, and holds messages with correlations, too.
    tenant = str(uuid.uuid4())
    app.send_task("mine.task", queue=tenant)
    assert client.llen(tenant) == 1
    client.rpush(str(uuid.uuid4()), "text")
    client.rpush(str(uuid.uuid4()), json.dumps({"task_id": "a"}))
    client.rpush(f"{uuid.uuid4()}.{REPLIES}", "text")
    # Of another reader, and under names that only resemble those of replies.
    name = replied(channel)
    client.rename(name, f"{uuid.uuid4()}.{REPLIES}")
    other = replied(channel)
    client.rename(other, f"mine.{REPLIES}")
    oid = str(uuid.uuid4())
    published(app, oid)
    client.rename(oid, f"other:{oid}")
    table = f"_kombu.binding.{REPLIES}"
    bound = client.scard(table)
    client.sadd(table, "text", SEPARATOR.join(("a", "", f"a.{REPLIES}")))
    client.sadd(table, SEPARATOR.join((oid, "", "mine")))
    client.sadd("_kombu.binding.other", SEPARATOR.join((oid, "", f"{oid}.{REPLIES}")))
    before = owned(client)
    # The bindings of both readers, whose lists are gone, are the only garbage.
    assert gone(client, leftovers(client)) == bound
    after = owned(client)
    assert client.smembers(table) == {
        b"text",
        SEPARATOR.join(("a", "", f"a.{REPLIES}")).encode(),
        SEPARATOR.join((oid, "", "mine")).encode(),
    }
    del before[table.encode()], after[table.encode()]
    assert after == {key: value for key, value in before.items() if key in after}
    assert set(before) - set(after) <= {f"_kombu.binding_permanent.{REPLIES}".encode()}


def test_a_list_that_is_used_stays(client: Any, app: Celery, channel: Any) -> None:
    oid = str(uuid.uuid4())
    for _ in range(3):
        published(app, oid)
    name = replied(channel)
    cleaner = leftovers(client)
    for _ in range(3):
        assert collected(cleaner) == 0
        age(client)
        published(app, oid)
        replied(channel, name.partition(".")[0])
    client.rpop(oid)
    client.rpop(name)
    assert collected(cleaner) == 0
    assert client.llen(oid) == 5
    age(client)
    assert collected(cleaner) == 2
    assert not client.exists(oid, name)


def test_a_prefix_with_signs_of_patterns(client: Any, app: Celery, channel: Any) -> None:
    oid = str(uuid.uuid4())
    published(app, oid)
    name = replied(channel)
    for each in (oid, name, f"_kombu.binding.{REPLIES}"):
        client.copy(each, f"a[1]*:{each}")
        client.copy(each, f"a1:{each}")
    assert gone(client, leftovers(client, prefix="a[1]*:")) == 2
    assert gone_bindings(client, leftovers(client, prefix="a[1]*:")) == 1
    assert not [key for key in owned(client) if key.startswith(b"a[")]
    assert client.exists(oid, name, f"a1:{oid}", f"a1:{name}") == 4


def gone_bindings(client: Any, cleaner: CeleryLeftovers) -> int:
    age(client)
    return collected(cleaner)


class TestRefuting:
    """Each command of kombu's own code between each two of the collector's."""

    pytestmark = pytest.mark.slow

    @staticmethod
    def with_client(channel: Any, client: Any) -> Any:
        """Return kombu's channel, which sends by the client that is given."""

        @contextmanager
        def conn_or_acquire(_: Any = None) -> Iterator[Any]:
            yield client

        made = channel.connection.client.channel()
        made.conn_or_acquire = conn_or_acquire
        return made

    def refuted(
        self,
        client: Any,
        rule: Callable[[], Rule],
        write: Callable[[Any], object],
        setup: Callable[[Any], object],
        *,
        lost: Callable[[Any], str | None],
        young: list[bytes],
    ) -> None:
        def begin(each: Any) -> None:
            young.clear()
            setup(each)

        def between(clock: ShiftedTime) -> None:
            # Nobody who is there now lives longer than this.
            clock.advance(2 * GAP)
            client.set("life", 1)

        assert_safe(
            lambda each: slices_by(each, [rule()]),
            write,
            setup=begin,
            lost=lost,
            client=client,
            slices=2,
            between=between,
        )

    def test_a_reply_comes(self, client: Any, channel: Any) -> None:
        self.reply_comes(client, channel, lambda: ReplyLists(gap=GAP))

    def reply_comes(self, client: Any, channel: Any, rule: Callable[[], Rule]) -> None:
        name = replied(channel)
        reply = client.lindex(name, 0)
        client.flushdb()
        young: list[bytes] = []

        def write(each: Any) -> None:
            mine = self.with_client(channel, each)
            mine._put(name, {**json.loads(reply), "new": 1})
            # One that came before the first sighting is as old as the gap at the second.
            young.extend(client.keys("*:seen:*"))

        def lost(each: Any) -> str | None:
            newest = each.lindex(name, 0) or b"{}"
            return "a new reply is gone" if young and b"new" not in newest else None

        self.refuted(
            client,
            rule,
            write,
            lambda each: each.lpush(name, reply),
            lost=lost,
            young=young,
        )

    def test_a_rule_that_does_not_look_at_the_ends_is_refuted(
        self, client: Any, channel: Any
    ) -> None:
        class Careless(ReplyLists):
            def verdict(self, item: Item) -> Verdicts:
                found = yield from super().verdict(item)
                return key_removed(item.key) if isinstance(found, Garbage) else found

        with pytest.raises(AssertionError, match="a new reply is gone"):
            self.reply_comes(client, channel, lambda: Careless(gap=GAP))

    def test_a_client_looks_at_its_result_and_puts_it_back(
        self, client: Any, app: Celery, channel: Any
    ) -> None:
        oid = str(uuid.uuid4())
        published(app, oid)
        result = client.lindex(oid, 0)
        client.flushdb()
        young: list[bytes] = []

        def write(each: Any) -> None:
            mine = self.with_client(channel, each)
            mine.priority_steps = [0]
            try:
                message = mine._get(oid)
            except Empty:
                return
            mine._put(oid, {**message, "redelivered": True})
            young.extend(client.keys("*:seen:*"))

        def lost(each: Any) -> str | None:
            return "a result that was put back is gone" if young and not each.llen(oid) else None

        self.refuted(
            client,
            lambda: RpcReplies(GAP),
            write,
            lambda each: each.lpush(oid, result),
            lost=lost,
            young=young,
        )

    def test_another_client_binds_its_queue(self, client: Any, channel: Any) -> None:
        dead, live = str(uuid.uuid4()), str(uuid.uuid4())
        table = f"_kombu.binding.{REPLIES}"
        member = SEPARATOR.join((live, "", f"{live}.{REPLIES}"))
        young: list[bytes] = []

        def setup(each: Any) -> None:
            each.sadd(table, SEPARATOR.join((dead, "", f"{dead}.{REPLIES}")))

        def write(each: Any) -> None:
            mine = self.with_client(channel, each)
            mine._queue_bind(REPLIES, live, "", f"{live}.{REPLIES}")
            young.extend(client.keys("life"))

        def lost(each: Any) -> str | None:
            gone = young and not each.sismember(table, member)
            return "a live client's binding is gone" if gone else None

        self.refuted(client, lambda: DeadBindings(GAP), write, setup, lost=lost, young=young)
