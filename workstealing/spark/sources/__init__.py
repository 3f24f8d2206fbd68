"""Sources and sinks of Spark's own kind, for the structures of this package.

`register(spark)` makes them known to a session.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where the DataSource of each format is: in a module that is named as the format.
_SOURCES = {
    "ick": "IckSource",
    "volatile_hashes": "VolatileHashSource",
    "log": "LogSource",
    "tracked_set": "TrackedSetSource",
}


def register(spark: SparkSession) -> None:
    """Make all formats of this package known to a session; once is enough, twice does no harm.

    Arguments: spark. Raises: MissingExtraError without pyspark.
    """
    try:
        import pyspark.sql.datasource  # noqa: F401
    except ModuleNotFoundError as error:
        from workstealing.errors import MissingExtraError

        raise MissingExtraError("spark", str(error.name)) from error
    for module, name in _SOURCES.items():
        spark.dataSource.register(getattr(import_module(f"{__name__}.{module}"), name))
