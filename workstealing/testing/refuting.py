"""Refuting a collector: every order of its commands and its owner's, until a live item is lost.

from workstealing.testing import assert_safe

def setup(client):
    client.sadd("tags", "row")             # the row has expired; its tag has stayed

def collect(client):
    for member in client.smembers("tags"):
        if not client.exists(member):
            client.srem("tags", member)    # wrong: the row may be back by now

def write(client):
    client.sadd("tags", "row")
    client.set("row", 1)

def lost(client):
    if client.exists("row") and not client.sismember("tags", "row"):
        return "the row is cached, and no tag names it"

assert_safe(collect, write, setup=setup, lost=lost)    # raises, and shows the history
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from workstealing.clock import SYSTEM_CLOCK, Duration, seconds_of
from workstealing.errors import Aborted, ConfigurationError, OutOfTime, Skipped
from workstealing.recruiting.slice import Slice

if TYPE_CHECKING:
    import redis

Actor = Callable[[Any], Any]
Lost = Callable[[Any], "str | None"]

_WIDTH = 100
# They change nothing, and no other command changes their replies: they need no turn.
_NO_STEPS = frozenset({"CLIENT", "HELLO", "PING", "ROLE", "SCRIPT", "TIME", "UNWATCH"})
_READING = (
    "DUMP EXISTS GET GETRANGE HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN HVALS KEYS LINDEX"
    " LLEN LPOS LRANGE MEMORY MGET PTTL SCAN SCARD SISMEMBER SMEMBERS SMISMEMBER SRANDMEMBER"
    " SSCAN STRLEN TTL TYPE WATCH XINFO XLEN XPENDING XRANGE XREAD XREVRANGE ZCARD ZCOUNT ZRANGE"
    " ZRANGEBYSCORE ZRANK ZSCAN ZSCORE"
)
# Without DBSIZE and OBJECT: reads of other keys change their replies.
_READS = frozenset(_READING.split())
_OF_KEYS = frozenset({"DEL", "EXISTS", "MGET", "TOUCH", "UNLINK", "WATCH"})
_WIDER = "KEYS MEMORY SCAN XINFO XREAD"
_WRITING = (
    "APPEND DECR DECRBY EXPIRE EXPIREAT GETDEL GETEX GETSET HDEL HGETDEL HGETEX HINCRBY"
    " HINCRBYFLOAT HPERSIST HPEXPIRE HSET HSETEX HSETNX INCR INCRBY INCRBYFLOAT LINSERT LPOP LPUSH"
    " LPUSHX LREM LSET LTRIM PERSIST PEXPIRE PEXPIREAT PSETEX RPOP RPUSH RPUSHX SADD SET SETEX"
    " SETNX SETRANGE SPOP SREM XACK XADD XAUTOCLAIM XCLAIM XDEL XTRIM ZADD ZINCRBY ZPOPMAX ZPOPMIN"
    " ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE"
)
# Their only key is their first argument. All other commands may touch any key, scripts too.
_OF_ONE_KEY = (_READS | set(_WRITING.split())) - _OF_KEYS - set(_WIDER.split())
_TIMEOUT_LAST = frozenset(["BLPOP", "BRPOP", "BRPOPLPUSH", "BLMOVE", "BZPOPMIN", "BZPOPMAX"])
_TIMEOUT_FIRST = frozenset(("BLMPOP", "BZMPOP"))
_SHORT_BLOCK = "0.001"


class ShiftedTime:
    """The server's clock as the collector sees it: its replies to TIME, and a shift.

    TIME inside of a script, and the times to live of keys, are not shifted.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def advance(self, by: Duration) -> None:
        """Move the clock forward.

        Arguments:
            by: seconds or a timedelta.
        """
        self.seconds += seconds_of(by, "by", 0.0)


@dataclass(frozen=True)
class Event:
    """One step of a history. Fields: actor; command; reply: shortened."""

    actor: str
    command: str
    reply: str


@dataclass(frozen=True)
class Counterexample:
    """A history in which the collector has removed a live item; `str()` shows it.

    Fields: events: in order; sentence: of `lost`; unfinished: the names of those that died before
    their next command; histories: how many were tried.
    """

    events: tuple[Event, ...]
    sentence: str
    unfinished: tuple[str, ...]
    histories: int

    def __str__(self) -> str:
        lines = [
            f"{number:3}. {each.actor}: {each.command}  ->  {each.reply}"
            for number, each in enumerate(self.events, 1)
        ]
        lines += [f"     {each}: goes no further" for each in self.unfinished]
        return "\n".join(["a live item was lost:", *lines, f"lost: {self.sentence}"])


@dataclass(frozen=True)
class Inconclusive:
    """No live item was lost in the histories tried, and a bound has kept others out; it is false.

    Fields: histories: how many were tried; bound: the one that was reached, in words.
    """

    histories: int
    bound: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.histories} histories lost nothing, and {self.bound} left others out"


def refute(
    collector: Actor,
    writers: Actor | Sequence[Actor],
    *,
    lost: Lost,
    setup: Actor | None = None,
    client: redis.Redis | None = None,
    slices: int = 1,
    between: Callable[[ShiftedTime], object] | None = None,
    deaths: bool = True,
    most_steps: int = 60,
    most_histories: int = 20_000,
) -> Counterexample | Inconclusive | None:
    """Look for the shortest history in which a collector removes a live item of its owner's.

    Each command is a step, those of a pipeline too; MULTI to EXEC is one step, and so is a script.
    Every order of the steps is tried, from an empty database, and any side may die before any of
    its steps. Orders count as one if they differ only in neighbouring steps of the collector and a
    writer that cannot tell one from the other: both only read, or no key is common to them. State
    that the sides share outside of the database is not looked at. A blocking command answers as if
    its time-out had passed when there is nothing to take.

    Arguments:
        collector: a function of a client of redis-py; it may return a Job, whose slices are
            performed then.
        writers: one or several such functions, which do what the owner does. All must send the same
            commands after the same replies.
        lost: a function of a client that reads; returns a sentence on the live item that was lost,
            or None. It is asked after each step, and its answer counts only if the writers' steps
            alone do not lose the item too.
        setup: writes the start state, and forgets what writers have recorded.
        client: of one server (redis-py's) and an empty database, which is wiped again and again,
            and whose server forgets its scripts; fakeredis without one (it knows neither a job, nor
            which commands break no WATCH).
        slices: how often the collector runs.
        between: is called before each run but the first, as a step of its own, with the clock that
            the collector sees.
        deaths: whether a side may die; without it, only histories count in which all have ended.
        most_steps: the longest history.
        most_histories: the most that are tried.

    Returns: None: no history loses an item; a `Counterexample` with the fewest commands of writers,
    in the one of its equal orders with the fewest switches; an `Inconclusive` if a bound was
    reached. Raises: ConfigurationError if the database is not empty, if setup's state is lost
    already, or if a side is not the same in each run; errors of the functions, except the server's
    error replies, WatchError, Aborted, OutOfTime and Skipped, which only end them.
    """
    several = [writers] if callable(writers) else list(writers)
    mine = client is None
    server = _fake() if client is None else client
    if server.dbsize():
        raise ConfigurationError(
            "the database is not empty, and refute() wipes it: give one that holds nothing"
        )
    plan = _Refutation(server, collector, several, lost, setup, slices, between)
    try:
        return _Search(plan, deaths, most_steps, most_histories).run()
    finally:
        server.flushdb()
        if mine:
            server.close()


def assert_safe(
    collector: Actor, writers: Actor | Sequence[Actor], *, lost: Lost, **options: Any
) -> None:
    """Fail if `refute` finds a counterexample, or could not try all histories.

    Arguments and errors: as of `refute`. Raises: AssertionError with the history.
    """
    found = refute(collector, writers, lost=lost, **options)
    if found is not None:
        raise AssertionError(str(found))


def _fake() -> Any:
    try:
        import fakeredis
    except ImportError:
        raise ConfigurationError(
            "refute() needs a server: give client=, of an empty database, or install fakeredis"
        ) from None
    return fakeredis.FakeRedis(server=fakeredis.FakeServer())


@dataclass(frozen=True)
class _Refutation:
    client: Any
    collector: Actor
    writers: Sequence[Actor]
    lost: Lost
    setup: Actor | None
    slices: int
    between: Callable[[ShiftedTime], object] | None

    def collect(self, client: Any, actor: _Actor) -> None:
        job: Any = None
        for number in range(self.slices):
            if number and self.between is not None:
                actor.step([("between",)], partial(self.between, actor.shift))
            if not hasattr(job, "perform"):
                job = self.collector(client)
            if hasattr(job, "perform"):
                job.perform(Slice(getattr(job, "limit", 100), 3600.0, SYSTEM_CLOCK))


class _Search:
    """The best history comes first: the fewest commands of writers, then switches, then steps."""

    def __init__(
        self, plan: _Refutation, deaths: bool, most_steps: int, most_histories: int
    ) -> None:
        self._plan, self._deaths = plan, deaths
        self._most_steps, self._most_histories = most_steps, most_histories
        self._queue: list[tuple[tuple[int, int, int], tuple[int, ...]]] = [((0, 0, 0), ())]
        self._alone: dict[tuple[int, ...], bool] = {}
        self._histories = 0
        self._bound = ""

    def run(self) -> Counterexample | Inconclusive | None:
        while self._queue:
            _, turns = heapq.heappop(self._queue)
            with _SimulatedRun(self._plan) as run:
                for turn in turns:
                    run.advance(turn)
                found = self._follow(run)
            if found is not None:
                return found
            if self._histories >= self._most_histories:
                self._bound = f"most_histories={self._most_histories}"
                break
        return Inconclusive(self._histories, self._bound) if self._bound else None

    def _follow(self, run: _SimulatedRun) -> Counterexample | None:
        """Judge a history, and those that follow it as long as they are the next in order."""
        while True:
            self._histories += 1
            open_ones = [n for n, each in enumerate(run.actors) if not each.ended]
            if self._deaths or not open_ones:
                sentence = self._plan.lost(self._plan.client)
                if sentence and not run.turns:
                    raise ConfigurationError(f"the state that setup writes is lost: {sentence}")
                if sentence and not self._lost_alone(run.turns):
                    names = tuple(run.actors[each].name for each in open_ones)
                    events = tuple(
                        run.events[each] for each in _fewest_switches(run.turns, run.touched)
                    )
                    return Counterexample(events, sentence, names, self._histories)
            if open_ones and len(run.turns) >= self._most_steps:
                self._bound = f"most_steps={self._most_steps}"
            else:
                for turn in open_ones:
                    if not self._is_another_order(run, turn):
                        after = (*run.turns, turn)
                        heapq.heappush(self._queue, (_cost(after), after))
            if not self._queue or self._histories >= self._most_histories:
                return None
            turns = self._queue[0][1]
            if turns[:-1] != run.turns:
                return None
            heapq.heappop(self._queue)
            run.advance(turns[-1])

    def _is_another_order(self, run: _SimulatedRun, turn: int) -> bool:
        """Say whether two steps have only changed places with those of another history.

        Only a step of the collector changes places with a step of a writer: the writers' own order
        is also judged without the collector. Source: the lexicographic normal form of Anisimov and
        Knuth, "Inhomogeneous sorting".
        """
        if not run.turns or turn or not run.turns[-1]:
            return False
        return run.touched[-1].commutes_with(run.actors[turn].next)

    def _lost_alone(self, turns: tuple[int, ...]) -> bool:
        """Say whether the writers' steps lose an item without any collector."""
        theirs = tuple(each for each in turns if each)
        if theirs not in self._alone:
            with _SimulatedRun(self._plan) as run:
                for each in theirs:
                    if not run.actors[each].ended:
                        run.advance(each)
                self._alone[theirs] = bool(self._plan.lost(self._plan.client))
        return self._alone[theirs]


def _cost(turns: tuple[int, ...]) -> tuple[int, int, int]:
    switches = sum(one != other for one, other in pairwise(turns))
    return sum(each > 0 for each in turns), switches, len(turns)


class _SimulatedRun:
    """One run from the start state on; actor 0 is the collector."""

    def __init__(self, plan: _Refutation) -> None:
        from redis.exceptions import ResponseError

        self._client = plan.client
        self._client.flushdb()
        with suppress(ResponseError):
            # A script that an earlier run has loaded would save this one a command.
            self._client.script_flush()
        if plan.setup is not None:
            plan.setup(self._client)
        self.turns: tuple[int, ...] = ()
        self.events: list[Event] = []
        self.touched: list[_Touched] = []
        self.actors = [_Actor("collector", plan.collect, plan.client)]
        for number, writer in enumerate(plan.writers, 1):
            name = f"writer {number}" if len(plan.writers) > 1 else "writer"
            self.actors.append(_Actor(name, _alone(writer), plan.client))

    def __enter__(self) -> Self:
        try:
            for each in self.actors:
                each.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.actors:
            each.die()

    def advance(self, turn: int) -> None:
        actor = self.actors[turn]
        if actor.ended:
            raise ConfigurationError(
                f"the {actor.name} has sent fewer commands than in an earlier run with the same"
                " replies: take chance and time out of it"
            )
        self.touched.append(actor.next)
        self.events.append(actor.advance())
        self.turns = (*self.turns, turn)


def _alone(writer: Actor) -> Callable[[Any, _Actor], object]:
    return lambda client, _: writer(client)


def _fewest_switches(turns: Sequence[int], touched: Sequence[_Touched]) -> tuple[int, ...]:
    """Return the places of a history's steps in an equal order that has the fewest switches.

    Each step of the collector stays behind its own steps, and behind those that it does not commute
    with; the writers' steps keep their order.
    """
    steps = range(len(turns))
    needed = [
        frozenset(
            before
            for before in range(step)
            if bool(turns[before]) == bool(turns[step])
            or not touched[before].commutes_with(touched[step])
        )
        for step in steps
    ]
    # By the steps that are done and the side that was last: the best way there.
    best: dict[tuple[frozenset[int], int], tuple[int, tuple[int, ...]]] = {
        (frozenset(), -1): (0, ())
    }
    for _ in steps:
        further: dict[tuple[frozenset[int], int], tuple[int, tuple[int, ...]]] = {}
        for (done, last), (switches, order) in best.items():
            for step in steps:
                if step in done or not needed[step] <= done:
                    continue
                turn = turns[step]
                place = (done | {step}, turn)
                way = (switches + (turn != last), (*order, step))
                further[place] = min(further.get(place, way), way)
        best = further
    return min(best.values())[1]


class _Died(BaseException):
    """The end of an actor between two commands."""


@dataclass(frozen=True, slots=True)
class _Touched:
    """The keys that a step may read or change. Fields: keys: None: any; only_reads."""

    keys: frozenset[bytes] | None
    only_reads: bool

    def commutes_with(self, other: _Touched) -> bool:
        """Say whether two steps of different sides have the same replies in either order."""
        if self.only_reads and other.only_reads:
            return True
        if self.keys is None or other.keys is None:
            return False
        return self.keys.isdisjoint(other.keys)


class _Actor:
    """A function in a thread of its own, whose client waits for its turn before each command.

    Attributes: next: the keys that its next step may touch.
    """

    def __init__(self, name: str, function: Callable[[Any, _Actor], object], client: Any) -> None:
        self.name = name
        self.ended = False
        self.shift = ShiftedTime()
        self.next = _Touched(None, only_reads=False)
        self._watched: frozenset[bytes] | None = frozenset()
        self._function = function
        self._client = client
        self._pending = ""
        self._reply: Any = None
        self._dead = False
        # Two locks that are handed to and fro: whose is free may go on.
        self._go, self._parked = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._parked.acquire()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._wait()

    def advance(self) -> Event:
        command = self._pending
        self._go.release()
        self._wait()
        return Event(self.name, command, _short(self._reply))

    def die(self) -> None:
        self._dead = True
        if self._thread.is_alive():
            self._go.release()
            self._thread.join()

    def step(self, commands: Sequence[Sequence[Any]], send: Callable[[], Any]) -> Any:
        """Wait for the turn, and send; called by the actor's client."""
        if self._dead:
            raise _Died
        self._pending = "; ".join(map(_shown, commands))
        self.next = self._touches(commands)
        self._parked.release()
        self._go.acquire()
        if self._dead:
            raise _Died
        try:
            self._reply = send()
        except Exception as error:
            self._reply = error
            raise
        return self._reply

    def _touches(self, commands: Sequence[Sequence[Any]]) -> _Touched:
        parts = [_touched_by(each) for each in commands]
        if len(parts) > 1:
            # Whether a transaction is done depends on what was watched, on any connection before.
            parts.append(_Touched(self._watched, only_reads=True))
        elif _name(commands[0]) == "WATCH":
            parts.append(_Touched(self._watched, only_reads=True))
            self._watched = _union(parts)
        return _Touched(_union(parts), all(each.only_reads for each in parts))

    def send(self, args: Sequence[Any], send: Callable[[Sequence[Any]], Any]) -> Any:
        """Send one command, in its turn if it needs one."""
        name = _name(args)
        if name not in _NO_STEPS:
            return self.step([args], lambda: send(_unblocked(name, args)))
        reply = send(args)
        return self._shifted(reply) if name == "TIME" else reply

    def _shifted(self, reply: Any) -> Any:
        if isinstance(reply, Exception) or not self.shift.seconds:
            return reply
        micros = int(reply[0]) * 1_000_000 + int(reply[1]) + round(self.shift.seconds * 1e6)
        parts = divmod(micros, 1_000_000)
        if isinstance(reply, tuple):
            return parts
        return [b"%d" % each for each in parts]

    def _wait(self) -> None:
        self._parked.acquire()
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        from redis.exceptions import ResponseError, WatchError

        client = None
        try:
            client = _stepping_classes()[0](self._client, self)
            self._function(client, self)
        except (_Died, ResponseError, WatchError, Aborted, OutOfTime, Skipped):
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised by the thread that waits
            self._error = error
        finally:
            if client is not None:
                client.end()
            self.ended = True
            self._parked.release()


@cache
def _stepping_classes() -> tuple[Any, Any]:
    """Return the client and its pipeline, whose base classes are loaded when first used."""
    import redis
    from redis.client import Pipeline

    class SteppingPipeline(Pipeline):
        actor: _Actor

        def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
            inherited: Callable[..., Any] = super().immediate_execute_command
            return self.actor.send(args, lambda sent: inherited(*sent, **options))

        def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: Any) -> Any:
            inherited: Callable[..., Any] = super()._execute_transaction
            block = [("MULTI",), *(each[0] for each in commands), ("EXEC",)]
            return self.actor.step(block, lambda: inherited(connection, commands, raise_on_error))

        def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: Any) -> Any:
            inherited: Callable[..., Any] = super()._execute_pipeline
            replies = []
            for args, options in commands:
                one = partial(self._send_one, inherited, connection, options)
                replies.append(self.actor.send(args, one))
            if raise_on_error:
                self.raise_first_error(commands, replies)  # type: ignore[no-untyped-call]
            return replies

        @staticmethod
        def _send_one(inherited: Any, connection: Any, options: Any, sent: Any) -> Any:
            return inherited(connection, [(sent, options)], False)[0]

    class SteppingClient(redis.Redis):
        def __init__(self, client: Any, actor: _Actor) -> None:
            super().__init__(connection_pool=client.connection_pool)
            self.response_callbacks = client.response_callbacks
            self._actor = actor
            self._job_client: Any = None
            if isinstance(client, redis.Redis) and "Fake" not in type(client).__name__:
                self._step_job_client()

        def execute_command(self, *args: Any, **options: Any) -> Any:
            inherited: Callable[..., Any] = super().execute_command
            return self._actor.send(args, lambda sent: inherited(*sent, **options))

        def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
            made = SteppingPipeline(
                self.connection_pool, self.response_callbacks, transaction, shard_hint
            )
            made.actor = self._actor
            return made

        def end(self) -> None:
            if self._job_client is not None:
                self._job_client.close()

        def _step_job_client(self) -> None:
            """Let the connections of jobs, those of the client's job client, wait for turns."""
            from workstealing.store.job_client import job_client_of

            self._job_client = job_client = job_client_of(self)
            make = job_client._made  # noqa: SLF001 - jobs have no other way to it

            def made(kind: Any, options: Any) -> Any:
                connection = make(kind, options)
                send = connection._round_trip  # noqa: SLF001
                actor = self._actor

                def stepping(commands: Sequence[Any]) -> list[Any]:
                    return [
                        reply for each in _steps_of(commands) for reply in _sent(actor, each, send)
                    ]

                vars(connection)["_round_trip"] = stepping
                return connection

            vars(job_client)["_made"] = made

    return SteppingClient, SteppingPipeline


def _sent(actor: _Actor, commands: Sequence[Any], send: Callable[[Any], list[Any]]) -> list[Any]:
    if len(commands) > 1:
        return list(actor.step(commands, lambda: send(commands)))
    return [actor.send(commands[0], lambda sent: send([tuple(sent)])[0])]


def _steps_of(commands: Sequence[Any]) -> Iterable[list[Any]]:
    """Yield the commands of a round trip step by step; MULTI to EXEC is one."""
    block: list[Any] = []
    for command in commands:
        block.append(command)
        if _name(block[0]) != "MULTI" or _name(command) in ("EXEC", "DISCARD"):
            yield block
            block = []
    if block:
        yield block


def _touched_by(args: Sequence[Any]) -> _Touched:
    """Return the keys that one command may touch."""
    from workstealing.store.keys import to_bytes

    name = _name(args)
    keys: Sequence[Any] | None = None
    if " " in _text(args[0]):
        # A whole command in one text, which redis-py splits.
        pass
    elif name in _OF_ONE_KEY:
        keys = args[1:2]
    elif name in _OF_KEYS:
        keys = args[1:]
    elif name in ("MULTI", "EXEC"):
        return _Touched(frozenset(), only_reads=True)
    touched = None if keys is None else frozenset(map(to_bytes, keys))
    return _Touched(touched, only_reads=name in _READS)


def _union(parts: Iterable[_Touched]) -> frozenset[bytes] | None:
    keys: frozenset[bytes] = frozenset()
    for each in parts:
        if each.keys is None:
            return None
        keys |= each.keys
    return keys


def _unblocked(name: str, args: Sequence[Any]) -> Sequence[Any]:
    """Return a command that waits for nothing, or for a moment only."""
    if name in _TIMEOUT_LAST:
        return [*args[:-1], _SHORT_BLOCK]
    if name in _TIMEOUT_FIRST:
        return [args[0], _SHORT_BLOCK, *args[2:]]
    if name in ("XREAD", "XREADGROUP"):
        words = [_text(each).upper() for each in args]
        if "BLOCK" in words[: words.index("STREAMS")]:
            at = words.index("BLOCK")
            return [*args[:at], *args[at + 2 :]]
    return args


def _name(args: Sequence[Any]) -> str:
    return _text(args[0]).partition(" ")[0].upper()


def _shown(args: Sequence[Any]) -> str:
    parts = [_text(each) for each in args]
    return " ".join(" ".join(part.split())[:40] if len(part) > 40 else part for part in parts)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _short(reply: Any) -> str:
    text = f"{type(reply).__name__}: {reply}" if isinstance(reply, Exception) else repr(reply)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
