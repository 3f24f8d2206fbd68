"""Fork and gevent: each case runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def run(program: str) -> Any:
    """Run a program in a fresh interpreter and return the JSON object that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FAMILY = """
    import json, os, threading
    from workstealing import Recruiter
    from workstealing.recruiting import FunctionJob

    def in_child(work):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with os.fdopen(write, "w") as out:
                json.dump(work(), out)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answers:
            answer = answers.read()
        assert os.waitpid(child, 0)[1] == 0
        return json.loads(answer)
"""


@fork
def test_children_draw_independently_of_each_other_and_of_their_parent() -> None:
    draws = run(
        FAMILY
        + """
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=0.1)

    def outcomes():
        return [recruiter.enlist().value == "worked" for _ in range(4000)]

    # The parent has drawn already how many callers to dismiss next: a child must not inherit it.
    outcomes()
    children = [in_child(outcomes) for _ in range(4)]
    print(json.dumps([*children, outcomes()]))
    """
    )
    assert len({tuple(each) for each in draws}) == 5
    for one in range(5):
        assert 250 < sum(draws[one]) < 550
        for other in range(one):
            # Independent draws at 0.1 coincide in 40 of 4,000 places; the same draws in 400.
            both = sum(a and b for a, b in zip(draws[one], draws[other], strict=True))
            assert both < 100


@fork
def test_the_first_gap_of_each_child_is_its_own() -> None:
    gaps = run(
        FAMILY
        + """
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=0.001)
    recruiter.enlist()

    def gap():
        dismissed = 0
        while recruiter.enlist().value == "dismissed":
            dismissed += 1
        return dismissed

    print(json.dumps([in_child(gap) for _ in range(12)]))
    """
    )
    assert len(set(gaps)) > 8


@fork
def test_a_child_counts_from_zero_and_keeps_the_jobs() -> None:
    child, parent = run(
        FAMILY
        + """
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
    for _ in range(100):
        recruiter.enlist()

    def work():
        before = recruiter.stats()
        recruiter.enlist()
        return [before, recruiter.stats()]

    print(json.dumps([in_child(work), recruiter.stats()]))
    """
    )
    assert child[0]["enlisted"] == child[0]["jobs"]["a"]["recruited"] == 0
    assert child[0]["jobs"]["a"]["rate"] == 1
    assert child[1]["enlisted"] == child[1]["jobs"]["a"]["worked"] == 1
    assert parent["enlisted"] == parent["jobs"]["a"]["worked"] == 100


@fork
def test_locks_and_the_slice_that_other_threads_hold_at_the_fork_do_not_hold_up_the_child() -> None:
    answer = run(
        FAMILY
        + """
    recruiter = Recruiter()
    entered, leave = threading.Event(), threading.Event()

    @recruiter.job(rate=1)
    def wait(slice):
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            leave.wait()
        raise ValueError("logged")

    slicer = threading.Thread(target=recruiter.enlist)
    slicer.start()
    entered.wait()

    held = threading.Event()

    def hold():
        with recruiter._lock, recruiter._performer._lock, recruiter._faults._lock:
            held.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def work():
        outcome = recruiter.enlist().value
        recruiter.set_rate("wait", 0.5)
        return [outcome, recruiter.stats()["enlisted"]]

    answer = in_child(work)
    leave.set()
    slicer.join()
    holder.join()
    print(json.dumps(answer))
    """
    )
    assert answer == ["failed", 1]


GEVENT = """
    from gevent import monkey
    monkey.patch_all()
    import gevent, json
    from workstealing import Recruiter
    from workstealing.recruiting import FunctionJob
"""


class TestGevent:
    """Slices that yield to the hub, as every slice does whose client is patched."""

    def test_one_slice_at_a_time_and_exact_counts(self) -> None:
        pytest.importorskip("gevent")
        answer = run(
            GEVENT
            + """
    recruiter = Recruiter()
    running, most = [0], [0]

    def perform(slice):
        running[0] += 1
        most[0] = max(most[0], running[0])
        gevent.sleep(0.001)
        running[0] -= 1
        return 1

    recruiter.install(FunctionJob(perform, name="a"), rate=0.05)

    def serve():
        for request in range(2000):
            recruiter.enlist()
            if request % 20 == 0:
                gevent.sleep(0)

    gevent.joinall([gevent.spawn(serve) for _ in range(50)], raise_error=True)
    print(json.dumps([most[0], recruiter.stats()]))
    """
        )
        most, stats = answer
        figures = stats["jobs"]["a"]
        assert most == 1
        assert stats["enlisted"] == 100_000
        assert figures["recruited"] == figures["worked"] + figures["skipped"]
        assert figures["items"] == figures["worked"] > 0
        assert figures["skipped"] > 0
        assert 4_500 < figures["recruited"] < 5_500

    def test_a_timeout_and_a_kill_pass_through_and_free_the_place(self) -> None:
        pytest.importorskip("gevent")
        answer = run(
            GEVENT
            + """
    from workstealing.testing import always
    recruiter = always()
    patience = [10]

    def perform(slice):
        gevent.sleep(patience[0])
        return 1

    recruiter.install(FunctionJob(perform, name="a"), rate=1)
    seen = []
    try:
        with gevent.Timeout(0.01):
            recruiter.enlist()
    except gevent.Timeout:
        seen.append("timeout")
    greenlet = gevent.spawn(recruiter.enlist)
    gevent.sleep(0)
    seen.append(recruiter.enlist().value)
    greenlet.kill()
    patience[0] = 0
    seen.append(recruiter.enlist().value)
    figures = recruiter.stats()["jobs"]["a"]
    print(json.dumps([seen, figures["failed"], figures["recruited"]]))
    """
        )
        assert answer == [["timeout", "skipped", "worked"], 2, 4]

    def test_hooks_of_one_greenlet_do_not_silence_those_of_another(self) -> None:
        pytest.importorskip("gevent")
        answer = run(
            GEVENT
            + """
    from workstealing.testing import RecordingHooks, always

    class Slow(RecordingHooks):
        def on_recruited(self, job):
            super().on_recruited(job)
            gevent.sleep(0.001)

    recruiter, hooks = always(), Slow()
    recruiter.add_hook(hooks)
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
    gevent.joinall([gevent.spawn(recruiter.enlist) for _ in range(20)], raise_error=True)
    print(json.dumps([len(hooks.recruited), len(hooks.outcomes)]))
    """
        )
        assert answer == [20, 20]
