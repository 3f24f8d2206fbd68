"""The totals of a Spark application, for its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workstealing.errors import ConfigurationError
from workstealing.spark import workers
from workstealing.spark.counting import JobTotals, Recruits, recruits_of
from workstealing.spark.installing import Installation, installed
from workstealing.spark.making import ClientSettings
from workstealing.spark.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobTotals", "Recruits", "accumulated", "recruits"]


def recruits(spark: SparkSession) -> Recruits:
    """Return the totals of an application by the counters in Redis, failed tasks included.

    A worker's counts arrive within the interval given to `install()`, 5 seconds by default; what it
    had not sent when it was killed is missing.

    Arguments:
        spark: the session of install().

    Raises: ConfigurationError when install() was not called, or with counters=None; redis-py's
    errors. One round trip.
    """
    installation = _installed_for(spark)
    path = installation.settings.counters
    if path is None:
        raise ConfigurationError(
            "recruits() has no counters to read: install() was called with counters=None"
        )
    from workstealing.spark.counters import counters_key

    # The driver's own recruits, by enlist_batch().
    workers.flush()
    client: Any = ClientSettings(path).connected()
    found: dict[Any, Any] = client.hgetall(counters_key(installation.settings.application))
    return recruits_of({_text(field): int(count) for field, count in found.items()})


def accumulated(spark: SparkSession) -> Recruits:
    """Return the totals of an application by Spark's accumulator: of successful tasks alone.

    The accumulator is complete as soon as an action has ended, and needs no Redis; but failed
    tasks, the hook of every_task=True, and the driver's own recruits are not in it, and a task that
    Spark runs twice may be in it twice.

    Arguments:
        spark: the session of install().

    Raises: ConfigurationError when install() was not called with accumulate=True. No round trip.
    """
    accumulator = _installed_for(spark).accumulator
    if accumulator is None:
        raise ConfigurationError(
            "accumulated() has nothing to read: "
            + (
                "Spark Connect gives its clients no accumulators; use recruits()"
                if is_remote(spark)
                else "call install(spark, ..., accumulate=True)"
            )
        )
    return recruits_of(accumulator.value)


def _installed_for(spark: SparkSession) -> Installation:
    installation = installed()
    owner: object = installation.remote or installation.context
    if owner is not None and owner is not (spark if is_remote(spark) else spark.sparkContext):
        raise ConfigurationError("install() was called for another session than this one")
    return installation


def _text(field: bytes | str) -> str:
    return field.decode(errors="backslashreplace") if isinstance(field, bytes) else field
