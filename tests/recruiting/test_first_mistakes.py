"""A newcomer's first mistakes: each is one sentence that says what to write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from workstealing.errors import ConfigurationError, DuplicateJobError
from workstealing.recruiting import FunctionJob, Job, Recruiter, Slice


class Tidy(Job):
    """A job that handles nothing."""

    name = "tidy"

    def perform(self, slice: Slice) -> int:
        return 0


def test_a_class_is_no_job() -> None:
    recruiter: Any = Recruiter()
    with pytest.raises(ConfigurationError, match=r"call it, as in install\(Tidy\(\.\.\.\), rate="):
        recruiter.install(Tidy, rate=0.1)


def test_a_name_that_is_taken_says_how_to_give_another() -> None:
    recruiter = Recruiter()
    recruiter.install(Tidy(), rate=0.1)
    said = r"another name where it is made, as in name='tidy-2', or uninstall\('tidy'\) first"
    with pytest.raises(DuplicateJobError, match=said):
        recruiter.install(Tidy(), rate=0.1)
    assert list(recruiter.jobs()) == ["tidy"]


@pytest.mark.parametrize("limit", ["5", 5.0, 0, None, True])
def test_a_limit_is_a_number(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"an int of at least 1 item, as in limit=5$"):
        Recruiter().job(rate=0.1, limit=limit)(lambda slice: 0)


def no_argument() -> int:
    return 0


def two_arguments(client: Any, slice: Slice) -> int:
    return 0


def a_named_one(*, slice: Slice) -> int:
    return 0


@pytest.mark.parametrize("function", [no_argument, two_arguments, a_named_one])
def test_a_jobs_function_takes_the_slice(function: Callable[..., int]) -> None:
    recruiter = Recruiter()
    name = function.__name__
    with pytest.raises(ConfigurationError, match=rf"{name}\(.*: write def {name}\(slice\)$"):
        recruiter.job(rate=0.1)(function)
    assert recruiter.jobs() == {}


def test_a_lambda_has_no_name_to_write() -> None:
    nothing: Any = lambda: 0  # noqa: E731 - what is tried
    with pytest.raises(ConfigurationError, match=r"write def tidy\(slice\)$"):
        FunctionJob(nothing, name="nothing")


class Callable1:
    """An object that is called with a slice."""

    def __call__(self, slice: Slice, spare: int = 0) -> int:
        return 0


@pytest.mark.parametrize(
    "function",
    [
        Callable1(),
        functools.partial(two_arguments, None),
        lambda *all: 0,
        Callable1().__call__,
        len,
    ],
)
def test_whatever_can_be_called_with_a_slice_is_a_job(function: Any) -> None:
    assert FunctionJob(function, name="any").name == "any"
