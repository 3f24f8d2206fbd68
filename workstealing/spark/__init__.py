"""Spark: tasks that enlist when they have finished, a driver's listener, sources, sinks, sweeps.

Importing this package loads the standard library only, because Spark's Python daemon may not load
more; every name loads what it needs when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workstealing.spark.epilogue import enlist_batch, enlisting
    from workstealing.spark.installing import install
    from workstealing.spark.listening import listen
    from workstealing.spark.reconciling import reconcile
    from workstealing.spark.sources import register
    from workstealing.spark.sweeping import sweep
    from workstealing.spark.totals import accumulated, recruits

_MODULES = {
    "accumulated": "workstealing.spark.totals",
    "enlist_batch": "workstealing.spark.epilogue",
    "enlisting": "workstealing.spark.epilogue",
    "install": "workstealing.spark.installing",
    "listen": "workstealing.spark.listening",
    "reconcile": "workstealing.spark.reconciling",
    "recruits": "workstealing.spark.totals",
    "register": "workstealing.spark.sources",
    "sweep": "workstealing.spark.sweeping",
}

__all__ = [
    "accumulated",
    "enlist_batch",
    "enlisting",
    "install",
    "listen",
    "reconcile",
    "recruits",
    "register",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "pandas", "pyarrow"}:
            raise
        from workstealing.errors import MissingExtraError

        raise MissingExtraError("spark", str(error.name)) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
