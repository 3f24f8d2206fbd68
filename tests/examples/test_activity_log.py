"""The example of the activity log does what its README says, by its one command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.processes import end, free_port, spawn
from support.servers import RedisServer, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
README = (EXAMPLES / "activity_log" / "README.md").read_text("utf-8")
REAL_LOG = Path(__file__).parents[3] / "shared" / "data" / "apache_access.log.gz"
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
LACKING = [name for name in ("pyspark", "pandas", "pyarrow") if find_spec(name) is None]
if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
    LACKING.append("Java")
SECONDS = 240
QUICK = ("--no-spark", "--seconds", "2", "--past", "3000")


def command(*options: str) -> list[str]:
    """Return the command of the README, to be run by this interpreter."""
    (module,) = re.findall(r"^    PYTHONPATH=examples \.venv/bin/python -m (\w+)$", README, re.M)
    return [sys.executable, "-P", "-u", "-m", module, *options]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.endswith("REDIS_URL")}
    return {**clean, "PYTHONPATH": str(EXAMPLES), **more}


def run_example(*options: str, **more: str) -> str:
    """Run the command; return what it has printed once everything is proved."""
    done = subprocess.run(
        command(*options),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # On a busy machine a recruit may run out of time, and says so.
    said = re.sub(
        r"(?m)^job '\w+'(?: failed: TimeoutError: .*|: its slice of .* was over .*)\n",
        "",
        done.stderr,
    )
    assert not said
    return done.stdout


def number(pattern: str, text: str) -> int:
    """Return the number that a pattern finds in what was printed."""
    (found,) = re.findall(pattern, text, re.M)
    return int(found.replace(",", ""))


def check(said: str, proofs: int = 5) -> None:
    """Check what holds at any speed."""
    assert "FAILED" not in said
    assert len(re.findall(r"^proved: ", said, re.M)) == proofs
    # The README shows these sentences; its figures are of another run.
    shown = set(re.findall(r"^    proved: (.*)$", README, re.M))
    for sentence in re.findall(r"^proved: (.*)$", said, re.M):
        assert re.sub(r"[\d,]+", "N", sentence) in {re.sub(r"[\d,]+", "N", each) for each in shown}
    blocks = number(r"blocks: ([\d,]+) compressed", said)
    # Recruits alone have compacted every full block. A recruit whose last reply came too late, or
    # never, does not know of its block.
    compacted = number(r"recruited to compact: .*: (\d+) blocks$", said)
    late = number(r"recruited to compact: .* (\d+) out of time", said)
    failed = number(r"recruited to compact: .* (\d+) failed", said)
    assert compacted + late + failed >= blocks > 0
    assert number(r"blocks: .* ([\d,]+) sealed", said) == 0
    again = number(r"([\d,]+) entries came again$", said)
    assert again >= number(r"a member died with ([\d,]+) in its hands$", said) > 0


def check_memory(said: str) -> None:
    """Check what the server itself has said of both; it is what the headline divides."""
    log = number(r"the log: ([\d,]+) bytes", said)
    stream = number(r"the stream: ([\d,]+) bytes", said)
    assert 0 < log < stream / 4
    assert f"A Redis stream takes {stream / log:.1f} times as much memory as the log" in said


@pytest.mark.slow
def test_by_its_command_without_spark() -> None:
    said = run_example(*QUICK)
    check(said)
    assert "Spark is left out, because of --no-spark" in said
    if "redis-server" in said:
        check_memory(said)


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKING) and not IN_CI, reason=f"{', '.join(LACKING)} missing")
def test_spark_counts_by_minute() -> None:
    said = run_example("--seconds", "3", "--past", "3000")
    check(said, proofs=6)
    counted = number(r"^Spark: ([\d,]+) entries in \d+ minutes", said)
    assert counted == number(r"proved: each of ([\d,]+) requests", said)
    # Half an hour was there before, and each minute of it has entries.
    assert number(r"^Spark: .* in (\d+) minutes", said) >= 30


@pytest.mark.slow
def test_without_what_spark_needs_it_says_so_and_goes_on(tmp_path: Path) -> None:
    # Whatever is on the path: where Java is not, and nothing else either.
    for program in ("redis-server", "setpriv"):
        if found := shutil.which(program):
            (tmp_path / program).symlink_to(found)
    options = [each for each in QUICK if each != "--no-spark"]
    said = run_example(*options, PATH=str(tmp_path), JAVA_HOME="")
    check(said)
    assert re.search(r"^Spark is left out: .*Java missing: nothing counts by minute$", said, re.M)


@pytest.mark.slow
@pytest.mark.real
def test_on_a_server_of_the_users_own(redis7: RedisServer) -> None:
    said = run_example(*QUICK, "--retain", "2000", REDIS_URL=redis7.url)
    check(said)
    check_memory(said)
    assert number(r"([\d,]+) were trimmed", said) > 0
    # But for the receipts of its last reads, which the server removes.
    client = redis7.client()
    assert [each for each in client.keys("example:*") if client.ttl(each) == -1] == []


@pytest.mark.slow
@pytest.mark.real
def test_a_real_access_log(redis7: RedisServer) -> None:
    if not REAL_LOG.exists():
        pytest.skip("../shared/data/apache_access.log.gz is not here")
    options = ("--no-spark", "--seconds", "2", "--url", redis7.url)
    said = run_example(*options, "--access-log", str(REAL_LOG))
    check(said)
    check_memory(said)
    assert number(r"^entries: ([\d,]+) of the past", said) == 10_000


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the example meanwhile; yield its process and the address of its page."""
    port = free_port()
    process = spawn(
        command(*options, "--port", str(port)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}/memory"

    def answers() -> bool:
        assert process.poll() is None, process.communicate()[0].decode()
        try:
            return "Groups" in read(address)
        except OSError:
            return False

    try:
        wait_until(answers, "the page", SECONDS)
        yield process, address
    finally:
        end(process)


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_the_page_shows_what_is_measured_and_ctrl_c_ends_it() -> None:
    with running("--no-spark", "--seconds", "600", "--past", "3000") as (process, address):
        wait_until(lambda: re.search(r"[1-9]\d* compressed", read(address)), "a recruit", SECONDS)
        page = read(address)
        assert "Spark is left out, because of --no-spark" in page
        assert re.search(r"<td>alerts<td class=\"n\">[\d,]+<td", page)
        assert re.search(r"<td>popularity<td class=\"n\">[\d,]+<td", page)
        assert re.search(r"<td>compact<td class=\"n\">[1-9]", page)
        if "nothing is measured" not in page:
            assert len(re.findall(r"<div class=\"bar is-(?:log|stream)\"", page)) == 2
            assert len(re.findall(r"<polyline points=\"[\d. ,]+\"", page)) == 2
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=SECONDS)[0].decode()
    assert process.returncode == 1
    assert "stopped before the end: nothing is proved" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--url", "redis://127.0.0.1:{}/0"), r".*[Cc]onnect.*"),
        (("--url", "nonsense"), r".+"),
        (("--access-log", "/no/such/log"), r"'/no/such/log' cannot be read as an access log: .+"),
        (("--access-log", os.devnull), r"'/dev/null' is no access log: .+"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(options: tuple[str, ...], problem: str) -> None:
    done = subprocess.run(
        command(*(each.format(free_port()) for each in options)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"activity_log: {problem}\n", done.stderr)


def test_an_entry_holds_what_its_line_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from activity_log.entries import of_access_log

    log = tmp_path / "log"
    log.write_text(
        '10.0.0.1 - ann [17/May/2015:10:05:43 +0200] "POST /a?b=1 HTTP/1.1" 503 - "-" "curl/8 x"\n'
        "garbage\n"
        '::1 - - [17/May/2015:10:05:44 +0000] "GET / HTTP/1.0" 304 17\n'
    )
    first, second = (json.loads(json.dumps(each)) for each in of_access_log(log))
    common: dict[str, Any] = {"ms": 0, "referrer": "-"}
    assert first == {
        "at": "2015-05-17T08:05:43.000+00:00",
        "host": "10.0.0.1",
        "method": "POST",
        "path": "/a?b=1",
        "status": 503,
        "bytes": 0,
        "agent": "curl/8 x",
        **common,
    }
    assert second == {
        "at": "2015-05-17T10:05:44.000+00:00",
        "host": "::1",
        "method": "GET",
        "path": "/",
        "status": 304,
        "bytes": 17,
        "agent": "-",
        **common,
    }
