"""What the gunicorn tests serve: a recruiter that always recruits, for a job that asks to go on.

The job connects to the test's control port, says how many slices had ended before it, and goes on
when the test answers. So the test holds a slice for as long as it likes, and no clock is needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gunicorn.http.wsgi import Response as GunicornResponse

from workstealing.integrations.wsgi import WorkStealingMiddleware
from workstealing.recruiting import Recruiter, Slice

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

CONTROL_PORT = int(os.environ["CONTROL_PORT"])
FILE = Path(os.environ["SERVED_FILE"])

ended = 0
sent_by_sendfile: list[bool] = []
recruiter = Recruiter()


@recruiter.job(rate=1.0)
def held(slice: Slice) -> int:
    """Wait until the test lets go."""
    global ended  # noqa: PLW0603 - one number for the whole worker is what the test asks for
    with socket.create_connection(("127.0.0.1", CONTROL_PORT)) as control:
        control.sendall(f"{ended}\n".encode())
        control.recv(1)
    ended += 1
    return 1


own_sendfile = GunicornResponse.sendfile


def note_sendfile(self: GunicornResponse, wrapper: object) -> bool:
    """Send as gunicorn does, and note whether sendfile did it."""
    answer: bool = own_sendfile(self, wrapper)
    sent_by_sendfile.append(answer)
    return answer


GunicornResponse.sendfile = note_sendfile


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer by path; every body says how many slices had ended when it was made."""
    path = environ["PATH_INFO"]
    body = f"ended={ended} sendfile={sent_by_sendfile}\n".encode()
    plain = ("Content-Type", "text/plain")
    if path.startswith("/file"):
        length = (
            [] if path == "/file/unmeasured" else [("Content-Length", str(FILE.stat().st_size))]
        )
        start_response("200 OK", [plain, *length])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](FILE.open("rb"), 8192)
        return wrapped
    if path == "/unmeasured":
        start_response("200 OK", [plain])
        return stream(body)
    if path == "/empty":
        start_response("304 Not Modified", [])
        return []
    start_response("200 OK", [plain, ("Content-Length", str(len(body)))])
    return [body]


def stream(body: bytes) -> Iterator[bytes]:
    """Send a body in two pieces."""
    yield body[:4]
    yield body[4:]


app = WorkStealingMiddleware(application, recruiter, when=lambda response: True)


def quiet(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Serve /quiet without an enlist, and everything else with one."""
    if environ["PATH_INFO"] == "/quiet":
        return application(environ, start_response)
    return app(environ, start_response)
