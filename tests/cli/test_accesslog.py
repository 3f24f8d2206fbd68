"""Access logs: which lines count, and what is asked for."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from workstealing.cli.demo import web
from workstealing.cli.demo.web import Request, read_access_log

WHO = "192.0.2.1 - frank [10/Oct/2025:13:55:36 -0700]"
REAL_LOG = Path(__file__).resolve().parents[3] / "shared" / "data" / "apache_access.log.gz"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f'{WHO} "GET /a HTTP/1.1" 200 2326', Request("/a")),
        (f'{WHO} "GET /a HTTP/1.1" 304 -', Request("/a", conditional=True)),
        (f'{WHO} "GET /a?b=c&d HTTP/1.0" 200 1 "http://x.example/" "X (Y)"', Request("/a?b=c&d")),
        (f'{WHO} "HEAD // HTTP/2.0" 200 0 "-" "-" extra', Request("//")),
        (f'{WHO} "GET /old" 200 1', Request("/old")),
        (f'{WHO} "GET http://x.example/a?b HTTP/1.1" 200 1', Request("/a?b")),
        (f'{WHO} "GET http://x.example HTTP/1.1" 200 1', Request("/")),
        (f'{WHO} "GET /go?to=http://y.example/ HTTP/1.1" 302 1', Request("/go?to=http://y.example/")),
        (f'{WHO} "GET /a b/\u00e9 HTTP/1.1" 200 1', Request("/a%20b/%C3%A9")),
        (f'{WHO} "GET /100%25#part HTTP/1.1" 200 1', Request("/100%25")),
        ('2001:db8::1 - a b [now] "GET /x HTTP/1.1" 404 1', Request("/x")),
    ],
)  # fmt: skip
def test_a_line_becomes_a_request(tmp_path: Path, line: str, expected: Request) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n", encoding="utf-8")
    assert read_access_log(path) == [expected]


def test_lines_without_a_path_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [
        f'{WHO} "OPTIONS * HTTP/1.0" 200 1',
        f'{WHO} "GET /{"a" * 3000} HTTP/1.0" 414 1',
        f'{WHO} "-" 408 0',
        "",
        f'{WHO} "GET /b HTTP/1.0" 200 1',
    ]
    path.write_text("\n".join(lines))
    assert read_access_log(path) == [Request("/b")]


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "access.log.1"
    path.write_bytes(gzip.compress(f'{WHO} "GET /a HTTP/1.1" 200 1\n'.encode() * 3))
    assert read_access_log(path) == [Request("/a")] * 3


def test_a_long_log_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_REQUESTS", 5)
    path = tmp_path / "log"
    path.write_text(f'{WHO} "GET /a HTTP/1.1" 200 1\n' * 9)
    assert len(read_access_log(path)) == 5


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real access log is not at hand")
def test_the_real_log() -> None:
    requests = read_access_log(REAL_LOG)
    assert 9_990 <= len(requests) <= 10_000
    assert sum(request.conditional for request in requests) == 445
    assert len({request.target for request in requests}) == pytest.approx(1_498, abs=10)
