"""Offers: how the survey shows the job that removes a rule's garbage, and how it counts for that.

A rule says its offer itself (`Rule.offer`), so the survey knows no rule by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DAY = 86_400.0
_SPANS = ((DAY, "d"), (3_600.0, "h"), (1.0, "s"))


class Declared(NamedTuple):
    """An argument that the user must give in a call.

    Fields: name: the placeholder; assumed: the value by which the survey counts: a float is a time
    in seconds.
    """

    name: str
    assumed: float


CLIENT = object()
"""In a `Call`: the user's client."""
PATTERN = object()
"""In a `Call`: the pattern of a family of keys."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a user writes: it is shown as text, and called to plan the job that it returns.

    Fields: function; values and options: plain ones, `Declared`, CLIENT, PATTERN, further calls,
    and lists of these.
    """

    function: Callable[..., Any]
    values: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def text(self, pattern: str, *, removes: bool = False) -> str:
        """Return the call as the user writes it.

        Arguments:
            pattern: of the family.
            removes: whether the job removes, and is no dry run.
        """

        def said(value: Any) -> str:
            if isinstance(value, Call):
                return value.text(pattern)
            if isinstance(value, list):
                return f"[{', '.join(map(said, value))}]"
            if isinstance(value, Declared):
                return f"<{value.name}>"
            return "client" if value is CLIENT else repr(pattern if value is PATTERN else value)

        words = [said(each) for each in self.values]
        words += [f"{name}={said(each)}" for name, each in self.options.items()]
        words += ["dry_run=False"] if removes else []
        return f"{self.function.__name__}({', '.join(words)})"

    def result(self, client: Any, pattern: str) -> Any:
        """Do the call, with what is assumed.

        Arguments:
            pattern: of the family.
        """

        def made(value: Any) -> Any:
            if isinstance(value, Call):
                return value.result(client, pattern)
            if isinstance(value, list):
                return [made(each) for each in value]
            if isinstance(value, Declared):
                return value.assumed
            return client if value is CLIENT else pattern if value is PATTERN else value

        options = {name: made(each) for name, each in self.options.items()}
        return self.function(*map(made, self.values), **options)

    def declared(self) -> Iterator[tuple[str, Declared]]:
        """Yield what the user must declare, each with the name of its option."""
        for name, value in self.options.items():
            if isinstance(value, Declared):
                yield name, value
        for each in self.values:
            for one in each if isinstance(each, list) else [each]:
                if isinstance(one, Call):
                    yield from one.declared()


def call(function: Callable[..., Any], *values: Any, **options: Any) -> Call:
    """Return a call. Arguments as in `Call`."""
    return Call(function, values, options)


@dataclass(frozen=True, slots=True)
class Offer:
    """How the survey offers a rule's job, and how it counts and sizes the garbage.

    Fields: job: the call that makes it; strangers: whether the rule is asked for the keys of nobody
    that is known alone; shared: whether keys of others lie where the rule looks, so that an item
    that it does not recognise is no news; sized: whether the bytes that its garbage frees can be
    told.
    """

    job: Call
    strangers: bool = False
    shared: bool = False
    sized: bool = True

    @property
    def declares(self) -> str:
        """What the user must declare, with the value that the survey assumes: "retention=30 d"."""
        return ", ".join(f"{name}={_shown(each.assumed)}" for name, each in self.job.declared())


def _shown(value: float) -> str:
    if not isinstance(value, float):
        return str(value)
    length, unit = next(each for each in _SPANS if value >= each[0] or each[0] == 1.0)
    return f"{value / length:g} {unit}"
