"""The wheel and the sdist: what they hold, what they say of themselves, and how that is checked."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def artifacts(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("artifacts")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    command = ["bash", ROOT / "scripts" / "build_wheel.sh", folder, "sdist"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ((wheel,), (sdist,)) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def changed(path: Path, folder: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write a wheel or an sdist anew with other files."""
    new = folder / path.name
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as old:
            files = {name: old.read(name) for name in old.namelist()}
        change(files)
        with zipfile.ZipFile(new, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return new
    with tarfile.open(path) as source:
        found = {each.name: source.extractfile(each) for each in source if each.isfile()}
        files = {name.partition("/")[2]: file.read() for name, file in found.items() if file}
    change(files)
    with tarfile.open(new, "w:gz") as target:
        for name, content in files.items():
            told = tarfile.TarInfo(f"workstealing-{VERSION}/{name}")
            told.size = len(content)
            target.addfile(told, io.BytesIO(content))
    return new


@pytest.fixture(params=["wheel", "sdist"])
def archive(request: pytest.FixtureRequest, built: dict[str, Path]) -> Path:
    """The one and the other."""
    return built[request.param]


def kind(archive: Path) -> str:
    return "wheel" if archive.suffix == ".whl" else "sdist"


def test_nothing_is_wrong_with_what_is_built(artifacts: ModuleType, archive: Path) -> None:
    assert artifacts.faults(archive) == []
    assert len(artifacts.read(archive)) > 400


def test_neither_tells_of_its_builder(built: dict[str, Path]) -> None:
    """So the same commit makes the same bytes, whoever builds it, and anybody can compare."""
    with zipfile.ZipFile(built["wheel"]) as wheel:
        assert len({each.date_time for each in wheel.infolist()}) == 1
        # The builder itself gives the files that it adds 0664.
        assert {each.external_attr >> 16 & 0o777 for each in wheel.infolist()} <= {0o644, 0o664}
    with tarfile.open(built["sdist"]) as sdist:
        members = sdist.getmembers()
    assert {(each.uid, each.gid, each.uname, each.gname) for each in members} == {(0, 0, "", "")}
    assert {each.mode for each in members} <= {0o755, 0o644}
    assert len({each.mtime for each in members}) == 1


def test_an_sdist_is_settled_into_the_same_bytes(
    artifacts: ModuleType, built: dict[str, Path], tmp_path: Path
) -> None:
    other = changed(built["sdist"], tmp_path, lambda files: None)
    assert other.read_bytes() != built["sdist"].read_bytes()
    again = tmp_path / "again.tar.gz"
    with tarfile.open(other) as old, tarfile.open(again, "w:gz") as new:
        for place, each in enumerate(old):
            each.uid, each.uname, each.mode, each.mtime = 1000, "alice", 0o600, place + 0.5
            new.addfile(each, old.extractfile(each))
    for path in (other, again):
        artifacts.settle(path, 1_800_000_000)
    assert other.read_bytes() == again.read_bytes()
    assert artifacts.read(other) == artifacts.read(built["sdist"])


def test_the_copy_has_one_mode_whatever_the_clone_had(
    artifacts: ModuleType, tmp_path: Path
) -> None:
    root = tmp_path / "clone"
    for name in artifacts.INSTALLED:
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
    for name, text in (
        ("README.md", ""),
        ("LICENSE", ""),
        ("pyproject.toml", '[tool.workstealing]\nhome = "https://a.test"\nurls = {}\n'),
    ):
        (root / name).write_text(text)
        (root / name).chmod(0o600)
    (root / "jobs" / "__init__.py").chmod(0o755)
    (root / "jobs").chmod(0o700)
    artifacts.copy(tmp_path / "copy", root)
    found = {path.stat().st_mode & 0o777 for path in (tmp_path / "copy").rglob("*")}
    assert found == {0o644, 0o755}
    assert (tmp_path / "copy" / "jobs" / "__init__.py").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("workstealing/notes.txt", "neither in the checkout nor in scripts/contents.toml"),
        ("tests/test_package.py", "which is a test"),
        ("workstealing/cli/conftest.py", "which is a test"),
        (".env", "neither in the checkout"),
    ],
)
def test_an_unknown_file_is_named(
    artifacts: ModuleType,
    archive: Path,
    tmp_path: Path,
    added: str,
    said: str,
) -> None:
    path = changed(archive, tmp_path, lambda files: files.update({added: b""}))
    (fault,) = artifacts.contents_faults(path)
    assert fault.startswith(f"the {kind(archive)} holds {added}, ")
    assert said in fault


def test_a_missing_file_is_named(artifacts: ModuleType, archive: Path, tmp_path: Path) -> None:
    (own,) = {
        name for name in artifacts.read(archive) if re.search(r"dist-info/METADATA|^PKG-INFO", name)
    }

    def change(files: dict[str, bytes]) -> None:
        del files["workstealing/py.typed"]
        del files[own]

    first, second = artifacts.contents_faults(changed(archive, tmp_path, change))
    assert first.startswith(f"the {kind(archive)} lacks workstealing/py.typed: ")
    assert f"the {kind(archive)} lacks " in second
    assert Path(own).name in second


def test_a_file_of_another_commit_is_named(
    artifacts: ModuleType, archive: Path, tmp_path: Path
) -> None:
    other = {"workstealing/clock.py": b"# of yesterday\n"}
    path = changed(archive, tmp_path, lambda files: files.update(other))
    (fault,) = artifacts.contents_faults(path)
    assert fault.startswith(f"the {kind(archive)} holds another workstealing/clock.py ")


def test_a_file_of_the_checkout_that_no_line_names_is_named(
    artifacts: ModuleType, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = artifacts.CONTENTS["package"] | {"jobs": ["__init__.py"]}
    monkeypatch.setitem(artifacts.CONTENTS, "package", package)
    said = "scripts/contents.toml does not name jobs/key_expiry.py: "
    faults = artifacts.contents_faults(archive)
    assert [fault for fault in faults if fault.startswith(said)]


def test_stars_stand_for_names_and_folders(artifacts: ModuleType) -> None:
    assert artifacts.matches("a/b/c.py", ["**/*.py"])
    assert artifacts.matches("c.py", ["**/*.py"])
    assert not artifacts.matches("c.pyc", ["**/*.py"])
    assert not artifacts.matches("a/b/c.lua", ["*/*.lua"])
    assert artifacts.matches("x/tests/y/z", ["**/tests/**"])


def test_every_link_of_the_description_is_absolute_and_leads_into_the_checkout(
    artifacts: ModuleType, built: dict[str, Path]
) -> None:
    text = artifacts.metadata(built["wheel"]).get_content()
    targets = artifacts.links(text)
    readme = artifacts.links((ROOT / "README.md").read_text("utf-8"))
    assert len(targets) == len(readme) > 30
    below = f"{artifacts.home()}/"
    ours = [each.removeprefix(below) for each in targets if each.startswith(below)]
    assert len(ours) == len([each for each in readme if not each.startswith("http")])
    for each in ours:
        kind, tag, path = each.split("/", 2)
        assert tag == f"v{VERSION}"
        here = ROOT / path.partition("#")[0]
        assert here.is_dir() if kind == "tree" else here.is_file(), each
    pictures = {each for each in ours if each.startswith("raw/")}
    assert f"raw/v{VERSION}/docs/recruiting.svg" in pictures
    assert f"blob/v{VERSION}/docs/volatile_hashes.md#cached-functions" in ours


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((r"\(https://[^)]*/docs/versions.md\)", "(docs/versions.md)"), "the relative link docs"),
        ((r"/docs/versions.md\)", "/docs/vanished.md)"), "is no path of this checkout"),
        ((r"/blob/v[^/]*/docs/versions.md\)", "/blob/v9/docs/versions.md)"), "is no path of"),
        (("(?m)^Classifier: [FIPT].*\n", ""), "has 2 classifiers, expected 10 or more"),
        (("(?m)^Author: .*\n", ""), "has no Author: "),
        (("(?m)^Project-URL: Security, .*\n", ""), "says None for Security, "),
        (("(?m)^Version: .*\n", "Version: 9\n"), f"has version 9, pyproject.toml {VERSION}: "),
        ((r"\]\(", "] ("), "without a single link"),
    ],
)
def test_a_fault_is_named(
    artifacts: ModuleType,
    built: dict[str, Path],
    tmp_path: Path,
    change: tuple[str, str],
    said: str,
) -> None:
    name = f"workstealing-{VERSION}.dist-info/METADATA"

    def with_a_fault(files: dict[str, bytes]) -> None:
        text, count = re.subn(*change, files[name].decode())
        assert count
        files[name] = text.encode()

    faults = list(artifacts.metadata_faults(changed(built["wheel"], tmp_path, with_a_fault)))
    assert faults
    assert all(said in fault for fault in faults), faults


def test_the_address_comes_from_one_variable(
    artifacts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placeholder = artifacts.home()
    monkeypatch.setenv(artifacts.VARIABLE, "https://forge.test/us/ours/")
    artifacts.copy(tmp_path)
    for name in ("pyproject.toml", "README.md"):
        text = (tmp_path / name).read_text()
        assert "https://forge.test/us/ours/blob/" in text
        assert placeholder not in text
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Homepage"] == "https://forge.test/us/ours"
    assert urls["Documentation"] == f"https://forge.test/us/ours/tree/v{VERSION}/docs"


def test_a_link_to_nothing_is_not_built(artifacts: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"links to docs/vanished\.md, which does not exist"):
        artifacts.absolute("see [this](docs/vanished.md)")


def test_code_anchors_and_addresses_stay(artifacts: ModuleType) -> None:
    text = "[a](#more) [b](https://redis.io/x)\n\n```python\nx[0](LICENSE)\n```\n"
    assert artifacts.absolute(text) == text
    assert "(LICENSE)" not in artifacts.absolute("[c](LICENSE)")


def test_the_classifiers_are_the_pythons_of_the_table(artifacts: ModuleType) -> None:
    table = tomllib.loads((ROOT / "scripts" / "matrix.toml").read_text())["python"]
    oldest, newest = (int(table[each].partition(".")[2]) for each in ("oldest", "newest"))
    shown = [
        each.rpartition(" ")[2]
        for each in artifacts.project()["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", each)
    ]
    assert shown == [f"3.{minor}" for minor in range(oldest, newest + 1)]


@pytest.mark.parametrize("wanted", ["true", "input", "false"])
def test_a_clone_has_the_line_ends_of_the_commit(tmp_path: Path, wanted: str) -> None:
    """Bash reads no script with carriage returns, which core.autocrlf=true puts into a clone."""

    def git(*arguments: str) -> None:
        own = ["-c", f"core.autocrlf={wanted}", "-c", "user.name=a", "-c", "user.email=a@a.test"]
        command = ["git", "-C", tmp_path, *own, "-c", "commit.gpgSign=false", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init", "-q")
    names = ["Makefile", "scripts/setup.sh", "lua/README.md", "docs/survey.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if (ROOT / ".gitattributes").exists():
        shutil.copy(ROOT / ".gitattributes", tmp_path)
    git("add", ".")
    git("commit", "-qm", "all")
    for name in names:
        (tmp_path / name).unlink()
    git("checkout", "--", ".")
    for name in names:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes(), name
