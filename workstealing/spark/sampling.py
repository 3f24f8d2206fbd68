"""`schema_of`: the columns of plain Redis keys, guessed from a sample of their values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from workstealing.errors import ConfigurationError
from workstealing.spark.sessions import told_of_a_stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 10_000
# A hash with more fields is a table of its own: a row a field.
MOST_COLUMNS = 200

# Of each type but hashes and streams the column that is guessed, and those around it.
_COLUMNS = {
    "string": ("value", "{key}, value {kind}, {ttl} double"),
    "list": ("value", "{key}, position bigint, value {kind}"),
    "set": ("member", "{key}, member {kind}"),
    "zset": ("member", "{key}, member {kind}, score double"),
}


@told_of_a_stop("schema_of()")
def schema_of(
    spark: SparkSession, match: str | None = None, *, rows: int = ROWS, **options: Any
) -> str:
    """Sample keys of plain Redis, print their columns as `.schema("...")`, and return these.

    Arguments:
        spark: a session that knows the format; see `register`.
        match: a pattern for the keys.
        rows: at most so many fields, elements or entries are looked at.
        options: as of format("workstealing.redis"): type (hash), keys, keyPrefix, keyColumn,
            client, url and so on.

    Returns: the columns as Spark's DDL. It is a guess from the sample: what does not fit it is an
    error of the read, or null with mode=permissive. Raises: ConfigurationError if there are no such
    keys, or if a field is named as the column of keys; what a read raises. One Spark job, which
    reads no more pages than the sample needs.
    """
    given = {"type": "hash", **options}
    if match is not None:
        given["match"] = match
    if "keys" not in given:
        given.setdefault("partitions", 1)
    kind = given["type"]
    key, ttl = given.get("keyColumn", "key"), given.get("ttlColumn", "ttl")
    if kind == "hash":
        given["hashAs"] = "rows"
        wanted = "field binary, value binary"
    elif kind == "stream":
        wanted = "fields map<string,binary>"
    else:
        wanted = f"{_COLUMNS.get(kind, ('value', ''))[0]} binary"
    reading = spark.read.format("workstealing.redis").options(**given)
    found = reading.schema(f"{_name(key)} binary, {wanted}").load().limit(rows).collect()
    if not found:
        raise ConfigurationError(
            f"there is no key of type={kind} to sample: give another pattern, or another type"
        )
    # Without a prefix a key is a name, even if it looks like a number in the sample.
    keys = [bytes(row[0]) for row in found]
    of_key = f"{_name(key)} {kind_of(keys) if given.get('keyPrefix') else _text_of(keys)}"
    if kind == "hash":
        columns = _of_hashes(of_key, [(bytes(row[1]), bytes(row[2])) for row in found], (key, ttl))
    elif kind == "stream":
        pairs = [(name.encode(), bytes(each)) for row in found for name, each in row[1].items()]
        columns = _named(f"{of_key}, id string", pairs, (key, ttl, "id"))
    else:
        values = kind_of([bytes(row[1]) for row in found])
        columns = _COLUMNS[kind][1].format(key=of_key, kind=values, ttl=_name(ttl))
    print(f".schema({json.dumps(columns, ensure_ascii=False)})")  # noqa: T201 - what it is for
    return columns


def _of_hashes(key: str, pairs: Sequence[tuple[bytes, bytes]], taken: tuple[str, ...]) -> str:
    fields = {field for field, _ in pairs}
    if len(fields) > MOST_COLUMNS or any(_text_of([field]) == "binary" for field in fields):
        return f"{key}, field {_text_of(fields)}, value {kind_of([value for _, value in pairs])}"
    return _named(key, pairs, taken)


def _named(first: str, pairs: Iterable[tuple[bytes, bytes]], taken: tuple[str, ...]) -> str:
    values: dict[str, list[bytes]] = {}
    for field, value in pairs:
        values.setdefault(field.decode(), []).append(value)
    if clash := next((name for name in values if name in taken), None):
        raise ConfigurationError(
            f"there is a field {clash!r}, as a column of the format is named: give that another"
            " name by the option 'keyColumn' or 'ttlColumn'"
        )
    return ", ".join((first, *(f"{_name(name)} {kind_of(of)}" for name, of in values.items())))


def kind_of(values: Sequence[bytes]) -> str:
    """Return the narrowest type of Spark's that all texts fit, `binary` if some are no UTF-8."""
    if _text_of(values) == "binary":
        return "binary"
    texts = [value.decode() for value in values]
    for kind, fits in _KINDS.items():
        if all(map(fits, texts)):
            return kind
    return _nested(texts) or "string"


def _text_of(values: Iterable[bytes]) -> str:
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return "binary"
    return "string"


def _is_long(text: str) -> bool:
    # "007" is a name, and so is "+1".
    return bool(_WHOLE.fullmatch(text)) and -(2**63) <= int(text) < 2**63


def _is_time(text: str) -> bool:
    with suppress(ValueError):
        # Shorter ones, such as 20261124, may be anything.
        return len(text) > len("2026-11-24") and "-" in text and bool(datetime.fromisoformat(text))
    return False


def _has_zone(text: str) -> bool:
    return _is_time(text) and datetime.fromisoformat(text).tzinfo is not None


def _is_date(text: str) -> bool:
    with suppress(ValueError):
        return len(text) == len("2026-11-24") and bool(date.fromisoformat(text))
    return False


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_KINDS: Mapping[str, Callable[[str], bool]] = {
    "boolean": lambda text: text in ("true", "false"),
    "bigint": _is_long,
    "double": lambda text: bool(_NUMBER.fullmatch(text)),
    "date": _is_date,
    "timestamp": _has_zone,
    "timestamp_ntz": _is_time,
}


def _nested(texts: Sequence[str]) -> str | None:
    """Return the type of arrays or objects as JSON, None where one of the texts is none."""
    found = []
    for text in texts:
        try:
            found.append(json.loads(text))
        except (ValueError, RecursionError):
            return None
    is_nested = all(isinstance(each, dict | list) for each in found)
    return _of_json(found) if is_nested else None


def _of_json(values: Sequence[Any]) -> str | None:
    """Return the type of JSON values, None where they have none in common."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str}:
        return "string"
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return "bigint"
    if kinds <= {int, float}:
        return "double"
    if kinds == {list}:
        inner = _of_json([each for value in values for each in value or ()])
        return None if inner is None else f"array<{inner}>"
    if kinds == {dict}:
        parts: dict[str, list[Any]] = {}
        for value in values:
            for name, each in (value or {}).items():
                parts.setdefault(name, []).append(each)
        inners = {name: _of_json(each) for name, each in parts.items()}
        if not inners or None in inners.values() or len(inners) > MOST_COLUMNS:
            return "map<string,string>" if not inners else None
        return f"struct<{','.join(f'{_name(name)}:{inner}' for name, inner in inners.items())}>"
    return None


def _name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
        return name
    return "`{}`".format(name.replace("`", "``"))
