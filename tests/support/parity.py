"""What machines share that run the same random commands on Redis' own structure and on ours.

Deadlines are real and short: replies that were made while a deadline might have been passing are
not compared, and both sides are wiped.
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import RedisClusterException

from support.hash_model import now_ms
from support.proof import tried
from workstealing.recruiting import Slice

# How far, in milliseconds, the replies of both sides about a time to live may be apart; deadlines
# nearer to each other than this are not compared by GT and LT.
SLACK_MS = 400
# The longest deadline that passes within a run.
SHORT_MS = 60
STEPS = 40
# A long run by hand: WORKSTEALING_PARITY_EXAMPLES=3000 and --hypothesis-seed.
EXAMPLES = os.environ.get("WORKSTEALING_PARITY_EXAMPLES")

CALL = "a call of a random program, compared"
_IN_MS = {"hpexpire", "hpexpireat", "pexpire", "pexpireat"}


class At(int):
    """A moment so many milliseconds from the call, in the unit of the option that it stands in."""

    def __repr__(self) -> str:
        return f"At({int(self)})"


# ---- calls: (method, args, keyword arguments) ----------------------------------------------------

short_ms = st.integers(30, SHORT_MS)
long_ms = st.sampled_from([50_000, 100_000, 1_000_000])


def mostly(usual: Any, rare: list[Any]) -> st.SearchStrategy[Any]:
    """Strategy of usual amounts; one in eight is a rare one, for calls that fail change little."""
    return st.integers(0, 7).flatmap(lambda n: st.sampled_from(rare) if n == 7 else usual)


class Amounts:
    """Strategies of the amounts of time that commands take, with rare ones that they may refuse.

    Arguments: rare amounts of each unit: of seconds, ms, moments in seconds and moments in ms.
    """

    def __init__(
        self, seconds: list[Any], ms: list[Any], at_seconds: list[Any], at_ms: list[Any]
    ) -> None:
        self.seconds = mostly(st.sampled_from([50, 100, 1000, 0]), seconds)
        self.ms = mostly(st.one_of(short_ms, long_ms, st.just(0)), ms)
        self.at_seconds = mostly(st.one_of(long_ms.map(At), st.sampled_from([0, 1])), at_seconds)
        self.at_ms = mostly(
            st.one_of(short_ms.map(At), long_ms.map(At), st.sampled_from([0, 1])), at_ms
        )

    def option(self) -> st.SearchStrategy[dict[str, Any]]:
        """Strategy of one option that sets a time to live, as SET takes it."""
        # One in three calls has short deadlines, for these make the garbage that all is about.
        return st.one_of(
            st.fixed_dictionaries({"px": short_ms}),
            st.fixed_dictionaries({"px": self.ms}),
            st.fixed_dictionaries({"ex": self.seconds}),
            st.fixed_dictionaries({"exat": self.at_seconds}),
            st.fixed_dictionaries({"pxat": self.at_ms}),
        )


def merged(*parts: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Strategy of options that are put together of several strategies'."""
    return st.tuples(*parts).map(lambda found: {k: v for part in found for k, v in part.items()})


def call(name: str, *args: Any, options: Any = None, spread: Any = None) -> Any:
    """Strategy of calls; what `spread` draws, a list, is given as further arguments."""
    spread = st.just([]) if spread is None else spread
    return st.tuples(st.tuples(*args), spread, st.just({}) if options is None else options).map(
        lambda made: (name, (*made[0], *made[1]), made[2])
    )


def resolved(name: str, args: Any, options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments and options with moments for what is `At` one."""
    at = now_ms()

    def resolve(word: str, argument: Any) -> Any:
        if not isinstance(argument, At):
            return argument
        moment = at + argument
        return moment if word.startswith(("hp", "px", "pe")) else moment // 1000

    return (
        tuple(resolve(name, argument) for argument in args),
        {word: resolve(word, argument) for word, argument in options.items()},
    )


# What a call may raise that is an answer.
REFUSALS = (redis.RedisError, RedisClusterException, ValueError)


def outcome(side: Any, name: str, args: Any, options: Any) -> Any:
    """Return a call's reply, or the error's class and text."""
    try:
        reply = getattr(side, name)(*args, **options)
        return list(reply) if name == "hscan_iter" else reply
    except REFUSALS as error:
        return (type(error), str(error))


# ---- the machine ---------------------------------------------------------------------------------


class ParityMachine(RuleBasedStateMachine):
    """Compares the replies of Redis' own structure and of ours; subclasses have the commands.

    Attributes of a subclass: native: a client, or what stands in for one; ours: the structure.
    """

    native: ClassVar[Any]
    ours: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        tried("a random program, compared with Redis 8's own answers or with a model")
        # A row of its own, also for a program that fails at its first call.
        tried(CALL, 0)
        # The spans of time, in milliseconds, in which a deadline passes on one side or the other.
        self.bands: list[tuple[int, int]] = []
        self.job = self.new_job()

    def new_job(self) -> Any:
        """Return a new job on our structure, with a small limit."""
        raise NotImplementedError

    def check(self, call: tuple[str, Any, Any], native: Any, ours: Any) -> None:
        """Assert that two outcomes of a call are the same, or differ as they may."""
        raise NotImplementedError

    def native_deadlines(self, name: str, args: Any) -> list[int]:
        """Return the deadlines, in ms, that a call is about to change."""
        raise NotImplementedError

    @initialize()
    def wipe(self) -> None:
        self.native.flushdb()
        self.ours.client.flushdb()
        self.ours.forget()
        self.bands.clear()

    @rule(limit=st.integers(1, 7))
    def collect(self, limit: int) -> None:
        """Collecting changes no answer, whenever it happens."""
        self.settle()
        assert 0 <= self.job.perform(Slice(limit, 5.0)) <= limit

    @rule()
    def advance(self) -> None:
        """Let every short deadline pass."""
        _wait_until(max((high for _, high in self.bands), default=0))
        self.settle()

    def compare(self, name: str, args: Any, options: Any) -> None:
        """Make a call on both sides, and check what came of it."""
        self.settle()
        args, options = resolved(name, args, options)
        if self._is_near_tie(name, args, options):
            return
        self.before_call(name, args)
        before = now_ms()
        native = self.outcome_on(self.native, name, args, options)
        ours = self.outcome_on(self.ours, name, args, options)
        after = now_ms()
        if self.is_doubtful(before, after):
            self.wipe()
            return
        self.note_deadline(name, args, options, (before, after))
        tried(CALL)
        self.check((name, args, options), native, ours)

    def is_doubtful(self, before: int, after: int) -> bool:
        """Say whether nobody can tell which reply was right.

        The calls of both sides lay far apart on a busy machine, or a deadline passed meanwhile.
        """
        return after - before > SLACK_MS // 3 or any(low <= after for low, _ in self.bands)

    def outcome_on(self, side: Any, name: str, args: Any, options: Any) -> Any:
        """Make a call on one side; subclasses may go another way."""
        return outcome(side, name, args, options)

    def before_call(self, name: str, args: Any) -> None:
        """Look at what a call will meet; for subclasses."""

    def settle(self) -> None:
        """Wait where a deadline is passing or about to, and forget those that have passed."""
        while near := [high for low, high in self.bands if low - 3 <= now_ms() <= high]:
            _wait_until(max(near))
        coming = [band for band in self.bands if band[1] >= now_ms()]
        has_passed = len(coming) < len(self.bands)
        self.bands = coming
        if has_passed:
            self.deadlines_passed()

    def deadlines_passed(self) -> None:
        """Do what is to be done after deadlines have passed; for subclasses."""

    def _is_near_tie(self, name: str, args: Any, options: Any) -> bool:
        """Say whether GT or LT would be decided by which side was asked first."""
        if not (options.get("gt") or options.get("lt")) or not isinstance(args[1], int):
            return False
        wanted = args[1] if name in _IN_MS else args[1] * 1000
        wanted += 0 if name.endswith("at") else now_ms()
        current = self.native_deadlines(name, args)
        return any(abs(deadline - wanted) < SLACK_MS for deadline in current if deadline > 0)

    def note_deadline(self, name: str, args: Any, options: Any, span: tuple[int, int]) -> None:
        """Note when a deadline passes that a call has set; span: when the two sides were asked."""
        before, after = span
        amounts = [options[word] for word in ("px", "pxat") if word in options]
        if name in _IN_MS:
            amounts.append(args[1])
        for amount in amounts:
            if isinstance(amount, int) and 0 < amount <= SHORT_MS:
                self.bands.append((before + amount - 1, after + amount + 1))
            elif isinstance(amount, int) and abs(amount - before) <= 200:
                self.bands.append((amount - 1, amount + 1))


def _wait_until(moment: int) -> None:
    while now_ms() <= moment:
        time.sleep(0.001)


def run_machine(machine: type[ParityMachine], share: int, **attributes: Any) -> None:
    """Run a machine, given its sides.

    Arguments:
        share: of the profile's examples it gets 1 in.
    """
    run_state_machine_as_test(
        type("Machine", (machine,), attributes),
        # Shrinking runs in real time would take minutes, and the steps are few.
        settings=settings(
            max_examples=int(EXAMPLES or settings.default.max_examples // share),
            stateful_step_count=STEPS,
            phases=[Phase.reuse, Phase.generate],
            report_multiple_bugs=False,
        ),
    )
