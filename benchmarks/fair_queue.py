"""What a fair queue's calls cost beside a shuffle queue and a plain stream.

A fair queue has a record for each account, and one script a call, so its read should not depend on
the number of accounts. Each case is measured by the server's own count of its scripts and commands,
and by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from figures import Figure, Target, cost_figure, in_turn
from servers import RedisServer

from workstealing.structures import FairQueue, ShuffleQueue

ROUNDS = 20
CALLS = 60
ACCOUNTS = (16, 1_024, 100_000)
FIELDS = {"body": "x" * 100}
WORKER, GROUP = "worker-1", "workers"


class Cost(NamedTuple):
    """Seconds of one call: on the server, and for the caller."""

    server: float
    called: float


class _Meter:
    """Times calls by the server's count of what it was sent, and by the caller's clock."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def _usec(self) -> float:
        info = self._client.info("commandstats")
        # The commands of a script are counted within it.
        names = ("evalsha", "eval")
        scripts = sum(info.get(f"cmdstat_{name}", {}).get("usec", 0) for name in names)
        return float(scripts or sum(each["usec"] for each in info.values()))

    def run(self, call: Callable[[], Any], calls: int = CALLS) -> Cost:
        """Call so many times; return what one call cost."""
        self._client.config_resetstat()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        called = time.perf_counter() - began
        return Cost(self._usec() / 1e6 / calls, called / calls)


class _Side:
    """One queue, with the calls that all kinds have; messages are spread over some accounts."""

    def __init__(self, client: Any, name: str, accounts: int) -> None:
        self.client, self.name, self.accounts = client, name, accounts
        self.taken: list[Any] = []
        self._written = 0
        self.begin()

    def begin(self) -> None:
        """Make the queue."""

    def put(self, account: str) -> None:
        """Write a message."""
        raise NotImplementedError

    def get(self) -> Any:
        """Read one, or return None."""
        raise NotImplementedError

    def settle(self, message: Any) -> None:
        """Acknowledge one."""
        raise NotImplementedError

    def write(self) -> None:
        """Write a message of the next account."""
        self._written += 1
        self.put(f"account-{self._written % self.accounts}")

    def read(self) -> None:
        """Read a message, which must be there, and keep it in hand."""
        message = self.get()
        assert message is not None
        self.taken.append(message)

    def ack(self) -> None:
        """Acknowledge one of the messages in hand."""
        self.settle(self.taken.pop())

    def turn(self) -> None:
        """Write one, take one, acknowledge it: a queue that is nearly empty."""
        self.write()
        self.settle(self.get())

    def empty(self) -> None:
        """Take and acknowledge all."""
        while self.taken:
            self.ack()
        while (message := self.get()) is not None:
            self.settle(message)


class _Fair(_Side):
    def begin(self) -> None:
        self.queue = FairQueue(self.client, self.name)

    def put(self, account: str) -> None:
        self.queue.write(account, FIELDS)

    def get(self) -> Any:
        return self.queue.read(WORKER)

    def settle(self, message: Any) -> None:
        self.queue.ack(message)


class _Shuffle(_Side):
    def begin(self) -> None:
        self.queue = ShuffleQueue(self.client, self.name)
        self.queue.read(GROUP, WORKER)

    def put(self, account: str) -> None:
        self.queue.write(account, FIELDS)

    def get(self) -> Any:
        return self.queue.read(GROUP, WORKER)

    def settle(self, message: Any) -> None:
        self.queue.ack(message)


class _Stream(_Side):
    """A plain stream group: no tenants, no fairness."""

    def begin(self) -> None:
        self.client.xgroup_create(self.name, GROUP, id="0", mkstream=True)

    def put(self, account: str) -> None:
        self.client.xadd(self.name, {**FIELDS, "account": account})

    def get(self) -> Any:
        found = self.client.xreadgroup(GROUP, WORKER, {self.name: ">"}, count=1)
        if not found:
            return None
        entries = found[self.name.encode()][0] if isinstance(found, dict) else found[0][1]
        return entries[0][0]

    def settle(self, message: Any) -> None:
        pipeline = self.client.pipeline(transaction=False)
        pipeline.xack(self.name, GROUP, message)
        pipeline.xdel(self.name, message)
        pipeline.execute()


def _compared(
    name: str,
    reference: str,
    ours: Callable[[], Cost],
    theirs: Callable[[], Cost],
    *,
    server: Target | None = None,
    called: Target | None = None,
) -> list[Figure]:
    spent: dict[int, list[Cost]] = {0: [], 1: []}

    def batch(which: int, case: Callable[[], Cost]) -> Callable[[], float]:
        def run() -> float:
            spent[which].append(case())
            return spent[which][-1].server

        return run

    in_turn(batch(0, ours), batch(1, theirs), ROUNDS)
    # The first of each does not count.
    mine, other = spent[0][1:], spent[1][1:]
    figures = []
    for which, target in (("server", server), ("called", called)):
        pair = ([getattr(each, which) for each in mine], [getattr(each, which) for each in other])
        figures.append(cost_figure(f"fair_queue_{name}_{which}", reference, pair, target))
    return figures


def _filled(side: _Side, messages: int) -> _Side:
    for _ in range(messages):
        side.write()
    return side


def _beside(client: Any, meter: _Meter, accounts: int) -> list[Figure]:
    """Writes, reads and acks of a full queue with some accounts, beside a shuffle queue."""
    messages = accounts + 2 * (ROUNDS + 2) * CALLS
    ours = _filled(_Fair(client, f"fair-{accounts}", accounts), messages)
    theirs = _filled(_Shuffle(client, f"shuffle-{accounts}", accounts), messages)
    reference = f"a shuffle queue, {accounts:,} tenants"
    figures = []
    for call, most in (("write", None), ("read", 1.5), ("ack", None)):
        figures += _compared(
            f"{call}_{accounts}",
            reference,
            lambda call=call: meter.run(getattr(ours, call)),
            lambda call=call: meter.run(getattr(theirs, call)),
            server=None if most is None else Target(most=most),
        )
    return figures


def _nearly_empty(client: Any, meter: _Meter) -> list[Figure]:
    ours, theirs = _Fair(client, "fair-idle", 1_024), _Shuffle(client, "shuffle-idle", 1_024)

    def reads(side: _Side) -> Cost:
        costs = []
        for _ in range(CALLS // 4):
            side.write()
            costs.append(meter.run(side.read, 1))
            side.ack()
        return Cost(*(sum(each) / len(costs) for each in zip(*costs, strict=True)))

    return _compared(
        "read_nearly_empty_1024",
        "a shuffle queue that is nearly empty, 1,024 tenants",
        lambda: reads(ours),
        lambda: reads(theirs),
        server=Target(most=0.6),
    )


def _flat(client: Any, meter: _Meter) -> list[Figure]:
    """Reads with many accounts beside reads with few."""
    messages = (ROUNDS + 2) * CALLS
    few = _filled(_Fair(client, "flat-16", ACCOUNTS[0]), 2 * messages)
    figures = []
    for accounts in ACCOUNTS[1:]:
        many = _filled(_Fair(client, f"flat-{accounts}", accounts), accounts + messages)
        figures += _compared(
            f"flat_{accounts}",
            "a fair queue of 16 accounts",
            lambda many=many: meter.run(many.read),
            lambda: meter.run(few.read),
            server=Target(most=1.5),
        )
        few.empty()
        _filled(few, 2 * messages)
    return figures


def _beside_a_stream(client: Any, meter: _Meter) -> list[Figure]:
    """A message put, taken and acknowledged, beside a plain stream group."""
    ours, theirs = _Fair(client, "fair-turn", 16), _Stream(client, "stream", 16)
    return _compared(
        "put_take_ack",
        "a plain stream group",
        lambda: meter.run(ours.turn),
        lambda: meter.run(theirs.turn),
        called=Target(most=1.5),
    )


def measure(server: RedisServer) -> list[Figure]:
    """Measure reads, writes and acks."""
    client = server.client()
    meter = _Meter(client)
    figures = []
    for accounts in ACCOUNTS:
        figures += _beside(client, meter, accounts)
    client.flushall()
    figures += _nearly_empty(client, meter)
    figures += _flat(client, meter)
    figures += _beside_a_stream(client, meter)
    return figures
