"""The light doors: a package loads a name's modules at its first use, and hides nothing."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import workstealing
from workstealing import jobs, structures

PACKAGE = Path(workstealing.__file__).parent
DOORS = (
    "workstealing",
    "workstealing.dashboard",
    "workstealing.jobs",
    "workstealing.metrics",
    "workstealing.recruiting",
    "workstealing.spark",
    "workstealing.store",
    "workstealing.structures",
    "workstealing.structures.shuffle_queue",
    "workstealing.structures.tracked_set.sources",
    "workstealing.structures.volatile_hashes",
)
MOST_MODULES = 56
"""So many modules of the package may a name of the jobs or of the structures load."""


def fresh(program: str, *arguments: str) -> str:
    """Return what a fresh interpreter prints that runs the program away from the checkout."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# A child for each module begins with redis-py alone, so it counts what is loaded of ours.
COUNTS = """
    import json, os, sys
    from importlib import import_module
    import redis, redis.asyncio, redis.asyncio.cluster, redis.asyncio.sentinel, redis.cluster

    def ours():
        return sum(each.partition(".")[0] == "workstealing" for each in sys.modules)

    assert not ours()
    found = {}
    for package, names in json.loads(sys.argv[1]):
        ear, mouth = os.pipe()
        if not os.fork():
            module = import_module(package)
            counts = [[name, getattr(module, name) and ours()] for name in names]
            os.write(mouth, json.dumps(counts).encode())
            os._exit(0)
        os.close(mouth)
        found |= {f"{package}.{name}": count for name, count in json.loads(os.read(ear, 1 << 16))}
        os.close(ear)
        assert os.wait()[1] == 0
    print(json.dumps(found))
"""


def test_each_name_loads_its_own_modules_alone() -> None:
    """Names that come from one module load the same, and are asked for together."""
    asked: list[tuple[str, list[str]]] = []
    for package in ("workstealing.jobs", "workstealing.structures"):
        _, door, names = declared(package)
        homes = [[name for name in names if door[name] == home] for home in set(door.values())]
        asked += [(package, each) for each in homes]
    counts: dict[str, int] = json.loads(fresh(COUNTS, json.dumps(asked)))
    assert len(counts) == len(jobs.__all__) + len(structures.__all__)
    assert {name: count for name, count in counts.items() if count > MOST_MODULES} == {}
    # That the greatest is near the bound shows that they were counted.
    assert max(counts.values()) > MOST_MODULES // 2 > counts["workstealing.jobs.Backlog"]


def declared(package: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return the tables of a package's source: for type checkers, for the program, and `__all__`.

    The first two give the home of each name.
    """
    tree = ast.parse(Path(str(import_module(package).__file__)).read_text("utf-8"))
    typed: dict[str, str] = {}
    door: dict[str, str] = {}
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom):
                    typed |= {alias.name: str(each.module) for alias in each.names}
                elif isinstance(each, ast.Assign):
                    typed[ast.unparse(each.targets[0])] = ast.unparse(each.value)
        elif isinstance(node, ast.If):
            (call,) = (
                each
                for each in ast.walk(node)
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "light_door"
            )
            homes: dict[str, str] = ast.literal_eval(call.args[1])
            door = {name: home for home, some in homes.items() for name in some.split()}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    return typed, door, names


@pytest.mark.parametrize("package", DOORS)
def test_the_tables_of_a_door_agree(package: str) -> None:
    """A name stands in three places: a type checker's, the running program's, and `__all__`."""
    typed, door, names = declared(package)
    assert names == sorted(
        names, key=lambda each: (not each.isupper(), not each[0].isupper(), each)
    )
    here = {name for name in names if name in vars(import_module(package)) and name not in door}
    assert set(door) <= set(names)
    # Those that the package has of its own, or loads at once, need no door.
    assert set(names) - set(door) == here - set(door) | ({"errors"} & set(names))
    for name, home in door.items():
        value = getattr(import_module(package), name)
        module, _, holder = home.partition(":")
        found: Any = import_module(module)
        if holder:
            assert typed[name] == f"{holder}.{name}"
            assert value == getattr(getattr(found, holder), name)
        else:
            # For type checkers it may come from a package that has it from there.
            assert value is getattr(import_module(typed[name]), name) is getattr(found, name)


def test_no_door_is_forgotten() -> None:
    paths = {*PACKAGE.rglob("__init__.py")}
    jobs = Path(str(import_module("workstealing.jobs").__file__))
    found = {each for each in (*paths, jobs) if "light_door(" in each.read_text("utf-8")}
    assert found == {Path(str(import_module(each).__file__)) for each in DOORS}


@pytest.mark.parametrize("package", DOORS)
def test_dir_and_help_see_everything(package: str) -> None:
    """In a fresh process, where no name has been used yet."""
    program = """
        import pydoc, sys
        from importlib import import_module
        module = import_module(sys.argv[1])
        assert set(module.__all__) <= set(dir(module)), set(module.__all__) - set(dir(module))
        said = pydoc.plain(pydoc.render_doc(module))
        names = [each for each in module.__all__ if each != "__version__"]
        assert [each for each in names if each not in said] == []
        print(said.count(" = class ") + said.count("    class "))
    """
    classes = int(fresh(program, package))
    if package == "workstealing.jobs":
        assert classes >= len(import_module(package).__all__)


def test_modules_are_attributes_of_their_packages() -> None:
    program = """
        import workstealing
        print(workstealing.jobs.hash_field_expiry.HashFieldExpiry.__name__)
        print(workstealing.structures.log.blocks.__name__)
        print(workstealing.jobs.leftovers.rule.Rule.__name__)
        print(workstealing.errors.__name__)
        from workstealing.jobs.shared import key_walk
        print(key_walk.KeyShare.__name__)
        print(workstealing.store.attempt.__name__)
    """
    assert fresh(program).split() == [
        "HashFieldExpiry",
        "workstealing.structures.log.blocks",
        "Rule",
        "workstealing.errors",
        "KeyShare",
        "attempt",
    ]


@pytest.mark.parametrize("package", DOORS)
@pytest.mark.parametrize("name", ["nonsense", "__nonsense__", "_private"])
def test_a_name_that_is_not_there_is_an_attribute_error(package: str, name: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'"):
        getattr(import_module(package), name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from {package} import {name}")


def test_a_module_that_fails_says_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submodule that misses a module of others is no name that is not there."""
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "__init__.py").write_text(
        "from workstealing.doors import light_door\n"
        "__all__ = ['Name']\n"
        "__getattr__, __dir__ = light_door(__name__, {'half.broken': 'Name'})\n"
    )
    (tmp_path / "half" / "broken.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    half = import_module("half")
    for name in ("Name", "broken"):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            getattr(half, name)


@pytest.mark.parametrize("package", ["workstealing.jobs", "workstealing.structures"])
def test_names_survive_being_pickled(package: str) -> None:
    """A fresh process finds a class where it really is, and loads nothing beside it."""
    module = import_module(package)
    values = [getattr(module, name) for name in module.__all__]
    pickled = pickle.dumps(values)
    assert all(a is b for a, b in zip(pickle.loads(pickled), values, strict=True))
    one = pickle.dumps(getattr(module, {"jobs": "KeyExpiry"}.get(package[13:], "Ick"))).hex()
    program = """
        import pickle, sys
        found = pickle.loads(bytes.fromhex(sys.argv[1]))
        print(found.__name__, len([e for e in sys.modules if e.startswith("workstealing")]))
    """
    name, count = fresh(program, one).split()
    assert name in ("KeyExpiry", "Ick")
    assert int(count) <= MOST_MODULES


STAR = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in sys.argv[2:]:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Hidden())
    from {package} import *
    from workstealing.errors import MissingExtraError
    import {package} as package
    assert set(package.__all__) <= set(globals()) & set(dir(package))
    print(*(each for each in sys.argv[1].split() if each in globals()))
    for each in sys.argv[1].split():
        try:
            getattr(package, each)
        except MissingExtraError as error:
            print(error)
"""


@pytest.mark.parametrize(
    ("package", "names", "needed", "extra"),
    [
        ("workstealing.jobs", "SqlExpiry", "sqlalchemy", "sql"),
        ("workstealing.structures.tracked_set.sources", "SqlSource", "sqlalchemy", "sql"),
        ("workstealing.dashboard", "create_dashboard", "flask", "dashboard"),
    ],
)
def test_a_star_takes_what_can_be_had(package: str, names: str, needed: str, extra: str) -> None:
    assert fresh(STAR.format(package=package), names, "nothing").split() == [names]
    told = fresh(STAR.format(package=package), names, needed).splitlines()
    assert told[0] == ""
    assert f"pip install 'workstealing[{extra}]'" in told[1]


def test_sparks_names_load_with_pyspark_alone() -> None:
    """A driver may lack PyArrow, pandas and numpy, which executors need."""
    said = fresh(
        """
        import sys

        for name in ("numpy", "pandas", "pyarrow"):
            sys.modules[name] = None
        from workstealing import spark

        print([name for name in spark.__all__ if getattr(spark, name) is None])
        """
    )
    assert said.strip() == "[]"
