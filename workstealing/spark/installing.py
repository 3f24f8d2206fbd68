"""The driver's part: install() says how executors build their recruiter, and totals what it did."""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyspark
from pyspark.sql import SparkSession

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_seconds
from workstealing.spark import daemon, workers
from workstealing.spark.counting import CountsParam, JobTotals, Recruits, recruits_of
from workstealing.spark.making import DEFAULT_CLIENT, ClientSettings, checked_path
from workstealing.spark.sessions import is_remote, will_be_remote
from workstealing.spark.workers import VARIABLE, EpilogueSettings

if TYPE_CHECKING:
    # pyspark-client, for Spark Connect alone, has none.
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

# With the types of the totals, for annotations.
__all__ = ["JobTotals", "Recruits", "accumulated", "install", "recruits"]

SparkOrBuilder = TypeVar("SparkOrBuilder", SparkSession, SparkSession.Builder)


@dataclass(frozen=True, slots=True)
class Installation:
    """The arguments of `install()`.

    Fields: settings: for the executors; context: of the running application, None for a builder;
    accumulator: None if none was asked for; remote: the session if it is of Spark Connect, else
    None.
    """

    settings: EpilogueSettings
    context: SparkContext | None = None
    accumulator: Accumulator[dict[str, int]] | None = None
    remote: Any = None


_installation: Installation | None = None


def install(
    spark_or_builder: SparkOrBuilder,
    factory: str,
    *,
    every_task: bool = False,
    accumulate: bool = False,
    counters: str | None = DEFAULT_CLIENT,
    interval: Duration = 5.0,
) -> SparkOrBuilder:
    """Say how executors build their recruiter; return the first argument.

    Arguments:
        spark_or_builder: a session, or SparkSession.builder before getOrCreate().
        factory: the import path "package.module:function" of a function without arguments that
            returns a Recruiter; every Python worker calls it once, when its first task has
            finished.
        every_task: let every task that runs Python enlist, by a hook in Spark's Python daemon,
            which must be known before the application starts.
        accumulate: add up in an accumulator too, see `accumulated()`, which needs a session.
        counters: the import path of a function that returns a client of redis-py, whose server
            counts for `recruits()`; None for no counters.
        interval: how often each worker sends its counts, in seconds or a timedelta.

    Only these names and numbers go to the executors. Addresses and passwords are read there, from
    their own environment, by the factory and the client's function.

    A session of Spark Connect has no place of its own for the settings: they go with each function
    that is pickled by its value. every_task and accumulate are refused there.

    Raises: ConfigurationError for anything else, and then nothing has changed. Warns, and sets no
    hook, where every_task is asked for on a version of Spark that it was not tested with. A later
    call replaces the earlier one.
    """
    global _installation  # noqa: PLW0603 - a driver has one application
    checked_path(factory, "the recruiter's factory")
    if counters is not None:
        checked_path(counters, "the counters' client")
    seconds = checked_seconds(interval, "the interval between two sends of counts")
    # A builder's application has no id yet.
    settings = EpilogueSettings(factory, counters, f"workstealing-{secrets.token_hex(8)}", seconds)
    if is_remote(spark_or_builder):
        _refuse_of_connect(every_task, accumulate)
        made = Installation(settings, remote=spark_or_builder)
    elif isinstance(spark_or_builder, SparkSession):
        made = _on_session(spark_or_builder.sparkContext, settings, every_task, accumulate)
    elif isinstance(spark_or_builder, SparkSession.Builder):
        made = _on_builder(spark_or_builder, settings, every_task, accumulate)
    else:
        raise ConfigurationError(
            f"install() expects a SparkSession, or SparkSession.builder before getOrCreate(), not"
            f" {type(spark_or_builder).__name__}"
        )
    _installation = made
    return spark_or_builder


def installed() -> Installation:
    """Return what `install()` was told for the application that runs now.

    Raises: ConfigurationError when it was not called, or for an application that has ended.
    """
    if _installation is None:
        raise ConfigurationError(
            'call workstealing.spark.install(spark, "package.module:make_recruiter") first, in the'
            " driver: without it executors do not know how to build their recruiter"
        )
    if _has_stopped(_installation):
        raise ConfigurationError(
            "workstealing.spark.install() was called for a session that has been stopped: call it"
            " for the new one, too"
        )
    return _installation


def _on_session(
    context: SparkContext, settings: EpilogueSettings, every_task: bool, accumulate: bool
) -> Installation:
    is_hooked = context.getConf().get(daemon.SETTING) == daemon.MODULE
    if every_task and not is_hooked and not _warned_of_version():
        raise ConfigurationError(
            "every_task=True needs SparkSession.builder, not a running session: executors read"
            f" {daemon.SETTING} when they start"
        )
    accumulator = _accumulator(context) if accumulate else None
    settings = replace(
        settings,
        application=str(context.applicationId),
        accumulator=None if accumulator is None else accumulator.aid,
    )
    _set_environment(context, settings)
    return Installation(settings, context, accumulator)


def _on_builder(
    builder: SparkSession.Builder, settings: EpilogueSettings, every_task: bool, accumulate: bool
) -> Installation:
    if will_be_remote(builder):
        _refuse_of_connect(every_task, accumulate)
        return Installation(settings)
    if accumulate:
        raise ConfigurationError(
            "accumulate=True needs a running session: call install(spark, ...) after getOrCreate()"
        )
    from pyspark import SparkContext

    running = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to look
    if every_task and running is not None:
        raise ConfigurationError(
            "every_task=True comes too late: this process has a SparkContext already, and its"
            " executors have started"
        )
    builder.config(f"spark.executorEnv.{VARIABLE}", settings.as_text())
    if running is not None:
        _set_environment(running, settings)
    if every_task and not _warned_of_version():
        builder.config(daemon.SETTING, daemon.MODULE)
    return Installation(settings)


def _accumulator(context: SparkContext) -> Accumulator[dict[str, int]]:
    """Return the application's accumulator: what was pickled earlier goes on adding to it."""
    before = _installation
    if before is not None and before.context is context and before.accumulator is not None:
        return before.accumulator
    made: Accumulator[dict[str, int]] = context.accumulator({}, CountsParam())
    return made


def _set_environment(context: SparkContext, settings: EpilogueSettings) -> None:
    # Spark starts the workers of functions that are pickled from now on with it.
    environment: dict[str, Any] = context.environment
    environment[VARIABLE] = settings.as_text()


def _warned_of_version() -> bool:
    if daemon.is_tested(pyspark.__version__):
        return False
    warnings.warn(
        f"every_task=True was not tested with Spark {pyspark.__version__}, so there is no hook:"
        " only functions wrapped by enlisting() enlist",
        stacklevel=4,
    )
    return True


def _refuse_of_connect(every_task: bool, accumulate: bool) -> None:
    """Raise an error for an argument that no client of Spark Connect can do anything about."""
    if every_task:
        raise ConfigurationError(
            "every_task=True needs a SparkSession with a SparkContext: executors of a Spark Connect"
            " server have started when its client comes; wrap functions by enlisting() instead"
        )
    if accumulate:
        raise ConfigurationError(
            "accumulate=True needs a SparkSession with a SparkContext, which Spark Connect does not"
            " give to clients: read the totals by recruits() instead"
        )


def _has_stopped(installation: Installation) -> bool:
    if installation.remote is not None:
        return bool(getattr(installation.remote, "is_stopped", False))
    context = installation.context
    # There is no public way to ask.
    return context is not None and context._jsc is None  # noqa: SLF001


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
