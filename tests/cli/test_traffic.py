"""The made-up traffic, and the rate that is computed from it."""

from __future__ import annotations

from collections import Counter

import pytest

from workstealing.cli.demo.web import (
    HIGHEST_RATE,
    LIMIT,
    SAFETY,
    Request,
    forecast,
    lifetimes,
    rate_for,
    zipf_requests,
)


def test_popularity_follows_zipfs_law() -> None:
    count, once = 50_000, 0.2
    seen = Counter(
        request.target for request in zipf_requests(count, popular=100, exponent=1.0, once=once)
    )
    harmonic = sum(1 / rank for rank in range(1, 101))
    for rank in (1, 2, 5, 20):
        expected = count * (1 - once) / rank / harmonic
        # Five standard deviations of a seeded draw: this is certain, not likely.
        assert seen[f"/item/{rank}"] == pytest.approx(expected, abs=5 * expected**0.5)


def test_the_tail_is_visited_once_and_never_again() -> None:
    seen = Counter(request.target for request in zipf_requests(20_000, once=0.15))
    tail = [target for target in seen if "once" in target]
    assert len(tail) == pytest.approx(3_000, abs=250)
    assert {seen[target] for target in tail} == {1}


def test_the_seed_decides_all() -> None:
    assert zipf_requests(500, seed=7) == zipf_requests(500, seed=7)
    assert zipf_requests(500, seed=7) != zipf_requests(500, seed=8)


def test_lifetimes_are_scaled_and_never_longer_than_in_life() -> None:
    assert lifetimes(20) == {"content": 6_000, "related": 3_000, "likes": 1_000}
    assert lifetimes(1e9) == {"content": 43_200_000, "related": 3_600_000, "likes": 300_000}


def test_a_forecast_counts_fast_exits_and_expiring_fields() -> None:
    lives = {"long": 60_000, "short": 1_500}
    requests = [
        Request("/a"),  # 0 s: a miss, two fields; the short one expires at 1.5 s
        Request("/a"),  # 1 s: a hit
        Request("/a"),  # 2 s: a miss, the short field again; it expires at 3.5 s
        Request("/a", conditional=True),  # 3 s: a hit and a 304
        Request("/b", conditional=True),  # 4 s: a miss; nobody has an ETag yet
        Request("/a", conditional=True),  # 5 s: a miss, and still a 304
    ]
    # The short field of /b expires at 5.5 s, that of /a at 6.5 s; the end is at 6 s.
    assert forecast(requests, 1.0, lives) == (3 / 6, 3 / 6)


def test_the_rate_keeps_up_with_the_garbage_with_something_to_spare() -> None:
    rate, formula = rate_for(200.0, 100.0)
    assert 200.0 * rate * LIMIT == pytest.approx(SAFETY * 100.0)
    assert f"= {rate:.4f}" in formula


@pytest.mark.parametrize(
    ("enlisted", "garbage", "rate"),
    [
        (1.0, 1_000.0, HIGHEST_RATE),
        (0.0, 10.0, HIGHEST_RATE),
        (0.0, 0.0, 0.001),
        (100.0, 0.0, 0.001),
    ],
)
def test_the_rate_is_always_one_that_a_job_may_have(
    enlisted: float, garbage: float, rate: float
) -> None:
    found, formula = rate_for(enlisted, garbage)
    assert found == rate
    assert formula
