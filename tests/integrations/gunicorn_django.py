"""The Django project that the gunicorn tests serve, with the recruiter of gunicorn_app."""

from __future__ import annotations

from collections.abc import Iterator

import django
import gunicorn_app
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path


def text() -> str:
    """Return what every page says."""
    return f"ended={gunicorn_app.ended} sendfile={gunicorn_app.sent_by_sendfile}\n"


def page(_: HttpRequest) -> HttpResponse:
    """Answer with a length."""
    return HttpResponse(text())


def stream(_: HttpRequest) -> StreamingHttpResponse:
    """Answer in two pieces."""

    def pieces() -> Iterator[str]:
        yield text()[:4]
        yield text()[4:]

    return StreamingHttpResponse(pieces())


def file(_: HttpRequest) -> FileResponse:
    """Answer with a file."""
    return FileResponse(gunicorn_app.FILE.open("rb"))


settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=(path("", page), path("unmeasured", stream), path("file", file)),
    MIDDLEWARE=[
        "workstealing.integrations.django.WorkStealingMiddleware",
        "django.middleware.common.CommonMiddleware",
    ],
    WORKSTEALING={
        "RECRUITER": gunicorn_app.recruiter,
        "WHEN": lambda response: response.status_code == 200,
    },
)
django.setup()
application = get_wsgi_application()
