"""Light doors: packages whose public names load their modules at their first use (PEP 562).

A package with a light door says three things: under TYPE_CHECKING where its names come from, which
type checkers and editors read; `__all__`; and the call of `light_door`, which has the same table
for the running program. tests/test_doors.py holds them together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

__all__ = ["light_door"]

_NONE: Mapping[str, str] = MappingProxyType({})


def light_door(
    package: str, homes: Mapping[str, str], needs: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Arguments:
        package: its name.
        homes: by module, the names that come from there, with spaces between them; behind a colon
            may stand an object of the module whose attributes they are.
        needs: by the package of an extra, the names that load it: where it is not installed,
            `__all__` and `dir` are without them, so that ``import *`` works, and a use by name says
            what to install.

    A name is loaded once, and kept. The package's own modules are found as attributes, too.
    """
    places = {name: home for home, names in homes.items() for name in names.split()}
    module: Any = sys.modules[package]
    for needed, missing in needs.items():
        if not _is_installed(needed):
            module.__all__ = [each for each in module.__all__ if each not in missing.split()]

    def load(name: str) -> Any:
        home, _, holder = places.get(name, "").partition(":")
        if home:
            found = import_module(home)
            value = getattr(getattr(found, holder) if holder else found, name)
            setattr(module, name, value)
            return value
        own = f"{package}.{name}"
        try:
            # Python and its tools ask for names with an underscore, and no module of ours has one.
            if not name.startswith("_"):
                return import_module(own)
        except ModuleNotFoundError as error:
            if error.name != own:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*(each for each in vars(module) if each.startswith("__")), *module.__all__})

    return load, listed


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
