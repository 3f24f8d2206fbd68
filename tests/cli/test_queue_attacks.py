"""`workstealing queue` where its streams are closed or full, and with times beyond all bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.structures import RedisStore, ShuffleQueue, TimeShardQueue

pytestmark = pytest.mark.real
CENTURY = "36500d"


@pytest.fixture(autouse=True)
def _environment(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)


@pytest.fixture
def queue(redis7: RedisServer) -> Any:
    return ShuffleQueue(redis7.client(), "mails")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in which $W is the command, by a shell, which can close what Python cannot."""
    source = "import sys; from workstealing.cli import main; sys.exit(main())"
    command = f"{sys.executable} -c '{source}'"
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("$W", command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )


class TestClosedStreams:
    def test_without_standard_input_it_is_said_that_there_is_no_message(self, queue: Any) -> None:
        ended = shell("$W queue produce mails --kind shuffle --tenant t <&-")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count("\n") == 1
        assert "there is no message: name it" in ended.stderr
        assert queue.length() == 0

    def test_who_closes_stdout_wants_to_hear_nothing(self, queue: Any) -> None:
        ended = shell("$W queue produce mails --kind shuffle --tenant t a >&-")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert queue.length() == 1
        assert shell("$W queue observe mails --once >&-").returncode == 0
        ended = shell("$W queue consume mails --group g --count 1 --json >&- 2>&-")
        assert ended.returncode == 0
        assert queue.length() == 0

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_a_full_disk_is_no_fault_of_the_redis(self, queue: Any) -> None:
        ended = shell("$W queue produce mails --kind shuffle --tenant t a >/dev/full")
        assert ended.returncode == 1
        said = "workstealing: stdout cannot be written to: No space left on device\n"
        assert ended.stderr == said
        ended = shell("$W queue consume mails --group g --count 1 >/dev/full")
        assert ended.returncode == 1
        assert "stdout cannot be written to" in ended.stderr
        assert "1 given back" in ended.stderr
        assert "Redis" not in ended.stderr
        assert queue.stats("g")["returned"] == 1
        assert shell("$W doctor >/dev/full").returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "mails", "--tenant", "t", "--every", "1e300", "x", "y"),
        ("observe", "mails", "--times", "2", "--interval", "1e12"),
        ("consume", "mails", "--group", "g", "--fail", "1", "--delay", "1e300"),
        ("consume", "mails", "--group", "g", "--fail", "1", "--delay", "36501d"),
        ("consume", "letters", "--fail", "1", "--delay", "1e12"),
        ("consume", "letters", "--drain-all", "--lease", "1e300"),
        ("consume", "letters", "--block", "1e300"),
    ],
)
def test_a_time_beyond_all_bounds_is_refused_before_anything_is_done(
    command: Any, redis7: RedisServer, queue: Any, arguments: tuple[str, ...]
) -> None:
    """Otherwise a message was taken and printed before its delay turned out to be none."""
    queue.write("t", {"message": "a"})
    letters = TimeShardQueue(RedisStore(redis7.client()), "letters")
    letters.put("a")
    said = command.refused("queue", *arguments)
    assert "is too long: at most 36500d" in said
    assert queue.length() == 1
    assert queue.groups() == []
    assert sum(each.leased for each in letters.observe()) == 0


def test_the_longest_delay_is_kept(command: Any, redis7: RedisServer, queue: Any) -> None:
    queue.write("t", {"message": "a"})
    fails = ("--count", "1", "--fail", "1", "--delay", CENTURY)
    command("queue", "consume", "mails", "--group", "g", *fails)
    assert queue.stats("g")["delayed"] == 1
    letters = TimeShardQueue(RedisStore(redis7.client()), "letters")
    letters.put("a")
    command("queue", "consume", "letters", "--drain-all", *fails)
    assert letters.take("worker", drain_all=True) is None
    assert sum(each.total for each in letters.observe()) == 1


def test_fields_that_no_utf8_can_write_are_refused_in_a_sentence(command: Any, queue: Any) -> None:
    bad = json.dumps({"greeting": "\ud800"})
    arguments = ("queue", "produce", "mails", "--kind", "shuffle", "--tenant", "t", "--fields", bad)
    assert "the field 'greeting' cannot be written" in command.refused(*arguments)
    assert queue.length() == 0
