"""A fresh process's first slice works: all that needs no server was done before it began."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.certificates import make_certificates
from support.first_slices import GARBAGE, JOBS
from support.processes import free_port
from support.servers import RedisServer
from workstealing import jobs
from workstealing.recruiting.job import Job

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
# A busy machine is no dead server.
from support.patience import PATIENT_SECONDS
from workstealing.clock import SYSTEM_CLOCK
from workstealing.store.budget import Budget
Budget.__init__.__defaults__ = (None, PATIENT_SECONDS, SYSTEM_CLOCK)
from support.first_slices import first_slice
name, options, in_child, seconds = json.loads(sys.argv[2])
first_slice(name, options, in_child=in_child, seconds=seconds)
"""

pytestmark = pytest.mark.real


def first_slice(
    name: str, options: dict[str, Any], *, in_child: bool = False, seconds: float = 10.0
) -> tuple[str, list[str]]:
    """Let a fresh process do a slice; return its outcome, and what it had to load in it."""
    given = json.dumps([name, options, in_child, seconds])
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(TESTS), given],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome, loaded = json.loads(done.stdout)
    return outcome, loaded


def server_for(name: str, request: pytest.FixtureRequest) -> RedisServer:
    found: RedisServer = request.getfixturevalue(
        "redis8" if name.startswith("migrate_to") else "redis7"
    )
    return found


@pytest.mark.parametrize(
    "in_child",
    [
        pytest.param(False, id="fresh"),
        pytest.param(True, id="forked", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", GARBAGE)
def test_the_first_recruit_works_and_loads_nothing(
    request: pytest.FixtureRequest, name: str, in_child: bool
) -> None:
    server = server_for(name, request)
    GARBAGE[name](server.client())
    # A name, as applications give one: what resolves it has to be there, too.
    options = {"host": "localhost", "port": server.port}
    assert first_slice(name, options, in_child=in_child) == ("worked", [])


# Jobs whose first slice is not tried here.
LEFT_OUT = {
    "fleet_rebalance": "it takes two servers of a fleet",
    "native_field_audit": "it only looks",
    "sql_expiry": "it asks no Redis",
}


def test_each_job_that_ships_is_tried() -> None:
    made = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        for name in jobs.__all__
        if issubclass(getattr(jobs, name), Job)
        # Jobs of rules have rules of their own, and one loading of all.
        and not name.endswith("Leftovers")
    }
    assert made == GARBAGE.keys() | LEFT_OUT.keys()
    assert GARBAGE.keys() == JOBS.keys()


def test_a_first_slice_over_tls_reads_no_certificates(
    tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    folder = make_certificates(tmp_path, "server")
    port, certificate = free_port(), str(folder / "server.crt")
    server = start_redis(
        7,
        tls_port=port,
        tls_cert_file=certificate,
        tls_key_file=folder / "server.key",
        tls_auth_clients="no",
    )
    options = {"host": "localhost", "port": port, "ssl": True, "ssl_ca_certs": certificate}
    GARBAGE["hash_field_expiry"](server.client())
    assert first_slice("hash_field_expiry", options) == ("worked", [])
    assert server.client().exists("h") == 0
