"""Django: its own handlers, a WSGI client that closes as servers do, and a real uvicorn."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import django
import pytest
from asgiref.sync import SyncToAsync, iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.asgi import get_asgi_application
from django.core.cache import cache
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.core.wsgi import get_wsgi_application
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseNotModified,
    StreamingHttpResponse,
)
from django.test import AsyncClient, override_settings
from django.test import Client as DjangoClient
from django.urls import path
from werkzeug.test import Client

from support.held_slices import HeldSlices, until
from support.uvicorn_server import Served
from workstealing.errors import ConfigurationError
from workstealing.integrations.asgi import WorkStealingMiddleware as AsgiMiddleware
from workstealing.integrations.django import SettingsError, WorkStealingMiddleware, check_settings
from workstealing.integrations.wsgi import WorkStealingMiddleware as WsgiMiddleware
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.deferral import current
from workstealing.testing import always, never

OURS = "workstealing.integrations.django.WorkStealingMiddleware"
COMMON = "django.middleware.common.CommonMiddleware"
CHUNKING = {"SERVER_SOFTWARE": "gunicorn/1"}

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of these tests",
        INSTALLED_APPS=["workstealing.integrations.django.WorkStealingConfig"],
        MIDDLEWARE=[OURS, COMMON],
        # Django's own logging set-up would take pytest's away.
        LOGGING_CONFIG=None,
    )
    django.setup()


class Site:
    """The views, which note what happens, and the settings that lead to them."""

    def __init__(self, recruiter: Recruiter, events: list[object]) -> None:
        self.recruiter = recruiter
        self.events = events

        @recruiter.enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
        def decorated(request: HttpRequest) -> HttpResponse:
            return HttpResponse("d", headers={"X-Cache": request.GET.get("is", "miss")})

        @recruiter.enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
        async def decorated_async(request: HttpRequest) -> HttpResponse:
            return HttpResponse("d", headers={"X-Cache": request.GET.get("is", "miss")})

        self.urlpatterns = (
            path("", self.page),
            path("async", self.async_page),
            path("stream", self.stream),
            path("async_stream", self.async_stream),
            path("broken_stream", self.broken_stream),
            path("same", self.same),
            path("file", self.file),
            path("error", self.error),
            path("exit", self.exit),
            path("decorated", decorated),
            path("decorated_async", decorated_async),
        )

    def page(self, request: HttpRequest) -> HttpResponse:
        self.events.append("page")
        return HttpResponse("page")

    async def async_page(self, request: HttpRequest) -> HttpResponse:
        self.events.append("page")
        return HttpResponse("page")

    def stream(self, request: HttpRequest) -> StreamingHttpResponse:
        @self.recruiter.enlists
        def parts() -> Iterator[str]:
            for number in range(2):
                self.events.append(number)
                yield "part"

        return StreamingHttpResponse(parts())

    async def async_stream(self, request: HttpRequest) -> StreamingHttpResponse:
        @self.recruiter.enlists
        async def parts() -> AsyncIterator[str]:
            for number in range(2):
                self.events.append(number)
                yield "part"

        return StreamingHttpResponse(parts())

    def broken_stream(self, request: HttpRequest) -> StreamingHttpResponse:
        def parts() -> Iterator[str]:
            yield "part"
            raise ValueError("mine")

        return StreamingHttpResponse(parts())

    def same(self, request: HttpRequest) -> HttpResponse:
        return HttpResponseNotModified()

    def file(self, request: HttpRequest) -> FileResponse:
        return FileResponse(io.BytesIO(b"file"))

    def error(self, request: HttpRequest) -> HttpResponse:
        raise ValueError("mine")

    def exit(self, request: HttpRequest) -> HttpResponse:
        raise SystemExit(3)

    def settings(self, *middleware: str, **setting: Any) -> override_settings:
        return override_settings(
            ROOT_URLCONF=self.urlpatterns,
            MIDDLEWARE=list(middleware or (OURS, COMMON)),
            WORKSTEALING={"RECRUITER": self.recruiter, **setting},
        )


@pytest.fixture(scope="module", autouse=True)
def _djangos_thread() -> None:
    """Begin the one thread in which a process's synchronous views run; it never ends."""
    SyncToAsync.single_thread_executor.submit(int).result()


@pytest.fixture
def site(recruiter: Recruiter, events: list[object]) -> Iterator[Site]:
    site = Site(recruiter, events)
    with site.settings():
        yield site


@pytest.fixture
def held() -> Iterator[HeldSlices]:
    held = HeldSlices()
    yield held
    held.go.set()


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


def get(url: str = "/", app: Any = None, **environ: Any) -> tuple[int, bytes]:
    """Run one request to its end as a WSGI server does, its close included."""
    response = Client(app or get_wsgi_application()).get(
        url, buffered=True, environ_overrides=environ
    )
    return response.status_code, response.data


class TestWSGI:
    @pytest.mark.parametrize("url", ["/", "/async"])
    def test_it_enlists_when_the_response_is_closed(
        self, site: Site, events: list[object], url: str
    ) -> None:
        response = Client(get_wsgi_application()).get(url, buffered=False)
        assert response.data == b"page"
        assert events == ["page"]
        response.close()
        assert events == ["page", "slice"]
        assert current.get() is None

    @pytest.mark.parametrize("url", ["/nowhere", "/same"])
    def test_error_pages_and_304s(self, site: Site, url: str) -> None:
        get(url)
        assert enlisted(site.recruiter) == 1

    def test_the_page_that_django_makes_of_an_exception(self, site: Site) -> None:
        assert get("/error")[0] == 500
        assert enlisted(site.recruiter) == 1

    def test_what_is_no_exception_passes_and_nobody_enlists(self, site: Site) -> None:
        with pytest.raises(SystemExit):
            get("/exit")
        assert enlisted(site.recruiter) == 0
        assert current.get() is None

    @pytest.mark.parametrize(
        ("middleware", "environ", "expected"),
        [
            ([OURS, COMMON], {}, 1),
            ([OURS], {}, 0),
            ([OURS], CHUNKING, 1),
            ([OURS], {**CHUNKING, "SERVER_PROTOCOL": "HTTP/1.0"}, 0),
        ],
    )
    def test_a_response_that_ends_with_its_connection_does_not_enlist(
        self, site: Site, middleware: list[str], environ: dict[str, str], expected: int
    ) -> None:
        with site.settings(*middleware):
            assert get(**environ) == (200, b"page")
        assert enlisted(site.recruiter) == expected

    @pytest.mark.parametrize("url", ["/stream", "/async_stream"])
    @pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
    def test_a_stream_enlists_once_after_its_last_part(
        self, site: Site, events: list[object], url: str
    ) -> None:
        """The generator is decorated, too: it decides for its request, whatever WHEN says."""
        with site.settings(WHEN=lambda _: False):
            assert get(url, **CHUNKING) == (200, b"partpart")
        assert events == [0, 1, "slice"]
        assert enlisted(site.recruiter) == 1

    def test_a_stream_that_breaks(self, site: Site) -> None:
        with pytest.raises(ValueError, match="mine"):
            get("/broken_stream", **CHUNKING)
        assert enlisted(site.recruiter) == 0

    @pytest.mark.parametrize(
        ("wrapper", "environ", "expected"),
        [(False, {}, 1), (True, {}, 0), (True, CHUNKING, 1)],
    )
    def test_a_file_stays_in_the_servers_own_wrapper(
        self, site: Site, wrapper: bool, environ: dict[str, str], expected: int
    ) -> None:
        wrapped: list[object] = []

        class FileWrapper:
            def __init__(self, file: Any, size: int) -> None:
                wrapped.append(file)
                self.file = file
                self.close = file.close

            def __iter__(self) -> Iterator[bytes]:
                yield self.file.read()

        more = {"wsgi.file_wrapper": FileWrapper} if wrapper else {}
        assert get("/file", **environ, **more) == (200, b"file")
        assert len(wrapped) == wrapper
        assert enlisted(site.recruiter) == expected

    def test_when(self, site: Site) -> None:
        with site.settings(WHEN=lambda response: response.status_code == 304):
            get("/")
            assert enlisted(site.recruiter) == 0
            get("/same")
            assert enlisted(site.recruiter) == 1

    @pytest.mark.parametrize("url", ["/decorated", "/decorated_async"])
    def test_a_decorated_view_decides_for_itself(self, site: Site, url: str) -> None:
        for when, count in ((lambda _: True, 1), (lambda _: False, 2)):
            with site.settings(WHEN=when):
                get(f"{url}?is=miss")
                assert enlisted(site.recruiter) == count - 1
                get(f"{url}?is=hit")
                assert enlisted(site.recruiter) == count

    def test_one_response_for_many_requests(self, site: Site) -> None:
        page = HttpResponse("always the same")
        site.urlpatterns = (path("", lambda request: page),)
        with site.settings():
            for count in range(1, 4):
                assert get() == (200, b"always the same")
                assert enlisted(site.recruiter) == count
            assert page.close.original == HttpResponse.close.__get__(page)

    def test_djangos_cache_can_keep_the_response(self, site: Site, events: list[object]) -> None:
        cached = "django.middleware.cache."
        names = (f"{cached}UpdateCacheMiddleware", OURS, f"{cached}FetchFromCacheMiddleware")
        cache.clear()
        with site.settings(*names, COMMON):
            assert get() == (200, b"page")
            assert events == ["page", "slice"]
            assert get() == (200, b"page")
        # The second request enlists for itself alone: the kept response has forgotten the first.
        assert events == ["page", "slice", "slice"]

    def test_djangos_own_test_client(self, site: Site, events: list[object]) -> None:
        assert DjangoClient().get("/").content == b"page"
        assert events == ["page", "slice"]


class TestOnce:
    def test_the_middleware_twice(self, site: Site) -> None:
        with site.settings(OURS, OURS, COMMON):
            get("/")
        assert enlisted(site.recruiter) == 1

    def test_inside_the_wsgi_middleware(self, site: Site) -> None:
        get(app=WsgiMiddleware(get_wsgi_application(), site.recruiter))
        assert enlisted(site.recruiter) == 1

    async def test_inside_the_asgi_middleware(self, site: Site) -> None:
        app = AsgiMiddleware(get_asgi_application(), site.recruiter)
        async with Served(app) as served, served.client() as web:
            assert (await web.get("/async")).text == "page"
            await until(lambda: enlisted(site.recruiter) == 1)


class TestASGI:
    @pytest.mark.parametrize("url", ["/", "/async"])
    async def test_by_djangos_own_test_client(
        self, site: Site, events: list[object], url: str
    ) -> None:
        assert (await AsyncClient().get(url)).content == b"page"
        await until(lambda: "slice" in events)
        assert events == ["page", "slice"]
        assert enlisted(site.recruiter) == 1

    async def test_requests_at_once(self, site: Site) -> None:
        with site.settings(WHEN=lambda _: False):
            urls = [f"/decorated_async?is={'hit' if n % 4 == 0 else 'miss'}" for n in range(20)]
            await asyncio.gather(*(AsyncClient().get(url) for url in urls))
        assert enlisted(site.recruiter) == 5

    @pytest.mark.parametrize(
        ("url", "text"),
        [("/", "page"), ("/async", "page"), ("/async_stream", "partpart"), ("/decorated", "d")],
    )
    async def test_under_uvicorn_nobody_waits_for_a_slice(
        self, held: HeldSlices, events: list[object], url: str, text: str
    ) -> None:
        site = Site(held.recruiter, events)
        with site.settings():
            async with Served(get_asgi_application()) as served, served.client() as web:
                assert (await web.get(url, params={"is": "hit"})).text == text
                await until(held.begun.is_set)
                # The same keep-alive connection, while the slice lasts.
                assert (await web.get("/async")).text == "page"
                async with served.client() as another:
                    assert (await another.get("/")).text == "page"
                assert held.worked == 0
                held.go.set()
                await until(lambda: held.worked)
        assert all(thread.name != "MainThread" for thread in held.threads)

    async def test_a_chain_of_coroutines_makes_a_coroutine(self) -> None:
        held = HeldSlices()

        async def answer(request: HttpRequest) -> HttpResponse:
            return HttpResponse("page")

        with override_settings(WORKSTEALING={"RECRUITER": held.recruiter}):
            middleware = WorkStealingMiddleware(answer)
            assert iscoroutinefunction(middleware)
            assert not iscoroutinefunction(WorkStealingMiddleware(lambda request: HttpResponse()))
            # Closed on the loop itself: the slice goes to a thread.
            response = await middleware(HttpRequest())
            response.close()
        held.go.set()
        await until(lambda: held.worked)
        assert held.enlisted == 1
        assert held.threads != [threading.current_thread()]

    async def test_a_cancelled_request_does_not_enlist(self, recruiter: Recruiter) -> None:
        async def answer(request: HttpRequest) -> HttpResponse:
            await asyncio.Event().wait()
            raise AssertionError

        with override_settings(WORKSTEALING={"RECRUITER": recruiter}):
            task = asyncio.ensure_future(WorkStealingMiddleware(answer)(HttpRequest()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert enlisted(recruiter) == 0


class TestHarm:
    def test_a_slice_that_raises(self, events: list[object]) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def fails(slice: Slice) -> int:
            raise OSError("no such server")

        with Site(recruiter, events).settings():
            assert get() == (200, b"page")
        assert recruiter.stats()["jobs"]["fails"]["failed"] == 1

    def test_what_is_no_exception_passes_to_the_server(self, events: list[object]) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def leaves(slice: Slice) -> int:
            raise SystemExit(3)

        with Site(recruiter, events).settings(), pytest.raises(SystemExit):
            get()
        assert events == ["page"]


def ids(found: list[checks.CheckMessage]) -> list[str | None]:
    return [each.id for each in found]


class TestChecks:
    def test_what_is_right_passes(self, site: Site) -> None:
        assert check_settings() == []
        with override_settings(
            WORKSTEALING={"RECRUITER": "workstealing:default_recruiter", "WHEN": "builtins:bool"}
        ):
            assert check_settings() == []
        with override_settings():
            del settings.WORKSTEALING
            assert check_settings() == []

    @pytest.mark.parametrize(
        ("setting", "known_as", "said"),
        [
            ("shop:recruiter", "E001", "WORKSTEALING is 'shop:recruiter'; expected a dict"),
            ({"RECRUITR": "x"}, "E002", "unknown key 'RECRUITR'"),
            ({"RECRUITER": "no.such.module:it"}, "E003", "cannot be imported"),
            ({"RECRUITER": "workstealing:no_such_name"}, "E003", "cannot be imported"),
            ({"RECRUITER": "not a name"}, "E003", "cannot be imported"),
            ({"RECRUITER": "workstealing:Job"}, "E003", "expected a Recruiter"),
            ({"WHEN": "workstealing:__version__"}, "E004", "expected a function"),
            ({"WHEN": 7}, "E004", "WORKSTEALING['WHEN'] is 7"),
        ],
    )
    def test_what_is_wrong_is_said_at_start_up(
        self, site: Site, setting: object, known_as: str, said: str
    ) -> None:
        with override_settings(WORKSTEALING=setting):
            (found,) = check_settings()
            assert found.id == f"workstealing.{known_as}"
            assert found.level == checks.ERROR
            assert said in found.msg
            with pytest.raises(SystemCheckError, match=f"workstealing.{known_as}"):
                call_command("check", tags=["workstealing"])
            # Who deploys without the checks hears the same.
            with pytest.raises(SettingsError) as raised:
                WorkStealingMiddleware(lambda request: None)
            assert said in str(raised.value)
            assert isinstance(raised.value, ConfigurationError)

    def test_two_errors_at_once(self, site: Site) -> None:
        with override_settings(WORKSTEALING={"RECRUITER": 1, "WHEN": 2}):
            assert ids(check_settings()) == ["workstealing.E003", "workstealing.E004"]

    def test_the_middleware_is_missing_or_listed_twice(self, site: Site) -> None:
        with site.settings(COMMON):
            assert ids(check_settings()) == ["workstealing.W001"]
        with site.settings(OURS, COMMON, OURS):
            assert ids(check_settings()) == ["workstealing.W002"]


def test_without_django_the_error_names_the_extra(run_python: Callable[[str], str]) -> None:
    program = (
        "import sys\n"
        "sys.modules['django'] = None\n"
        "from workstealing.errors import MissingExtraError\n"
        "try:\n"
        "    import workstealing.integrations.django\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'workstealing[django]'" in run_python(program)


def answered(
    recruiter: Recruiter,
    environ: dict[str, Any],
    kind: Callable[..., HttpResponse] = HttpResponse,
) -> Any:
    """Return the middleware's response to a request whose view gives its length."""

    class Request:
        pass

    def view(request: Any) -> HttpResponse:
        return kind(b"hello", headers={"Content-Length": "5"})

    request = Request()
    request.environ = environ  # type: ignore[attr-defined]
    with override_settings(WORKSTEALING={"RECRUITER": recruiter}):
        return WorkStealingMiddleware(view)(request)


def test_the_response_of_a_dismissed_request_is_left_alone() -> None:
    recruiter = never()
    recruiter.job(rate=1.0)(lambda slice: 1)
    response = answered(recruiter, {"SERVER_PROTOCOL": "HTTP/1.0"})
    assert "close" not in vars(response)
    assert recruiter.stats()["enlisted"] == 1


@pytest.mark.parametrize("way", ["class", "closer", "patched"])
def test_code_that_runs_when_a_response_is_closed_belongs_to_the_request(
    recruiter: Recruiter, events: list[object], way: str
) -> None:
    """Such code has a decorated function: the request enlists once all the same."""
    dismissing = never()
    dismissing.job(rate=1.0)(lambda slice: 1)

    @recruiter.enlists
    def tidy() -> None:
        events.append("tidy")

    class Closing(HttpResponse):
        def close(self) -> None:
            tidy()
            super().close()

    def made(*args: Any, **options: Any) -> HttpResponse:
        response = (Closing if way == "class" else HttpResponse)(*args, **options)
        if way == "patched":
            response.close = tidy
        elif way == "closer":
            response._resource_closers.append(tidy)
        return response

    response = answered(dismissing, {"SERVER_PROTOCOL": "HTTP/1.0"}, made)
    events.append(b"".join(response))
    response.close()
    assert events[-1] == "slice"
    assert events[:2] == [b"hello", "tidy"]
    assert (dismissing.stats()["enlisted"], recruiter.stats()["enlisted"]) == (0, 1)


def test_a_recruits_response_is_followed_by_the_slice(
    recruiter: Recruiter, events: list[object]
) -> None:
    response = answered(recruiter, {"SERVER_PROTOCOL": "HTTP/1.0"})
    assert events == []
    response.close()
    assert events == ["slice"]
