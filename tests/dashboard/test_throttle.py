"""Guesses of a token are throttled: of one address, of all, and of a whole fleet."""

from __future__ import annotations

from typing import Any

import flask
import pytest

from support.dashboards import TOKEN, make_app
from support.servers import RedisServer
from workstealing import Recruiter
from workstealing.dashboard import security
from workstealing.dashboard.security import (
    EVERY_SECONDS,
    MOST_ADDRESSES,
    TRIES,
    TRIES_OF_ALL,
    Guard,
    Throttle,
    cookie_name,
    counted_by_fleet,
    network,
)
from workstealing.testing import ManualClock

COOKIE = cookie_name("localhost", "/ws/", "default")


@pytest.fixture
def app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard with a token."""
    return make_app(never_recruiter, client, token=TOKEN)


def log_in(app: flask.Flask, address: str, token: str) -> Any:
    where = {"REMOTE_ADDR": address}
    return app.test_client().post("/ws/login", data={"token": token}, environ_overrides=where)


def carry(app: flask.Flask, address: str, token: str) -> Any:
    header, where = {"Authorization": f"Bearer {token}"}, {"REMOTE_ADDR": address}
    return app.test_client().get("/ws/view.json", headers=header, environ_overrides=where)


def bring_cookie(app: flask.Flask, address: str, token: str) -> Any:
    browser = app.test_client()
    browser.set_cookie(COOKIE, Guard(token).new_session("admin"), path="/ws/")
    return browser.get("/ws/view.json", environ_overrides={"REMOTE_ADDR": address})


@pytest.mark.parametrize("guess", [log_in, carry, bring_cookie])
def test_a_hundred_guesses_get_no_further_than_ten(app: flask.Flask, guess: Any) -> None:
    answers = [guess(app, "192.0.2.7", f"a wrong token, number {n}") for n in range(100)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 100 - TRIES
    assert answers[TRIES].status_code == 429
    for answer in refused:
        assert 1 <= int(answer.headers["Retry-After"]) <= EVERY_SECONDS
        assert "too many wrong tokens" in answer.text.lower()
    # Now even the right token gets the same answer, in every way.
    for way in (log_in, carry, bring_cookie):
        assert way(app, "192.0.2.7", TOKEN).status_code == 429
        assert way(app, "192.0.2.8", TOKEN).status_code in (200, 303)


def test_right_tokens_are_never_throttled(app: flask.Flask) -> None:
    for _ in range(5 * TRIES):
        assert carry(app, "192.0.2.7", TOKEN).status_code == 200
    for _ in range(2 * TRIES):
        assert log_in(app, "192.0.2.7", TOKEN).status_code == 303


def test_who_is_logged_in_stays_so_while_a_neighbour_guesses(app: flask.Flask) -> None:
    browser = app.test_client()
    browser.post("/ws/login", data={"token": TOKEN})
    assert browser.get("/ws/view.json").status_code == 200
    for n in range(3 * TRIES):
        log_in(app, "127.0.0.1", f"a wrong token, number {n}")
    assert log_in(app, "127.0.0.1", TOKEN).status_code == 429
    assert browser.get("/ws/view.json").status_code == 200


def test_a_cookie_of_an_earlier_token_goes_away_by_itself(app: flask.Flask) -> None:
    browser = app.test_client()
    browser.set_cookie(COOKIE, Guard(TOKEN + " of last year").new_session("admin"), path="/ws/")
    for _ in range(2 * TRIES):
        assert browser.get("/ws/").status_code == 401
        assert browser.get("/ws/assets/dashboard.css").status_code == 200
    assert browser.get_cookie(COOKIE, path="/ws/") is None


def test_an_address_may_go_on_after_a_while() -> None:
    clock = ManualClock()
    gate = Throttle(clock=clock)
    assert [gate.enter("192.0.2.7") for _ in range(TRIES)] == [0.0] * TRIES
    assert gate.enter("192.0.2.7") == EVERY_SECONDS
    clock.advance(EVERY_SECONDS / 2)
    assert gate.enter("192.0.2.7") == EVERY_SECONDS / 2
    clock.advance(EVERY_SECONDS / 2)
    assert gate.enter("192.0.2.7") == 0.0
    assert gate.enter("192.0.2.7") > 0
    # Asking too early lengthens nothing.
    clock.advance(EVERY_SECONDS * TRIES)
    assert [gate.enter("192.0.2.7") for _ in range(TRIES)] == [0.0] * TRIES


def test_all_together_are_bounded_and_a_stranger_still_has_one_trial() -> None:
    gate = Throttle(clock=ManualClock())
    passed = sum(gate.enter(f"192.0.2.{n % 20}") == 0.0 for n in range(20 * TRIES))
    assert passed == TRIES_OF_ALL
    assert gate.enter("198.51.100.1") == 0.0
    gate.right("198.51.100.1")
    assert gate.enter("198.51.100.1") == 0.0
    assert gate.enter("198.51.100.1") > 0


def test_what_is_remembered_is_bounded() -> None:
    gate = Throttle(clock=ManualClock())
    for n in range(3 * MOST_ADDRESSES):
        gate.enter(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert gate.addresses() == MOST_ADDRESSES
    for n in range(3 * security.MOST_SESSIONS):
        gate.remember(str(n))
    assert not gate.knows("0")
    assert gate.knows(str(3 * security.MOST_SESSIONS - 1))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        (None, "", True),
        ("unix:" + "x" * 5000, "unix:" + "x" * 6000, True),
    ],
)
def test_who_has_a_network_has_one_allowance(one: Any, other: Any, same: bool) -> None:
    assert (network(one) == network(other)) is same


def test_processes_of_a_fleet_count_together(redis7: RedisServer) -> None:
    client = redis7.client()
    clock = ManualClock()
    gates = [Throttle(counted_by_fleet(client, "default"), clock) for _ in range(10)]
    passed = 0
    for n in range(50 * len(gates)):
        gate = gates[n % len(gates)]
        if gate.enter(f"192.0.2.{n % 50}") == 0.0:
            passed += 1
            gate.wrong()
    # Each learns of the others with its own next wrong token; strangers have their one trial.
    assert passed <= TRIES_OF_ALL + len(gates) + 50
    assert 0 < client.ttl("{workstealing:ledger:default}:logins") <= 60
    # Each process alone would have let all of them in.
    assert TRIES_OF_ALL * len(gates) > 2 * passed


def test_a_dead_redis_neither_locks_out_nor_lets_in(redis7: RedisServer) -> None:
    client = redis7.client(port=1)
    gate = Throttle(counted_by_fleet(client, "default"), ManualClock())
    passed = 0
    for _ in range(50):
        if gate.enter("192.0.2.7") == 0.0:
            passed += 1
            gate.wrong()
    assert passed == TRIES
    assert gate.enter("192.0.2.8") == 0.0
