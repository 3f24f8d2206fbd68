"""The package's front door: light to import, and a default recruiter behind its functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import workstealing
from workstealing import Outcome, Recruiter
from workstealing.recruiting.recruiter import default_recruiter as default


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules outside the standard library that a statement loads."""
    program = (
        f"import sys, json; before = set(sys.modules); {statement};"
        " print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    modules = json.loads(done.stdout)
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


@pytest.mark.parametrize(
    "statement",
    [
        "import workstealing",
        "import workstealing; workstealing.enlist()",
        "from workstealing import Recruiter, Outcome, Job, Slice, Hooks, errors",
        "from workstealing.testing import always",
    ],
)
def test_only_the_standard_library_is_loaded(statement: str) -> None:
    assert loaded_by(statement) == {"workstealing"}


def test_the_import_alone_makes_nothing() -> None:
    program = (
        "import sys, workstealing;"
        " print(sorted(name for name in sys.modules if name.startswith('workstealing')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['workstealing', 'workstealing.doors']"


def test_only_public_names_are_listed() -> None:
    listed = {name for name in dir(workstealing) if not name.startswith("__")}
    assert listed == set(workstealing.__all__) - {"__version__"}
    methods = {name for name in dir(Recruiter) if not name.startswith("_")}
    assert not methods & {"after_fork", "enlist_after"}


def test_every_public_name_is_there() -> None:
    for name in workstealing.__all__:
        assert getattr(workstealing, name) is not None
        assert name in dir(workstealing)
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        workstealing.conect  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_one_that_is_installed() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{workstealing.__version__}"' in project


def test_the_functions_are_the_default_recruiters_methods() -> None:
    assert workstealing.default_recruiter is default
    for name in (
        "add_hook",
        "enlist",
        "enlists",
        "flush",
        "install",
        "job",
        "pause",
        "reraise",
        "resume",
        "set_rate",
        "stats",
        "uninstall",
    ):
        assert getattr(workstealing, name) == getattr(default, name)
        # Kept, so that the next call looks up nothing.
        assert name in vars(workstealing)


def test_the_default_recruiter_recruits() -> None:
    try:

        @workstealing.job(rate=1, name="front door")
        def sweep(slice: workstealing.Slice) -> int:
            return 2

        @workstealing.enlists
        def get() -> str:
            return "page"

        before = workstealing.stats()["enlisted"]
        assert workstealing.enlist() is Outcome.WORKED
        assert get() == "page"
        workstealing.pause("front door")
        assert workstealing.enlist() is Outcome.SKIPPED
        workstealing.resume()
        workstealing.set_rate("front door", 1e-9)
        stats = workstealing.stats()
        assert stats["enlisted"] == before + 3
        assert stats["jobs"]["front door"]["items"] == 4
    finally:
        workstealing.uninstall("front door")


@pytest.mark.slow
def test_recruiters_are_forgotten_when_nobody_holds_them() -> None:
    import gc
    import weakref

    recruiter = Recruiter()
    recruiter.job(rate=0.5)(lambda slice: 1)
    recruiter.enlist()
    gone = weakref.ref(recruiter)
    del recruiter
    gc.collect()
    assert gone() is None
