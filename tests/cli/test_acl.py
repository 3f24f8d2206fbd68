"""`workstealing acl`: one line, which a server takes, and which never holds a secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.acl import say_line
from support.servers import RedisServer
from workstealing import Recruiter, connect
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics.ledger import Ledger, total
from workstealing.metrics.ledger import read as read_ledger
from workstealing.structures import VolatileHashes
from workstealing.testing import always

MakeApp = Callable[[str], str]

APP = """
    from workstealing import Recruiter, connect
    from workstealing.jobs import HashFieldExpiry, IckReaper
    from workstealing.metrics.ledger import Ledger, total
    from workstealing.structures import Ick, VolatileHashes

    client = connect("redis://nobody:verysecret@127.0.0.1:1/0")
    recruiter = Recruiter()
    recruiter.install(HashFieldExpiry(VolatileHashes(client, namespace="items")), rate=0.1)
    recruiter.install(IckReaper(Ick(client, "list"), lease=10), rate=0.1)
    recruiter.add_hook(Ledger(client))
"""


def test_an_application_gets_one_line_for_all(command: Any, app_module: MakeApp) -> None:
    app = app_module(APP)
    line = command("acl", "--app", app, "--keys", "item:*", "--user", "shop")
    assert line.count("\n") == 1
    assert line.startswith("ACL SETUSER shop reset on >PASSWORD resetchannels ~")
    for pattern in ("{*}:ws:items:*", "item:*", "list", "{workstealing:ledger:default}:*"):
        assert f" ~{pattern} " in line
    assert " ~* " not in line
    assert "verysecret" not in line + command.err
    said = command.json("acl", "--app", app, "--keys", "item:*")
    assert [each["kind"] for each in said["structures"]] == ["volatile hashes", "Ick", "ledger"]


def test_all_keys_are_told_of(command: Any) -> None:
    line = command("acl", "--structure", "durable_keys", "--name", "locks")
    assert " ~* " in line
    assert "give --keys" in command.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no structure was named"),
        (
            ("--structure", "heap", "--name", "n"),
            "'heap' is not known: give one of volatile_hashes",
        ),
        (("--structure", "ick"), "no name was given for the Ick"),
        (("--structure", "ick", "--name", "n", "--user", "a b"), "is not usable"),
    ],
)
def test_wrong_use(command: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in command.refused("acl", *arguments)


@pytest.mark.real
@pytest.mark.parametrize("part", ["ledger", "dashboard", "doctor"])
def test_a_server_takes_the_lines_of_our_own_parts(
    command: Any, redis7: RedisServer, part: str
) -> None:
    line = command("acl", "--structure", part, "--user", part).strip()
    try:
        say_line(redis7.port, line.replace("PASSWORD", "secret"))
        url = f"redis://{part}:secret@127.0.0.1:{redis7.port}"
        if part == "doctor":
            said = command.json("doctor", "--url", url)
            assert {
                each["level"]
                for each in said["checks"]
                if each["what"]
                in {"server", "role", "eviction", "memory", "native", "clock", "round trip"}
            } == {"ok"}
        else:
            assert command.json("status", "--url", url)["is_well"] is not None
    finally:
        redis7.client().acl_deluser(part)


@pytest.mark.real
def test_a_ledger_and_a_job_work_under_their_lines(command: Any, redis7: RedisServer) -> None:
    arguments = ("--structure", "volatile_hashes", "--structure", "ledger", "--name", "own")
    line = command("acl", *arguments, "--keys", "k*", "--user", "shop").strip()
    try:
        say_line(redis7.port, line.replace("PASSWORD", "secret"))
        with connect(f"redis://shop:secret@127.0.0.1:{redis7.port}") as client:
            hashes = VolatileHashes(
                client, namespace="own", backend="emulated", clock_shift_ms=3_600_000
            )
            VolatileHashes(client, namespace="own", backend="emulated").hsetex("k", "f", "v", ex=9)
            recruiter: Recruiter = always(seconds=5.0)
            ledger = Ledger(client, "own")
            recruiter.add_hook(ledger)
            recruiter.install(HashFieldExpiry(hashes), rate=1.0)
            assert recruiter.enlist().name == "WORKED"
            assert recruiter.enlist().name == "IDLE"
            assert ledger.flush(10.0)
            assert [each.recruited for each in total(read_ledger(client, "own")).values()] == [2]
            ledger.close(10.0)
            with pytest.raises(Exception, match="permission"):
                hashes.hset("other", "f", "v")
    finally:
        redis7.client().acl_deluser("shop")
