"""Protocols that change a layout or a mark, with processes that are killed within them.

Each model lets processes work by chance, with all that they once knew. Some are cut off behind a
command of theirs, or killed before or after it (SIGKILL), and are never heard of again. Then the
model looks at everything: nothing is lost, nothing comes back, and the protocol can come to its
end. A call that was cut off may have been done or not, and nothing in between.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.deaths import died_of_the_switch
from support.faulty_server import CutSwitch, FaultyServer, KillSwitch
from support.proof import tried
from support.servers import RedisServer, client_at
from workstealing import Fleet
from workstealing.errors import Aborted, OutOfTime, Skipped
from workstealing.jobs import FleetRebalance
from workstealing.recruiting.slice import Slice
from workstealing.store.operations import run
from workstealing.structures import DurableKeys, LeaseLost, NoLease, ShardedIck, VolatileHashes
from workstealing.structures.on_fleet import carry

CUT = "a client cut off behind a command within a protocol"
KILLED = "a process killed (SIGKILL) before or after a command within a protocol"
CUT_OFF = (redis.ConnectionError, redis.TimeoutError)
NOT_NOW = (Aborted, OutOfTime, Skipped)
# One kill in so many is a real one, of a forked process.
FORKED = 20
HOUR_MS = 3_600_000


class Protocol:
    """A model of a protocol on servers of its own; see the module.

    Arguments:
        servers: by name.

    `counts` says what was done.
    """

    SERVERS: ClassVar[int] = 1
    """How many servers it wants."""
    ABOUT: ClassVar[str]
    """The structure that it is about."""

    def __init__(self, servers: Sequence[RedisServer], seed: int) -> None:
        self.servers = {"abc"[number]: server for number, server in enumerate(servers)}
        self.doors = {name: FaultyServer(each.port) for name, each in self.servers.items()}
        self.clients: dict[str, Any] = {name: each.client() for name, each in self.servers.items()}
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._reach: defaultdict[str, int] = defaultdict(lambda: 4)

    def close(self) -> None:
        """Close the doors."""
        for door in self.doors.values():
            door.stop()

    def step(self) -> None:
        """Do one thing by chance, and look whether all is well."""
        raise NotImplementedError

    def end(self) -> None:
        """Bring the protocol to its end, and look at everything."""
        raise NotImplementedError

    def killed(self, work: Callable[[dict[str, Any]], Any]) -> bool:
        """Let a process do its work, and kill it by chance at one of its commands.

        Arguments:
            work: takes the process's clients.

        Returns: whether it was killed. What it knows is lost then.
        """
        doors = [*self.doors.values()]
        label = work.__qualname__
        # It is killed within as many commands as the last one of its kind has sent in all.
        at, after = self.draw.randint(1, self._reach[label]), self.draw.random() < 0.7
        if self.draw.randrange(FORKED) == 0:
            switch = KillSwitch(at, after=after)
            return self._counted(
                died_of_the_switch(switch, doors, lambda: self._work(work), KILLED, self.ABOUT)
            )
        cut = CutSwitch(at, doors, after=after)
        for door in doors:
            door.reset()
            door.switch = cut
        self._work(work)
        for door in doors:
            door.settle()
        self._reach[label] = max(cut.passed, 1) if not cut.fired else self._reach[label] + 1
        if cut.fired:
            tried(CUT, on=self.ABOUT)
        return self._counted(cut.fired)

    def _counted(self, was_killed: bool) -> bool:
        self.counts["killed"] += was_killed
        return was_killed

    def _work(self, work: Callable[[dict[str, Any]], Any]) -> None:
        clients = {
            name: client_at(door.port, protocol=2, retry=Retry(NoBackoff(), 0))
            for name, door in self.doors.items()
        }
        try:
            with contextlib.suppress(*CUT_OFF, *NOT_NOW):
                work(clients)
        finally:
            for client in clients.values():
                client.close()


class MovingFleet(Protocol):
    """A fleet that gets a further node, and loses it again; hashes, keys and leases move.

    A hash is a model of field -> (value, deadline in ms), a key is a model (value, deadline).
    """

    SERVERS = 3
    ABOUT = "fleets"
    NODES = (("a", "b"), ("a", "b", "c"), ("b", "c"))

    def __init__(self, servers: Sequence[RedisServer], seed: int) -> None:
        super().__init__(servers, seed)
        self.backend = self.draw.choice(self._backends())
        self.hashes: dict[str, dict[bytes, tuple[bytes, int]]] = {f"h:{n}": {} for n in range(10)}
        self.keys: dict[str, tuple[bytes, int] | None] = {f"k:{n}": None for n in range(10)}
        self.tokens: dict[str, int] = {f"l:{n}": 0 for n in range(4)}
        self.nodes: tuple[str, ...] = self.NODES[0]
        self.previous: tuple[str, ...] = ()
        self.processes: list[tuple[Any, Any]] = []
        # Carriers that have stopped between two of their commands: the rest, and the next one.
        self.slow: list[tuple[Any, Any]] = []
        # Each further node's clock is behind those of before.
        self.shift_ms = 0
        self.begin_processes()

    def _backends(self) -> list[str]:
        info = self.clients["a"].info("server")
        is_new = int(info["redis_version"].split(".")[0]) >= 8 or "valkey_version" in info
        return ["emulated", "native"] if is_new else ["emulated"]

    def both(self, clients: dict[str, Any], *, old: bool = False) -> tuple[Any, Any]:
        """Return the structures of a process; old: one that knows nothing of the move."""
        nodes = self.previous if old else self.nodes
        previous = {} if old else {name: clients[name] for name in self.previous}
        fleet = Fleet({name: clients[name] for name in nodes}, previous=previous)
        hashes = VolatileHashes(fleet, "h", backend=self.backend)
        return hashes, DurableKeys(fleet, "k", clock_shift_ms=self.shift_ms)

    def begin_processes(self) -> None:
        """Stop all processes, and start them anew, as docs/fleets.md has it."""
        self.processes = [self.both(self.clients) for _ in range(3)]
        self.slow = []

    def step(self) -> None:
        """Do one thing by chance, and look at one name of each kind, and at all now and then."""
        things: list[tuple[int, Callable[[], None]]] = [
            (30, lambda: self.use(is_killed=False)),
            (25, lambda: self.use(is_killed=True)),
            (10, lambda: self.carry(is_killed=False)),
            (30, lambda: self.carry(is_killed=True)),
            (25, self.carry_slowly),
            (5, self.write_at_the_former_home),
            (5, self.evict),
            (8, self.change),
            (3, self.begin_processes),
        ]
        weights, does = zip(*things, strict=True)
        (thing,) = self.draw.choices(does, weights)
        self.counts["steps"] += 1
        thing()
        self.look(self.draw.choice(self.processes), 2)

    def use(self, *, is_killed: bool) -> None:
        """Let a process change one name; it may be killed meanwhile."""
        draw, at = self.draw, HOUR_MS * draw_hours(self.draw)
        value = b"%d" % draw.randint(0, 99)
        kind = draw.random()
        if kind < 0.1:
            self.lease(is_killed=is_killed)
            return
        if kind < 0.55:
            name = draw.choice([*self.hashes])
            before = dict(self.hashes[name])
            field = draw.choice([b"f", b"g"])
            after, call = draw.choice(
                [
                    ({**before, field: (value, at)}, _hset(name, field, value, at)),
                    ({**before, field: (value, at)}, _hset(name, field, value, at)),
                    ({**before, field: (value, -1)}, _hset(name, field, value, -1)),
                    ({each: before[each] for each in before if each != field}, _hdel(name, field)),
                    ({}, lambda h, _: h.delete(name)),
                ]
            )
            self._change(lambda found: self._is_hash(name, found), before, after, call, is_killed)
            self.hashes[name] = after if self._is_hash(name, after) else before
        else:
            name = draw.choice([*self.keys])
            was = self.keys[name]
            then, call = draw.choice(
                [
                    ((value, at), lambda _, k: k.set(name, value, pxat=at)),
                    ((value, -1), lambda _, k: k.set(name, value)),
                    (None, lambda _, k: k.delete(name)),
                    (was and (was[0], at), lambda _, k: k.pexpireat(name, at)),
                ]
            )
            self._change(lambda found: self._is_key(name, found), was, then, call, is_killed)
            self.keys[name] = then if self._is_key(name, then) else was

    def _change(
        self,
        holds: Callable[[Any], bool],
        before: Any,
        after: Any,
        call: Callable[[Any, Any], Any],
        is_killed: bool,
    ) -> None:
        if is_killed:
            was_killed = self.killed(lambda clients: call(*self.both(clients)))
        else:
            call(*self.draw.choice(self.processes))
            was_killed = False
        allowed = [before, after] if was_killed else [after]
        assert any(map(holds, allowed)), self._said(allowed)

    def lease(self, *, is_killed: bool) -> None:
        """Acquire and release a lease; each token is greater than the ones before."""
        name = self.draw.choice([*self.tokens])
        found: list[int] = []

        def work(_: Any, keys: Any) -> None:
            token = keys.acquire(name, lease=HOUR_MS / 1000)
            if token is not None:
                found.append(int(token))
                keys.release(name, token)

        if is_killed:
            self.killed(lambda clients: work(*self.both(clients)))
            # Its holder is gone, and another one takes it away.
            self.draw.choice(self.processes)[1].delete(name)
        else:
            work(*self.draw.choice(self.processes))
            assert found, self._said("a token")
        for token in found:
            assert token > self.tokens[name], self._said(f"a token above {self.tokens[name]}")
            self.tokens[name] = token

    def carry(self, *, is_killed: bool) -> None:
        """Let the job do a slice; without a former node it removes marks."""

        def work(clients: dict[str, Any]) -> None:
            structure = self.both(clients)[self.draw.random() < 0.5]
            match = "h:*" if structure.holds == "hash" else "[kl]:*"
            job = FleetRebalance(structure, match, random=self.draw.random)
            job.perform(Slice(self.draw.randint(1, 6), 60.0))

        if is_killed:
            self.killed(work)
        else:
            with contextlib.suppress(*NOT_NOW):
                work(self.clients)

    def carry_slowly(self) -> None:
        """Let a user that carries a name go on by one command; others come in between."""
        if self.slow and self.draw.random() < 0.7:
            steps, step = self.slow.pop(self.draw.randrange(len(self.slow)))
            self._go_on(steps, run(step[0].client, step[1]))
            return
        name = self.draw.choice([*self.hashes, *self.keys])
        structure = self.both(self.clients)[name in self.keys]
        former = structure.fleet.former_home(name)
        if former is not None:
            old, new = structure.every_node[former], structure.on_nodes[structure.fleet.home(name)]
            self._go_on(carry(old, new, name, (old.open(), new.open())), None)

    def _go_on(self, steps: Any, reply: Any) -> None:
        with contextlib.suppress(StopIteration):
            self.slow.append((steps, steps.send(reply)))
            self.counts["slow"] += 1

    def write_at_the_former_home(self) -> None:
        """Let a process that knows nothing of the move write a name that is nowhere."""
        gone = [each for each, held in self.hashes.items() if not held]
        if not (self.previous and gone):
            return
        name, at = self.draw.choice(gone), HOUR_MS * draw_hours(self.draw)
        hashes, _ = self.both(self.clients, old=True)
        hashes.hsetex(name, "f", b"old", pxat=at)
        self.hashes[name] = {b"f": (b"old", at)}
        self.counts["old writes"] += 1
        # Others believe that they know where this name is.
        self.begin_processes()

    def evict(self) -> None:
        """Let the servers remove a name by themselves, as at its end or where memory is full."""
        name = self.draw.choice([*self.hashes, *self.keys])
        for client in self.clients.values():
            client.unlink(name)
        if name in self.hashes:
            self.hashes[name] = {}
        else:
            self.keys[name] = None

    def change(self) -> None:
        """Go on to the next list of nodes, where nothing is left to be carried."""
        if self.previous:
            if any(self._job(each).backlog(60.0).count for each in self.both(self.clients)):
                return
            self.previous = ()
            self.counts["moves"] += 1
        else:
            others = [each for each in self.NODES if each != self.nodes]
            self.previous, self.nodes = self.nodes, self.draw.choice(others)
            self.shift_ms -= HOUR_MS
        self.begin_processes()
        self.look_at_all()

    def _job(self, structure: Any) -> FleetRebalance:
        return FleetRebalance(structure, "h:*" if structure.holds == "hash" else "[kl]:*")

    def look(self, process: tuple[Any, Any], most: int) -> None:
        """Compare what a process sees of some names with the model."""
        for name in self.draw.sample([*self.hashes], min(most, len(self.hashes))):
            assert self._is_hash(name, self.hashes[name], process[0]), self._said(name)
        for name in self.draw.sample([*self.keys], min(most, len(self.keys))):
            assert self._is_key(name, self.keys[name], process[1]), self._said(name)

    def look_at_all(self) -> None:
        """See that every name is whole, and, where nothing moves, that it is at its home alone."""
        self.look(self.draw.choice(self.processes), 99)
        if self.previous:
            return
        fleet = self.processes[0][0].fleet
        for name in (*self.hashes, *self.keys):
            held = [each for each in self.nodes if self.clients[each].exists(name)]
            assert held in ([], [fleet.home(name)]), self._said(name)

    def end(self) -> None:
        """Carry everything, remove the marks, and look at all."""
        structures: Any = ()
        for _ in range(2):
            structures = self.both(self.clients)
            for each in structures:
                job = self._job(each)
                for _ in range(2_000):
                    with contextlib.suppress(*NOT_NOW):
                        job.perform(Slice(25, 60.0))
                    if not job.backlog(60.0).count:
                        break
            self.previous = ()
        self.begin_processes()
        self.look_at_all()
        left = [
            key
            for name, client in self.clients.items()
            for key in client.scan_iter("*:ws:*")
            # Marks are removed where a fleet has no former nodes, and moves follow at once here.
            if key.endswith(b":leaving") or (name in self.nodes and key.endswith(b":carried"))
        ]
        assert not left, left

    def _is_hash(self, name: str, wanted: Any, hashes: Any = None) -> bool:
        hashes = hashes or self.both(self.clients)[0]
        found = hashes.hgetall(name)
        if found != {field: value for field, (value, _) in wanted.items()}:
            return False
        ends = hashes.hpexpiretime(name, *wanted) if wanted else []
        return bool(ends == [at for _, at in wanted.values()])

    def _is_key(self, name: str, wanted: Any, keys: Any = None) -> bool:
        keys = keys or self.both(self.clients)[1]
        found = keys.get(name)
        if wanted is None or found is None:
            return bool(wanted is None and found is None)
        return bool((found, keys.pexpiretime(name)) == wanted)

    def _said(self, wanted: Any) -> str:
        return (
            f"{self.backend}, {self.previous} to {self.nodes}: not {wanted!r}, {dict(self.counts)}"
        )


def draw_hours(draw: random.Random) -> int:
    """Return a moment in hours since the epoch, some years from now."""
    return 600_000 + draw.randint(0, 9)


def _hset(name: str, field: bytes, value: bytes, at: int) -> Callable[[Any, Any], Any]:
    if at < 0:
        return lambda hashes, _: hashes.hset(name, field, value)
    return lambda hashes, _: hashes.hsetex(name, field, value, pxat=at)


def _hdel(name: str, field: bytes) -> Callable[[Any, Any], Any]:
    return lambda hashes, _: hashes.hdel(name, field)


class ResizedIck(Protocol):
    """A ShardedIck whose number of ick shards changes, with producers, consumers and resizers.

    The model is the members that must still be worked on. A process's lease is over for those that
    come after its death: their clocks are ahead.
    """

    ABOUT = "sharded ick"
    MOST = 6

    def __init__(self, servers: Sequence[RedisServer], seed: int) -> None:
        super().__init__(servers, seed)
        self.ahead_ms = 0
        self.due: set[bytes] = set()
        self.goal = self.draw.randint(1, self.MOST)
        self.sharded(self.clients, self.goal).open()
        self.processes = [self.sharded(self.clients) for _ in range(3)]

    def sharded(self, clients: dict[str, Any], ick_shards: int | None = None) -> ShardedIck:
        """Return a process's own, whose clock is behind no lease of a dead one."""
        return ShardedIck(clients["a"], "orders", ick_shards, clock_shift_ms=self.ahead_ms)

    def step(self) -> None:
        """Do one thing by chance, and look at all members."""
        things: list[tuple[int, Callable[[bool], None]]] = [
            (25, self.add),
            (30, self.consume),
            (45, self.resize),
        ]
        weights, does = zip(*things, strict=True)
        (thing,) = self.draw.choices(does, weights)
        self.counts["steps"] += 1
        thing(self.draw.random() < 0.7)
        assert self.there() == self.due, self._said()

    def add(self, is_killed: bool) -> None:
        """Let a producer with an old layout add members."""
        members = {b"m%d" % self.draw.randrange(60): float(self.draw.randrange(9)) for _ in "1234"}
        before = set(self.due)
        if is_killed and self.killed(lambda clients: self.sharded(clients).add(members)):
            found = self.there()
            assert before <= found <= before | set(members), self._said()
            self.due = found
            return
        if not is_killed:
            self.draw.choice(self.processes).add(members)
            if self.draw.random() < 0.2:
                self.processes[0] = self.sharded(self.clients)
        self.due |= set(members)

    def consume(self, is_killed: bool) -> None:
        """Let a consumer reserve members, and acknowledge some."""
        done: list[bytes] = []

        def work(clients: dict[str, Any], sharded: ShardedIck | None = None) -> None:
            consumer = f"c{self.counts['steps']}"
            with (
                contextlib.suppress(NoLease, LeaseLost),
                (sharded or self.sharded(clients)).lease(consumer) as ick,
            ):
                members = ick.reserve(self.draw.randint(1, 12)).members
                chosen = [each for each in members if self.draw.random() < 0.7]
                done.extend(chosen)
                if chosen:
                    ick.ack(*chosen)

        if not is_killed:
            # Added again since it was reserved, or under the next layout: it may be due once more.
            twice = {member for member, places in self.places().items() if places > 1}
            # One that has known the Icks since before some resizes, or a new one.
            work(self.clients, self.draw.choice([None, *self.processes]))
            self.due -= set(done) - (twice & self.there())
        else:
            # A forked process tells nothing of what it has done.
            before = set(self.due)
            if self.killed(work):
                self.ahead_ms += 600_000
            found = self.there()
            assert found <= before, self._said()
            if done:
                assert before - found <= set(done), self._said()
            self.due = found

    def resize(self, is_killed: bool) -> None:
        """Let a process begin a resize, or go on with one."""
        limit = self.draw.randint(1, 30)
        layout = self.layout()
        if not layout.moving_from:
            self.goal = self.draw.randint(1, self.MOST)

        def work(clients: dict[str, Any]) -> None:
            done = self.sharded(clients).resize(self.goal, limit=limit).done
            self.counts["resized"] += done

        if is_killed:
            if self.killed(work):
                self.ahead_ms += 600_000
        else:
            with contextlib.suppress(*NOT_NOW):
                work(self.clients)

    def layout(self) -> Any:
        """Return the layout of now."""
        sharded = self.sharded(self.clients)
        sharded.open()
        return sharded.core.layout

    def there(self) -> set[bytes]:
        """Return all members, wherever they are."""
        return set(self.places())

    def places(self) -> Counter[bytes]:
        """Return in how many places each member is."""
        pipeline = self.clients["a"].pipeline(transaction=False)
        core = self.sharded(self.clients).core
        for shard in range(self.MOST):
            names = core.names(shard)
            for key in (names.pset, names.cset, names.moving):
                pipeline.zrange(key, 0, -1)
        return Counter(member for found in pipeline.execute() for member in found)

    def end(self) -> None:
        """Bring the resize to its end; each member is at its place, and is worked on."""
        layout = self.layout()
        for _ in range(200):
            with contextlib.suppress(*NOT_NOW):
                if self.sharded(self.clients).resize(layout.ick_shards).done:
                    break
            self.ahead_ms += 600_000
        layout = self.layout()
        assert not layout.moving_from, self._said()
        worked: set[bytes] = set()
        for number in range(60):
            self.ahead_ms += 600_000
            with (
                contextlib.suppress(NoLease),
                self.sharded(self.clients).lease(f"last {number}") as ick,
            ):
                while members := ick.reserve(100).members:
                    worked.update(members)
                    ick.ack(*members)
            if not self.there():
                break
        assert worked == self.due, self._said()
        assert self.sharded(self.clients).stats()["total_size"] == 0

    def _said(self) -> str:
        found = self.there()
        return f"lost {self.due - found}, back {found - self.due}, {dict(self.counts)}"


@contextlib.contextmanager
def model_of(kind: type[Protocol], binary: Any, seed: int) -> Iterator[Protocol]:
    """Yield a model of a protocol on new servers of a binary."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(RedisServer(binary, None, name=f"{kind.ABOUT} {number}"))
            for number in range(kind.SERVERS)
        ]
        model = kind(servers, seed)
        stack.callback(model.close)
        yield model
