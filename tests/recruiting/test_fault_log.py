"""Logging happens in the host's time: what fails in it harms no caller."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from support.interruptions import Interruption
from workstealing import Outcome, Recruiter, Slice
from workstealing.errors import Aborted, OutOfTime, Skipped
from workstealing.recruiting import Hooks
from workstealing.recruiting.deferral import Deferral
from workstealing.testing import always

LOGGER = logging.getLogger("workstealing")


class Unprintable(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise LookupError("no text")


class Raising(logging.Handler):
    """A handler whose own emit raises, as those of loggers that send over a network do."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error()


class Formatting(logging.Handler):
    """A handler that formats outside of any try."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Aborted("another came first"), "a slice was aborted: Aborted: another came first"),
        (Skipped("it rests"), "a slice was skipped: Skipped: it rests"),
        (OutOfTime("too late"), "a slice was out of time: OutOfTime: too late"),
    ],
    ids=["aborted", "skipped", "out of time"],
)
def test_a_slice_that_came_to_nothing_says_why_at_debug(
    caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    recruiter = always()

    @recruiter.job(rate=1.0)
    def giving_up(slice: Slice) -> int:
        raise error

    with caplog.at_level(logging.DEBUG, "workstealing"):
        for _ in range(3):
            recruiter.enlist()
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    assert lines == [f"job 'giving_up': {said}"] * 3
    caplog.clear()
    with caplog.at_level(logging.INFO, "workstealing"):
        recruiter.enlist()
    assert not [each for each in caplog.records if said in each.getMessage()]


@pytest.fixture
def add_handler() -> Iterator[Callable[[logging.Handler], None]]:
    added: list[logging.Handler] = []

    def add(handler: logging.Handler) -> None:
        added.append(handler)
        LOGGER.addHandler(handler)

    yield add
    for handler in added:
        LOGGER.removeHandler(handler)


class BadHook(Hooks):
    """A hook that fails each time."""

    def on_recruited(self, job: str) -> None:
        raise Unprintable


class BadWhen:
    """A `when` that fails, and has no text either."""

    def __call__(self, result: object) -> bool:
        raise Unprintable

    def __repr__(self) -> str:
        raise LookupError("no text")


def failing(error: Callable[[], BaseException] = ValueError) -> Recruiter:
    recruiter = always()

    @recruiter.job(rate=0.5)
    def fail(slice: Slice) -> int:
        raise error()

    return recruiter


def raising_filter() -> logging.Handler:
    handler = logging.StreamHandler(io.StringIO())

    def refuse(record: logging.LogRecord) -> bool:
        raise LookupError

    handler.addFilter(refuse)
    return handler


def raising_formatter() -> logging.Handler:
    class Broken(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            raise LookupError

    handler = Formatting()
    handler.setFormatter(Broken())
    return handler


HANDLERS = [lambda: Raising(LookupError), raising_filter, raising_formatter]


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("raise_exceptions", [True, False])
def test_a_handler_a_filter_or_a_formatter_that_raises_harms_no_caller(
    handler: Callable[[], logging.Handler],
    raise_exceptions: bool,
    add_handler: Callable[[logging.Handler], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", raise_exceptions)
    add_handler(handler())
    recruiter = failing()
    recruiter.add_hook(BadHook())
    assert recruiter.enlist() is Outcome.FAILED
    assert recruiter.enlists(when=BadWhen())(lambda: "page")() == "page"
    told = capsys.readouterr().err
    assert ("could not log a line: LookupError" in told) is raise_exceptions


def test_an_error_without_a_text_is_logged_by_its_class(
    add_handler: Callable[[logging.Handler], None],
) -> None:
    handler = Formatting()
    add_handler(handler)
    recruiter = failing(Unprintable)
    recruiter.add_hook(BadHook())
    assert recruiter.enlist() is Outcome.FAILED
    assert recruiter.enlists(when=BadWhen())(lambda: "page")() == "page"
    text = "\n".join(handler.lines)
    assert "job 'fail' failed: Unprintable: <a Unprintable without a text>" in text
    assert "hook BadHook failed: Unprintable" in text
    assert "when= <a BadWhen without a text> failed: Unprintable" in text


@pytest.mark.parametrize("error", [Interruption, KeyboardInterrupt])
def test_a_hosts_time_out_raised_while_logging_passes(
    error: type[BaseException], add_handler: Callable[[logging.Handler], None]
) -> None:
    recruiter = failing()
    recruiter.reraise(Interruption)
    handler = Raising(error)
    add_handler(handler)
    with pytest.raises(error):
        recruiter.enlist()
    LOGGER.removeHandler(handler)
    assert recruiter.enlist() is Outcome.FAILED
    assert recruiter.stats()["jobs"]["fail"]["failed"] == 2


def test_a_hosts_time_out_raised_in_a_deferrals_when_passes() -> None:
    recruiter = failing()
    recruiter.reraise(Interruption)

    def late(response: object) -> bool:
        raise Interruption

    deferral = Deferral(recruiter, late)
    with pytest.raises(Interruption):
        deferral.respond("page")
    deferral.close()
    assert recruiter.stats()["enlisted"] == 0
