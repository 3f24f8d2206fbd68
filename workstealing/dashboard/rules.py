"""The rules of fair queues, and the accounts that have waited longest, on the dashboard.

A change is that of `workstealing queue rule`: a setting that is not given stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workstealing.clock import UNKNOWN, spell
from workstealing.dashboard.watched import exact_item, item_key, short_id
from workstealing.errors import ConfigurationError, RefusedError
from workstealing.safe_text import number, visible
from workstealing.structures.fair_queue.rules import (
    AccountRule,
    AccountState,
    FairRuling,
    changed_rule,
    checked_rule,
    is_pattern,
    settings_of,
    wait_reason,
)
from workstealing.structures.fair_queue.stats import FairDescribing
from workstealing.structures.structure import Structure

logger = logging.getLogger("workstealing")

MOST_ASKED = 200
"""How many accounts of a queue a page looks at, for those that have waited longest."""
MOST_WAITING, MOST_RULES = 20, 100
"""How many accounts and how many rules of all queues together a page shows."""
SETTINGS = ("weight", "max_in_flight", "rate", "burst", "max_length")
"""The settings that a page shows and changes, beside the pause."""
_WHOLE = frozenset({"max_in_flight", "burst", "max_length"})
_MOST_QUEUES = 50


@dataclass(frozen=True, slots=True)
class SeenRules:
    """What a queue has answered.

    Fields: queue; rules: by pattern; oldest: the accounts that have waited longest; ready: how many
    accounts have a turn; is_all: whether every account was looked at.
    """

    queue: QueueRules
    rules: dict[str, AccountRule]
    oldest: list[AccountState]
    ready: int
    is_all: bool


class QueueRules:
    """The rules of one fair queue, asked and changed by connections of their own.

    Arguments:
        queue: a `FairQueue` or `AsyncFairQueue`.
    """

    def __init__(self, queue: Any) -> None:
        self._queue: Any = queue
        self.name: str = queue.name
        self.id = short_id(f"rules\0{queue.name}")

    def look(self) -> SeenRules:
        """Return the rules and the accounts that have waited longest; five round trips at most."""
        rules = self._queue.inspect(FairRuling.rules.steps(self._queue))
        stats = self._queue.inspect(FairDescribing.stats.steps(self._queue, MOST_ASKED))
        waiting = [each for each in stats["accounts"].values() if each.waiting]
        oldest = sorted(waiting, key=lambda each: -(each.oldest_waiting_seconds or 0.0))
        return SeenRules(self, rules, oldest[:MOST_WAITING], stats["ready"], stats["exact"])

    def change(self, pattern: str, given: Mapping[str, Any]) -> AccountRule:
        """Change some settings of a rule, and return the rule. Raises: ConfigurationError."""
        queue = self._queue
        rules = queue.inspect(FairRuling.rules.steps(queue))
        rule = checked_rule(changed_rule(rules.get(pattern, AccountRule()), given))
        queue.inspect(FairRuling.set_rule.steps(queue, pattern, **settings_of(rule)))
        return rule

    def pause(self, pattern: str) -> None:
        """Deliver nothing of the accounts; other settings stay."""
        self._queue.inspect(FairRuling.pause.steps(self._queue, pattern))

    def resume(self, pattern: str) -> None:
        """End the pause of the same pattern."""
        self._queue.inspect(FairRuling.resume.steps(self._queue, pattern))

    def remove(self, pattern: str) -> bool:
        """Remove a rule; return whether there was one."""
        return bool(self._queue.inspect(FairRuling.remove_rule.steps(self._queue, pattern)))

    def named(self, key: str) -> str | None:
        """Return the pattern of a rule by its key in a form, None if there is no such rule."""
        exact = exact_item(key)
        if isinstance(exact, str):
            return exact
        rules = self._queue.inspect(FairRuling.rules.steps(self._queue))
        return next((each for each in rules if item_key(each) == key), None)


def rules_of(structures: Iterable[Structure]) -> list[QueueRules]:
    """Return the rules of those structures that are fair queues."""
    return [QueueRules(each) for each in structures if isinstance(each, FairRuling)]


def steer_rule(action: str, queue: QueueRules, form: Mapping[str, str], *, sure: bool) -> str:
    """Do an admin's action with a rule.

    Arguments:
        action: set, pause, resume or remove.
        queue: whose rule.
        form: rule: its key; or account: the name of a new one; and the settings, as typed: an
            empty one stays as it is.
        sure: whether the admin has confirmed a pause or a removal.

    Returns: a sentence that says what was done. Raises: RefusedError.
    """
    if action not in ("set", "pause", "resume", "remove"):
        raise RefusedError("this action is unknown: give set, pause, resume or remove")
    if action in ("pause", "remove") and not sure:
        raise RefusedError("nothing was changed: tick the box beside the button first")
    given = {each: _number(each, form[each]) for each in SETTINGS if form.get(each, "").strip()}
    if action == "set" and not given:
        raise RefusedError(f"nothing was changed: give a setting, one of {', '.join(SETTINGS)}")
    try:
        key = form.get("rule", "")
        pattern = queue.named(key) if key else form.get("account", "")
        if pattern is None:
            raise RefusedError("nothing was changed: there is no such rule any more")
        shown = f"{visible(pattern)} of {visible(queue.name)}"
        if action == "set":
            said = settings_of(queue.change(pattern, given))
            settings = ", ".join(f"{name} {_said(value)}" for name, value in said.items())
            return f"the rule {shown} is {settings.replace('_', ' ')}; it holds now"
        if action == "pause":
            queue.pause(pattern)
            return f"the accounts of the rule {shown} are paused"
        if action == "resume":
            queue.resume(pattern)
            return f"the pause of the rule {shown} has ended"
        if not queue.remove(pattern):
            raise RefusedError("nothing was changed: there is no such rule any more")
        return f"the rule {shown} is removed"
    except RefusedError:
        raise
    except ConfigurationError as error:
        raise RefusedError(visible(error, 300)) from error
    except Exception as error:
        logger.warning("the dashboard's %s of a rule failed: %s", action, type(error).__name__)
        raise RefusedError(
            f"{action} failed: {type(error).__name__}; nobody knows whether it was done"
        ) from error


def _number(name: str, text: str) -> float | int:
    text = text.strip()
    what = name.replace("_", " ")
    kind = int if name in _WHOLE else float
    try:
        # As of a rate: other scripts' digits and 1_0 are read in several ways.
        return kind(text if text.isascii() and "_" not in text else "")
    except ValueError:
        raise RefusedError(f"{visible(text, 20)!r} is no {what}: give a number") from None


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}"


def rules_on_page(queues: list[QueueRules], seen: list[SeenRules]) -> dict[str, Any]:
    """Return the texts of all queues' rules and waiting accounts.

    Arguments:
        queues: all that are watched.
        seen: those that have answered; nobody knows of the others.
    """
    rules = [_rule(each, *pair) for each in seen for pair in sorted(each.rules.items())]
    waiting = sorted(
        ((each, state) for each in seen for state in each.oldest),
        key=lambda pair: -(pair[1].oldest_waiting_seconds or 0.0),
    )
    parts = [f"{number(len(rules))} rule{'' if len(rules) == 1 else 's'}"]
    if len(rules) > MOST_RULES:
        parts.append(f"the first {MOST_RULES} are shown")
    unknown = len(queues) - len(seen)
    if unknown and seen:
        parts.append(f"nobody knows those of {unknown} of {len(queues)} queues")
    elif unknown:
        parts = ["nobody knows: no queue has answered"]
    if not all(each.is_all for each in seen):
        parts.append(f"of each queue {MOST_ASKED} accounts were looked at")
    return {
        "text": "; ".join(parts),
        "queues": [{"id": each.id, "name": visible(each.name)} for each in queues[:_MOST_QUEUES]],
        "rows": rules[:MOST_RULES],
        "waiting": [_waiting(each, state) for each, state in waiting[:MOST_WAITING]],
    }


def _rule(seen: SeenRules, pattern: str, rule: AccountRule) -> dict[str, Any]:
    said = {each: getattr(rule, each) for each in (*SETTINGS, "paused")}
    kind = "pattern" if is_pattern(pattern) else "account"
    return {
        "id": short_id(f"{seen.queue.id}\0{pattern}"),
        "queue": seen.queue.id,
        "key": item_key(pattern),
        "name": visible(pattern),
        "kind": f"{'default' if pattern == '*' else kind} of {visible(seen.queue.name)}",
        "is_paused": rule.paused is True,
        **{name: UNKNOWN if of is None else _said(of) for name, of in said.items()},
    }


def _waiting(seen: SeenRules, state: AccountState) -> dict[str, Any]:
    return {
        "id": short_id(f"{seen.queue.id}\0{state.account}"),
        "name": visible(state.account),
        "kind": visible(seen.queue.name),
        "oldest": spell(state.oldest_waiting_seconds),
        "waiting": number(state.waiting),
        "in_flight": number(state.in_flight),
        "why": visible(wait_reason(state.account, state, seen.ready), 300),
    }
