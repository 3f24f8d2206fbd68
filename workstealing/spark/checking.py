"""A look at the executors before any work: one small task on each says what it lacks.

The task is pickled by its value and imports nothing of this package before it has looked for it,
so it answers where the package is missing, too.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import workstealing
from workstealing.errors import ConfigurationError, is_connection_fault
from workstealing.safe_text import visible
from workstealing.spark.making import DEFAULT_CLIENT, ClientSettings
from workstealing.spark.sessions import cores_of, is_remote, named, run_each
from workstealing.store.client import URL_VARIABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS = 3
# So that the tasks of one round are at work at the same time, each in a core of its own.
_TASK_SECONDS = 0.3
_MOST_TASKS = 1_000
_LONGEST_ERROR = 300
_URL = re.compile(r"\b[a-z+]+://\S+")

logger = logging.getLogger("workstealing.spark")


@dataclass(frozen=True, slots=True)
class ExecutorCheck:
    """The state of one executor; for each question True, False, or None where nobody knows.

    Fields: place: the machine and the executor's folder, "" for those of which nothing was heard;
    python: the interpreter, and its version; has_package: whether that finds the package and what
    it needs; has_url: whether its environment names a Redis, None too where a function makes the
    client; redis_answers; problem: one sentence that says what to do, "" for none.
    """

    place: str
    python: str = ""
    has_package: bool | None = None
    has_url: bool | None = None
    redis_answers: bool | None = None
    problem: str = ""

    @property
    def is_well(self) -> bool | None:
        """Whether tasks there can work: False if something is missing, None if nobody knows."""
        answers = (self.has_package, self.has_url, self.redis_answers)
        if False in answers:
            return False
        return True if self.has_package and self.redis_answers else None


def check_executors(spark: SparkSession, client: str = DEFAULT_CLIENT) -> list[ExecutorCheck]:
    """Ask each executor what it has; no address and no secret comes back.

    Arguments:
        client: the import path of the function that makes the client.

    Returns: a check for each executor that answered, and one without a place for those of which
    nothing was heard. Raises nothing of Spark's. One job, up to three if not every executor had a
    task; a round trip to Redis for each of their tasks.
    """
    ClientSettings(client)
    found: dict[str, ExecutorCheck] = {}
    wanted: int | None = None
    try:
        for number in range(_ROUNDS):
            wanted = executors_of(spark)
            tasks = min(_MOST_TASKS, max(cores_of(spark), wanted or 1) << number)
            with named(spark, "workstealing-check", "workstealing check of the executors"):
                said = run_each(spark, [None] * tasks, looking(client))
            found.update((each.place, each) for each in map(check_of, said))
            if wanted is None or len(found) >= wanted:
                break
    except Exception as error:  # noqa: BLE001 - what went wrong is the answer
        return [*found.values(), check_of_error(error)]
    unheard = (wanted or 0) - len(found)
    if unheard > 0:
        problem = f"{unheard} of {wanted} executors had no task, so nobody knows what they have"
        return [*found.values(), ExecutorCheck("", problem=problem)]
    return list(found.values())


def require_executors(checks: Sequence[ExecutorCheck]) -> None:
    """Log the checks. Raises: ConfigurationError, with a sentence for each different problem."""
    for check in checks:
        if check.is_well:
            place, python = check.place, check.python
            logger.info("executor %s: %s has the package, and Redis answers", place, python)
    if unknown := _problems(each for each in checks if each.is_well is None):
        logger.warning("%s", unknown)
    if problems := _problems(each for each in checks if each.is_well is False):
        raise ConfigurationError(problems)


def _problems(checks: Iterable[ExecutorCheck]) -> str:
    """Return each problem once, with the places that have it."""
    places: dict[str, list[str]] = {}
    for check in checks:
        places.setdefault(check.problem, []).append(check.place)
    said = []
    for problem, found in places.items():
        where = f"on {visible(', '.join(found))}: " if any(found) else ""
        said.append(where + problem)
    return "; ".join(said)


def executors_of(spark: Any) -> int | None:
    """Return how many executors the session has now, None where nobody tells."""
    if is_remote(spark):
        return None
    context = spark.sparkContext
    try:
        # The driver's own is among them.
        count = int(context._jsc.sc().getExecutorMemoryStatus().size())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - no public way, so it may go
        return None
    return count if context.master.startswith("local") else count - 1


def looking(client: str) -> Callable[[Any], dict[str, Any]]:
    """Return the task. It is pickled by its value, as functions within functions are."""
    seconds, own, default = _TASK_SECONDS, workstealing.__version__, client == DEFAULT_CLIENT

    def look(_: Any) -> dict[str, Any]:
        import importlib
        import os
        import socket
        import sys
        import time

        time.sleep(seconds)
        folder = os.environ.get("SPARK_LOCAL_DIRS") or os.getcwd()  # noqa: PTH109
        variables = ("WORKSTEALING_REDIS_URL", "REDIS_URL")
        said: dict[str, Any] = {
            "place": f"{socket.gethostname()} ({folder})",
            "python": f"{sys.executable} ({'.'.join(map(str, sys.version_info[:3]))})",
            "has_url": any(map(os.environ.get, variables)) if default else None,
            "missing": [],
        }
        for name in ("workstealing", "redis", "pyarrow"):
            try:
                module = importlib.import_module(name)
            except ImportError:
                said["missing"].append(name)
                continue
            if name == "workstealing" and getattr(module, "__version__", None) != own:
                # A folder of that name, such as a checkout, is a package without a file.
                is_there = getattr(module, "__file__", None) is not None
                said["missing"].append(f"release {own} of workstealing" if is_there else name)
        if not said["missing"]:
            asking = importlib.import_module("workstealing.spark.checking")
            said["answer"] = asking.asked(client)
        return said

    return look


def asked(client: str) -> tuple[bool | None, str]:
    """Say whether Redis answers this process, and why not; in an executor."""
    from redis.exceptions import AuthenticationError, NoPermissionError
    from redis.exceptions import TimeoutError as NoAnswerError

    try:
        ClientSettings(client).connected().ping()
    except NoPermissionError:
        return True, ""
    except AuthenticationError:
        return False, "Redis refuses the name or the password that it is given"
    except ConfigurationError as error:
        return False, without_urls(str(error))
    except NoAnswerError:
        return None, "Redis has not answered in time, so nobody knows whether it is there"
    except Exception as error:  # noqa: BLE001 - what went wrong is the answer
        if is_connection_fault(error):
            return False, f"Redis does not answer ({without_urls(str(error))})"
        kind = type(error).__name__
        return None, f"Redis could not be asked ({kind}), so nobody knows whether it is there"
    return True, ""


def check_of(said: Mapping[str, Any]) -> ExecutorCheck:
    """Return what a task has said as a check."""
    answers, problem = said.get("answer", (None, ""))
    missing = said["missing"]
    if missing:
        problem = (
            f"the Python {said['python']} has no {', '.join(missing)}: set PYSPARK_PYTHON to one"
            " that has, before the session starts, or bring it along (docs/spark_install.md)"
        )
    elif said["has_url"] is False:
        answers = None
        problem = (
            "neither WORKSTEALING_REDIS_URL nor REDIS_URL is set in the executor's environment: set"
            " one where executors start, before the session does"
        )
    return ExecutorCheck(
        said["place"], said["python"], not missing, said["has_url"], answers, problem
    )


_MISMATCH = re.compile(r"has different version: (\S+) than that in driver: ([\d.]*\d)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_ERROR = re.compile(r"^(?:Caused by: |: )?(?:[\w$]+\.)*(\w+(?:Error|Exception)): (.*)$", re.M)


def check_of_error(error: Exception) -> ExecutorCheck:
    """Return what the end of the whole job says; only known errors are an answer."""
    text = str(error)
    if found := _MISMATCH.search(text):
        problem = (
            f"the executors' Python is {found[1]} and the driver's {found[2]}: set PYSPARK_PYTHON"
            " to the same minor version, before the session starts"
        )
        return ExecutorCheck("", found[1], has_package=False, problem=problem)
    if found := _NO_PROGRAM.search(text):
        problem = f"an executor finds no program {found[1]}: set PYSPARK_PYTHON to one that it has"
        return ExecutorCheck("", has_package=False, problem=problem)
    errors = _ERROR.findall(text)
    said = ": ".join(errors[-1]) if errors else text.strip().partition("\n")[0]
    said = f"{type(error).__name__}: {without_urls(said)}"
    problem = f"the executors could not be asked, so nobody knows what they have ({said})"
    return ExecutorCheck("", problem=problem)


def without_urls(text: str) -> str:
    """Return an error's text, bounded, without any URL and without the password of this process."""
    text = _URL.sub("<a URL>", text)
    for variable in URL_VARIABLES:
        # A malformed URL has no password that anybody could send.
        with suppress(ValueError):
            password = urlsplit(os.environ.get(variable, "")).password
            for secret in {password, unquote(password)} if password else ():
                text = text.replace(secret, "<a password>")
    return visible(text, _LONGEST_ERROR)
