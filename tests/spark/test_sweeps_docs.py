"""What docs/spark_sweeps.md says about jobs is so, and its code is the API's."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from workstealing.jobs import (
    AdoptHashes,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    MigrateToEmulated,
    MigrateToNative,
)
from workstealing.jobs.hash_field_expiry import FIELDS_A_SCRIPT
from workstealing.jobs.shared.due_collecting import KEYS_A_CALL, SHARDS_A_LOOK
from workstealing.recruiting.job import DivisibleJob
from workstealing.spark import reconcile, sweep
from workstealing.spark.reconciling import IDS_A_STEP
from workstealing.spark.stages import IDLE_IN_A_ROW, SLICE_SECONDS
from workstealing.spark.sweeping import SCHEMA, VAIN_ROUNDS

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "spark_sweeps.md").read_text()


def test_the_code_calls_the_functions_as_they_are() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    calls = [
        node
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    known = {"sweep": sweep, "reconcile": reconcile}
    found = [call for call in calls if call.func.id in known]  # type: ignore[attr-defined]
    assert len(found) == 2
    for call in found:
        names = [keyword.arg for keyword in call.keywords if keyword.arg]
        signature = inspect.signature(known[call.func.id])  # type: ignore[attr-defined]
        signature.bind(*call.args, **dict.fromkeys(names))


def test_the_factory_makes_the_job() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    (block,) = (block for block in blocks if "def make_field_expiry" in block)
    names: dict[str, object] = {}
    exec(block.replace("connect()", 'connect("redis://127.0.0.1:1")'), names)
    job = names["make_field_expiry"]()  # type: ignore[operator]
    assert isinstance(job, DivisibleJob)
    assert job.name == "hash_field_expiry.items"


def test_the_jobs_and_numbers_are_those_of_the_code() -> None:
    moves = (MigrateToNative, MigrateToEmulated, AdoptHashes)
    for kind in (HashFieldExpiry, KeyExpiry, *moves, IckReaper):
        assert issubclass(kind, DivisibleJob)
        assert f"| {kind.__name__} |" in DOCS
    assert all(f"`{name}`" in DOCS for name in SCHEMA.fieldNames())
    assert (SHARDS_A_LOOK, KEYS_A_CALL, IDS_A_STEP) == (128, 64, 500)
    assert (FIELDS_A_SCRIPT, SLICE_SECONDS) == (1_000, 0.002)
    assert (IDLE_IN_A_ROW, VAIN_ROUNDS) == (5, 3)
