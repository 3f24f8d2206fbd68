"""The contracts of each structure and its jobs pass under the rule that `workstealing acl` prints.

Each runs in a pytest of its own, by the plugin support.acl: it fails, too, if the rule allows a
command that the library has not sent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.acl import JOBS, say_line
from support.servers import RedisServer
from workstealing.structures.access import access_by_kind, rule

ACCESS = access_by_kind()
TESTS = Path(__file__).resolve().parents[1]

# Tests of these names use other structures, commands of an application, names that are no text,
# or the server's count of commands, which MONITOR changes.
LEFT_OUT = (
    *(
        "own_commands",
        "users_commands_too",
        "awaited",
        "asyncio_pipeline",
        "any_bytes",
        "odd_names",
    ),
    # These read the ledger by structures of the tests, or a thread of the test's uses the client.
    *("test_minutes_are_apart", "under_traffic_of_the_old", "pipeline_that_has_not_noticed"),
    # A server that was restarted does not know the user.
    *("dead_server", "earlier_process", "survives_a_replay"),
    # These count bytes, those of the handshake too, or judge by chance.
    *("only_what_a_reader_asks_for", "observes_about_how_many"),
    *("another_structure", "another_namespace", "swept_in_windows", "as_all_structures_do"),
    "OtherClients",
    # These are slow, and send nothing that the others do not.
    *("quarter_of", "a_mebibyte", "as_many_commands_in_a_long", "is_estimated", "die_at_any"),
    *("under_traffic", "beside_writers_and_readers", "killed_at_every_command"),
)
# No rule holds on these servers; the rules with native commands are for Redis 8 alone.
ELSEWHERE = {False: ("cluster", "valkey", "redis8"), True: ("cluster", "valkey", "redis7")}
LEFT_OUT_OF = {"Ick": ("a_sharded_one",)}
RUNS = {
    "volatile_hashes": (
        *(f"structures/volatile_hashes/test_{each}.py" for each in ("contract", "caching")),
        "jobs/hash_field_expiry",
    ),
    "durable_keys": ("structures/durable_keys/test_contract.py", "jobs/test_key_expiry.py"),
    "tracked_set": (
        "structures/tracked_set/test_contract.py",
        "jobs/track_jobs/test_track_jobs.py",
    ),
    "Ick": (
        *("structures/ick/test_contract.py", "structures/ick/test_debounce.py"),
        "jobs/ick_reaper",
    ),
    "sharded_Ick": (
        *(
            f"structures/sharded_ick/test_{each}.py"
            for each in ("contract", "debounce", "resize", "lease_all")
        ),
        "jobs/ick_reaper",
    ),
    "shuffle_queue": (
        *(f"structures/shuffle_queue/test_{each}.py" for each in ("contract", "waiting", "stats")),
        "jobs/shuffle_queue_reaper",
        *(f"jobs/queue_expiry/test_{each}.py" for each in ("expiry", "kept")),
    ),
    "fair_queue": (
        "structures/fair_queue/test_contract.py",
        *("jobs/fair_queue_reaper", "jobs/queue_expiry/test_fair_queues.py"),
    ),
    "time_shard_queue": (
        *(
            f"structures/time_shard_queue/test_{each}.py"
            for each in ("contract", "delete", "extend", "leases")
        ),
        "jobs/time_shard_sweeper/test_time_shard_sweeper.py",
    ),
    "log": (
        *(
            f"structures/log/test_{each}.py"
            for each in ("contract", "group", "group_waiting", "ids", "size", "pieces")
        ),
        *("jobs/log_compactor/test_log_compactor.py", "jobs/log_trimmer/test_log_trimmer.py"),
    ),
}
# Runs of jobs that need more than their structures, and of other parts, by the plugin's words.
MORE_RUNS = {
    "volatile_hashes,native": RUNS["volatile_hashes"],
    "volatile_hashes,AdoptHashes": ("jobs/adopt_hashes/test_adopt_hashes.py",),
    "volatile_hashes,AdoptHashes,native": ("jobs/adopt_hashes/test_adopt_hashes.py",),
    "volatile_hashes,MigrateToNative,native": ("jobs/test_migrate_to_native.py",),
    "volatile_hashes,MigrateToEmulated,native": ("jobs/test_migrate_to_emulated.py",),
    "volatile_hashes,NativeFieldAudit,native": ("jobs/test_native_field_audit.py",),
    "volatile_hashes,durable_keys,FleetRebalance": ("structures/fleets/test_moves.py",),
    "ledger": (
        "metrics/test_ledger.py",
        "metrics/test_reading.py",
        "metrics/test_reporting.py",
        "metrics/test_shared_settings.py",
    ),
}
# A ShardedIck's jobs serve Icks, too, by the same tests.
FULL = "test_a_sealed_block_is_compressed_on_a_full_server"
TOGETHER = {"sharded_Ick": "sharded_Ick,Ick"}
SECONDS = 1_200
SEVERAL = ("fair queues", "shuffle queues")


def test_each_kind_is_run() -> None:
    # Those that QueueExpiry deletes take part in the run of a single queue.
    assert {*(each.replace("_", " ") for each in RUNS), *SEVERAL} == set(ACCESS)
    more = {each for run in MORE_RUNS for each in run.split(",")}
    # A job of rules has no structure: tests/cli/test_acl.py does its slices as the rule's user.
    assert {name for name, each in JOBS.items() if each.more and each.kinds} <= more
    for files in (*RUNS.values(), *MORE_RUNS.values()):
        assert all((TESTS / each).exists() for each in files)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("kind", [*RUNS, *MORE_RUNS])
def test_the_contracts_pass_under_the_rule(kind: str) -> None:
    files = RUNS.get(kind) or MORE_RUNS[kind]
    own = f"test_questions_after_a_write[{kind.replace('_', ' ')}]"
    also = [f"{TESTS}/structures/test_access.py::{own}"] if kind in RUNS else []
    if kind == "log":
        also.append(f"{TESTS}/structures/test_access.py::{FULL}")
    if kind == "fair_queue":
        # Only a withdrawal removes a receipt.
        also.append(f"{TESTS}/structures/fair_queue/test_giving_back.py::TestGivingBack")
    if kind == "shuffle_queue":
        # Only a read that comes a second time moves its group back, and only a withdrawal removes a
        # receipt.
        grants = f"{TESTS}/structures/shuffle_queue/test_grants.py"
        also += [f"{grants}::TestTheSameReadAgain", f"{grants}::TestGivingBack"]
    left_out = (*LEFT_OUT, *ELSEWHERE["native" in kind.split(",")], *LEFT_OUT_OF.get(kind, ()))
    command = [
        *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
        *("--acl", TOGETHER.get(kind, kind), "-m", "not (cluster or matrix or fake or slow)"),
        *("-k", " and ".join(f"not {each}" for each in left_out)),
        *(str(TESTS / each) for each in files),
        *also,
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "WORKSTEALING_"))
    }
    # Commands matter here, not values.
    environment["HYPOTHESIS_PROFILE"] = "few"
    done = subprocess.run(
        command,
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "acl: allowed and not sent: []" in done.stdout


@pytest.mark.real
@pytest.mark.parametrize("kind", ACCESS)
def test_a_server_takes_each_line(kind: str, redis7: RedisServer) -> None:
    access = ACCESS[kind]
    line = rule("least", access.patterns('a "name" of \\ [x]*', "n", ("k:*",)), access.allowed())
    try:
        say_line(redis7.port, line)
        told = redis7.client().acl_getuser("least")
        assert "+@all" not in told["commands"]
    finally:
        redis7.client().acl_deluser("least")


@pytest.mark.real
def test_a_server_of_native_fields_takes_the_native_line(redis8: RedisServer) -> None:
    access = ACCESS["volatile hashes"]
    try:
        say_line(redis8.port, rule("least", access.patterns("n"), access.allowed(native=True)))
    finally:
        redis8.client().acl_deluser("least")


def test_a_rule_of_all_keys_names_no_others() -> None:
    # A server refuses further patterns beside that one.
    assert "~* +get" in rule("u", ["a", "*", "b"], ["GET"])
