"""Rates: each job's share of the enlisted is its rate, and a wrong rate changes nothing."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from workstealing import Outcome, Recruiter
from workstealing.errors import ConfigurationError, DuplicateJobError, RateError, UnknownJobError
from workstealing.recruiting import FunctionJob
from workstealing.testing import always


def job(name: str) -> FunctionJob:
    return FunctionJob(lambda slice: 1, name=name)


# The 99.9 % points of the chi-square distribution, by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}


def chi_square(observed: list[int], shares: list[float]) -> float:
    total = sum(observed)
    return sum(
        (seen - total * share) ** 2 / (total * share)
        for seen, share in zip(observed, shares, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 2024])
@pytest.mark.parametrize(
    ("rates", "draws"),
    [
        # As many as it takes for the rarest to be recruited hundreds of times.
        ({"a": 0.001}, 1_000_000),
        ({"a": 0.003, "b": 0.0005, "c": 0.02}, 1_000_000),
        ({"a": 0.25, "b": 0.05, "c": 0.1, "d": 0.2}, 100_000),
        ({"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}, 100_000),
    ],
    ids=["one", "small", "large", "certain"],
)
def test_each_jobs_share_of_the_draws_is_its_rate(
    rates: dict[str, float], draws: int, seed: int
) -> None:
    recruiter = Recruiter(random=random.Random(seed).random)
    for name, rate in rates.items():
        recruiter.install(job(name), rate=rate)
    enlist = recruiter.enlist
    for _ in range(draws):
        enlist()
    stats = recruiter.stats()
    assert stats["enlisted"] == draws
    observed = [stats["jobs"][name]["recruited"] for name in rates]
    shares = list(rates.values())
    if sum(shares) < 1 - 1e-9:
        observed.append(draws - sum(observed))
        shares.append(1 - sum(shares))
    assert sum(observed) == draws
    assert chi_square(observed, shares) < CHI_SQUARE[len(shares) - 1]


@pytest.mark.slow
def test_the_gaps_between_recruits_are_geometric() -> None:
    # A lottery that recruits every 20th caller has the right share, and is none.
    recruiter = Recruiter(random=random.Random(11).random)
    recruiter.install(job("a"), rate=0.05)
    gaps = [0]
    while len(gaps) <= 20_000:
        if recruiter.enlist() is Outcome.DISMISSED:
            gaps[-1] += 1
        else:
            gaps.append(0)
    gaps.pop()
    bounds = [0, 5, 15, 40]  # four classes: 0-4, 5-14, 15-39, 40 and more
    observed = [
        sum(low <= gap < high for gap in gaps)
        for low, high in zip(bounds, [*bounds[1:], 10**9], strict=True)
    ]
    tails = [0.95**bound for bound in bounds] + [0.0]
    shares = [before - after for before, after in itertools.pairwise(tails)]
    assert chi_square(observed, shares) < CHI_SQUARE[3]


@pytest.mark.slow
def test_a_paused_jobs_share_is_skipped_and_the_others_keep_theirs() -> None:
    recruiter = Recruiter(random=random.Random(3).random)
    recruiter.install(job("a"), rate=0.2)
    recruiter.install(job("b"), rate=0.3)
    recruiter.pause("a")
    for _ in range(100_000):
        recruiter.enlist()
    jobs = recruiter.stats()["jobs"]
    assert jobs["a"]["skipped"] == jobs["a"]["recruited"]
    assert jobs["b"]["worked"] == jobs["b"]["recruited"]
    observed = [jobs["a"]["recruited"], jobs["b"]["recruited"]]
    observed.append(100_000 - sum(observed))
    assert chi_square(observed, [0.2, 0.3, 0.5]) < CHI_SQUARE[2]


def test_the_share_follows_set_rate_although_each_change_draws_anew() -> None:
    recruiter = Recruiter(random=random.Random(5).random)
    recruiter.install(job("a"), rate=0.5)
    for _ in range(20_000):
        # Three enlists between two changes: the draw never gets old.
        recruiter.set_rate("a", 0.02)
        recruiter.enlist()
        recruiter.enlist()
        recruiter.enlist()
    recruited = recruiter.stats()["jobs"]["a"]["recruited"]
    assert chi_square([recruited, 60_000 - recruited], [0.02, 0.98]) < CHI_SQUARE[1]


@pytest.mark.parametrize(
    "rate",
    [0, 0.0, -0.1, 1.1, 2, float("nan"), float("inf"), True, "0.1", None, Decimal("0.1"), 1j],
)
def test_a_rate_must_be_a_number_above_0_and_at_most_1(rate: Any) -> None:
    recruiter = always()
    recruiter.install(job("kept"), rate=0.25)
    before = recruiter.stats()
    with pytest.raises(RateError, match=r"the rate of job 'new' is .*; expected .*0 < rate <= 1"):
        recruiter.install(job("new"), rate=rate)
    with pytest.raises(RateError, match="the rate of job 'kept'"):
        recruiter.set_rate("kept", rate)
    assert recruiter.stats() == before


@pytest.mark.parametrize("rate", [1, 1.0, 1e-12, 5e-324, Fraction(1, 3)])
def test_every_other_number_is_a_rate(rate: Any) -> None:
    recruiter = Recruiter()
    recruiter.install(job("a"), rate=rate)
    assert recruiter.stats()["jobs"]["a"]["rate"] == float(rate)
    assert isinstance(recruiter.enlist(), Outcome)


def test_a_sum_over_1_names_the_jobs_and_rates_and_changes_nothing() -> None:
    recruiter = always()
    recruiter.install(job("sweep"), rate=0.7)
    recruiter.install(job("trim"), rate=0.2)
    before = recruiter.stats()
    with pytest.raises(RateError) as caught:
        recruiter.install(job("purge"), rate=0.4)
    for part in ("'sweep' 0.7", "'trim' 0.2", "'purge' 0.4", "1.3"):
        assert part in str(caught.value)
    with pytest.raises(RateError, match=r"'trim' 0\.5, 'sweep' 0\.7"):
        recruiter.set_rate("trim", 0.5)
    assert recruiter.stats() == before


def test_a_sum_over_1_of_many_jobs_still_names_the_one_at_fault() -> None:
    recruiter = always()
    for number in range(100):
        recruiter.install(job(f"job{number}"), rate=0.009)
    with pytest.raises(RateError, match=r"'late' 0\.5, .*and 81 more") as caught:
        recruiter.install(job("late"), rate=0.5)
    assert len(str(caught.value)) < 600


def test_rates_that_sum_to_1_but_for_rounding_are_welcome() -> None:
    recruiter = always()
    for number in range(10):
        recruiter.install(job(f"job{number}"), rate=0.1)
    assert len(recruiter.stats()["jobs"]) == 10


def test_a_duplicate_name_names_the_job_and_both_rates_and_changes_nothing() -> None:
    recruiter = always()
    recruiter.install(job("sweep"), rate=0.1)
    before = recruiter.stats()
    with pytest.raises(DuplicateJobError, match=r"'sweep'.* rate 0\.1:.* rate 0\.2"):
        recruiter.install(job("sweep"), rate=0.2)
    assert recruiter.stats() == before


def test_an_unknown_job_is_an_error_that_names_the_known_ones() -> None:
    recruiter = always()
    recruiter.install(job("sweep"), rate=0.1)
    for call in (
        lambda: recruiter.set_rate("swep", 0.2),
        lambda: recruiter.pause("swep"),
        lambda: recruiter.resume("swep"),
        lambda: recruiter.uninstall("swep"),
        lambda: recruiter.uninstall(["swep"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(UnknownJobError, match=r"swep.* is installed; installed: 'sweep'"):
            call()


@pytest.mark.parametrize("name", ["", "  ", None, 7, b"bytes"])
def test_a_name_must_be_a_str_with_something_in_it(name: Any) -> None:
    nameless = job("x")
    nameless.name = name
    recruiter = always()
    with pytest.raises(ConfigurationError, match="a job's name is"):
        recruiter.install(nameless, rate=0.1)
    assert recruiter.stats()["jobs"] == {}


def test_a_forgotten_rate_is_an_error_at_once() -> None:
    recruiter = Recruiter()
    # Without the check it would stand for a decorator, and be lost in silence.
    with pytest.raises(RateError, match=r"@recruiter.job\(rate=...\)"):

        @recruiter.job
        def tidy(slice: Any) -> int:
            return 0

    assert recruiter.stats()["jobs"] == {}


def test_uninstall_removes_the_job_and_frees_its_name_and_rate() -> None:
    recruiter = always()
    recruiter.install(job("a"), rate=1)
    assert recruiter.enlist() is Outcome.WORKED
    recruiter.uninstall("a")
    assert recruiter.enlist() is Outcome.DISMISSED
    assert recruiter.stats() == {"enlisted": 2, "jobs": {}, "unreached": {}}
    recruiter.install(job("a"), rate=1)
    assert recruiter.stats()["jobs"]["a"]["recruited"] == 0


def test_a_change_of_rates_takes_effect_at_the_next_enlist() -> None:
    recruiter = Recruiter()
    recruiter.install(job("a"), rate=1e-9)
    for _ in range(5_000):
        recruiter.enlist()
    recruiter.set_rate("a", 1)
    assert recruiter.enlist() is Outcome.WORKED
    recruiter.uninstall("a")
    for _ in range(5_000):
        assert recruiter.enlist() is Outcome.DISMISSED
    recruiter.install(job("b"), rate=1)
    assert recruiter.enlist() is Outcome.WORKED
    assert recruiter.stats()["enlisted"] == 10_002
