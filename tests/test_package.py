"""The package as users get it: what is in the wheel, what an import loads, what extras say."""

from __future__ import annotations

import ast
import builtins
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workstealing import errors

ROOT = Path(__file__).resolve().parents[1]
# Folder of the checkout -> folder of the installed package.
MAPPED = {"workstealing": "workstealing", "jobs": "workstealing/jobs", "lua": "workstealing/lua"}
NOT_SHIPPED = {"__pycache__"}

EXTRAS = {
    "flask": "flask",
    "statsd": "statsd",
    "dashboard": "flask",
    "prometheus": "prometheus_client",
    "opentelemetry": "opentelemetry",
    "sql": "sqlalchemy",
    "spark": "pyspark",
    "log": "zstandard",
    "msgpack": "msgpack",
    "cli": "shtab",
    "django": "django",
    "flask-caching": "flask_caching",
    "celery": "celery",
    "rq": "rq",
    "demo": "gunicorn",
    "survey-demo": "rq",
}


def files_of_the_tree() -> dict[str, Path]:
    """Return what the wheel should hold: installed path -> file in the checkout."""
    found = {}
    for folder, installed in MAPPED.items():
        for path in sorted((ROOT / folder).rglob("*")):
            inner = path.relative_to(ROOT / folder)
            if path.is_file() and not NOT_SHIPPED & set(inner.parts) and path.suffix != ".pyc":
                found[f"{installed}/{inner.as_posix()}"] = path
    return found


def python_files() -> Iterator[Path]:
    """Return every Python file of the package in the checkout."""
    return (path for path in files_of_the_tree().values() if path.suffix == ".py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["bash", ROOT / "scripts" / "build_wheel.sh", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_its_licence_its_types_and_its_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "workstealing/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    (points,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "workstealing = workstealing.cli:main" in wheel.read(points).decode()


def test_the_build_warns_of_nothing(tmp_path: Path) -> None:
    """Setuptools warns of each folder of data that is no listed package, in 42 lines each."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in MAPPED:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--wheel", "--no-isolation", "--outdir", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "build", *options, copy], capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 0, said[-5:]
    warnings = [line for line in said if re.search("warning|ignored", line, re.I)]
    # This one is of the environment of the tests, not of the package.
    assert [each for each in warnings if "byte-compiling is disabled" not in each] == []


# Brings a program where pip can have one, and none to musl.
NOT_IN_ALL = {"all", "server"}


def test_every_extra_is_part_of_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    listed = set(everything.removeprefix("workstealing[").removesuffix("]").split(","))
    assert listed == set(extras) - NOT_IN_ALL
    assert [name.partition(">")[0] for name in project["dependencies"]] == ["redis"]


def test_every_pin_is_exact_and_names_no_registry() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if pin.count("==") != 1 or "/" in pin or " " in pin] == []


def run_python(program: str, *options: str) -> str:
    """Return what a fresh interpreter prints that runs the program away from the checkout."""
    done = subprocess.run(
        [sys.executable, "-P", *options, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The editable install's own finder, and what site packages' .pth files load, are there before us.
LOADED = """
    import sys
    before = set(sys.modules)
    import {module}
    new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
    print(*sorted(new - set(sys.stdlib_module_names) - {{"workstealing"}}))
"""


@pytest.mark.parametrize(
    "module",
    ["workstealing", "workstealing.errors", "workstealing.recruiting", "workstealing.testing"],
)
def test_an_import_loads_the_standard_library_only(module: str) -> None:
    assert run_python(LOADED.format(module=module)) == ""


def test_the_allow_list_sees_what_is_not_allowed() -> None:
    assert "redis" in run_python(LOADED.format(module="redis")).split()


# Stands for an environment without the extra: the import system finds no such package.
WITHOUT = """
    import importlib, sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == {package!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Hidden())
    import workstealing
    from workstealing.errors import MissingExtraError
    try:
        {use}
    except MissingExtraError as error:
        print(error)
"""

USES = {
    "django": "import workstealing.integrations.django",
    "celery": "import workstealing.integrations.celery",
    "flask-caching": "import workstealing.integrations.flask_caching",
    "rq": "import workstealing.integrations.rq",
    "dashboard": "from workstealing.dashboard import create_dashboard",
    "flask": "from workstealing.integrations.flask import WorkStealing; WorkStealing()",
    "statsd": "from workstealing.metrics.statsd import StatsDHooks; StatsDHooks()",
    "prometheus": "from workstealing.metrics.prometheus import PrometheusHooks",
    "opentelemetry": "from workstealing.metrics.opentelemetry import OpenTelemetryHooks",
    "spark": "from workstealing.spark import register; register(None)",
    "log": "from workstealing.structures.log.blocks import seal; seal([b''], 'zstd')",
    "msgpack": (
        "from workstealing.structures.volatile_hashes.cached_policy import checked_serializer as c;"
        " c('msgpack')"
    ),
    "cli": "from argparse import Namespace as N; from workstealing.cli import completion as c;"
    " c.run(N(shell='bash'))",
    "demo": "from argparse import Namespace as N; from workstealing.cli import demo; demo.run(N())",
    "survey-demo": "from argparse import Namespace as N; from workstealing.cli import survey_demo;"
    " survey_demo.run(N())",
    "sql": (
        "from workstealing.structures.tracked_set.sources import SqlSource; SqlSource(None, None)"
    ),
}


@pytest.mark.parametrize(("extra", "package"), EXTRAS.items())
def test_a_missing_extra_says_how_to_install_it(extra: str, package: str) -> None:
    said = run_python(WITHOUT.format(package=package, use=USES[extra]))
    assert f"pip install 'workstealing[{extra}]'" in said


def test_nothing_imports_the_mapped_folders_by_their_own_names() -> None:
    guilty = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            if {name.partition(".")[0] for name in names} & {"jobs", "lua"}:
                guilty.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert guilty == []


# Exceptions that another module than errors.py may define, and why.
ERRORS_ELSEWHERE = {
    "workstealing/integrations/django.py:SettingsError": "its second base is a class of Django's",
    "workstealing/testing/refuting.py:_Died": "it ends a simulated process, and nobody sees it",
}


def exceptions_of(path: Path) -> Iterator[str]:
    """Yield the name of each exception that a module defines, inside functions included."""
    known = {
        name
        for module in (builtins, errors)
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, BaseException)
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & known or any(base.endswith(("Error", "Exception")) for base in bases):
                yield node.name


def own_errors() -> list[type[Exception]]:
    """Return the classes of errors.py."""
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and each.__module__ == errors.__name__
    ]


def test_every_error_is_defined_in_one_tree() -> None:
    """A user who looks for what can be raised opens one file, and catches all of it by one name."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for path in python_files()
        if path != ROOT / "workstealing" / "errors.py"
        for name in exceptions_of(path)
    }
    assert found == set(ERRORS_ELSEWHERE), "define it in workstealing/errors.py"
    ours = own_errors()
    assert [each.__name__ for each in ours if not issubclass(each, errors.WorkStealingError)] == []
    assert set(exceptions_of(ROOT / "workstealing" / "errors.py")) == {
        each.__name__ for each in ours
    }


def test_every_error_survives_being_pickled() -> None:
    """A process pool and Celery send errors home: with their sentence and all they know."""
    made = {
        errors.MissingExtraError: errors.MissingExtraError("sql", "sqlalchemy"),
        errors.Moved: errors.Moved("slot 7 has moved", {7: ("far.example", 6379)}),
        errors.UnsentError: errors.UnsentError(ValueError("no")),
    }
    for each in own_errors():
        error = made.get(each) or each("a sentence")
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is each
        assert str(back) == str(error)
        assert repr(vars(back)) == repr(vars(error))


# The house of design.md: a part may import parts of a lower level, and itself.
LEVELS = {
    "errors": 0,
    "clock": 0,
    "doors": 0,
    "safe_text": 0,
    "lua": 0,
    "recruiting": 1,
    "store": 1,
    "structures": 2,
    "jobs": 3,
    "metrics": 3,
    "integrations": 4,
    "spark": 4,
    "dashboard": 4,
    "survey": 4,
    "cli": 5,
}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and part for each import of workstealing.PART, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            first, _, rest = module.partition(".")
            part = rest.partition(".")[0]
            if first == "workstealing" and part in LEVELS:
                yield node.lineno, part


# Class names that stand for several classes, and why.
NAMED_ALIKE = {
    "WorkStealing": "each framework's own module has one: `from ...flask import WorkStealing`",
    "WorkStealingMiddleware": "as WorkStealing",
    "Java": "Py4J looks for it by this name, inside each class that Java calls",
}


def test_a_class_name_has_one_meaning() -> None:
    """A private name is read as its public one, so an underscore does not tell two apart."""
    places: dict[str, list[str]] = {}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(ROOT)))
    assert len(places) > 400
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert set(twice) == set(NAMED_ALIKE), twice


def in_public_modules() -> Iterator[Path]:
    """Yield the Python files whose path has no part with a leading underscore."""
    for path in python_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not any(part.startswith("_") and not part.endswith("__") for part in parts):
            yield path


def is_public(name: str) -> bool:
    """Say whether a function is a part of the surface: __init__ stands for its class."""
    return name == "__init__" or not name.startswith("_")


def public_functions(
    body: list[ast.stmt], said: str = ""
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Yield each public function and method of a module, with its and its classes' docstrings."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, said + (ast.get_docstring(node) or ""))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node.name):
            yield node, said + (ast.get_docstring(node) or "")
        elif isinstance(node, ast.If):
            yield from public_functions([*node.body, *node.orelse], said)


def own_raises(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names of the errors that a body makes and raises, without those it catches.

    The functions inside it have docstrings of their own. `raise` and `raise error` hand on what was
    there, and an abstract method's NotImplementedError is no promise.
    """
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Try):
            types = [each.type for each in node.handlers if each.type is not None]
            caught = {name for each in types for name in ast.unparse(each).strip("()").split(", ")}
            yield from (name for name in own_raises([*node.body]) if name not in caught)
            yield from own_raises([*node.handlers, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            is_handed_on = isinstance(node.exc, ast.Name) and node.exc.id[0].islower()
            if not is_handed_on and ast.unparse(made) != "NotImplementedError":
                yield ast.unparse(made)
        else:
            yield from own_raises([*ast.iter_child_nodes(node)])


def test_every_public_function_says_what_it_raises() -> None:
    """A caller reads in the docstring, or in that of the class, which errors to expect."""
    silent, told = [], 0
    for path in in_public_modules():
        for function, said in public_functions(ast.parse(path.read_text()).body):
            names = list(own_raises([*function.body]))
            told += bool(names)
            if names and "Raises" not in said:
                place = f"{path.relative_to(ROOT)}:{function.lineno}"
                silent.append(f"{place} {function.name}: {', '.join(names)}")
    assert told > 200
    assert silent == [], "add a clause that begins with Raises:"


def test_imports_point_down_the_levels() -> None:
    guilty = []
    for installed, path in files_of_the_tree().items():
        part = installed.split("/")[1].removesuffix(".py")
        if path.suffix != ".py" or part not in LEVELS:
            continue
        for line, imported in imports_of(path):
            if imported != part and LEVELS[imported] > LEVELS[part]:
                guilty.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert guilty == []


RECRUITING = ROOT / "workstealing" / "recruiting"


def test_recruiting_knows_no_redis() -> None:
    for path in RECRUITING.glob("*.py"):
        assert "import redis" not in path.read_text(), path
        assert "store" not in {part for _, part in imports_of(path)}, path


def layers_of_recruiting() -> dict[str, int]:
    """Return the modules that the package's docstring draws, each with its line from the bottom."""
    document = ast.get_docstring(ast.parse((RECRUITING / "__init__.py").read_text())) or ""
    drawn = [line.strip() for line in document.splitlines() if line.startswith("    ")]
    names = [line.partition("  ")[0].split() for line in drawn]
    return {name: level for level, some in enumerate(reversed(names)) for name in some}


def inner_imports(path: Path) -> Iterator[str]:
    """Yield each module of recruiting that a file imports as it runs, not for its types alone."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in for_types and node.module:
            package, _, name = node.module.rpartition(".")
            if package == "workstealing.recruiting":
                yield name


def test_recruiting_imports_point_down_its_layers() -> None:
    layers = layers_of_recruiting()
    modules = {path.stem: path for path in RECRUITING.glob("*.py") if path.stem != "__init__"}
    assert set(layers) == set(modules)
    guilty = [
        f"{name} imports {imported}"
        for name, path in modules.items()
        for imported in inner_imports(path)
        if layers[imported] >= layers[name]
    ]
    assert guilty == []


def test_the_arguments_of_a_docstring_have_a_line_each() -> None:
    """`Arguments:` stands alone, and a line for each name follows, as griffe reads it."""
    seen, wrong = 0, []
    for path in (*(ROOT / "workstealing").rglob("*.py"), *(ROOT / "jobs").rglob("*.py")):
        nodes = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for node in nodes:
            lines = (ast.get_docstring(node) or "").splitlines()
            for number in (n for n, line in enumerate(lines) if "Arguments:" in line):
                line = lines[number]
                seen += 1
                follows = lines[number + 1] if number + 1 < len(lines) else ""
                if line != "Arguments:" or not re.match(r"    \*{0,2}\w+: \S", follows):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert seen > 500
    assert wrong == []
