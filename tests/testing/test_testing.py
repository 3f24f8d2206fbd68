"""The helpers for users' tests keep the promises of their docstrings."""

from __future__ import annotations

import textwrap
from datetime import timedelta

import pytest

from workstealing import Outcome, Recruiter
from workstealing.errors import ConfigurationError
from workstealing.recruiting import FunctionJob
from workstealing.testing import (
    ManualClock,
    OutcomeEvent,
    RecordingHooks,
    always,
    always_recruiting,
    never,
    never_recruiting,
)

pytest_plugins = ["pytester"]


def job(name: str) -> FunctionJob:
    return FunctionJob(lambda slice: 1, name=name)


@pytest.mark.parametrize("rate", [1e-9, 0.003, 1])
def test_always_recruits_every_caller(rate: float) -> None:
    recruiter = always()
    recruiter.install(job("a"), rate=rate)
    assert {recruiter.enlist() for _ in range(1_000)} == {Outcome.WORKED}


@pytest.mark.parametrize("rate", [1e-9, 0.003, 1])
def test_never_recruits_nobody(rate: float) -> None:
    recruiter = never()
    recruiter.install(job("a"), rate=rate)
    assert {recruiter.enlist() for _ in range(10_000)} == {Outcome.DISMISSED}
    assert recruiter.stats()["enlisted"] == 10_000


def test_always_serves_several_jobs_by_their_rates_and_the_first_one_first() -> None:
    order = []
    for _ in range(2):
        recruiter, hooks = always(), RecordingHooks()
        recruiter.add_hook(hooks)
        recruiter.install(job("a"), rate=0.003)
        recruiter.install(job("b"), rate=0.001)
        for _ in range(400):
            recruiter.enlist()
        order.append(hooks.recruited)
        assert hooks.recruited[0] == "a"
        assert abs(hooks.recruited.count("b") - 100) <= 2
    assert order[0] == order[1]


def test_a_recruiter_of_the_applications_own_is_certain_for_a_while() -> None:
    recruiter = Recruiter()
    recruiter.install(job("a"), rate=1e-9)
    assert recruiter.enlist() is Outcome.DISMISSED
    with always_recruiting(recruiter) as same:
        assert same is recruiter
        assert {recruiter.enlist() for _ in range(50)} == {Outcome.WORKED}
        with never_recruiting(recruiter):
            assert {recruiter.enlist() for _ in range(50)} == {Outcome.DISMISSED}
        assert recruiter.enlist() is Outcome.WORKED
    assert {recruiter.enlist() for _ in range(50)} == {Outcome.DISMISSED}
    assert recruiter.stats()["enlisted"] == 152


def test_it_is_as_before_even_after_an_error() -> None:
    recruiter = Recruiter()
    recruiter.install(job("a"), rate=1e-9)
    for context in (always_recruiting, never_recruiting):
        with pytest.raises(KeyError), context(recruiter):
            raise KeyError
        assert recruiter.enlist() is Outcome.DISMISSED


def test_the_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(start=5)
    assert clock.monotonic() == clock.monotonic() == 5
    assert clock.advance(1.5) == 6.5
    assert clock.advance(timedelta(seconds=2)) == 8.5
    assert clock.monotonic() == 8.5
    for wrong in (-1, float("nan")):
        with pytest.raises(ConfigurationError, match="no such time"):
            clock.advance(wrong)
    assert clock.monotonic() == 8.5


def test_the_hooks_remember_and_forget() -> None:
    hooks = RecordingHooks()
    error = ValueError()
    hooks.on_enlisted(3)
    hooks.on_recruited("a")
    hooks.on_outcome("a", Outcome.FAILED, 0, 0.5, error)
    assert hooks.enlisted == [3]
    assert hooks.recruited == ["a"]
    assert hooks.outcomes == [OutcomeEvent("a", Outcome.FAILED, 0, 0.5, error)]
    hooks.clear()
    assert (hooks.enlisted, hooks.recruited, hooks.outcomes) == ([], [], [])


@pytest.mark.slow
def test_the_fixtures_serve_a_users_tests(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["workstealing.testing.pytest_plugin"]')
    pytester.makepyfile(
        textwrap.dedent(
            """
            from workstealing import Outcome

            def test_always(always_recruiter, recording_hooks):
                always_recruiter.job(rate=0.001, name="a")(lambda slice: 7)
                assert always_recruiter.enlist() is Outcome.WORKED
                assert recording_hooks.outcomes[0].items == 7

            def test_never(never_recruiter, recording_hooks):
                never_recruiter.job(rate=1, name="a")(lambda slice: 7)
                assert never_recruiter.enlist() is Outcome.DISMISSED
                never_recruiter.flush()
                assert recording_hooks.enlisted == [1]

            def test_clock(manual_clock):
                before = manual_clock.monotonic()
                assert manual_clock.advance(2) == before + 2
            """
        )
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)
