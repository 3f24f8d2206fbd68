"""The declared access of each structure and job: none is forgotten, and it covers the sources."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from support.acl import JOBS
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import jobs, structures
from workstealing.cli.server_checks import DOCTOR
from workstealing.metrics.minutes import DASHBOARD, LEDGER
from workstealing.recruiting.job import Job
from workstealing.recruiting.slice import Slice
from workstealing.spark.sources.options import OF_SPARK
from workstealing.spark.sources.redis_options import OF_PLAIN_KEYS
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.access import (
    CONTAINERS,
    MOVING,
    Access,
    access_by_kind,
    access_of,
    job_access,
)
from workstealing.structures.fair_queue import FairQueueNamespace
from workstealing.structures.shuffle_queue.base import QueueNamespace
from workstealing.structures.structure import Structure
from workstealing.survey.scanning import OF_SURVEY

pytestmark = pytest.mark.real

MADE: dict[str, Callable[[Any], Any]] = {
    "volatile hashes": lambda client: VolatileHashes(client, namespace="n", backend="emulated"),
    "durable keys": lambda client: DurableKeys(client, namespace="n"),
    "tracked set": lambda client: TrackedSet(client, "n"),
    "Ick": lambda client: Ick(client, "n"),
    "sharded Ick": lambda client: ShardedIck(client, "n", ick_shards=4),
    "shuffle queue": lambda client: ShuffleQueue(client, "n"),
    "shuffle queues": lambda client: QueueNamespace(client, "n"),
    "time shard queue": lambda client: TimeShardQueue(RedisStore(client), "n"),
    "log": lambda client: Log(client, "n"),
    "fair queue": lambda client: FairQueue(client, "n"),
    "fair queues": lambda client: FairQueueNamespace(client, "n"),
}
WRITE: dict[str, Callable[[Any], Any]] = {
    "volatile hashes": lambda hashes: hashes.hsetex("k", "f", "v", ex=60),
    "durable keys": lambda keys: keys.set("k", "v", ex=60),
    "tracked set": lambda tracked: tracked.track(1),
    "Ick": lambda ick: ick.add("m"),
    "sharded Ick": lambda ick: ick.add("m"),
    "shuffle queue": lambda queue: queue.write("tenant", {"a": "b"}),
    "shuffle queues": lambda queues: ShuffleQueue(queues.client, "q", namespace="n").write("t", {}),
    "time shard queue": lambda queue: queue.put("message"),
    "log": lambda log: log.append(b"entry"),
    "fair queue": lambda queue: queue.write("tenant", {"a": "b"}),
    "fair queues": lambda queues: FairQueue(queues.client, "q", namespace="n").write("t", {}),
}


PACKAGE = Path(structures.__file__).parents[1]
FOLDERS = {"jobs": Path(jobs.__file__).parent, "lua": Path(jobs.__file__).parents[1] / "lua"}
ACCESS = access_by_kind()
_HASHES, _KEYS = ACCESS["volatile hashes"], ACCESS["durable keys"]
_QUEUES = (ACCESS["shuffle queue"], ACCESS["shuffle queues"])
assert JOBS["Leftovers"].more is not None
LEFTOVERS = JOBS["Leftovers"].more
# Who sends what a source sends; a file stands for itself, and a folder for its files.
SENDERS: dict[str, tuple[Access, ...]] = {
    "structures/volatile_hashes": (_HASHES,),
    "structures/volatile_hashes/scanning.py": (OF_SPARK.plus(_HASHES),),
    "structures/durable_keys": (_KEYS,),
    "structures/tracked_set": (ACCESS["tracked set"],),
    "structures/tracked_set/sub_sets.py": (OF_SPARK,),
    "structures/ick": (ACCESS["Ick"],),
    "structures/sharded_ick": (ACCESS["sharded Ick"],),
    "structures/shuffle_queue": (ACCESS["shuffle queue"],),
    "structures/fair_queue": (ACCESS["fair queue"],),
    "structures/queue_place.py": (ACCESS["fair queue"], ACCESS["shuffle queue"]),
    "structures/time_shard_queue": (ACCESS["time shard queue"],),
    "structures/log": (ACCESS["log"],),
    "structures/on_fleet.py": (MOVING,),
    "structures/due_index.py": (_HASHES, _KEYS, *_QUEUES),
    "structures/layout.py": (_HASHES, _KEYS, ACCESS["tracked set"], *_QUEUES),
    "structures/namespace.py": (_HASHES, _KEYS, ACCESS["shuffle queue"]),
    "jobs/adopt_hashes": (JOBS["AdoptHashes"].on(_HASHES),),
    "jobs/shared/backend_moves.py": (
        JOBS["MigrateToEmulated"].on(_HASHES),
        JOBS["MigrateToNative"].on(_HASHES),
    ),
    # Of durable keys the run under the rule says it: they have no `items_backlog`.
    "jobs/shared/due_looks.py": (_HASHES, *_QUEUES),
    "jobs/shared/due_collecting.py": (_HASHES, *_QUEUES),
    "jobs/shared/key_walk.py": (JOBS["AdoptHashes"].on(_HASHES), LEFTOVERS),
    "jobs/leftovers": (LEFTOVERS,),
    **{f"jobs/{path.name}": (LEFTOVERS,) for path in FOLDERS["jobs"].glob("*_leftovers.py")},
    "jobs/shared/log_jobs.py": (ACCESS["log"],),
    "jobs/shared/log_keys.py": (ACCESS["log"],),
    "jobs/shared/settling.py": (ACCESS["tracked set"],),
    "jobs/shuffle_queue_reaper": (ACCESS["shuffle queue"],),
    "jobs/time_shard_sweeper": (ACCESS["time shard queue"],),
    "metrics": (LEDGER,),
    "dashboard": (DASHBOARD,),
    "survey": (OF_SURVEY,),
    "cli/survey.py": (OF_SURVEY,),
    "spark/counters.py": (OF_SPARK,),
    "spark/sources/ick.py": (OF_SPARK,),
    **{
        f"spark/sources/{path.name}": (OF_PLAIN_KEYS,)
        for path in (PACKAGE / "spark" / "sources").glob("redis*.py")
    },
    "spark/sources/pipelines.py": (OF_PLAIN_KEYS,),
    "spark/sources/volatile_hashes.py": (_HASHES,),
    "cli/checks.py": (DOCTOR,),
    "store/attempt.py": (_HASHES, ACCESS["Ick"], ACCESS["log"], ACCESS["tracked set"]),
    "store/job_client.py": tuple(ACCESS.values()),
}
# Words that stand for methods of a structure, or that only the doctor's probes queue, unrun.
NAMES_ONLY = {
    "structures/durable_keys/commands.py": {"GETEX", "MGET"},
    "structures/access.py": None,
    "store/redis_versions.py": None,
    "store/opening.py": None,
    "store/operations.py": None,
    "store/connection.py": None,
    "cli/server_checks.py": None,
    "cli/demo/web.py": None,
    "dashboard/views.py": {"GET"},
    "testing/refuting.py": None,
    "jobs/family_leftovers.py": {"TTL"},
    "jobs/leftovers/__init__.py": {"CLIENT|DECLARED"},
    "survey/surveying.py": {"MEMORY", "OBJECT"},
}
# These jobs talk to a SQL database alone, so no rule of Redis is theirs.
WITHOUT_REDIS = {"SqlExpiry"}


def test_each_kind_is_declared() -> None:
    assert set(ACCESS) == set(MADE) == set(WRITE)


def test_no_public_structure_is_forgotten() -> None:
    public = [getattr(structures, name) for name in structures.__all__]
    found = [each for each in public if isinstance(each, type) and issubclass(each, Structure)]
    assert len(found) >= 16
    for each in found:
        assert each.kind in ACCESS, each


def test_no_public_job_is_forgotten() -> None:
    public = {name: getattr(jobs, name) for name in jobs.__all__}
    found = {n for n, each in public.items() if isinstance(each, type) and issubclass(each, Job)}
    assert len(found) > 20
    for name in found - WITHOUT_REDIS:
        declared = job_access(public[name])
        assert declared is not None, f"{name} says nowhere which rights it needs: set `access`"
        assert declared.kinds or declared.more
        assert set(declared.kinds) <= set(ACCESS), name
    assert [each for each in WITHOUT_REDIS if job_access(public[each])] == []


def test_no_kind_of_structure_is_forgotten() -> None:
    """The table of kinds names classes; so each class of the package must be found through it."""
    for each in pkgutil.walk_packages(structures.__path__, f"{structures.__name__}."):
        import_module(each.name)
    waiting: list[type[Structure]] = [Structure]
    for each in waiting:
        waiting += each.__subclasses__()
    own = [each for each in waiting if each.__module__.startswith("workstealing.structures.")]
    kinds = {each.kind: each.access for each in own if each.access and hasattr(each, "kind")}
    assert len(own) > 20
    assert kinds.keys() == ACCESS.keys()
    assert list(ACCESS) == sorted(ACCESS, key=str.lower)


def test_the_table_holds_in_a_fresh_process() -> None:
    """Nothing but the table has to be loaded before: no import on the side makes a kind known."""
    program = "from workstealing.structures.access import access_by_kind as a; print(*a(), sep=',')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().split(",") == list(ACCESS)


def test_a_job_without_redis_names_nothing_of_it() -> None:
    for name in WITHOUT_REDIS:
        source = inspect.getsource(sys.modules[getattr(jobs, name).__module__])
        assert not re.findall(r"import redis|from redis|workstealing\.store|\bjob_client\b", source)


def test_no_script_is_forgotten() -> None:
    more = [each.more for each in JOBS.values() if each.more]
    everyone = [*ACCESS.values(), LEDGER, MOVING, OF_PLAIN_KEYS, *more]
    named = {each for access in everyone for each in access.scripts}
    folders = {path.parent.name for path in FOLDERS["lua"].glob("*/*.lua")}
    assert folders - {"shared"} <= {each.partition("/")[0] for each in named}
    whole = {each for each in named if "/" not in each}
    # A folder that is not used as a whole belongs to everyone who opens a layout.
    assert folders - {"shared"} - whole == set()


def _sends(path: Path, known: frozenset[str]) -> set[str]:
    """Return the commands that stand first in a tuple, a list or a call of a source."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        parts: list[Any] = getattr(node, "elts", None) or getattr(node, "args", None) or []
        if not isinstance(node, ast.Tuple | ast.List | ast.Call) or not parts:
            continue
        first = parts[0]
        if isinstance(first, ast.Starred) and isinstance(first.value, ast.Tuple):
            parts = [*first.value.elts, *parts[1:]]
            first = parts[0]
        words = [each.value for each in parts[:2] if isinstance(each, ast.Constant)]
        if isinstance(first, ast.Constant) and words[0] in known:
            found.add("|".join(words) if words[0] in CONTAINERS else words[0])
    return found


def test_every_command_of_the_sources_is_allowed(redis8: RedisServer) -> None:
    told: Any = redis8.client().execute_command("COMMAND LIST")
    known = frozenset(each.decode().upper() for each in told if b"|" not in each)
    senders = dict(SENDERS)
    for name, each in JOBS.items():
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")
        if f"jobs/{snake}" not in senders:
            of = tuple(each.on(ACCESS[kind]) for kind in each.kinds)
            senders[f"jobs/{snake}.py"] = of
    looked_at = 0
    sources = {
        f"jobs/{path.relative_to(FOLDERS['jobs'])}": path for path in FOLDERS["jobs"].rglob("*.py")
    }
    sources |= {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    for name, path in sources.items():
        sent = _sends(path, known) - (NAMES_ONLY.get(name, set()) or set())
        if not sent or NAMES_ONLY.get(name, ()) is None:
            continue
        by = [each for each in senders if name == each or name.startswith(f"{each}/")]
        assert by, f"{name} sends {sorted(sent)}: say in SENDERS whose rights these are"
        for access in senders[max(by, key=len)]:
            assert sent <= access.allowed(native=True, cluster=True), (name, access)
        looked_at += 1
    assert looked_at > 30


def test_a_structure_on_a_node_of_a_fleet_has_the_keys_of_its_namespace(
    redis7: RedisServer,
) -> None:
    from workstealing import Fleet
    from workstealing.structures.access import names_of

    (each,) = VolatileHashes(Fleet({"a": redis7.client()}), "items").on_nodes.values()
    assert each.name == "items on a"
    assert names_of(each) == ("items", "items")


def test_a_job_of_another_make_has_the_access_of_its_structure(redis7: RedisServer) -> None:
    class Own(Job):
        name = "own"

        def perform(self, slice: Any) -> int:
            return 0

    assert access_of(Ick(redis7.client(), "n"), Own()) is ACCESS["Ick"]


@pytest.mark.parametrize("kind", MADE)
def test_questions_after_a_write(kind: str, redis7: RedisServer) -> None:
    structure: Structure = MADE[kind](redis7.client(db=1))
    assert structure.kind == kind
    WRITE[kind](structure)
    structure.inspect(structure.size_steps())
    structure.inspect(structure.dead_steps())
    assert all(each.level == "ok" for each in structure.inspect(structure.check_steps()))


def test_a_sealed_block_is_compressed_on_a_full_server(redis7: RedisServer) -> None:
    # By a script of its own: a run of `--acl log` sees STRLEN here alone.
    client = redis7.client()
    log = Log(client, "log", 10)
    log.append(*[b"x" * 200] * 25)
    assert jobs.LogCompactor(log, codec="none").perform(Slice(100, 30.0)) == 2
    client.config_set("maxmemory", 1)
    try:
        assert jobs.LogCompactor(log, codec="zlib", cold=0).perform(Slice(100, 30.0)) == 2
    finally:
        client.config_set("maxmemory", 0)
    assert log.read(0, 25) == [b"x" * 200] * 25
