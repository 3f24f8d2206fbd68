"""The dashboard as a person on call has it: in a browser."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.dashboard_pages import cell, dead_mail, quick, wait_for
from support.dashboards import HOSTILE, TOKEN, VIEW_TOKEN, make_app, write_hour
from workstealing import Recruiter
from workstealing.dashboard import Streams
from workstealing.jobs import HashFieldExpiry, KeyExpiry
from workstealing.metrics.events import noting
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.recruiting.hooks import Announcement
from workstealing.store.operations import run
from workstealing.structures import DurableKeys, Ick, TrackedSet, VolatileHashes

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
LARGEST_PICTURE = 200_000

# The share of a chart's column, 25 minutes ago, that has the colour of a mark for a fault.
DASHED = """async () => {
  const headers = { Accept: "application/json" };
  const answer = await fetch(document.body.dataset.view, { headers });
  const { times } = (await answer.json()).charts;
  const canvas = document.querySelector("#chart-traffic canvas");
  const over = document.querySelector("#chart-traffic .u-over");
  const ratio = canvas.width / canvas.clientWidth;
  const share = (Date.now() / 1000 - 1500 - times[0]) / (times.at(-1) - times[0]);
  const x = Math.round((over.offsetLeft + share * over.offsetWidth) * ratio);
  const [top, height] = [over.offsetTop * ratio, Math.round(over.offsetHeight * ratio)];
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(x - 4, top, 9, height);
  const red = (at) => data[at] > 160 && data[at + 1] < 120 && data[at + 2] < 120;
  let rows = 0;
  for (let y = 0; y < height; y++) {
    rows += [0, 1, 2, 3, 4, 5, 6, 7, 8].some((dx) => red(4 * (9 * y + dx)));
  }
  return rows / height;
}"""

Serve = Callable[..., str]
Open = Callable[..., Any]


@pytest.fixture
def client(redis7: Any) -> Any:
    """A client of a real server, empty."""
    return redis7.client()


@pytest.mark.smoke
def test_the_page_loads_and_draws_the_last_hour(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {"tidy": {"worked": 60, "items": 300, "oldest.0": 7.0}})
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector(".light.live")
    assert page.title() == "Work stealing: default"
    assert cell(page, "tidy", "Oldest garbage").inner_text() == "7 s"
    page.wait_for_selector("#chart-lag canvas")
    assert page.locator("canvas:visible").count() == 3
    page.focus("#more-charts > summary")
    page.keyboard.press("Enter")
    assert page.locator("canvas:visible").count() == 7
    canvas = page.locator("#chart-lag canvas")
    assert canvas.get_attribute("role") == "img"
    said = "Oldest garbage, last values: tidy 7 s"
    assert canvas.get_attribute("aria-label") == said
    assert "tidy" in page.inner_text("#chart-lag .u-legend")
    # Something is drawn: not all of the canvas has one colour.
    colours = page.evaluate(
        """() => { const c = document.querySelector("#chart-lag canvas");
        const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
        return new Set(new Uint32Array(data.buffer)).size; }"""
    )
    assert colours > 5


def test_the_page_updates_itself_in_place(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector(".light.live")
    page.evaluate("window.same = true")
    assert cell(page, "tidy", "Rate").inner_text() == "0.25"
    # A half typed input keeps its text, and open panels stay open.
    page.click("#jobs summary >> text=More")
    page.fill('#jobs input[name="rate"]', "0.07")
    never_recruiter.set_rate("tidy", 0.5)
    cell(page, "tidy", "Rate").get_by_text("0.5", exact=True).wait_for()
    assert page.input_value('#jobs input[name="rate"]') == "0.07"
    assert page.evaluate("document.activeElement.name") == "rate"
    never_recruiter.job(rate=0.125, name="sweep")(lambda slice: 3)
    page.get_by_text("sweep", exact=True).first.wait_for()
    assert cell(page, "sweep", "Rate").inner_text() == "0.125"
    assert page.evaluate("window.same") is True


def test_a_cache_comes_with_its_figures(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    """From another process's ledger, while the page is open; by keyboard, and on a phone."""
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick())
    phone = {"width": 390, "height": 844}
    page = open_page(serve(app), TOKEN, viewport=phone)
    page.wait_for_selector(".light.live")
    assert not page.locator("#caches-section").is_visible()
    hashes = VolatileHashes(client, "shop")
    price = hashes.cached(ttl=60, key="item", recruiter=never_recruiter)(lambda: "<b>3")
    ledger = Ledger(client)
    assert [price() for _ in range(4)] == ["<b>3"] * 4
    ledger.flush()
    page.wait_for_selector("#caches-section:visible")
    assert page.inner_text("#caches-text") == "1 called in the last hour"
    page.focus("#caches > summary")
    page.keyboard.press("Enter")
    row = page.locator("#cache-rows tr")
    found = [row.locator(f'[data-label="{label}"]') for label in ("Hits", "Fresh", "Missed")]
    assert [each.inner_text() for each in found] == ["75.0%", "3", "1"]
    assert page.evaluate("document.documentElement.scrollWidth") <= phone["width"]
    price()
    ledger.flush()
    row.locator('[data-label="Hits"]').get_by_text("80.0%", exact=True).wait_for()


def note(client: Any, kind: str, subject: str, ago: float) -> None:
    run(client, noting("default", Announcement(kind, subject, "", 0.0), ago))


def test_an_event_is_a_row_a_mark_and_the_jobs_own_line(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {"tidy": {"worked": 60, "items": 300, "oldest.0": 7.0}})
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector(".light.live")
    page.wait_for_selector("#chart-lag canvas")
    # Each legend has the last value without a cursor.
    assert page.inner_text("#chart-lag .u-legend .u-series:last-child .u-value") == "7 s"
    assert page.locator("#events-section").is_hidden()
    SharedSettings(client, user="ada <b>").pause("tidy")
    page.wait_for_selector("#events-section:visible")
    assert page.inner_text("#events-text") == "1 in the last day"
    page.focus("#events > summary")
    page.keyboard.press("Enter")
    row = page.locator("#event-rows tr")
    said = "tidy was paused in the whole fleet"
    assert row.locator('[data-label="Event"]').inner_text() == said
    assert row.locator('[data-label="Told by"]').inner_text().startswith("ada <b> on ")
    assert said in page.inner_text('#jobs [data-field="newest"]')
    assert page.evaluate(DASHED) == 0
    note(client, "stuck", "another", ago=1_500.0)
    page.locator("#events-text").get_by_text("2 in the last day").wait_for()
    # A dashed line from the top to the bottom, where that moment is.
    assert 0.3 < page.evaluate(DASHED) < 0.8


@pytest.mark.parametrize("threaded", [True, False], ids=["streams that end", "one thread"])
def test_the_page_goes_on_when_its_stream_ends(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any, threaded: bool
) -> None:
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    streams = Streams(every=0.2, lasts=0.4)
    app = make_app(never_recruiter, client, token=TOKEN, streams=streams)
    page = open_page(serve(app, threaded=threaded), TOKEN)
    page.wait_for_selector(".light.live")
    for rate in (0.5, 0.75):
        never_recruiter.set_rate("tidy", rate)
        cell(page, "tidy", "Rate").get_by_text(str(rate), exact=True).wait_for()


def test_an_admin_pauses_resumes_and_sets_a_rate(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    fleet = SharedSettings(client)
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.locator("#jobs summary", has_text="Pause").click()
    assert fleet.settings() == {}
    page.get_by_role("button", name="Yes, pause").click()
    page.locator("#said", has_text="tidy is paused").wait_for()
    page.locator(".badge", has_text="paused").wait_for()
    assert fleet.settings()["tidy"].paused
    page.get_by_role("button", name="Resume").click()
    page.locator("#jobs summary", has_text="Pause").wait_for()
    assert fleet.settings() == {}
    page.click("#jobs summary >> text=More")
    page.fill('#jobs input[name="rate"]', "7")
    page.get_by_role("button", name="Set", exact=True).click()
    page.locator("#refused", has_text="is no rate").wait_for()
    page.fill('#jobs input[name="rate"]', "0.02")
    page.get_by_role("button", name="Set", exact=True).click()
    cell(page, "tidy", "Rate").get_by_text("0.25 (fleet: 0.02)").wait_for()
    page.get_by_role("button", name="Run one slice").click()
    page.locator("#said", has_text="one slice of tidy: worked, 3 items").wait_for()
    assert never_recruiter.stats()["jobs"]["tidy"]["worked"] == 1


def test_a_panel_closes_like_a_menu(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    for name in ("one", "two"):
        never_recruiter.job(rate=0.25, name=name)(lambda slice: 3)
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector(".light.live")
    panels = page.locator("#jobs .panel:visible")
    for close in (
        lambda: page.keyboard.press("Escape"),
        lambda: page.click("h2 >> text=Jobs"),
        page.locator("#jobs summary").first.click,
    ):
        page.locator("#jobs summary").first.click()
        assert panels.count() == 1
        close()
        assert panels.count() == 0
    page.locator("#jobs summary").last.click()
    page.locator("#jobs summary").first.click()
    assert panels.count() == 1


def test_a_viewer_sees_no_button_and_logs_out(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    app = make_app(never_recruiter, client, token=TOKEN, view_token=VIEW_TOKEN, streams=quick())
    page = open_page(serve(app), VIEW_TOKEN)
    page.wait_for_selector(".light.live")
    assert page.get_by_role("button").all_inner_texts() == ["Log out"]
    page.get_by_role("button", name="Log out").click()
    page.wait_for_selector("#token")
    assert page.context.cookies() == []


def test_dead_items_are_put_back_and_forgotten(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    ick = dead_mail(client, "mail:1", "mail:2", "mail:3")
    app = make_app(never_recruiter, client, token=TOKEN, structures=[ick], streams=quick())
    page = open_page(serve(app), TOKEN)

    def item(name: str) -> Any:
        return page.locator("#dead-items tr", has_text=name)

    item("mail:2").get_by_role("button", name="Put back").click()
    item("mail:2").wait_for(state="detached")
    assert ick.stats()["pset_size"] == 1
    item("mail:1").get_by_role("button", name="Forget").click()
    page.locator("#refused", has_text="tick the box").wait_for()
    item("mail:1").get_by_role("checkbox").check()
    item("mail:1").get_by_role("button", name="Forget").click()
    item("mail:1").wait_for(state="detached")
    assert [member for member, *_ in ick.dead()] == [b"mail:3"]
    page.get_by_role("button", name="Put all back").click()
    page.locator("#dead-section").wait_for(state="hidden")
    assert ick.stats()["pset_size"] == 2


def test_hostile_names_are_text_at_first_and_when_they_come_later(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    names = list(HOSTILE.values())
    for name in names[::2]:
        never_recruiter.job(rate=0.01, name=name)(lambda slice: 3)
    write_hour(client, {"<b>" + name: {"worked": 3, "oldest.0": 5.0} for name in names})
    ick = dead_mail(client, *names)
    app = make_app(never_recruiter, client, token=TOKEN, structures=[ick], streams=quick())
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector(".light.live")
    for name in names[1::2]:
        never_recruiter.job(rate=0.01, name=name)(lambda slice: 3)
    wait_for(lambda: page.locator("#jobs tr").count() == 2 * len(names), "the later jobs")
    shown = page.locator("#jobs bdi").all_text_contents()
    for kind in ("script", "image", "quotes", "json", "template"):
        assert HOSTILE[kind] in shown
        assert f"<b>{HOSTILE[kind]}" in shown
    assert r"safe\u202egnp.exe\u2066\u200f" in shown
    assert "pwned" not in page.title()
    assert page.locator("main b, main img, main script").count() == 0
    assert HOSTILE["script"] in page.locator("#dead bdi").all_text_contents()
    page.wait_for_selector("#chart-lag canvas")


def test_a_longer_range_comes_by_keyboard_and_stays_in_the_address(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {"tidy": {"worked": 60, "items": 300, "oldest.0": 7.0}})
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector("#chart-lag canvas")
    caption = page.locator("#charts figcaption").first
    assert caption.inner_text() == "Oldest garbage, last hour"
    page.focus('[data-range="3h"]')
    page.keyboard.press("Enter")
    caption.get_by_text("last 3 hours").wait_for()
    assert page.url.endswith("?range=3h")
    assert page.locator("#ranges [aria-current]").inner_text() == "3 h"
    assert page.inner_text("#since").startswith("The figures begin at ")
    page.reload()
    page.wait_for_selector(".light.live")
    assert caption.inner_text() == "Oldest garbage, last 3 hours"


def test_the_first_screen_of_a_phone_holds_the_alarms_and_a_chart(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    structures = furnish(never_recruiter, client)
    app = make_app(never_recruiter, client, token=TOKEN, structures=structures, streams=quick())
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    page = open_page(serve(app), TOKEN, **phone)
    page.wait_for_selector("#chart-lag canvas")
    bottom = 0.0
    for what in (".state", "#alarms", "#chart-lag .u-legend"):
        box = page.locator(what).bounding_box()
        assert box["y"] >= bottom, what
        bottom = box["y"] + box["height"]
    assert bottom <= 844
    assert page.locator("#verdict").text_content() == "2 alarms"


def test_an_alarm_links_to_the_runbook_and_keeps_the_keyboards_focus(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {"sweep": {"failed": 30}}, minutes=30)
    book = "https://wiki.example.org/runbook"
    app = make_app(never_recruiter, client, token=TOKEN, runbook=book, streams=quick())
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector(".light.live")
    link = page.locator("#alarms a").first
    assert link.get_attribute("href") == f"{book}#workstealingmanyfailures"
    page.wait_for_timeout(500)
    link.focus()
    # A second job fails: the alarm's sentence changes while the link has the focus.
    write_hour(client, {"tidy": {"failed": 30}}, minutes=30)
    page.get_by_text("2 jobs alike").wait_for()
    focused = "document.activeElement.getAttribute('href')"
    assert page.evaluate(focused) == f"{book}#workstealingmanyfailures"


def test_a_heading_explains_itself_with_the_keyboards_focus(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    said = """() => [...document.querySelectorAll(".head")].map(
      (each) => getComputedStyle(each, "::after").content)"""
    assert set(page.evaluate(said)) == {"none"}
    page.get_by_text("Rate", exact=True).first.focus()
    shown = [each for each in page.evaluate(said) if each != "none"]
    assert shown == ['"The share of the callers that run a slice, from 0 to 1."']
    page.focus(".meanings > summary")
    page.keyboard.press("Enter")
    assert page.locator(".meanings dd").nth(6).inner_text() == shown[0].strip('"')
    assert page.locator("thead th:not([scope=col])").count() == 0
    assert page.locator("tbody th:not([scope=row], .u-legend th)").count() == 0


def width_of(page: Any) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


def test_a_phone_needs_no_scrolling_sideways(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    for name in (*HOSTILE.values(), "x" * 5000, "w o r d " * 300):
        never_recruiter.job(rate=0.01, name=name)(lambda slice: 3)
    write_hour(client, {"tidy": {"worked": 9_999_999, "aborted": 9_999_999, "oldest.0": 1e7}})
    ick = dead_mail(client, "x" * 5000, "mail:1")
    app = make_app(never_recruiter, client, token=TOKEN, structures=[ick], streams=quick())
    phone = {"viewport": {"width": 375, "height": 812}, "is_mobile": True, "has_touch": True}
    page = open_page(serve(app), TOKEN, **phone)
    page.wait_for_selector("#chart-lag canvas")
    assert width_of(page) == 375
    for summary in page.locator("#jobs summary").all()[:3]:
        summary.click()
    assert width_of(page) == 375
    for summary in page.locator(":is(.more, .meanings) > summary:visible").all():
        summary.click()
    assert width_of(page) == 375
    # Each figure has its label where the table's head is hidden.
    label = page.evaluate(
        """() => getComputedStyle(document.querySelector("#jobs td"), "::before").content"""
    )
    assert label == '"Keeps up"'
    for button in page.locator("#jobs button:visible").all()[:4]:
        assert button.bounding_box()["height"] >= 32


def test_no_width_needs_scrolling_sideways(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    for name in ("hash_field_expiry.items_of_the_whole_shop", "x" * 500):
        never_recruiter.job(rate=0.01, name=name)(lambda slice: 3)
        SharedSettings(client).set_rate(name, 0.012345)
        SharedSettings(client).pause(name)
    figures = {"worked": 123_456, "idle": 98_765, "aborted": 54_321, "failed": 4_321, "skipped": 21}
    write_hour(client, {"tidy": {**figures, "items": 9_999_999, "oldest.0": 123_456.0}})
    ick = dead_mail(client, "x" * 5000, "mail:1")
    app = make_app(never_recruiter, client, token=TOKEN, structures=[ick], streams=quick())
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector("#chart-lag canvas")
    for width in (320, 375, 480, 601, 768, 1024, 1199, 1201, 1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        # The charts follow in the next frame or two.
        wait_for(lambda width=width: width_of(page) == width, f"the page to fit {width} px")


def luminance(colour: str) -> float:
    parts = [float(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_both_easy_to_read(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any, scheme: str
) -> None:
    write_hour(client, {"tidy": {"worked": 60, "oldest.0": lambda minute: 100.0 + 55.0 * minute}})
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick())
    page = open_page(serve(app), TOKEN, color_scheme=scheme)
    page.wait_for_selector("#chart-lag canvas")
    ground = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert ground < 0.02 if scheme == "dark" else ground > 0.8
    card = luminance(
        page.evaluate(
            "getComputedStyle(document.querySelector('.card h2').parentElement).backgroundColor"
        )
    )
    for what in (".card h2", "#jobs .figure.bad", "#jobs .figure", "thead th", ".problem"):
        ink = luminance(
            page.evaluate("(s) => getComputedStyle(document.querySelector(s)).color", what)
        )
        bright, dim = max(ink, card), min(ink, card)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, what


def test_without_scripts_the_tables_are_there_and_the_buttons_work(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick())
    page = open_page(serve(app), TOKEN, java_script_enabled=False)
    assert page.inner_text("#jobs bdi") == "tidy"
    assert not page.locator("#charts").is_visible()
    assert page.get_attribute('meta[http-equiv="refresh"]', "content") == "10; url=/ws/"
    page.locator("#jobs summary", has_text="Pause").click()
    page.get_by_role("button", name="Yes, pause").click()
    page.locator("#said", has_text="tidy is paused").wait_for()
    assert SharedSettings(client).settings()["tidy"].paused
    assert page.get_by_role("button", name="Resume").is_visible()


def test_who_is_logged_out_elsewhere_is_asked_to_log_in(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    app = make_app(never_recruiter, client, token=TOKEN, streams=Streams(every=0.2, lasts=0.4))
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector(".light.live")
    page.context.clear_cookies()
    page.wait_for_selector("#token")


# ---- pictures ------------------------------------------------------------------------------------


def furnish(recruiter: Recruiter, client: Any) -> list[Any]:
    """Fill a picture: three structures, jobs of which one falls behind, dead items."""
    hashes = VolatileHashes(client, namespace="items")
    late = VolatileHashes(client, namespace="items", clock_shift_ms=9_000)
    for number in range(400):
        hashes.hsetex(f"item:{number}", mapping={"likes": 1, "title": 2}, ex=5 + number * 10)
    keys = DurableKeys(client, namespace="locks")
    for number in range(30):
        keys.set(f"lock:{number}", 1, ex=600)
    documents = Ick(client, "dirty:documents")
    documents.add([f"document:{number}" for number in range(900)])
    tracked = TrackedSet(client, "queued")
    tracked.track([str(number) for number in range(1234)])
    recruiter.install(HashFieldExpiry(late), rate=0.003)
    recruiter.install(KeyExpiry(keys), rate=0.001)
    mail = dead_mail(client, "mail:4711", "mail:815", "<b>mail</b>:9")

    def wave(mean: float, minutes: float) -> Callable[[int], int]:
        return lambda minute: round(mean * (1 + 0.25 * math.sin(minute / minutes)))

    write_hour(
        client,
        {
            "hash_field_expiry.items": {
                "worked": wave(80, 5),
                "idle": wave(12, 3),
                "aborted": wave(2, 4),
                "items": wave(380, 5),
                "micros": wave(160_000, 5),
                "rate": 0.003,
                "oldest.0": lambda minute: 6 + 2 * math.sin(minute / 4),
            },
            "key_expiry.locks": {
                "worked": wave(8, 5),
                "idle": wave(30, 3),
                "items": wave(40, 5),
                "micros": wave(60_000, 5),
                "rate": 0.001,
                "oldest.1": lambda minute: 20 + 9 * math.sin(minute / 6),
            },
            "ick_reaper.dirty:documents": {
                "worked": wave(30, 5),
                "items": wave(150, 9),
                "micros": wave(60_000, 5),
                "rate": 0.001,
                "oldest.1": lambda minute: 15.0 + max(0, minute - 35) * 48.0,
                "backlog.1": lambda minute: 40.0 + max(0, minute - 35) * 90.0,
            },
        },
    )
    return [documents, tracked, mail]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dashboard", {"viewport": {"width": 1280, "height": 900}}),
        ("dashboard_dark", {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"}),
        ("dashboard_phone", {"viewport": {"width": 375, "height": 1100}, "is_mobile": True}),
    ],
)
def test_pictures_for_the_docs(
    serve: Serve,
    open_page: Open,
    never_recruiter: Recruiter,
    client: Any,
    tmp_path: Path,
    *,
    name: str,
    options: dict[str, Any],
) -> None:
    """With WORKSTEALING_SCREENSHOTS=1 the pictures in docs/ are made anew."""
    structures = furnish(never_recruiter, client)
    app = make_app(never_recruiter, client, token=TOKEN, structures=structures, streams=quick())
    page = open_page(serve(app), TOKEN, **options)
    page.wait_for_selector("#chart-lag canvas")
    page.wait_for_selector(".light.live")
    assert page.locator("#alarms li").count() == 2
    path = tmp_path / f"{name}.png"
    page.screenshot(path=path)
    assert 20_000 < path.stat().st_size < LARGEST_PICTURE
    if os.environ.get("WORKSTEALING_SCREENSHOTS") == "1":
        shutil.copyfile(path, DOCS / path.name)
    assert (DOCS / path.name).stat().st_size < LARGEST_PICTURE
