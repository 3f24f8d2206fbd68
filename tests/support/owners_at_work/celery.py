"""Celery: clients of rpc:// and of remote control, and workers, all by Celery and kombu themselves.

A worker starts too slowly to be killed as often as clients are. So most results and replies that a
client reads were sent by the client itself, by the very code by which a worker sends them.
"""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import kombu.common
from celery import Celery as App
from celery.app.task import Context
from celery.apps.worker import Worker  # noqa: F401 - imported before the first fork
from celery.bin.celery import celery as _command  # noqa: F401 - as well
from kombu import Connection
from kombu.common import maybe_declare
from kombu.pidbox import Mailbox

from support.killed_journal import Work
from support.owners_at_work.owner import DAY, Owner
from workstealing.jobs import CeleryLeftovers
from workstealing.jobs.celery_leftovers import REPLIES, DeadBindings
from workstealing.jobs.leftovers import Leftovers

PATIENCE = 120.0


class Celery(Owner):
    """Celery with its broker and its results in Redis."""

    name = "celery"
    processes: ClassVar[Mapping[str, int]] = {"asks": 3, "worker": 1}
    endless = frozenset({"worker"})
    of_lives = frozenset({"bindings"})
    pace = 2.0

    def __init__(self, home: str, *, planted: bool = False) -> None:
        super().__init__(home, planted=planted)
        self._app = App("owner", broker=home, backend="rpc://")
        self._app.conf.update(broker_connection_retry_on_startup=True)

        @self._app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        self._add = add
        self._app.finalize()

    def jobs(self, client: Any) -> list[Any]:
        """Return two jobs: a binding lives as long as its process, and a reply as its call."""
        bindings = Leftovers(client, [DeadBindings(DAY)], name="bindings", dry_run=False)
        return [CeleryLeftovers(client, gap=DAY, wait=DAY, dry_run=False), bindings]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Work, or ask for replies and results."""
        logging.disable(logging.CRITICAL)
        # A process of its own makes its own; a child of a fork has its parent's.
        kombu.common._node_id = None
        if role == "worker":
            quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
            warnings.simplefilter("ignore")
            name = f"--hostname=one@{work.life}"
            return lambda: self._app.worker_main(
                ["--quiet", "worker", "--pool=solo", "--loglevel=CRITICAL", name, *quiet]
            )
        return Client(self._app, self._add, self.home, work).operate

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Nothing is in the journal: a client itself sees that its own is there."""
        return []

    def left(self, client: Any) -> list[str]:
        """Return lists of replies and results, and bindings of them."""
        left = []
        for key in client.scan_iter(count=1_000, _type="list"):
            name = key.decode().removesuffix(f".{REPLIES}")
            if len(name) == 36 and name.count("-") == 4:
                left.append(key.decode())
        for kind in ("binding", "binding_permanent"):
            table = f"_kombu.{kind}.{REPLIES}"
            left += [f"{each!r} in {table}" for each in client.smembers(table)]
        return left


class Client:
    """A client.

    Arguments:
        add: a task.
        home: the URL.
    """

    def __init__(self, app: Any, add: Any, home: str, work: Work) -> None:
        self._app, self._add, self._work = app, add, work
        self._connection = Connection(home)
        self._channel = self._connection.channel()
        self._mailbox = Mailbox("celery", type="fanout", connection=self._connection)

    def operate(self) -> None:
        """Do one operation."""
        often, seldom = (self.replies, self.results), (self.call, self.ask)
        self._work.draw.choice(often * 3 + seldom)()

    def results(self) -> None:
        """Wait for results, which are stored as by a worker; another process never collects."""
        oid = self._app.thread_oid
        names = [str(uuid.uuid4()) for _ in range(self._work.draw.randint(1, 3))]
        backend = self._app.backend
        asked = [self._app.AsyncResult(each) for each in names]
        for each in names:
            with self._app.producer_or_acquire() as producer:
                backend.on_task_call(producer, each)
            request = Context(id=each, reply_to=oid, correlation_id=each)
            backend.store_result(each, 3, "SUCCESS", request=request)
        for each in asked:
            self._work.is_there(each.get(timeout=PATIENCE) == 3, f"the result {each.id}")

    def replies(self) -> None:
        """Collect replies to remote control, which are sent as by a worker."""
        mailbox, ticket = self._mailbox, str(uuid.uuid4())
        maybe_declare(mailbox.reply_queue(self._channel))
        node = mailbox.Node("one@here", channel=self._channel)
        number = self._work.draw.randint(1, 3)
        for _ in range(number):
            to = mailbox.reply_exchange.name
            node.reply({"one@here": "pong"}, exchange=to, routing_key=mailbox.oid, ticket=ticket)
        name = f"{mailbox.oid}.{REPLIES}"
        self._work.is_there(self._channel._size(name) == number, f"a reply in {name}")
        # The end of the call takes it away.
        bound = [each[0] for each in self._channel.get_table(mailbox.reply_exchange.name)]
        self._work.is_there(mailbox.oid in bound, f"the binding of {name}")
        found = mailbox._collect(ticket, limit=number, timeout=PATIENCE, channel=self._channel)
        self._work.is_there(len(found) == number, f"a reply of {name}")

    def call(self) -> None:
        """Let a worker execute a task; most clients die before it has."""
        self._add.delay(self._work.life, 1).get(timeout=PATIENCE)

    def ask(self) -> None:
        """Ask the worker whether it is there; it may be dead."""
        self._app.control.inspect(timeout=1.0, limit=1).ping()
