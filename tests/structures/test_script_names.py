"""A script bears the name of the operation that calls it, or a table says where it is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import workstealing
from workstealing import jobs, structures
from workstealing.store.scripts import LIBRARY
from workstealing.structures.log.group import LogGroup
from workstealing.structures.volatile_hashes import surface

PACKAGE = Path(workstealing.__file__).parent
JOBS = Path(jobs.__file__).parent
CLASSES: dict[str, tuple[Any, ...]] = {
    "volatile_hashes": (structures.VolatileHashes,),
    "durable_keys": (structures.DurableKeys,),
    "fair_queue": (structures.FairQueue,),
    "ick": (structures.Ick,),
    "sharded_ick": (structures.ShardedIck, structures.LeasedIck),
    "time_shard_queue": (structures.TimeShardQueue,),
    "tracked_set": (structures.TrackedSet,),
    "log": (structures.Log, LogGroup),
}
# Of the scripts that no user calls: the function that does, in a module of structures or of jobs.
CALLED_BY: dict[str, str] = {
    "durable_keys/collect": "key_expiry._remove",
    "durable_keys/withdraw": "commands.translate",
    "fair_queue/announce": "reading._announcing",
    "fair_queue/expire": "queue.expiring",
    "fair_queue/mend": "fair_queue_reaper.mend",
    "fair_queue/reap": "fair_queue_reaper.reap",
    "fair_queue/rule": "rules._setting",
    "fair_queue/withdraw": "reading._withdrawing",
    "fleet/carry_in": "on_fleet.carry_in",
    "fleet/carry_out": "on_fleet.carry_out",
    "fleet/drop": "on_fleet.drop",
    "fleet/raise_fence": "on_fleet.fence_raised",
    "fleet/read_fence": "on_fleet.read_fence",
    "ick/add_now": "members.adding",
    "ick/add_waiting": "ick._addition",
    "ick/look": "ick_reaper._look_command",
    "ick/reap": "ick_reaper._reap_command",
    "ick/reserve_on": "ick._exchanging",
    "ick/reserved": "members.add",
    "ick/ripen": "ick_reaper._ripen",
    "layout/change": "backend_moves.change_backend",
    "layout/eviction_policy": "layout.ask_policy",
    "layout/open": "layout.opening",
    "layout/server_facts": "layout.ask_server",
    "ledger/note": "events.noting",
    "ledger/set": "shared_settings._set",
    "leftovers/bound_stream": "stream_leftovers.verdict",
    "leftovers/delete_consumers": "stream_leftovers._judged",
    "leftovers/read": "removing.send",
    "leftovers/remove": "removing._remove_by_script",
    "leftovers/remove_field": "family_leftovers.verdict",
    "leftovers/remove_old": "family_leftovers.verdict",
    "leftovers/restore": "undoing._restored",
    "leftovers/trim_stream": "stream_leftovers.verdict",
    "log/append_short": "writing._short",
    "log/compact": "log_compactor._change_when_full",
    "log/forget": "writing._forgetting",
    "log/group_bury": "group_reading._bury",
    "log/group_join": "group_reading._call",
    "log/group_skip": "group_reading._skip_holes",
    "log/trim": "log_trimmer._once",
    "log/wake_groups": "writing._wake",
    "sharded_ick/add_now": "members.adding",
    "sharded_ick/add_waiting": "sharded._addition",
    "sharded_ick/begin": "resizing._move",
    "sharded_ick/copy": "resizing._copies",
    "sharded_ick/drop": "resizing._drop",
    "sharded_ick/look": "leasing.shard_look",
    "sharded_ick/page": "resizing._move",
    "sharded_ick/progress": "resizing._progress",
    "sharded_ick/relayout": "resizing._relayout",
    "sharded_ick/reserve_on": "leasing.going_on",
    "sharded_ick/take": "leasing.taking",
    "sharded_ick/withdraw": "leasing.give_back",
    "time_shard_queue/bar": "redis_dedupe._barring",
    "time_shard_queue/claim": "redis_dedupe._claiming",
    "time_shard_queue/consume": "redis_store.consume",
    "plain_keys/append": "redis_writing._entries",
    "plain_keys/expire": "redis_writing._expiring",
    "time_shard_queue/counts": "redis_store.counts",
    "time_shard_queue/delete_layout": "redis_store._delete_layout",
    "time_shard_queue/look": "redis_waiting._looking",
    "time_shard_queue/sweep": "redis_sweeping._command",
    "time_shard_queue/withdraw": "redis_store.give_back",
    "tracked_set/track_queued": "track_queued._add",
    "tracked_set/untrack_done": "settling.settle_unchanged",
    "volatile_hashes/adopt": "adopter._commit",
    "volatile_hashes/collect": "hash_field_expiry._by_scripts",
    "volatile_hashes/guarded": "commands.guarded",
    "volatile_hashes/hgetex_run": "commands._scripts_of",
    "volatile_hashes/hmget_run": "commands._scripts_of",
    "volatile_hashes/hsetex_run": "commands._scripts_of",
    "volatile_hashes/mark_shard": "backend_moves.mark_shards",
    "volatile_hashes/migrate": "commands.move",
    "volatile_hashes/take_back": "commands.take_back",
    "walk/place": "key_walk.move_place",
}


def scripts() -> Iterator[str]:
    for folder in files("workstealing.lua").iterdir():
        # An issue of its own writes those of the shuffle queue anew.
        if folder.is_dir() and folder.name not in {"shuffle_queue", "__pycache__"}:
            for each in folder.iterdir():
                if each.name.endswith(".lua") and not each.read_text("utf-8").startswith(LIBRARY):
                    yield f"{folder.name}/{each.name.removesuffix('.lua')}"


SCRIPTS = sorted(scripts())


def is_operation(script: str) -> bool:
    """Say whether a user's operation has the script's name."""
    folder, _, name = script.partition("/")
    # One with another way on servers that lack the command; one of a group, beside that of its log.
    name = name.removeprefix("native_") if folder == "volatile_hashes" else name
    own = vars(surface).values() if folder == "volatile_hashes" else ()
    if name.upper() in [each for each in own if isinstance(each, str)]:
        return True
    of = CLASSES.get(folder, ())
    if name.startswith("group_") and folder == "log":
        of, name = (LogGroup,), name.removeprefix("group_")
    return any(callable(getattr(each, name, None)) for each in of)


@cache
def texts() -> list[tuple[str, frozenset[str]]]:
    """Return the functions of structures, jobs and formats, each with the texts in it."""
    found: list[tuple[str, frozenset[str]]] = []
    for root in (PACKAGE / "structures", PACKAGE / "metrics", PACKAGE / "spark" / "sources", JOBS):
        for path in root.rglob("*.py"):
            for each in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    inside = [one.value for one in ast.walk(each) if isinstance(one, ast.Constant)]
                    own = frozenset(one for one in inside if isinstance(one, str))
                    found.append((f"{path.stem}.{each.name}", own))
    return found


def calls(script: str) -> set[str]:
    """Return the functions in which a script is named."""
    name = script.partition("/")[2].removeprefix("group_")
    # A sharded Ick's are those of an Ick where it has one of the same name.
    named = {script, name, script.removeprefix("sharded_")}
    return {function for function, inside in texts() if named & inside}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_bears_the_name_of_the_operation_that_calls_it(script: str) -> None:
    if is_operation(script):
        assert script not in CALLED_BY
    else:
        assert CALLED_BY.get(script) in calls(script)


def test_the_table_names_no_other_scripts() -> None:
    assert CALLED_BY.keys() <= set(SCRIPTS)
