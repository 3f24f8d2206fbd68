"""The executors' part: a Spark task that has finished its partition enlists once (an epilogue).

The settings go from the driver to the executors: names and plain numbers, no secret.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import TaskContext

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.recruiter import Recruiter
from workstealing.recruiting.slice import Outcome
from workstealing.spark.counting import ENLISTED, TakingHooks
from workstealing.spark.making import ClientSettings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workstealing.spark.counters import RecruitCounters


VARIABLE = "WORKSTEALING_SPARK"
"""The variable of the Python workers' environment in which `install()` writes the settings."""


@dataclass(frozen=True, slots=True)
class EpilogueSettings:
    """Says how a Python process of Spark's builds its recruiter and where it counts.

    Fields: factory: the import path of a function that returns a Recruiter; counters: that of one
    that returns a client, None for no counters; application: under which name the counters stand;
    interval: how often they are sent, in seconds; accumulator: the number of the driver's
    accumulator, if there is one.
    """

    factory: str
    counters: str | None
    application: str
    interval: float
    accumulator: int | None = None

    def as_text(self) -> str:
        """Return the settings as text for the environment."""
        return json.dumps(asdict(self))


def settings_of_environment() -> EpilogueSettings | None:
    """Return the settings in this process's environment; None if there are none.

    Raises: ValueError, TypeError or KeyError for text that `as_text` has not written.
    """
    text = os.environ.get(VARIABLE)
    return EpilogueSettings(**json.loads(text)) if text else None


_SECONDS_BETWEEN_TRIALS = 60.0
# The first enlist of a worker waits so long for the factory, which goes on in a thread of its own.
_FACTORY_SECONDS = 10.0
# A worker that ends waits so long for its last counts to go out; no other one waits for that.
_LAST_SECONDS = 0.25
_FACTORY = "the recruiter's factory"
_SLOW = f"it has not returned for {_FACTORY_SECONDS:.0f} s; tasks go on without it"


class WorkerRecruiter:
    """This process's recruiter and its counters, by one set of settings.

    The factory is called at the first enlist. While it is missing, fails, or returns no Recruiter,
    no task enlists. The factory is called again after a minute, which leaves one line in the log. A
    factory that hangs holds the first task up for ten seconds, and no task enlists until it
    returns.
    """

    __slots__ = (
        "_clock",
        "_counters",
        "_making",
        "_next_trial",
        "_recruiter",
        "_taking",
        "settings",
    )

    def __init__(self, settings: EpilogueSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self._clock = clock
        self._recruiter: Recruiter | None = None
        self._counters: RecruitCounters | None = None
        self._taking: TakingHooks | None = None
        self._making: threading.Thread | None = None
        self._next_trial = clock.monotonic()

    def enlist(self) -> Outcome | None:
        """Enlist; return what became of it, None without a recruiter. Raises nothing of ours."""
        recruiter = self._recruiter
        if recruiter is None:
            recruiter = self._made()
            if recruiter is None:
                return None
        outcome = recruiter.enlist()
        counters = self._counters
        if counters is not None and counters.is_quiet:
            self._guarded(counters.rouse)
        return outcome

    @property
    def recruiter(self) -> Recruiter | None:
        """The recruiter, None as long as the factory has returned none."""
        return self._recruiter

    def take(self) -> Mapping[str, int]:
        """Return what became of the last recruit, by field, if an accumulator wants it."""
        return {} if self._taking is None else self._taking.take()

    def flush(self, timeout: float = _LAST_SECONDS) -> bool:
        """Send what has been counted, and wait for it.

        Arguments:
            timeout: in seconds.

        Returns: whether nothing is left to send.
        """
        counters = self._counters
        return counters is None or bool(self._guarded(lambda: counters.flush(timeout)))

    def close(self) -> None:
        """Send what has been counted, and count no more."""
        counters = self._counters
        if counters is not None:
            self._guarded(lambda: counters.close(_LAST_SECONDS))

    @staticmethod
    def _guarded(call: Callable[[], object]) -> object:
        """Call something that may need a thread, which the system may refuse."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - no count may fail a task
            _faults.report("the thread that sends the counts of Spark's recruits", error)
            return False

    def _made(self) -> Recruiter | None:
        if self._making is not None and self._making.is_alive():
            return None
        now = self._clock.monotonic()
        if self._recruiter is not None or now < self._next_trial:
            return self._recruiter
        self._next_trial = now + _SECONDS_BETWEEN_TRIALS
        making = threading.Thread(target=self._try, name="workstealing-factory", daemon=True)
        try:
            making.start()
        except RuntimeError as error:
            _faults.report(self._subject, error)
            return None
        self._making = making
        making.join(_FACTORY_SECONDS)
        if making.is_alive():
            _faults.report(self._subject, TimeoutError(_SLOW))
        return self._recruiter

    def _try(self) -> None:
        try:
            self._recruiter = self._make()
        # A module that is a program may end by sys.exit().
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no factory may fail a task
            _faults.report(self._subject, error)

    @property
    def _subject(self) -> str:
        return f"{_FACTORY} {self.settings.factory}"

    def _make(self) -> Recruiter:
        settings = self.settings
        made: object = load(settings.factory, _FACTORY)()
        if not isinstance(made, Recruiter):
            raise ConfigurationError(
                f"{_FACTORY} {settings.factory} returned {type(made).__name__}; expected a"
                " workstealing.Recruiter"
            )
        if settings.counters is not None:
            from workstealing.spark.counters import RecruitCounters

            client = ClientSettings(settings.counters)
            self._counters = RecruitCounters(
                made, settings.application, client, settings.interval, self._clock
            )
        if settings.accumulator is not None:
            self._taking = TakingHooks()
            made.add_hook(self._taking)
        return made


_faults = FaultLog(SYSTEM_CLOCK)
_lock = threading.Lock()
_worker: WorkerRecruiter | None = None
_last_attempt: int | None = None
_told: EpilogueSettings | None = None
_attempts = 0


def worker_of(settings: EpilogueSettings) -> WorkerRecruiter:
    """Return this process's worker, which is made anew for other settings than the last ones."""
    global _worker  # noqa: PLW0603 - one per process, like the process itself
    worker = _worker
    if worker is not None:
        if worker.settings is settings:
            return worker
        if worker.settings == settings:
            # The next task of this function may come with the very same object.
            worker.settings = settings
            return worker
    with _lock:
        worker, before = _worker, _worker
        if worker is None or worker.settings != settings:
            worker = _worker = WorkerRecruiter(settings)
    if before is not None and before is not worker:
        before.close()
    return worker


def finish(settings: EpilogueSettings | None, *, ends_badly: bool = False) -> None:
    """Enlist for the running task attempt, unless it has enlisted already.

    Without a TaskContext, as at the driver, every call enlists. Raises nothing of ours.

    Arguments:
        settings: None for those of the environment.
        ends_badly: the task fails or is cut short, and so its worker ends: its counts are sent at
            once, within a quarter of a second.

    They are so too after every task of a worker that Spark does not use again.
    """
    global _last_attempt, _attempts  # noqa: PLW0603 - a worker runs one task at a time
    context = TaskContext.get()
    if context is not None:
        attempt = context.taskAttemptId()
        if attempt == _last_attempt:
            if ends_badly:
                flush()
            return
        _last_attempt = attempt
        _attempts += 1
    if settings is None:
        settings = _environment()
        if settings is None:
            if context is not None:
                _faults.report("the epilogue of a Spark task", _not_installed())
            return
    worker = worker_of(settings)
    outcome = worker.enlist()
    if context is not None and outcome is not None and settings.accumulator is not None:
        _accumulate(settings.accumulator, worker)
    if ends_badly or (context is not None and not _IS_REUSED):
        worker.flush()


def attempts() -> int:
    """Return how many task attempts have enlisted, or would have, in this process."""
    return _attempts


def flush(timeout: float = _LAST_SECONDS) -> bool:
    """Send what this process has counted; say whether nothing is left."""
    worker = _worker
    return worker is None or worker.flush(timeout)


def _accumulate(accumulator: int, worker: WorkerRecruiter) -> None:
    try:
        from workstealing.spark.counting import add_in_task

        add_in_task(accumulator, {ENLISTED: 1, **worker.take()})
    except Exception as error:  # noqa: BLE001 - no count may fail a task
        _faults.report("an accumulator of Spark's recruits", error)


def _environment() -> EpilogueSettings | None:
    """Return what the environment says, which stays as it is while a worker lives."""
    global _told  # noqa: PLW0603
    if _told is None:
        try:
            _told = settings_of_environment()
        except Exception as error:  # noqa: BLE001 - nothing of ours may fail a task
            _faults.report(f"the variable {VARIABLE}", error)
    return _told


def _not_installed() -> ConfigurationError:
    return ConfigurationError(
        "workstealing.spark.install() has not been called in the driver of this application before"
        " the task's function was used there"
    )


_IS_REUSED = bool(os.environ.get("SPARK_REUSE_WORKER"))


def _after_fork_in_child() -> None:
    global _lock, _worker, _last_attempt  # noqa: PLW0603
    _faults.after_fork()
    _lock = threading.Lock()
    _worker = None
    _last_attempt = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def enlisting(fn: AnyFunction) -> AnyFunction:
    """Return the function, with an enlist when it has finished; also a decorator.

    For functions of mapPartitions, foreachPartition, mapInPandas, mapInArrow, applyInPandas and
    pandas UDFs. If the function returns an iterator, the task enlists when that has ended, by an
    error and by LIMIT too; if it returns anything else, after the call. A task attempt enlists
    once, however many such functions it calls, and however often: a function that is called for
    each group or batch enlists after its first one. A cancelled task does not enlist. Outside of a
    task every call enlists, if `install()` has been called; otherwise the function is as it was.

    The driver reads what `install()` was told when the function is pickled, so it may be decorated
    before.

    Raises: ConfigurationError for what is no function, and for a coroutine function; and when the
    function is pickled before `install()`. A dismissed epilogue takes about a microsecond, once a
    task.
    """
    _require_function(fn, "enlisting")
    epilogue = Epilogue()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fn(*args, **kwargs)
        except BaseException:
            finish(epilogue.settings, ends_badly=True)
            raise
        if hasattr(result, "__next__"):
            return _finishing(result, epilogue)
        finish(epilogue.settings)
        return result

    return _dressed(wrapper, fn)


def enlist_batch(fn: AnyFunction) -> AnyFunction:
    """Return a function for foreachBatch that calls `fn`, and then enlists in the driver.

    The driver's recruiter is built by the same factory. With Spark Connect the function is pickled
    and called in a process of the server, where it enlists. Also a decorator. Raises:
    ConfigurationError for what is no function, and at the first batch, before anything of it is
    done, when `install()` has not been called.
    """
    _require_function(fn, "enlist_batch")
    epilogue = Epilogue()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        settings = epilogue.settings
        # Pickled: in a process of a Spark Connect server, which ends when the query does.
        is_elsewhere = settings is not None
        if settings is None:
            from workstealing.spark.installing import installed

            settings = installed().settings
        try:
            return fn(*args, **kwargs)
        finally:
            finish(settings, ends_badly=is_elsewhere)

    return _dressed(wrapper, fn)


class Epilogue:
    """The state of a wrapped function: the settings, once it has been pickled at the driver.

    A function of a module that executors import is pickled by its name alone; there the settings
    are those of the worker's environment.
    """

    __slots__ = ("settings",)

    def __init__(self, settings: EpilogueSettings | None = None) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[type[Epilogue], tuple[EpilogueSettings]]:
        if self.settings is not None:
            return Epilogue, (self.settings,)
        from workstealing.spark.installing import installed

        return Epilogue, (installed().settings,)


def _finishing(items: Iterator[Any], epilogue: Epilogue) -> Generator[Any, None, None]:
    try:
        yield from items
    except BaseException:
        # GeneratorExit, when Spark wants no more rows, is among them.
        finish(epilogue.settings, ends_badly=True)
        raise
    finish(epilogue.settings)


def _dressed(wrapper: Callable[..., Any], fn: AnyFunction) -> AnyFunction:
    update_wrapper(wrapper, fn)
    # Some functions in C have none.
    with contextlib.suppress(TypeError, ValueError):
        # PySpark counts a function's own parameters and does not look behind a wrapper.
        wrapper.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    dressed: Any = wrapper
    return dressed  # type: ignore[no-any-return]


def _require_function(fn: object, name: str) -> None:
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise ConfigurationError(
            f"{name}() expects a plain function of a task, not {fn!r}: write @{name}, or {name}(fn)"
        )
