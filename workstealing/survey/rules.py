"""The rules that a survey asks: the package's own, those of installed packages, and the caller's.

A rule says itself what it is asked for and how its job is offered (`Rule.asked`, `Rule.offer`), so
none is named here. A new rule of the package stands in its module's `__all__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.jobs.leftovers import Rule
from workstealing.jobs.leftovers.rule import checked_rules

MODULES = (
    "workstealing.jobs.celery_leftovers",
    "workstealing.jobs.family_leftovers",
    "workstealing.jobs.library_leftovers",
    "workstealing.jobs.rq_leftovers",
    "workstealing.jobs.stream_leftovers",
    "workstealing.jobs.tag_set_leftovers",
)
"""The modules of the package's own rules."""

GROUP = "workstealing.rules"
"""The entry points by which an installed package gives rules to each survey."""


def own_classes() -> list[type[Rule]]:
    """Return the classes of the package's own rules. No command."""
    modules = map(import_module, MODULES)
    public = (getattr(module, name) for module in modules for name in module.__all__)
    return [each for each in public if isinstance(each, type) and issubclass(each, Rule)]


def rules_in(found: Any, place: str) -> tuple[Rule, ...]:
    """Return the rules of an object.

    Arguments:
        found: a rule, some of them, or a function of no arguments that returns one of these, such
            as a class of rules.
        place: where it is, for the error.

    Raises: ConfigurationError.
    """
    if callable(found) and not isinstance(found, Rule):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"the rules {place!r} cannot be made: {type(error).__name__}: {error}"
            ) from error
    try:
        return checked_rules([found] if isinstance(found, Rule) else list(found))
    except TypeError:
        raise ConfigurationError(
            f"{place!r} is a {type(found).__name__}; expected a rule, rules, or a function that"
            " returns them"
        ) from None


def installed_rules(note: Callable[[str], None]) -> Iterator[Rule]:
    """Yield the rules that installed packages give; say which ones cannot be had.

    Arguments:
        note: is told a sentence for people.

    No command.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        try:
            yield from rules_in(point.load(), point.value)
        except WorkStealingError as error:
            note(f"the rules of the entry point {point.name!r} are left out: {error}")
        except Exception as error:  # noqa: BLE001 - a broken package is no reason to know nothing
            note(
                f"the rules of the entry point {point.name!r} are left out, because"
                f" {point.value!r} cannot be loaded: {type(error).__name__}: {error}"
            )


def further_rules(given: Sequence[Rule], note: Callable[[str], None]) -> tuple[Rule, ...]:
    """Return the rules that are asked beside the package's own, with names of their own.

    Arguments:
        given: by the caller of the survey.
        note: is told which installed ones are left out.

    Raises: ConfigurationError for a given one that is no rule, or whose name another one has.
    """
    names = {rule.name for each in own_classes() for rule in each.surveyed({})}
    found = list(checked_rules(given)) if given else []
    for each in found:
        if each.name in names:
            raise ConfigurationError(
                f"the rule {each.name!r} is asked by every survey: give yours another name"
            )
    names |= {each.name for each in found}
    for each in installed_rules(note):
        if each.name in names:
            note(f"the installed rule {each.name!r} is left out: another one has its name")
        else:
            names.add(each.name)
            found.append(each)
    return tuple(found)
