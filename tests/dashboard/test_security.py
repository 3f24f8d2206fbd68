"""Access and steering: loopback, tokens, roles, sessions, CSRF, methods, headers, secrets."""

from __future__ import annotations

import hmac
import logging
import re
from http.cookies import SimpleCookie
from typing import Any

import flask
import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.dashboards import TOKEN, VIEW_TOKEN, csrf_of, make_app
from workstealing import Recruiter
from workstealing.dashboard import security
from workstealing.dashboard.security import Guard, cookie_name, is_local, is_loopback
from workstealing.errors import ConfigurationError
from workstealing.metrics.shared_settings import SharedSettings

COOKIE = cookie_name("localhost", "/ws/", "default")
CHANGES = ("/ws/jobs", "/ws/dead", "/ws/login", "/ws/logout")
LOOKS = ("/ws/", "/ws/view.json", "/ws/events")


def login(browser: Any, token: str = TOKEN) -> str:
    """Log in; return the session's CSRF token."""
    assert browser.post("/ws/login", data={"token": token}).status_code == 303
    return csrf_of(browser.get("/ws/").text)


@pytest.fixture
def open_app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard without a token."""
    return make_app(never_recruiter, client)


@pytest.fixture
def app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard with both tokens and one job."""
    never_recruiter.job(rate=0.001, name="tidy")(lambda slice: 3)
    return make_app(never_recruiter, client, token=TOKEN, view_token=VIEW_TOKEN)


# ---- without a token -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*LOOKS, "/ws/assets/dashboard.css"])
def test_without_a_token_only_this_machine_is_answered(open_app: flask.Flask, path: str) -> None:
    browser = open_app.test_client()
    assert browser.get(path).status_code == 200
    for address in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "", None, "nonsense"):
        refused = browser.get(path, environ_overrides={"REMOTE_ADDR": address})
        assert refused.status_code == 403
        assert "token" in refused.text


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_every_loopback_address_is_this_machine(open_app: flask.Flask, address: str | None) -> None:
    answer = open_app.test_client().get("/ws/", environ_overrides={"REMOTE_ADDR": address})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-For": "192.0.2.7"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"Via": "1.1 proxy"},
        {"X-Forwarded-Port": "443"},
        {"X-Forwarded-Server": "proxy"},
        {"X-Envoy-External-Address": "192.0.2.7"},
    ],
)
def test_a_proxys_word_opens_nothing(open_app: flask.Flask, header: dict[str, str]) -> None:
    browser = open_app.test_client()
    assert browser.get("/ws/", headers=header).status_code == 403
    far = browser.get("/ws/", headers=header, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    assert far.status_code == 403


def test_a_foreign_name_for_our_address_is_refused(open_app: flask.Flask) -> None:
    browser = open_app.test_client()
    assert browser.get("/ws/", headers={"Host": "evil.example"}).status_code == 403
    for host in ("localhost:5000", "127.0.0.1:5000", "[::1]:5000"):
        assert browser.get("/ws/", headers={"Host": host}).status_code == 200


def test_without_a_token_nobody_steers(open_app: flask.Flask, client: Any) -> None:
    browser = open_app.test_client()
    page = browser.get("/ws/").text
    # Searching changes nothing.
    assert page.count("<form") == page.count('<form class="find" method="get"') == 3
    for path in CHANGES:
        for data in ({}, {"action": "pause", "job": "x", "csrf": ""}, {"token": ""}):
            assert browser.post(path, data=data).status_code == 403
    header = {"Authorization": "Bearer "}
    assert browser.post("/ws/jobs", data={}, headers=header).status_code == 403
    assert SharedSettings(client).settings() == {}


# ---- with tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LOOKS)
@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7"])
def test_with_a_token_everybody_logs_in(app: flask.Flask, path: str, address: str | None) -> None:
    browser = app.test_client()
    answer = browser.get(path, environ_overrides={"REMOTE_ADDR": address})
    assert answer.status_code == 401
    assert "tidy" not in answer.text
    for value in ("Bearer wrong", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer \u00e9"):
        assert browser.get(path, headers={"Authorization": value}).status_code == 401
    answer = browser.get(
        path,
        headers={"Authorization": f"Bearer {TOKEN}"},
        environ_overrides={"REMOTE_ADDR": address},
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/ws/jobs", "/ws/dead", "/ws/logout"])
def test_who_is_not_logged_in_changes_nothing(app: flask.Flask, client: Any, path: str) -> None:
    answer = app.test_client().post(path, data={"action": "pause", "job": "tidy"})
    assert answer.status_code == 401
    assert SharedSettings(client).settings() == {}


def test_a_login_gives_a_cookie_that_no_script_and_no_other_site_has(app: flask.Flask) -> None:
    answer = app.test_client().post("/ws/login", data={"token": TOKEN})
    (cookie,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "Strict"
    assert cookie["path"] == "/ws/"
    assert not cookie["secure"]
    secured = app.test_client().post(
        "/ws/login", data={"token": TOKEN}, base_url="https://localhost"
    )
    assert "Secure" in secured.headers["Set-Cookie"]
    assert TOKEN not in str(answer.headers) + answer.text


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper(), "\udc80"])
def test_a_wrong_token_opens_nothing(app: flask.Flask, token: Any) -> None:
    raw = token.encode("utf-8", "surrogateescape")
    browser = app.test_client()
    answer = browser.post("/ws/login", data={"token": raw})
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers
    assert browser.get("/ws/").status_code == 401


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = hmac.compare_digest
    monkeypatch.setattr(
        security.hmac, "compare_digest", lambda a, b: (calls.append((a, b)), real(a, b))[1]
    )
    guard = Guard(TOKEN, VIEW_TOKEN)
    for token in ("", "x", TOKEN, VIEW_TOKEN, "y" * 100_000):
        calls.clear()
        guard.role_of(token)
        # Digests of one length are compared with every known token, whichever is right.
        assert [(len(one), len(other)) for one, other in calls] == [(32, 32), (32, 32)]


def test_the_viewer_looks_and_does_not_steer(app: flask.Flask, client: Any) -> None:
    browser = app.test_client()
    csrf = login(browser, VIEW_TOKEN)
    page = browser.get("/ws/").text
    assert "read only" in page
    for steering in ('value="pause"', 'value="set"', "Pause it"):
        assert steering not in page
    for path in ("/ws/jobs", "/ws/dead"):
        data = {"csrf": csrf, "action": "pause", "job": "tidy"}
        assert browser.post(path, data=data).status_code == 403
    header = {"Authorization": f"Bearer {VIEW_TOKEN}"}
    assert app.test_client().post("/ws/jobs", data={}, headers=header).status_code == 403
    assert SharedSettings(client).settings() == {}


def job_id(browser: Any) -> str:
    found = re.search(r'name="job" value="([0-9a-f]+)"', browser.get("/ws/").text)
    assert found is not None
    return found[1]


def test_an_admin_pauses_a_job(app: flask.Flask, client: Any) -> None:
    browser = app.test_client()
    csrf = login(browser)
    data = {"csrf": csrf, "action": "pause", "sure": "yes", "job": job_id(browser)}
    assert browser.post("/ws/jobs", data=data).status_code == 200
    assert SharedSettings(client).settings()["tidy"].paused


@pytest.mark.slow
@pytest.mark.parametrize("csrf", [None, "", "0" * 64, "other session"])
@pytest.mark.parametrize("path", ["/ws/jobs", "/ws/dead", "/ws/logout"])
def test_a_form_without_its_sessions_csrf_token_changes_nothing(
    app: flask.Flask, client: Any, path: str, csrf: Any
) -> None:
    browser = app.test_client()
    login(browser)
    if csrf == "other session":
        csrf = login(app.test_client())
    data = {"action": "pause", "sure": "yes", "job": job_id(browser)} | (
        {} if csrf is None else {"csrf": csrf}
    )
    assert browser.post(path, data=data).status_code == 403
    assert SharedSettings(client).settings() == {}
    assert browser.get("/ws/").status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_of_another_site_is_refused_even_with_everything_right(
    app: flask.Flask, client: Any, site: str
) -> None:
    browser = app.test_client()
    data = {"csrf": login(browser), "action": "pause", "sure": "yes", "job": job_id(browser)}
    header = {"Sec-Fetch-Site": site}
    assert browser.post("/ws/jobs", data=data, headers=header).status_code == 403
    assert SharedSettings(client).settings() == {}
    assert browser.post("/ws/login", data={"token": TOKEN}, headers=header).status_code == 403


def test_a_program_with_the_token_needs_no_csrf_token(app: flask.Flask, client: Any) -> None:
    browser = app.test_client()
    login(browser)
    data = {"action": "pause", "sure": "yes", "job": job_id(browser)}
    header = {"Authorization": f"Bearer {TOKEN}"}
    assert app.test_client().post("/ws/jobs", data=data, headers=header).status_code == 200
    assert SharedSettings(client).settings()["tidy"].paused


@pytest.mark.slow
@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
def test_state_changes_by_post_alone(app: flask.Flask, client: Any, path: str, method: str) -> None:
    browser = app.test_client()
    csrf = login(browser)
    query = {"csrf": csrf, "action": "pause", "sure": "yes", "job": job_id(browser), "token": TOKEN}
    assert browser.open(path, method=method, query_string=query).status_code == 405
    assert SharedSettings(client).settings() == {}


def test_a_query_is_no_form(app: flask.Flask, client: Any) -> None:
    browser = app.test_client()
    query = {"csrf": login(browser), "action": "pause", "sure": "yes", "job": job_id(browser)}
    assert browser.post("/ws/jobs", query_string=query).status_code == 403
    assert app.test_client().post("/ws/login", query_string={"token": TOKEN}).status_code == 403
    assert SharedSettings(client).settings() == {}


def test_a_forged_or_foreign_session_is_none(
    app: flask.Flask, never_recruiter: Recruiter, client: Any
) -> None:
    other = Guard(TOKEN + " another one").new_session("admin")
    viewer = Guard(TOKEN, VIEW_TOKEN).new_session("viewer")
    own = Guard(TOKEN, VIEW_TOKEN).new_session("admin")
    browser = app.test_client()
    for cookie in (other, own[:-3] + "abc", "", "x" * 3000, viewer.split(".")[0], "a.b.c"):
        browser.set_cookie(COOKIE, cookie, path="/ws/")
        assert browser.get("/ws/").status_code == 401
    # Every process of a fleet takes the same one.
    browser.set_cookie(COOKIE, own, path="/ws/")
    assert browser.get("/ws/").status_code == 200


def test_a_viewers_cookie_says_nothing_of_the_admins_token() -> None:
    """A holder of the view token has nothing to try guesses of the admin's token against."""
    one, other = Guard(TOKEN, VIEW_TOKEN), Guard(TOKEN + " another one", VIEW_TOKEN)
    cookie = one.new_session("viewer")
    seen = [guard.visitor("127.0.0.1", "localhost", {}, cookie) for guard in (one, other)]
    assert seen[0] is not None
    assert seen[0] == seen[1]
    # The admin's key comes from the admin token alone, and the other key makes nobody an admin.
    assert other.visitor("127.0.0.1", "localhost", {}, one.new_session("admin")) is None
    promoted = "admin." + cookie.partition(".")[2]
    assert one.visitor("127.0.0.1", "localhost", {}, promoted) is None


def test_two_dashboards_on_one_host_do_not_share_a_cookie(
    never_recruiter: Recruiter, client: Any
) -> None:
    """Cookies know no ports: a login here does not end a login there."""
    first = make_app(never_recruiter, client, token=TOKEN)
    second = make_app(never_recruiter, client, token=TOKEN + " of another one")
    jar: dict[str, str] = {}

    def ask(app: flask.Flask, port: int, path: str = "/ws/", **data: str) -> int:
        browser = app.test_client(use_cookies=False)
        answer = browser.open(
            path,
            base_url=f"http://shop.example:{port}",
            method="POST" if data else "GET",
            data=data,
            headers={"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())},
        )
        for name, morsel in SimpleCookie(answer.headers.get("Set-Cookie", "")).items():
            jar[name] = morsel.value
        return answer.status_code

    assert ask(first, 8765, "/ws/login", token=TOKEN) == 303
    assert ask(second, 8766, "/ws/login", token=TOKEN + " of another one") == 303
    assert ask(first, 8765) == ask(second, 8766) == 200
    assert len(jar) == 2
    names = {
        cookie_name(*place)
        for place in (("a", "/", "x"), ("a:1", "/", "x"), ("a", "/b/", "x"), ("a", "/", "y"))
    }
    assert len(names) == 4


def test_a_session_ends(app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = app.test_client()
    login(browser)
    monkeypatch.setattr(security, "SESSION_SECONDS", -1)
    assert browser.get("/ws/").status_code == 401


def test_a_role_whose_token_is_gone_has_no_session(never_recruiter: Recruiter, client: Any) -> None:
    guard = Guard(TOKEN)
    assert guard.visitor("127.0.0.1", "localhost", {}, guard.new_session("viewer")) is None
    root = "root." + guard.new_session("admin").partition(".")[2]
    assert guard.visitor("127.0.0.1", "localhost", {}, root) is None


def test_logging_out_removes_the_cookie(app: flask.Flask) -> None:
    browser = app.test_client()
    csrf = login(browser)
    assert browser.post("/ws/logout", data={"csrf": csrf}).status_code == 303
    assert browser.get("/ws/").status_code == 401


def test_a_large_form_is_not_read(app: flask.Flask) -> None:
    browser = app.test_client()
    csrf = login(browser)
    data = {"csrf": csrf, "action": "pause", "job": "x" * 100_000}
    assert browser.post("/ws/jobs", data=data).status_code == 413
    assert app.test_client().post("/ws/login", data={"token": "x" * 100_000}).status_code == 413
    # A form without a length is refused, too.
    chunked = {"Transfer-Encoding": "chunked"}
    assert browser.post("/ws/login", data={"token": TOKEN}, headers=chunked).status_code == 411


# ---- secrets ------------------------------------------------------------------------------------


def test_no_secret_is_in_any_page_or_log(
    never_recruiter: Recruiter, start_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    password = "the-servers-own-password"
    server = start_redis(7)
    server.client().config_set("requirepass", password)
    client = server.client(password=password, retry=Retry(NoBackoff(), 0))
    app = make_app(never_recruiter, client, token=TOKEN, view_token=VIEW_TOKEN)
    browser = app.test_client()
    seen = [browser.post("/ws/login", data={"token": "a guess that is wrong"})]
    csrf = login(browser)
    seen += [browser.get(path) for path in LOOKS]
    data = {"csrf": csrf, "action": "pause", "job": "x"}
    seen.append(browser.post("/ws/jobs", data=data))
    server.stop()
    # After a change the page shows the present state, not a remembered one.
    seen.append(browser.post("/ws/jobs", data=data))
    seen += [browser.get("/ws/"), browser.get("/ws/view.json")]
    texts = [answer.text + str(answer.headers) for answer in seen]
    assert any("does not answer (ConnectionError)" in text for text in texts)
    for text in [*texts, caplog.text]:
        for secret in (TOKEN, VIEW_TOKEN, password, "a guess that is wrong"):
            assert secret not in text
    assert csrf not in caplog.text


# ---- what is refused when it is made -------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "view_token", "said"),
    [
        ("", None, "too short"),
        ("short", None, "too short"),
        (TOKEN, "short", "too short"),
        (17 * b"x", None, "too short"),
        (17 * "\u00e9", None, "characters"),
        (17 * "x" + "\udc80", None, "characters"),
        (17 * "x" + "\n", None, "characters"),
        (17 * "x" + " ", None, "space"),
        (17 * " ", None, "space"),
        (None, VIEW_TOKEN, "beside"),
        (TOKEN, TOKEN, "another one"),
    ],
)
def test_tokens_that_protect_nothing_are_refused(token: Any, view_token: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        Guard(token, view_token)
    assert TOKEN not in str(caught.value)


def test_names_of_this_machine() -> None:
    yes = ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "::ffff:127.0.0.1"]
    no = ["0.0.0.0", "::", "", "192.0.2.7", "localhost.evil.example", "127.0.0.1.evil.example", "x"]
    assert [name for name in yes if not is_loopback(name)] == []
    assert [name for name in no if is_loopback(name)] == []
    assert not is_local("127.0.0.1", "", {})
