"""The page of the supported names, docs/api.md: ``python scripts/public_names.py`` writes it.

A name is supported if a package of NAMESPACES has it in its `__all__`, or a module of INTEGRATIONS
defines it. The page has the first sentence of each docstring. A test compares the page with the
code, and counts the names.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

NAMESPACES = {
    "workstealing": "Recruiting: callers enlist, and some of them do a slice of a job.",
    "workstealing.structures": "The structures that jobs keep clean.",
    "workstealing.jobs": "The jobs that are ready to be installed.",
    "workstealing.jobs.leftovers": "The words of rules for the garbage of other programs.",
    "workstealing.queue_worker": "A worker that calls a function with each message of a queue.",
    "workstealing.integrations": "Web frameworks and workers; each module needs its own extra.",
    "workstealing.metrics": "The fleet's figures, settings and events, and other receivers.",
    "workstealing.dashboard": "The page that shows a fleet and steers it.",
    "workstealing.survey": "Whose keys fill a Redis, and how much of them is garbage.",
    "workstealing.spark": "PySpark: epilogues, sweeps, sources and sinks.",
    "workstealing.store": "Clients and one attempt, for jobs of your own.",
    "workstealing.testing": "Recruiters without chance, clocks and proofs, for tests.",
}
INTEGRATIONS = {
    "asgi": ("WorkStealingMiddleware",),
    "celery": ("WorkStealing",),
    "django": ("WorkStealingConfig", "WorkStealingMiddleware"),
    "django_cache": ("Cache",),
    "flask": ("WorkStealing",),
    "flask_caching": ("VolatileHashCache",),
    "rq": ("SimpleWorker", "Worker", "WorkStealing"),
    "wsgi": ("WorkStealingMiddleware",),
}
# A user makes these, although their fields are fixed.
_MADE = {"Adaptive", "Backlog", "Garbage", "Removal", "Unknown", "Watched"}
# A user is given these, although they are no tuples of fields.
_GIVEN = {
    "Acked",
    "AsyncLease",
    "AsyncLeasedIck",
    "Attempt",
    "Basis",
    "Batch",
    "Lease",
    "LeasedIck",
}
_GIVEN |= {"Page", "SetsAside", "ShiftedTime", "SweepHandle"}
VALUES = {
    "CLIENT": "In the place of an argument of a call: the client of the surveyed server.",
    "PATTERN": "In the place of an argument of a call: the pattern of the surveyed keys.",
    "DECLARED": "The certainty of a rule whose user says that the items are garbage.",
    "LIVE": "The verdict that an item is in use.",
    "PROVED": "The certainty of a rule that proves it of each item.",
    "default_recruiter": "The recruiter behind the functions of `workstealing`.",
}
_HEAD = """\
# Supported names

These names keep their meaning until the next major version, as [versions.md](versions.md) says.
Every other module, name and attribute is private, also without an underscore, and may change with
any release. `dir()` of a structure lists its supported operations. Errors are the classes of
`workstealing.errors`; catch `WorkStealingError` for all of them. The asyncio form of a structure
has the same operations under the name with `Async` in front.

Python's `help(name)` has arguments, results, errors and costs. `python scripts/public_names.py`
writes this page from the docstrings.
"""


def supported() -> dict[str, list[tuple[str, Any]]]:
    """Return the names of each namespace and their objects; integrations with their module."""
    return {namespace: list(_names_of(namespace)) for namespace in NAMESPACES}


def _names_of(namespace: str) -> Iterator[tuple[str, Any]]:
    if namespace == "workstealing.integrations":
        for module, names in INTEGRATIONS.items():
            found = import_module(f"{namespace}.{module}")
            yield from ((f"{module}.{name}", getattr(found, name)) for name in names)
        return
    package = import_module(namespace)
    for name in package.__all__:
        value = getattr(package, name)
        if not name.startswith("__") and not isinstance(value, ModuleType):
            yield name, value


def is_record(name: str, value: Any) -> bool:
    """Say whether a name is the type of a result: a tuple, a table, fixed fields, an error."""
    if name in VALUES or name in _MADE or inspect.isroutine(value):
        return False
    if name in _GIVEN or not inspect.isclass(value):
        # What is no class is the name of a type.
        return True
    is_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    is_table = issubclass(value, dict) and hasattr(value, "__total__")
    parameters = getattr(value, "__dataclass_params__", None)
    is_fixed = parameters is not None and parameters.frozen
    return is_tuple or is_table or is_fixed or issubclass(value, BaseException)


def first_sentence(value: Any) -> str:
    """Return the first paragraph of a docstring as one line; empty without one."""
    document = inspect.getdoc(value) or ""
    return " ".join(document.split("\n\n")[0].split()).replace("|", "\\|")


def is_form(name: str, names: Mapping[str, Any]) -> bool:
    """Say whether a name is the asyncio form of another one of its namespace."""
    return name.startswith("Async") and name.removeprefix("Async") in names


def counted(found: Mapping[str, list[tuple[str, Any]]]) -> int:
    """Return how many names a user calls: an object once, and no types of results."""
    called = {
        id(value)
        for names in found.values()
        for name, value in names
        if name not in VALUES and not is_record(name, value)
    }
    return len(called)


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for namespace, names in supported().items():
        known = dict(names)
        lines += [f"## {namespace}\n", f"{NAMESPACES[namespace]}\n"]
        lines += ["| name | meaning |", "|---|---|"]
        records = []
        for name, value in names:
            if is_record(name, value):
                records.append(name)
            elif not is_form(name, known):
                sentence = VALUES.get(name) or first_sentence(value)
                lines.append(f"| `{name}` | {sentence} |")
        if records:
            listed = ", ".join(f"`{name}`" for name in records)
            said = f"Types of results, for annotations: {listed}."
            lines += ["", *textwrap.wrap(said, 100, break_long_words=False)]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PAGE.write_text(page())
