"""The keys that a task remembers, in bounded memory, and whether their rows stand together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.redis_options import RedisOptions

# A task remembers so many bytes of keys.
MOST_REMEMBERED = 64 * 1024 * 1024
# What CPython takes for a short key in a set, beside its text.
_BYTES_A_KEY = 100


def remembered_bytes(key: bytes) -> int:
    """Return about how many bytes a key takes that is remembered."""
    return len(key) + _BYTES_A_KEY


class KeysTogether:
    """Checks that the rows of each key stand together in a task, however Spark cuts its batches.

    Rows that come sorted by the key do, and need no memory. Of others the keys are remembered, up
    to 64 MiB.
    """

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._known: set[bytes] = set()
        self._size = 0
        self._is_sorted = True
        self._last: bytes | None = None
        self._last_value: Any = None

    def check(self, column: Any, keys: Sequence[bytes]) -> None:
        """Take the next batch of the task.

        Arguments:
            column: of the keys, as Spark has sorted it.
            keys: the same as the server's keys, one or more.

        Raises: ConfigurationError for rows of a key that stand apart; for keys that are more than
        can be remembered and not sorted.
        """
        self._is_sorted = self._is_sorted and self._goes_on_sorted(column)
        if self._size <= MOST_REMEMBERED:
            self._remember(key for key, _ in groupby(keys))
        if self._size > MOST_REMEMBERED:
            if not self._is_sorted:
                raise self._wrong(
                    f"a task has more keys than {MOST_REMEMBERED >> 20} MiB, and they are not"
                    " sorted, so that rows of a key may stand apart"
                )
            self._known.clear()

    def _remember(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if key == self._last:
                continue
            self._last = key
            if key in self._known:
                raise self._wrong(
                    f"rows of the key {key!r} stand apart in a task, so that the later ones would"
                    " replace the earlier ones"
                )
            self._known.add(key)
            self._size += remembered_bytes(key)

    def _goes_on_sorted(self, column: Any) -> bool:
        # As in `PlainWrite`, not where a planner imports this module.
        from pyarrow import compute

        before, self._last_value = self._last_value, column[-1]
        try:
            if before is not None and not compute.less_equal(before, column[0]).as_py():
                return False
            rises = compute.less_equal(column[:-1], column[1:])
            # Of one row there is nothing to compare.
            return compute.all(rises).as_py() is not False
        except pa.ArrowNotImplementedError:
            return False

    def _wrong(self, problem: str) -> ConfigurationError:
        column = self._options.key_column
        return self._options.wrong(
            f'{problem}: write df.repartition("{column}").sortWithinPartitions("{column}")'
        )
