"""The page in a bad hour: refusals, silence, large figures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.dashboard_pages import cell, dead_mail, quick
from support.dashboards import TOKEN, make_app, write_hour
from workstealing import Recruiter
from workstealing.dashboard import Streams, Watched
from workstealing.metrics.minutes import minute_key

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Open = Callable[..., Any]


@pytest.fixture
def client(redis7: Any) -> Any:
    """A client of a real server, empty."""
    return redis7.client()


def test_what_is_said_is_seen_wherever_the_button_was(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    for number in range(30):
        never_recruiter.job(rate=0.01, name=f"job {number}")(lambda slice: 3)
    ick = dead_mail(client, "mail:1")
    app = make_app(never_recruiter, client, token=TOKEN, structures=[ick], streams=quick())
    page = open_page(serve(app), TOKEN)
    page.get_by_role("button", name="Forget", exact=True).click()
    page.locator("#refused", has_text="tick the box").wait_for()
    assert page.evaluate("scrollY") > 300
    box = page.locator("#refused").bounding_box()
    assert 0 <= box["y"] < 100
    assert not page.locator("#said").is_visible()


def test_two_items_of_one_name_stay_two(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    class Box:
        def dead(self, n: int = 100) -> list[str]:
            return ["job_client"]

    parts = [("left", Box()), ("right", Box())]
    mine = Watched(name="mine", kind="own", dead=lambda: parts)  # type: ignore[arg-type,return-value]
    never_recruiter.job(rate=0.25, name="tidy")(lambda slice: 3)
    app = make_app(never_recruiter, client, token=TOKEN, structures=[mine], streams=quick())
    page = open_page(serve(app), TOKEN)
    for rate in (0.5, 0.75, 0.125):
        # Each one is another event that the page has taken in.
        never_recruiter.set_rate("tidy", rate)
        cell(page, "tidy", "Rate").get_by_text(str(rate), exact=True).wait_for()
    assert page.locator("#dead-items .name").all_text_contents() == ["job_client", "job_client"]


def test_the_charts_say_that_they_leave_jobs_out_and_label_large_figures(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    figures = {"worked": 9, "items": 10**9, "oldest.0": 1e7}
    write_hour(client, {f"job {number}": figures for number in range(9)})
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick())
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector("#chart-lag canvas")
    notes = page.locator("[data-charted]").all_text_contents()
    assert notes == ["8 of 9 jobs"] * 5
    page.hover("#chart-lag .u-over")
    page.locator("#chart-lag .u-value", has_text="116 d").first.wait_for()


_INK = """(id) => {
    const canvas = document.querySelector(`#${id} canvas`);
    const marker = document.querySelector(`#${id} .u-series:last-child .u-marker`);
    const [r, g, b] = getComputedStyle(marker).borderTopColor.match(/\\d+/g).map(Number);
    const over = document.querySelector(`#${id} .u-over`);
    const left = parseFloat(over.style.left) * devicePixelRatio;
    const wide = parseFloat(over.style.width) * devicePixelRatio;
    const { data } = canvas.getContext("2d").getImageData(left, 0, wide, canvas.height);
    const parts = new Array(20).fill(0);
    for (let at = 0; at < data.length; at += 4) {
      const far = Math.abs(data[at] - r) + Math.abs(data[at + 1] - g) + Math.abs(data[at + 2] - b);
      const column = (at / 4) % Math.floor(wide);
      if (far < 60) parts[Math.min(19, Math.floor((column / wide) * 20))] += 1;
    }
    return parts; }"""


def test_a_gap_is_a_gap_and_a_lonely_minute_a_point(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    job = {"worked": 9, "items": 600, "oldest.0": 7.0}
    write_hour(client, {"tidy": job})
    present = int(client.time()[0]) // 60 * 60
    for ago in (*range(18, 30), *range(31, 43)):
        client.delete(minute_key("default", present - 60 * ago))
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector("#chart-lag canvas")
    for chart in ("chart-lag", "chart-items", "chart-traffic"):
        ink = page.evaluate(_INK, chart)
        # A twentieth is three minutes; another minute may have begun meanwhile.
        assert all(ink[at] > 0 for at in (1, 2, 3, 4, 15, 16, 17, 18)), (chart, ink)
        assert [ink[at] for at in (7, 8, 11, 12)] == [0] * 4, (chart, ink)
        assert ink[9] + ink[10] > 0, (chart, ink)


def test_a_page_that_hears_nothing_says_so(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    go_on = threading.Event()
    streams = Streams(every=0.2, lasts=1.0, pause=lambda seconds: go_on.wait(120))
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=streams)))
    # The page's own clock: nobody waits for it here.
    page.clock.install()
    page.fill("#token", TOKEN)
    page.click("button")
    page.wait_for_selector(".light.live")
    stale = page.get_by_text("no longer up to date")
    assert not stale.is_visible()
    page.clock.run_for(13_000)
    stale.wait_for()
    go_on.set()
    stale.wait_for(state="hidden")


def test_searching_and_paging_go_on_in_each_update(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, client: Any
) -> None:
    for number in range(60):
        never_recruiter.job(rate=0.01, name=f"job {number:02}")(lambda slice: 3)
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick())
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector(".light.live")
    rows = page.locator("#jobs tr")
    assert rows.count() == 25
    pager = page.locator('.find[data-list="jobs"]')
    pager.get_by_role("button", name="Next").click()
    pager.get_by_text("26 to 50 of 60").wait_for()
    assert page.url.endswith("?jobs_page=2")
    assert page.locator("#jobs bdi").first.inner_text() == "job 25"
    pager.locator("input[type=search]").fill("JOB 07")
    page.keyboard.press("Enter")
    pager.get_by_text("1 to 1 of 1 (60 in all)").wait_for()
    # The stream goes on with it, and the address asks for it again.
    never_recruiter.set_rate("job 07", 0.005)
    cell(page, "job 07", "Rate").get_by_text("0.005", exact=True).wait_for()
    page.reload()
    page.wait_for_selector(".light.live")
    assert rows.count() == 1


@pytest.mark.parametrize(("width", "is_open"), [(375, False), (1280, True)])
def test_on_a_phone_a_tap_opens_the_dead_items(
    serve: Serve,
    open_page: Open,
    never_recruiter: Recruiter,
    client: Any,
    *,
    width: int,
    is_open: bool,
) -> None:
    never_recruiter.job(rate=0.01, name="tidy")(lambda slice: 3)
    ick = dead_mail(client, *[f"mail:{number}" for number in range(30)])
    app = make_app(never_recruiter, client, token=TOKEN, structures=[ick], streams=quick())
    page = open_page(serve(app), TOKEN, viewport={"width": width, "height": 812})
    page.wait_for_selector(".light.live")
    items = page.locator("#dead-items tr:visible")
    assert items.count() == (10 if is_open else 0)
    assert page.locator("#dead-text").inner_text().startswith("30 items, the oldest for ")
    if not is_open:
        # The other sections make up most of the page.
        height = page.locator("#dead-section").bounding_box()["height"]
        assert height < page.evaluate("document.documentElement.scrollHeight") / 4
        page.click("#dead > summary")
        assert items.count() == 10
