"""The difference between a tracked set and a table, by sub-sets, in Arrow's columns.

A task receives the table's ids sorted by sub-set, with a row without an id for each sub-set that is
its own. A task takes some whole sub-sets at a time, so its memory has a bound, and reads their ids
in Redis. Ids become Python objects only where the client's parser makes them, and where they
differ. Executors alone load this module: a driver may lack numpy and PyArrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

Scan = Callable[[list[int]], Iterable[tuple[Sequence[int], Sequence[bytes]]]]
"""Yields ids of sub-sets as two lists of the same length: the sub-sets, and their ids."""

ROWS_AT_ONCE = 200_000


@dataclass(slots=True)
class Difference:
    """The ids that a set and a table do not share.

    Fields: tracked and in_table: how many ids each has; steps: for each sub-set that differs, the
    ids that only the set has, and those that only the table has.
    """

    tracked: int = 0
    in_table: int = 0
    steps: list[tuple[int, list[bytes], list[bytes]]] = field(default_factory=list)


def whole_sub_sets(batches: Iterable[Any], rows: int = ROWS_AT_ONCE) -> Iterator[Any]:
    """Yield tables of whole sub-sets, of about so many rows, or of one sub-set.

    Arguments:
        batches: of the columns sub_set, in ascending order, and id.
    """
    held: list[Any] = []
    size, wanted = 0, rows
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.num_rows
        if size < wanted:
            continue
        table = pa.Table.from_batches(held)
        numbers = table["sub_set"].to_numpy()
        # The last sub-set may go on in the next batch.
        end = int(np.searchsorted(numbers, numbers[-1]))
        if end:
            yield table.slice(0, end)
        held = table.slice(end).to_batches()
        size -= end
        # A large sub-set is not looked at again with each batch.
        wanted = max(rows, 2 * size)
    if held:
        yield pa.Table.from_batches(held)


def difference(table: Any, scan: Scan) -> Difference:
    """Compare some sub-sets of a tracked set with a table's ids.

    Arguments:
        table: the columns sub_set and id; a row without an id only names a sub-set.
        scan: reads the ids that are tracked now.

    Raises: as `scan`.
    """
    numbers = table["sub_set"].to_numpy()
    wanted = [int(each) for each in np.unique(numbers)]
    ids = table["id"]
    known = ids.is_valid().to_numpy()
    columns: list[Any] = [[], []]
    for of, found in scan(wanted):
        columns[0].append(np.asarray(of, dtype=np.int32))
        columns[1].append(pa.array(found, pa.binary()))
    size = sum(len(each) for each in columns[1])
    owners = np.concatenate([*columns[0], numbers[known].astype(np.int32)])
    chunks = [*columns[1], *ids.drop_null().cast(pa.binary()).chunks]
    return _of_columns(owners, pa.chunked_array(chunks, pa.binary()), size)


def _of_columns(owners: Any, ids: Any, size: int) -> Difference:
    """Compare two columns of ids, of which the set's come first, `size` in number."""
    if not len(ids):
        return Difference()
    encoded = ids.dictionary_encode()
    # All chunks have the dictionary of the whole; an empty one may have none.
    chunks = [chunk for chunk in encoded.chunks if len(chunk)]
    distinct = chunks[-1].dictionary
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    owner = np.empty(len(distinct), np.int32)
    owner[codes] = owners
    if (owner[codes] != owners).any():
        return _one_by_one(owners, ids, size)
    in_set, in_table = np.zeros((2, len(distinct)), bool)
    in_set[codes[:size]] = True
    in_table[codes[size:]] = True
    found = Difference(int(in_set.sum()), int(in_table.sum()))
    different = np.flatnonzero(in_set != in_table)
    different = different[np.argsort(owner[different], kind="stable")]
    bounds = np.flatnonzero(np.diff(owner[different])) + 1
    for some in np.split(different, bounds) if len(different) else ():
        stale, missing = (
            distinct.take(pa.array(some[side[some]])).to_pylist() for side in (in_set, in_table)
        )
        found.steps.append((int(owner[some[0]]), stale, missing))
    return found


def _one_by_one(owners: Any, ids: Any, size: int) -> Difference:
    """Compare each sub-set by itself: somebody has written an id into another one than its own."""
    total = Difference()
    ids = ids.combine_chunks()
    for number in np.unique(owners):
        some = np.flatnonzero(owners == number)
        column = pa.chunked_array([ids.take(pa.array(some))])
        found = _of_columns(owners[some], column, int((some < size).sum()))
        total.tracked += found.tracked
        total.in_table += found.in_table
        total.steps += found.steps
    return total
