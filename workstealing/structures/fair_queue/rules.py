"""The rules of accounts: weights, caps, rates; and why an account waits.

A rule holds for one account, or for all that a pattern matches. An account goes by its own rule.
The settings that this rule leaves out come from the pattern with the most plain letters, and then
from the rule ``*``. A change holds at once, for messages that wait already too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.store.operations import Steps, operation
from workstealing.structures.fair_queue.base import FairQueueBase, checked_account
from workstealing.structures.layout import as_text
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.stored import MOST_STORED, unbelieved

ALL = "*"
MOST_RULES, MOST_PATTERNS, LONGEST_PATTERN = 10_000, 64, 1024
MOST_WEIGHT, LEAST_WEIGHT = 1e6, 0.001
MOST_ESTIMATE_SECONDS = 86400.0
_THOUSAND, _MILLION = 1000, 1_000_000


@dataclass(frozen=True, slots=True)
class AccountRule:
    """The settings of an account, or of all that a pattern matches. None: not said by this rule.

    Fields: weight: its share of turns and of time beside others, 1 by default; max_in_flight: how
    many of its messages may be in hand at once; rate: how many a second may be delivered; burst:
    how many at once after a pause, 1 by default; estimate: the time that a message is taken for
    before any was done, in seconds, 1 by default; max_length: how many messages may wait; lower:
    the share of turns, from 0 to 1, of messages of priority 0 while some of priority 1 wait, 0.1
    by default; paused: whether nothing is delivered.
    """

    weight: float | None = None
    max_in_flight: int | None = None
    rate: float | None = None
    burst: int | None = None
    estimate: float | None = None
    max_length: int | None = None
    lower: float | None = None
    paused: bool | None = None

    def text(self) -> str:
        """Return the rule as the server keeps it; see ``lua/fair_queue/account.lua``."""
        period = None if self.rate is None else _MILLION / self.rate
        estimate = None if self.estimate is None else self.estimate * _MILLION
        weight = None if self.weight is None else self.weight * _THOUSAND
        lower = None if self.lower is None else self.lower * _THOUSAND
        paused = None if self.paused is None else int(self.paused)
        counts = (self.max_in_flight, period, self.burst, estimate, self.max_length, lower, paused)
        return " ".join("-" if each is None else str(round(each)) for each in (weight, *counts))


_SETTINGS = tuple(AccountRule.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class AccountState:
    """One account: how much waits, and what it may have.

    Fields: account; waiting, in_flight, delayed: its messages; oldest_waiting_seconds: for how long
    the next one has been in the queue, None without one; weight, max_in_flight, rate, burst,
    max_length: the rule that holds, rule its name (empty for none); paused, and paused_by, the rule
    that says so, None if it is not; estimate_seconds: the time that its next message is taken for;
    behind_seconds: how far its tag is ahead of the queue's virtual time; place: "ready", "limited",
    "idle" or "busy"; turns_before: how many accounts have their turn before, None unless it is
    ready; served_in_seconds: until its rate lets it, 0 if it does already, None if it is paused.
    """

    account: str
    waiting: int
    in_flight: int
    delayed: int
    oldest_waiting_seconds: float | None
    weight: float
    max_in_flight: int | None
    rate: float | None
    burst: int
    max_length: int | None
    rule: str
    paused: bool
    paused_by: str | None
    estimate_seconds: float
    behind_seconds: float
    place: str
    turns_before: int | None
    served_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class WaitReason:
    """The answer to "why does it wait?".

    Fields: why: in one sentence; state: of the account, None for one that has no messages and no
    record; ready: how many accounts have a turn.
    """

    why: str
    state: AccountState | None
    ready: int

    def __str__(self) -> str:
        return self.why


@dataclass(slots=True)
class _AccountPage:
    now_ms: int
    ready: int
    cursor: str
    states: list[AccountState] = field(default_factory=list)


class FairRuling(FairQueueBase):
    """The operations on rules and accounts."""

    @operation
    def set_rule(
        self,
        pattern: str | bytes,
        *,
        weight: float | None = None,
        max_in_flight: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        estimate: Duration | None = None,
        max_length: int | None = None,
        lower: float | None = None,
        paused: bool | None = None,
    ) -> Steps[None]:
        """Set the rule of an account, or of all accounts that a pattern matches.

        Arguments:
            pattern: an account; or a pattern with ``*`` for any letters and ``?`` for one;
                ``*`` alone is the default of all.
            weight: its share of turns and of time beside others, 0.001 to 1,000,000.
            max_in_flight: how many of its messages may be in hand at once.
            rate: how many a second may be delivered.
            burst: how many at once after a pause.
            estimate: the work that a message is taken for before any was done, in seconds or a
                timedelta.
            max_length: how many messages may wait.
            lower: the share of turns of priority 0 while some of priority 1 wait, 0 to 1.
            paused: whether nothing is delivered.

        The rule replaces one of the same pattern as a whole. It holds at once. Raises:
        ConfigurationError; LayoutError. One round trip, and one for each 100 accounts. A process
        that is killed after the first has set the rule; an account that it would have let in is let
        in by its next event, or by `FairQueueReaper`.
        """
        seconds = None
        if estimate is not None:
            seconds = seconds_of(estimate, "estimate", least=1e-6)
        rule = AccountRule(weight, max_in_flight, rate, burst, seconds, max_length, lower, paused)
        return self._setting(_checked_pattern(pattern), checked_rule(rule).text())

    def _setting(self, pattern: bytes, text: str) -> Steps[None]:
        known, count = yield from self._beginning("rule", pattern, text)
        if known < 0:
            raise self._too_many(count)
        yield from self._letting_in()

    def _too_many(self, count: int) -> ConfigurationError:
        return ConfigurationError(
            f"the queue {self.name!r} has {int(count):,} rules: remove some; at most"
            f" {MOST_RULES:,} rules are kept, and {MOST_PATTERNS} of them with a pattern"
        )

    @operation
    def remove_rule(self, pattern: str | bytes) -> Steps[bool]:
        """Remove the rule of an account or a pattern; return whether there was one.

        Raises: ConfigurationError; LayoutError. Round trips as of `set_rule`.
        """
        return self._removing(_checked_pattern(pattern))

    def _removing(self, pattern: bytes) -> Steps[bool]:
        known, _ = yield from self._beginning("rule", pattern, "")
        if known:
            yield from self._letting_in()
        return bool(known)

    def _letting_in(self) -> Steps[None]:
        """Put each account where it belongs by the present rules; one round trip for each 100."""
        cursor = "0"
        while True:
            found, _ = yield self._asking(
                "mend", "accounts", cursor, MESSAGES_A_SCRIPT, int(self.notify), 0
            )
            cursor = as_text(found)
            if cursor == "0":
                return

    @operation
    def rules(self) -> Steps[dict[str, AccountRule]]:
        """Return all rules: pattern -> `AccountRule`.

        Raises: LayoutError. One round trip.
        """
        found = yield self._asking("rule", "", "", "", "", "", "")
        return {
            as_text(pattern): _rule_of(self.keys.of("rules"), as_text(text))
            for pattern, text in zip(found[::2], found[1::2], strict=True)
        }

    @operation
    def pause(self, pattern: str | bytes = ALL) -> Steps[None]:
        """Deliver nothing of an account, or of all that a pattern matches, until `resume`.

        Messages can still be written, and those in hand be acknowledged. Other settings of the rule
        stay. An account whose own rule says ``paused=False`` goes on. Raises: ConfigurationError;
        LayoutError. Two round trips, and one for each 100 accounts.
        """
        return self._pausing(_checked_pattern(pattern), "pause")

    @operation
    def resume(self, pattern: str | bytes = ALL) -> Steps[None]:
        """End a `pause` of the same pattern.

        Raises and costs as `pause`.
        """
        return self._pausing(_checked_pattern(pattern), "resume")

    def _pausing(self, pattern: bytes, how: str) -> Steps[None]:
        known, left = yield from self._beginning("rule", pattern, how)
        if known < 0:
            raise self._too_many(left)
        yield from self._letting_in()

    @operation
    def accounts(self, n: int = 1000) -> Steps[list[AccountState]]:
        """Describe accounts: those with the most waiting messages come first.

        Arguments:
            n: 1 to 100,000. Of more accounts it looks at some n.

        Raises: ConfigurationError; LayoutError. One round trip for each 100 accounts.
        """
        return self._describing(checked_count(n, "n", 1, 100_000))

    def _describing(self, n: int) -> Steps[list[AccountState]]:
        found: dict[str, AccountState] = {}
        cursor = "0"
        while True:
            page = yield from self._page("", cursor)
            found.update((each.account, each) for each in page.states)
            cursor = page.cursor
            if cursor == "0" or len(found) >= n:
                break
        return sorted(found.values(), key=lambda each: (-each.waiting, each.account))[:n]

    @operation
    def explain_wait(self, account: str | bytes) -> Steps[WaitReason]:
        """Say why the messages of an account wait: its turn, its cap, its rate, or a pause.

        Raises: ConfigurationError; LayoutError. One round trip.
        """
        return self._explaining(checked_account(account, "account"))

    def _explaining(self, account: bytes) -> Steps[WaitReason]:
        page = yield from self._page(account, "0")
        state = page.states[0] if page.states else None
        return WaitReason(wait_reason(as_text(account), state, page.ready), state, page.ready)

    def _page(self, account: bytes | str, cursor: str) -> Steps[_AccountPage]:
        now, virtual, ready, after, *found = yield self._asking(
            "accounts", account, cursor, MESSAGES_A_SCRIPT
        )
        page = _AccountPage(int(now), int(ready), as_text(after))
        page.states = [_state_of(each, int(now), int(virtual)) for each in found]
        return page


def _state_of(found: list[Any], now: int, virtual: int) -> AccountState:
    name, *rest = found
    texts = [as_text(each) if isinstance(each, bytes) else each for each in rest]
    tag, estimate, waiting, flying, delayed, place, moment, rule, *texts = texts
    weight, cap, period, burst, most, paused, paused_by, rank, written = texts
    served_in: float | None = 0.0
    if int(paused):
        served_in = None
    elif moment:
        served_in = max(0.0, (float(moment) - now) / 1000)
    return AccountState(
        account=as_text(name),
        waiting=int(waiting),
        in_flight=int(flying),
        delayed=int(delayed),
        oldest_waiting_seconds=max(0, now - int(written)) / 1000 if int(written) else None,
        weight=int(weight) / _THOUSAND,
        max_in_flight=int(cap) if cap else None,
        rate=_MILLION / int(period) if period else None,
        burst=int(burst),
        max_length=int(most) if most else None,
        rule=rule,
        paused=bool(int(paused)),
        paused_by=paused_by or None,
        estimate_seconds=int(estimate) / _MILLION,
        behind_seconds=max(0, int(tag) - virtual) / _MILLION,
        place=("busy", "ready", "limited", "idle")[int(place)],
        turns_before=int(rank) if int(rank) >= 0 else None,
        served_in_seconds=served_in,
    )


def wait_reason(account: str, state: AccountState | None, ready: int) -> str:
    """Say in one sentence why an account waits; ready: how many accounts have a turn."""
    said = f"the account {account!r}"
    if state is None:
        return f"{said} has no messages: none was written, or all have ended"
    if not state.waiting:
        if state.delayed:
            return f"{said} has {state.delayed:,} delayed messages, whose time has not come"
        return f"{said} has nothing that waits; {state.in_flight:,} messages are in hand"
    if state.paused:
        return f"{said} is paused by the rule {state.paused_by!r}: resume that rule"
    cap = state.max_in_flight
    if cap is not None and state.in_flight >= cap:
        return (
            f"{said} has as many messages in hand as it may, because its cap is {cap:,}: it waits"
            " for an ack, or for the end of a lease"
        )
    if state.served_in_seconds:
        rate = f"{state.rate:g} a second" if state.rate else "its rate"
        return (
            f"{said} may be served again in {state.served_in_seconds:.3f} s, by its rate ({rate})"
        )
    if state.turns_before is None:
        return f"{said} has waiting messages and no turn: FairQueueReaper puts that right"
    if not state.turns_before:
        return f"{said} has the next turn: it waits for a consumer that reads"
    return (
        f"{said} waits for its turn: {state.turns_before:,} of {ready:,} accounts come before it; a"
        f" message of its own is taken for {state.estimate_seconds:g} s, at weight {state.weight:g}"
    )


def _checked_pattern(pattern: object) -> bytes:
    raw = checked_account(pattern, "account or pattern")
    if len(raw) > LONGEST_PATTERN and is_pattern(raw):
        raise ConfigurationError(
            f"a pattern of {len(raw):,} bytes is too long: give at most {LONGEST_PATTERN:,}"
        )
    return raw


def checked_rule(rule: AccountRule) -> AccountRule:
    """Return a rule whose settings are in their bounds. Raises: ConfigurationError."""
    if not is_said(rule):
        raise ConfigurationError(
            f"a rule without a setting says nothing: give one of {', '.join(_SETTINGS)}, or call"
            " remove_rule()"
        )
    _require_number("weight", rule.weight, LEAST_WEIGHT, MOST_WEIGHT)
    _require_number("rate", rule.rate, 1 / 86400, 1e6)
    _require_number("estimate", rule.estimate, 1e-6, MOST_ESTIMATE_SECONDS)
    _require_number("lower", rule.lower, 0.0, 1.0)
    for name, least in (("max_in_flight", 1), ("burst", 1), ("max_length", 0)):
        value = getattr(rule, name)
        if value is not None:
            checked_count(value, name, least, 10**9)
    if rule.paused is not None and not isinstance(rule.paused, bool):
        raise ConfigurationError(f"paused={rule.paused!r} is no answer: give True or False")
    return rule


def _require_number(name: str, value: object, least: float, most: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name}={value!r} is no number: give {least:g} to {most:g}")
    if not least <= value <= most:
        raise ConfigurationError(f"{name}={value!r} is out of range: give {least:g} to {most:g}")


def _rule_of(key: bytes, text: str) -> AccountRule:
    """Return a rule of its text. Raises: LayoutError."""
    parts = text.split(" ")
    try:
        numbers: list[int | None] = [None if each == "-" else int(each) for each in parts]
        weight, cap, period, burst, estimate, most, lower, paused = numbers
        if any(each is not None and not 0 <= each <= MOST_STORED for each in numbers):
            raise ValueError
    except ValueError:
        raise unbelieved(key, "a rule", text, "a rule of a fair queue") from None
    return AccountRule(
        weight=None if weight is None else weight / _THOUSAND,
        max_in_flight=cap,
        rate=_MILLION / period if period else None,
        burst=burst,
        estimate=None if estimate is None else estimate / _MILLION,
        max_length=most,
        lower=None if lower is None else lower / _THOUSAND,
        paused=None if paused is None else bool(paused),
    )


def is_pattern(name: str | bytes) -> bool:
    """Whether a rule's name stands for many accounts; ``lua/fair_queue/account.lua`` matches it."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return "*" in text or "?" in text


def is_said(rule: AccountRule) -> bool:
    """Whether a rule says anything."""
    return any(getattr(rule, each) is not None for each in _SETTINGS)


def changed_rule(before: AccountRule, given: Mapping[str, Any]) -> AccountRule:
    """Return a rule of which only the given settings are others; a pause that ends is not said."""
    rule = replace(before, **given)
    return replace(rule, paused=None) if rule.paused is False else rule


def settings_of(rule: AccountRule) -> dict[str, Any]:
    """Return the settings that a rule says, by their names."""
    said = {each: getattr(rule, each) for each in _SETTINGS}
    return {name: value for name, value in said.items() if value is not None}
