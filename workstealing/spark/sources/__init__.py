"""Sources and sinks of Spark's own kind, for the structures of this package.

`register(spark)` makes them known to a session.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.spark.making import DEFAULT_CLIENT
from workstealing.spark.sessions import make_active, told_of_a_stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from workstealing.spark.checking import ExecutorCheck

# Where the DataSource of each format is: in a module that is named as the format.
_SOURCES = {
    "ick": "IckSource",
    "volatile_hashes": "VolatileHashSource",
    "log": "LogSource",
    "tracked_set": "TrackedSetSource",
    "redis": "RedisSource",
}
# The formats that are sources of streams, and the option that bounds a batch of each.
_BOUNDS = {
    "ick": "maxMembersPerTrigger",
    "log": "maxOffsetsPerTrigger",
    "redis": "maxOffsetsPerTrigger",
}

logger = logging.getLogger("workstealing.spark")


@told_of_a_stop("register()")
def register(
    spark: SparkSession, *, check: bool = False, client: str = DEFAULT_CLIENT
) -> list[ExecutorCheck]:
    """Make all formats of this package known to a session; once is enough, twice does no harm.

    Spark finds them for this thread. For another thread, or when Ctrl-C has ended a query of this
    one, it says DATA_SOURCE_NOT_FOUND until you call this there again.

    A format that cannot be served here is left out, and a warning in the log says why; the others
    are served.

    Arguments:
        spark: a session, of Spark Connect too.
        check: let a small task on each executor look for the package, for the address of Redis, and
            whether Redis answers there.
        client: the formats' option of that name, for the check.

    Returns: what was found on each executor, nothing without a check. Raises: MissingExtraError
    without pyspark; ConfigurationError for PySpark 3.5, which has no data sources, and, when the
    formats are known, if an executor lacks something: a sentence for each problem. A warning in the
    log names executors of which nobody knows. Without a check neither a job nor a round trip.
    """
    _require_data_sources()
    served = []
    for module, name in _SOURCES.items():
        try:
            source = getattr(import_module(f"{__name__}.{module}"), name)
        except ImportError as error:
            logger.warning("format 'workstealing.%s' is left out: %s", module, _missing(error))
            continue
        spark.dataSource.register(source)
        served.append(module)
    _warn_of_limits(served)
    make_active(spark)
    if not check:
        return []
    from workstealing.spark.checking import check_executors, require_executors

    checks = check_executors(spark, client)
    require_executors(checks)
    return checks


def _require_data_sources() -> None:
    """Raise the error of a PySpark that has no data sources of Python."""
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise MissingExtraError("spark", str(error.name)) from error
    try:
        import pyspark.sql.datasource
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise MissingExtraError("spark", str(error.name)) from error
        raise ConfigurationError(
            f"formats need PySpark 4.0 or newer, and this is {pyspark.__version__}: upgrade pyspark"
            " in the driver and in the executors (epilogues, sweep and reconcile work without"
            " formats)"
        ) from None


def _missing(error: ImportError) -> str:
    import pyspark

    return (
        f"PySpark {pyspark.__version__} or a package beside it lacks what the format needs"
        f" ({error}); install PySpark 4.2 or newer by pip install -U 'workstealing[spark]'"
    )


def _warn_of_limits(served: list[str]) -> None:
    """Say which streams are bounded by their options alone."""
    import pyspark

    from workstealing.spark.sources.compat import HAS_READ_LIMITS

    if not HAS_READ_LIMITS:
        for module in served:
            if module in _BOUNDS:
                logger.warning(
                    "format 'workstealing.%s': with PySpark %s a stream with"
                    " trigger(availableNow=True) ends after one batch of at most %s; PySpark 4.2 or"
                    " newer reads all that there was: upgrade it, or raise the option",
                    *(module, pyspark.__version__, _BOUNDS[module]),
                )
