"""What `make release` refuses, the hashes that it installs by, and a rehearsal of the whole."""

from __future__ import annotations

import hashlib
import importlib.metadata as installed
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.0"\n[tool.workstealing]\nhome = "https://a.test"\n',
    "SECURITY.md": "# Security\n\nWrite to us@a.test.\n",
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\n",
    "CHANGELOG.md": "## Unreleased\n\n## 1.2.0 (2026-12-01)\n\n- New.\n\n## 1.1.0\n\n- Old.\n",
    "workstealing/__init__.py": '__version__ = "1.2.0"\n',
    ".github/ISSUE_TEMPLATE/config.yml": "url: https://a.test\n",
}


@pytest.fixture(scope="module")
def release(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("release")


def git(root: Path, *arguments: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@a.test", "-c", "tag.gpgSign=false"]
    command = ["git", "-C", root, *own, "-c", "commit.gpgSign=false", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: ModuleType) -> Path:
    """A repository that nothing is wrong with."""
    monkeypatch.delenv(release.artifacts.VARIABLE, raising=False)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def refused(release: ModuleType, root: Path, *, rehearse: bool = False) -> list[str]:
    """Return what is refused before anything is done."""

    class Reached(Exception):
        pass

    def reached() -> None:
        raise Reached

    begun = release.Release(root, root / "dist")
    begun.prepare_tools = reached
    try:
        release.prepare(begun, rehearse=rehearse)
    except Reached:
        return []
    except release.RefusedError as error:
        return str(error).split("\nrelease: ")
    raise AssertionError("a release went on without its tools")


def test_what_is_ready_is_not_refused(release: ModuleType, ready: Path) -> None:
    assert refused(release, ready) == []


# A person's words, which a rehearsal leaves open.
OPEN = {
    "SECURITY.md": ("us@a.test", "us@example.org", "SECURITY.md:3 has the placeholder us@example"),
    "pyproject.toml": ("//a.test", "//example.org/x", "pyproject.toml:4 has the placeholder https"),
    ".github/ISSUE_TEMPLATE/config.yml": (
        "a.test",
        "example.org/x",
        "config.yml:1 has the placeho",
    ),
    "CHANGELOG.md": ("## 1.2.0", "## 1.3.0", "CHANGELOG.md has nothing below a heading ## 1.2.0: "),
}
WRONG = {
    "CITATION.cff": (
        "\nversion: 1.2.0\n",
        "\n",
        "CITATION.cff has version none, pyproject.toml 1.2.0",
    ),
    "workstealing/__init__.py": ("1.2.0", "1.1.0", "__init__.py has version 1.1.0, pyproject.toml"),
}


@pytest.mark.parametrize("path", [*OPEN, *WRONG])
def test_what_is_not_ready_is_refused_by_a_sentence(
    release: ModuleType, ready: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, said = (OPEN | WRONG)[path]
    text = (ready / path).read_text()
    (ready / path).write_text(text.replace(old, new))
    git(ready, "commit", "-qam", "worse")
    (sentence,) = refused(release, ready)
    assert said in sentence
    assert re.search(r": (write|name) ", sentence)
    rehearsed = refused(release, ready, rehearse=True)
    assert rehearsed == ([] if path in OPEN else [sentence])
    assert (f"left open: {sentence}" in capsys.readouterr().out) == (path in OPEN)


@pytest.mark.parametrize("rehearse", [False, True])
@pytest.mark.parametrize("path", ["SECURITY.md", "new.txt"])
def test_what_is_not_committed_is_refused(
    release: ModuleType, ready: Path, path: str, rehearse: bool
) -> None:
    with (ready / path).open("a") as file:
        file.write("more\n")
    (sentence,) = refused(release, ready, rehearse=rehearse)
    assert sentence.startswith(f"1 files are not committed, such as {path}: commit them")


def test_a_version_that_is_out_is_refused(release: ModuleType, ready: Path) -> None:
    git(ready, "tag", "v1.2.0")
    assert refused(release, ready) == []
    git(ready, "commit", "-q", "--allow-empty", "-m", "later")
    (sentence,) = refused(release, ready)
    assert sentence == "the tag v1.2.0 stands at another commit: raise the version"


def test_a_tag_of_another_version_is_refused(release: ModuleType, ready: Path) -> None:
    """The forge would publish version 1.2.0 where somebody has pushed v1.3.0."""
    git(ready, "tag", "latest")
    git(ready, "tag", "-am", "notes", "v1.3.0")
    for rehearse in (False, True):
        (sentence,) = refused(release, ready, rehearse=rehearse)
        assert sentence == (
            "the tag v1.3.0 stands at this commit, whose version is 1.2.0: write that version, or"
            " delete the tag"
        )


IGNORED = "workstealing/local_keys.py"


@pytest.mark.parametrize("how", ["ignored", "unseen", "assumed", "skipped", "linked"])
def test_what_git_does_not_tell_of_is_refused(
    release: ModuleType, ready: Path, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    """The wheel holds each file of its folders, whatever the settings of somebody's git are."""
    said = f"{IGNORED} is in no commit, and git does not tell of it: remove it, or commit it"
    match how:
        case "ignored":
            (ready / ".git" / "info" / "exclude").write_text("*_keys.py\n")
            (ready / IGNORED).write_text("SECRET = 1\n")
        case "unseen":
            git(ready, "config", "status.showUntrackedFiles", "no")
            (ready / IGNORED).write_text("SECRET = 1\n")
            said = f"1 files are not committed, such as {IGNORED}: commit them"
        case "linked":
            elsewhere = tmp_path_factory.mktemp("elsewhere") / "keys.py"
            elsewhere.write_text("SECRET = 1\n")
            (ready / IGNORED).symlink_to(elsewhere)
            git(ready, "add", ".")
            git(ready, "commit", "-qm", "a link")
            said = f"{IGNORED} is a link, which the wheel does not keep: commit the file itself"
        case _:
            path = "workstealing/__init__.py"
            option = {"assumed": "--assume-unchanged", "skipped": "--skip-worktree"}[how]
            git(ready, "update-index", option, path)
            with (ready / path).open("a") as file:
                file.write("SECRET = 1\n")
            said = f"{path} is not as it is committed, and git does not tell of it: commit it, or"
    assert git(ready, "status", "--porcelain") == ""
    for rehearse in (False, True):
        (sentence,) = refused(release, ready, rehearse=rehearse)
        assert sentence.startswith(said)


def test_caches_are_no_files_of_the_package(release: ModuleType, ready: Path) -> None:
    (ready / ".gitignore").write_text("__pycache__/\n/dist/\n")
    git(ready, "add", ".")
    git(ready, "commit", "-qm", "ignore")
    for name in ("workstealing/__pycache__/clock.cpython-311.pyc", "dist/old.whl"):
        (ready / name).parent.mkdir()
        (ready / name).write_bytes(b"")
    assert refused(release, ready) == []


NONSENSE = (
    "nonsense",
    "http://forge.test/x",
    "javascript:alert(1)",
    'https://a.test/"x',
    "https:///x",
)


@pytest.mark.parametrize("address", NONSENSE)
@pytest.mark.parametrize("rehearse", [False, True])
def test_an_address_that_is_none_is_refused(
    release: ModuleType,
    ready: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    rehearse: bool,
) -> None:
    monkeypatch.setenv(release.artifacts.VARIABLE, address)
    (sentence,) = refused(release, ready, rehearse=rehearse)
    assert sentence.startswith(f"the project's address is {address!r}, expected one such as https:")
    assert release.artifacts.VARIABLE in sentence


@pytest.mark.parametrize("place", ["example.org/workstealing", "EXAMPLE.com", "www.example.net/x"])
def test_a_placeholder_in_the_environment_is_one(
    release: ModuleType, ready: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv(release.artifacts.VARIABLE, f"https://{place}")
    (sentence,) = refused(release, ready)
    assert sentence == (
        f"WORKSTEALING_HOME_URL has the placeholder https://{place}: write the project's address"
    )
    assert refused(release, ready, rehearse=True) == []


def test_a_release_takes_nothing_that_was_built_before(
    release: ModuleType, ready: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A kept wheel may have been edited, and a folder that stays may hold an older one."""
    (ready / "scripts").mkdir()
    (ready / "scripts" / "build_wheel.sh").write_text(
        '[ ! -e .cache/wheel/sum ] || exit 1\nmkdir -p "$1"; touch "$1/w.whl" "$1/s.tar.gz"\n'
    )
    (ready / ".cache" / "wheel").mkdir(parents=True)
    (ready / ".cache" / "wheel" / "sum").write_text("of yesterday")
    release.Release(ready, ready / "dist").build(anew=True)
    assert {each.name for each in (ready / "dist").iterdir()} == {"w.whl", "s.tar.gz"}
    shutil.rmtree(ready / "dist")
    (ready / "dist").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(release.RefusedError, match=r"dist cannot be emptied: remove it$"):
        release.Release(ready, ready / "dist").build(anew=True)


def test_the_address_may_stand_in_the_environment(
    release: ModuleType, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, _ = OPEN["pyproject.toml"]
    path = ready / "pyproject.toml"
    path.write_text(path.read_text().replace(old, new))
    git(ready, "commit", "-qam", "worse")
    monkeypatch.setenv(release.artifacts.VARIABLE, "https://forge.test/us/ours")
    assert refused(release, ready) == []


def test_a_refusal_ends_the_command(
    release: ModuleType,
    ready: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (ready / "new.txt").write_text("")
    monkeypatch.setattr(release, "ROOT", ready)
    assert release.main([]) == 1
    assert capsys.readouterr().err.startswith("release: 1 files are not committed, such as new.txt")
    assert not (ready / "dist").exists()


def test_the_notes_are_those_of_the_version(release: ModuleType, ready: Path) -> None:
    assert release.notes(ready, "1.2.0") == "- New."
    assert release.notes(ready, "1.1.0") == "- Old."
    assert release.notes(ready, "1.2") == release.notes(ready, "Unreleased") == ""


def test_a_demo_that_did_nothing_is_refused(release: ModuleType) -> None:
    figures = dict.fromkeys(release.OUTCOMES, 1) | {"requests": 9, "recruited": 6}
    release.check_figures(figures)
    with pytest.raises(release.RefusedError, match="served no request"):
        release.check_figures(figures | {"requests": 0})
    with pytest.raises(release.RefusedError, match="do not add up"):
        release.check_figures(figures | {"worked": 2})


def test_a_command_that_fails_is_refused(
    release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(release.RefusedError, match=r"this failed, with the words above: .* -c "):
        release.run(sys.executable, "-c", "print('its words'); raise SystemExit(3)")
    assert "its words" in capsys.readouterr().err


def test_what_the_package_holds_of_others_is_in_its_bills(release: ModuleType) -> None:
    (component,) = release.vendored(ROOT)
    assert re.fullmatch(r"pkg:npm/uplot@\d+\.\d+\.\d+", component["purl"])
    folder = ROOT / "workstealing" / "dashboard" / "static" / "vendor"
    held = {path.name.partition(".")[0].lower() for path in folder.iterdir()}
    assert held == {component["name"]}
    assert component["licenses"][0]["license"]["id"] in (folder / "uPlot.LICENSE").read_text()


def hashed() -> dict[str, tuple[str, int]]:
    """Return constraints-hashes.txt: package -> its version and how many hashes it has."""
    text = (ROOT / "constraints-hashes.txt").read_text("utf-8")
    found = re.findall(r"^([\w.-]+)==(\S+).*((?:\n    --hash=sha256:[0-9a-f]{64}.*)+)", text, re.M)
    assert len(found) == text.count("==")
    return {canonicalize_name(name): (version, rest.count("--h")) for name, version, rest in found}


def needed(requirements: list[str]) -> Iterator[str]:
    """Yield the names of what requirements lead to, as far as it is installed here."""
    waiting, seen = [Requirement(each) for each in requirements], set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen or canonicalize_name(wanted.name) == "workstealing":
            continue
        seen.add(str(wanted))
        yield canonicalize_name(wanted.name)
        try:
            further = installed.requires(wanted.name) or []
        except installed.PackageNotFoundError:
            continue
        for each in map(Requirement, further):
            extras = wanted.extras or {""}
            if not each.marker or any(each.marker.evaluate({"extra": name}) for name in extras):
                waiting.append(each)


def test_the_hashes_are_of_the_pins_and_of_all_that_a_user_installs() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = {*needed([*project["dependencies"], *(each for some in extras for each in some)])}
    again = "write it anew: .venv/bin/python scripts/release.py hashes"
    assert {name: version for name, (version, _) in hashed().items()} == {
        name: pinned.get(name) for name in hashed()
    }, again
    assert wanted | {"setuptools"} <= hashed().keys(), again
    assert len(wanted) > 30
    assert all(count for _, count in hashed().values())
    assert "://" not in (ROOT / "constraints-hashes.txt").read_text("utf-8")


def test_who_installs_by_hashes_is_told_which_pip_can(release: ModuleType) -> None:
    """26.0 says that redis is not pinned: it takes no hash from a constraint."""
    assert (ROOT / release.HASHES).read_text("utf-8").startswith(release.HASHES_HEAD)
    page = (ROOT / "docs" / "versions.md").read_text("utf-8").partition("## With hashes")[2]
    for text in (release.HASHES_HEAD, page.partition("\n## ")[0]):
        assert "pip 26.1 or newer" in text
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    assert tuple(map(int, re.findall(r"(?m)^pip==(\d+)\.(\d+)", pins)[0])) >= (26, 1)


def test_every_tool_of_a_release_is_pinned() -> None:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    assert {canonicalize_name(Requirement(each).name) for each in group["release"]} <= pinned


# It installs a gigabyte of packages, four minutes on two busy cores.
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_a_rehearsal_goes_through_all_steps_and_publishes_nothing(
    release: ModuleType, tmp_path: Path
) -> None:
    """Of the last commit, in a clone with this checkout's environment and its kept packages."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    (clone / ".cache").symlink_to(ROOT / ".cache")
    # To .gitignore they are folders.
    (clone / ".git" / "info" / "exclude").write_text("/.venv\n/.cache\n")
    variables = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "python", "-P", "scripts/release.py", "--rehearse"],
        cwd=clone,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left_open = [text for check in release.A_PERSONS for text in check(clone)]
    assert re.findall(r"^left open: (.*)$", done.stdout, re.M) == left_open
    assert "git tag -s v" in done.stdout
    assert "twine upload dist/workstealing-" in done.stdout
    files = {path.name: path for path in (clone / "dist").iterdir()}
    sums = dict(
        reversed(line.split("  ")) for line in files.pop("SHA256SUMS").read_text().splitlines()
    )
    for name, path in files.items():
        assert sums.pop(name) == hashlib.sha256(path.read_bytes()).hexdigest(), name
    assert sums == {}
    assert {re.sub(r"-\d.*?(-py3|\.tar)", r"\1", name) for name in files} == {
        "workstealing-py3-none-any.whl",
        "workstealing.tar.gz",
        "core.cdx.json",
        "all.cdx.json",
        "constraints-hashes.txt",
        "notes.md",
    }
    core, everything = (
        {each["name"].lower() for each in json.loads(files[name].read_text())["components"]}
        for name in ("core.cdx.json", "all.cdx.json")
    )
    assert core == {"redis", "uplot"}
    assert core <= everything
    assert "pyspark" in everything - core
    assert git(clone, "tag") == ""
    assert git(clone, "status", "--porcelain") == ""
    shutil.rmtree(clone)
