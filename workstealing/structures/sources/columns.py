"""Values of database columns as text, and back: ids and cursors."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from workstealing.errors import ConfigurationError

_READERS: dict[type, Callable[[Any], Any]] = {
    int: int,
    str: str,
    float: float,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: decimal.Decimal,
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
}
_ID_TYPES = (int, str, uuid.UUID)


class ColumnText:
    """One column's values as text.

    Arguments: column; dialect: its name, which says what the column can hold; as_id: whether ids
    are read from it. Errors: ConfigurationError for a type that cannot be used.
    """

    def __init__(self, column: sa.ColumnElement[Any], dialect: str, *, as_id: bool = False) -> None:
        try:
            kind = column.type.python_type
        except NotImplementedError:
            kind = type(None)
        known = _ID_TYPES if as_id else tuple(_READERS)
        if kind not in known:
            names = ", ".join(sorted(each.__name__ for each in known))
            raise ConfigurationError(
                f"the column {column} is of type {column.type!r}, which cannot be used as"
                f" {'an id' if as_id else 'a cursor'}: use one that holds {names}"
            )
        self._kind = kind
        self._is_postgresql = dialect == "postgresql"
        self._bits = 63
        if self._is_postgresql and isinstance(column.type, sa.Integer):
            small, big = (sa.SmallInteger, sa.BigInteger)
            self._bits = 15 if isinstance(column.type, small) else 31
            self._bits = 63 if isinstance(column.type, big) else self._bits

    def write(self, value: Any) -> str:
        """Return a value as text."""
        if isinstance(value, dt.date):
            return value.isoformat()
        return repr(value) if self._kind is float else str(value)

    def read(self, written: str) -> Any:
        """Return the value that `write` has made this text of.

        Errors: ValueError for any other text, and for what the column cannot hold.
        """
        value: Any = None
        try:
            value = _READERS[self._kind](written)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ValueError(f"{written!r} is no {self._kind.__name__}") from error
        if self.write(value) != written:
            raise ValueError(f"{written!r} is not as this package writes it")
        if self._kind is int and not -(1 << self._bits) <= value < 1 << self._bits:
            raise ValueError(f"{written!r} is too large for its column")
        if self._kind is str:
            value.encode()
            if self._is_postgresql and "\0" in value:
                raise ValueError("PostgreSQL holds no NUL character")
        return value


def write_cursor(columns: Sequence[ColumnText], values: Sequence[Any]) -> str:
    """Return a row's place as text: a JSON list with a text for each column."""
    written = [column.write(value) for column, value in zip(columns, values, strict=True)]
    return json.dumps(written, ensure_ascii=False, separators=(",", ":"))


def read_cursor(columns: Sequence[ColumnText], cursor: str) -> list[Any] | None:
    """Return the place that a cursor stands for; None, the beginning, for one of another make."""
    try:
        written = json.loads(cursor)
        if not isinstance(written, list) or not all(isinstance(part, str) for part in written):
            return None
        return [column.read(part) for column, part in zip(columns, written, strict=True)]
    except ValueError:
        return None
