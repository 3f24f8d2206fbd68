"""Spark: tasks that enlist when they have finished, a driver's listener, sources, sinks, sweeps.

Importing this package loads the standard library only, because Spark's Python daemon may not load
more; every name loads what it needs when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.spark.checking import ExecutorCheck
    from workstealing.spark.holding import SweepHandle
    from workstealing.spark.installing import accumulated, install, recruits
    from workstealing.spark.listening import listen
    from workstealing.spark.reconciling import Reconciled, reconcile
    from workstealing.spark.sampling import schema_of
    from workstealing.spark.sources import register
    from workstealing.spark.sweeping import sweep
    from workstealing.spark.workers import enlist_batch, enlisting

__all__ = [
    "ExecutorCheck",
    "Reconciled",
    "SweepHandle",
    "accumulated",
    "enlist_batch",
    "enlisting",
    "install",
    "listen",
    "reconcile",
    "recruits",
    "register",
    "schema_of",
    "sweep",
]

if not TYPE_CHECKING:
    _load, __dir__ = light_door(
        __name__,
        {
            "workstealing.spark.workers": "enlist_batch enlisting",
            "workstealing.spark.checking": "ExecutorCheck",
            "workstealing.spark.holding": "SweepHandle",
            "workstealing.spark.installing": "accumulated install recruits",
            "workstealing.spark.listening": "listen",
            "workstealing.spark.reconciling": "Reconciled reconcile",
            "workstealing.spark.sampling": "schema_of",
            "workstealing.spark.sources": "register",
            "workstealing.spark.sweeping": "sweep",
        },
    )

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used. Raises: MissingExtraError without Spark."""
        try:
            return _load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "pandas", "pyarrow"}:
                raise
            from workstealing.errors import MissingExtraError

            raise MissingExtraError("spark", str(error.name)) from error
