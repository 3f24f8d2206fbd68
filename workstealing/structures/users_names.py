"""Names that users give to structures and their parts, and the keys beside these names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.store.keys import key_slot, require_one_slot, require_users_name, to_bytes

GroupNamesT = TypeVar("GroupNamesT")


def beside(name: bytes, kind: bytes) -> bytes:
    """Return the prefix of the keys beside a name, in its slot unless it has a lone brace.

    Arguments:
        kind: of structure, such as ``b"log"``.

    The prefix is part of the layout.
    """
    return name + b"/" + kind + b"/{" + name + b"}/"


class NamesBeside(Generic[GroupNamesT]):
    """The keys beside one name, all in one slot, and those of its groups.

    Arguments:
        kind: see `beside`.
        group_names: makes a group's keys from the prefix and the group's name.
    """

    def __init__(
        self, name: bytes, kind: bytes, group_names: Callable[[bytes, bytes], GroupNamesT]
    ) -> None:
        require_users_name(name)
        self.name = name
        self.base = beside(name, kind)
        self.meta = self.base + b"meta"
        self.slot = key_slot(self.meta)
        self._group_names = group_names
        self._groups: dict[bytes, GroupNamesT] = {}

    def require_one_slot(self) -> None:
        """Raise CrossSlotError for a name whose keys a cluster would keep in several slots."""
        require_one_slot((self.name, self.meta))

    def group(self, group: object) -> GroupNamesT:
        """Return the keys of a group. Raises: ConfigurationError for an unusable group name."""
        raw = to_bytes(checked_text(group, "group"))
        names = self._groups.get(raw)
        if names is None:
            names = self._groups[raw] = self._group_names(self.base, raw)
        return names


def checked_text(value: object, what: str) -> str | bytes:
    """Return a name, checked: messages show names as text, and are settled by them.

    Arguments:
        value: the name.
        what: its description in the error.

    Raises: ConfigurationError for an empty name, and for a name that is neither text nor bytes in
    UTF-8.
    """
    try:
        if isinstance(value, str) and value.encode():
            return value
        if isinstance(value, bytes) and value.decode():
            return value
    except UnicodeError:
        pass
    raise ConfigurationError(
        f"the {what} {value!r} is not usable: give a text, or its bytes in UTF-8, not empty"
    )
