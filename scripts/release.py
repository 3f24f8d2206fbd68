"""Prepares a release, tries it as a user would, and publishes nothing: make release.

It refuses what is not ready, builds the wheel and the sdist into dist/, holds them against
scripts/contents.toml, installs each by hashes in an empty environment and runs the demo from it,
lets the wheel and the checkout work on one Redis, and writes the bills of materials, the checksums
and the tag's notes. Its last lines are the commands that a person types.

    make release
    make release RELEASE_ARGS=--rehearse           all steps, with what is a person's left open
    .venv/bin/python scripts/release.py demo       the wheel and its demo alone (.ci/run)
    .venv/bin/python scripts/release.py hashes     write constraints-hashes.txt anew
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import artifacts  # noqa: E402 - the scripts' folder had to be found first

HASHES = "constraints-hashes.txt"
HASHES_HEAD = """\
# The packages that workstealing and its extras install, at the versions of constraints.txt, and the
# hashes of their files. Written by: .venv/bin/python scripts/release.py hashes
# Use, with pip 26.1 or newer, because an older one takes no hash from a constraint:
#     pip install --require-hashes --constraint constraints-hashes.txt --requirement yours.txt
"""
# Its package on the index fetches a program from elsewhere while it is installed. Go builds it from
# sources whose hash its checksum database knows.
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
# The names that nobody can own.
PLACEHOLDER = re.compile(r"[^\s\"'(]*\bexample\.(?:org|com|net)\b[^\s\"'),]*", re.IGNORECASE)
ADDRESS = re.compile(r"https://[\w.-]+(?::\d+)?(?:/[\w.~-]+)*")
# Where a person's words stand, and which they are.
OPEN = {
    "pyproject.toml": f"the project's address, or set {artifacts.VARIABLE}",
    "SECURITY.md": "the address to which faults are reported",
    ".github/ISSUE_TEMPLATE/config.yml": "the project's address",
}
SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "citation-file-format": "CITATION.cff",
}
# What the package holds of others, and no metadata names: package, licence -> where its version is.
VENDORED = {
    ("npm/uplot", "MIT"): "workstealing/dashboard/static/vendor/uPlot.iife.min.js",
}
OUTCOMES = ("worked", "idle", "aborted", "failed", "out_of_time", "skipped")
# Of a user's shell; those of this checkout would change what an empty environment is.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS")


class RefusedError(Exception):
    """Something is not ready, or does not work; the text says what, and what to do."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command, and return what it prints.

    Raises: RefusedError, after its words, if it fails.
    """
    environment = {name: text for name, text in os.environ.items() if name not in FOREIGN}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr, flush=True)
        line = shlex.join(map(str, command))
        raise RefusedError(f"this failed, with the words above: {line}")
    return done.stdout


# ---- what is not ready ---------------------------------------------------------------------------


def version(root: Path = ROOT) -> str:
    """Return the version that pyproject.toml has."""
    said: str = artifacts.project(root)["project"]["version"]
    return said


def notes(root: Path, heading: str) -> str:
    """Return what CHANGELOG.md says below a heading, or nothing if there is none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1].strip() if found else ""


def uncommitted(root: Path) -> Iterator[str]:
    """Refuse a tree that is not its commit, even where settings keep git from telling of it."""
    lines = run("git", "status", "--porcelain", "--untracked-files=all", cwd=root).splitlines()
    if lines:
        yield (
            f"{len(lines)} files are not committed, such as {lines[0][3:]}: commit them, because a"
            " release is built from a commit"
        )
        return
    rows = run("git", "ls-tree", "-r", "-z", "HEAD", cwd=root).split("\0")[:-1]
    committed = {path: about.split() for about, path in (row.split("\t", 1) for row in rows)}
    for folder, inner in artifacts.tree(root):
        if f"{folder}/{inner}" not in committed:
            yield (
                f"{folder}/{inner} is in no commit, and git does not tell of it: remove it, or"
                " commit it"
            )
    for path, (mode, _, known) in committed.items():
        if mode.startswith("120") and path.partition("/")[0] in artifacts.INSTALLED:
            yield f"{path} is a link, which the wheel does not keep: commit the file itself"
        elif mode.startswith("100") and git_hash(root / path, len(known)) != known:
            yield (
                f"{path} is not as it is committed, and git does not tell of it: commit it, or take"
                f" the commit's: git update-index --no-assume-unchanged --no-skip-worktree {path}"
                f" && git restore {path}"
            )


def git_hash(path: Path, length: int) -> str:
    """Return the name that git gives to a file's content, or nothing if there is no such file."""
    if not path.is_file():
        return ""
    content = path.read_bytes()
    digest = hashlib.new("sha1" if length == 40 else "sha256", usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content) + content)
    return digest.hexdigest()


def placeholders(root: Path) -> Iterator[str]:
    """Refuse what a person has not filled in yet."""
    for path, wanted in OPEN.items():
        if path == "pyproject.toml" and (given := os.environ.get(artifacts.VARIABLE)):
            if found := PLACEHOLDER.search(given):
                yield (
                    f"{artifacts.VARIABLE} has the placeholder {found[0]}: write the project's"
                    " address"
                )
            continue
        for number, line in enumerate((root / path).read_text("utf-8").splitlines(), 1):
            if found := PLACEHOLDER.search(line):
                yield f"{path}:{number} has the placeholder {found[0]}: write {wanted}"


def unusable_address(root: Path) -> Iterator[str]:
    """Refuse an address of the project to which no link of the README could lead."""
    address = artifacts.home(root)
    if not ADDRESS.fullmatch(address):
        yield (
            f"the project's address is {address!r}, expected one such as"
            f" https://forge.test/us/ours: write it into {artifacts.VARIABLE} or pyproject.toml"
        )


def disagreeing_versions(root: Path) -> Iterator[str]:
    """Refuse a version that does not stand everywhere."""
    for path, pattern in (
        ("workstealing/__init__.py", r'^__version__ = "(.*)"$'),
        ("CITATION.cff", r"^version: (.*)$"),
    ):
        found = re.search(pattern, (root / path).read_text("utf-8"), re.M)
        if found is None or found[1] != version(root):
            said = found[1] if found else "none"
            yield f"{path} has version {said}, pyproject.toml {version(root)}: write the same"


def unwritten_notes(root: Path) -> Iterator[str]:
    """Refuse a version of which CHANGELOG.md says nothing."""
    if not notes(root, version(root)):
        yield (
            f"CHANGELOG.md has nothing below a heading ## {version(root)}: name the version there,"
            " with its date, above what it brings"
        )


def used_tags(root: Path) -> Iterator[str]:
    """Refuse a version whose tag stands at another commit, and a commit with another one's tag."""
    tag = f"v{version(root)}"
    if run("git", "tag", "--list", tag, cwd=root):
        there, here = (
            run("git", "rev-parse", name, cwd=root) for name in (f"{tag}^{{commit}}", "HEAD")
        )
        if there != here:
            yield f"the tag {tag} stands at another commit: raise the version"
    # The forge publishes at each pushed tag what make release builds there.
    for other in run("git", "tag", "--points-at", "HEAD", cwd=root).split():
        if other != tag and re.match(r"v\d", other):
            yield (
                f"the tag {other} stands at this commit, whose version is {version(root)}: write"
                " that version, or delete the tag"
            )


# What a rehearsal leaves open, because it is a person's.
A_PERSONS = (placeholders, unwritten_notes)
REFUSALS = (uncommitted, unusable_address, disagreeing_versions, used_tags, *A_PERSONS)


# ---- the parts of a release ----------------------------------------------------------------------


class Release:
    """A release in the making.

    Arguments:
        root: the checkout.
        out: where its files go.
    """

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out
        # Resolved: an environment is bound to its place.
        self.cache = (root / ".cache").resolve() / "release"
        self.wheel = self.sdist = out
        self._begin = time.monotonic()

    def step(self, name: str, work: Callable[..., str | None], *arguments: Any) -> None:
        """Do a part of the work, and say how it went in one line."""
        begin = time.monotonic()
        said = work(*arguments)
        seconds = time.monotonic() - begin
        print(f"ok  {name} ({seconds:.0f} s){': ' + said if said else ''}", flush=True)

    def tool(self, name: str) -> Path:
        """Return one of the tools of the dependency group `release`."""
        return self.cache / "tools" / "bin" / name

    def prepare_tools(self) -> None:
        """Install the tools in an environment of their own, once for the same pins."""
        home = self.cache / "tools"
        text = (self.root / "pyproject.toml").read_text("utf-8")
        group = tomllib.loads(text)["dependency-groups"]["release"]
        pins = (self.root / "constraints.txt").read_text("utf-8")
        stamp = json.dumps([str(home), group, pins])
        if (home / "stamp").exists() and (home / "stamp").read_text("utf-8") == stamp:
            return
        python = self.environment(home)
        self.pip(python, "--constraint", self.root / "constraints.txt", "--group", "release")
        (home / "stamp").write_text(stamp, "utf-8")

    @staticmethod
    def environment(home: Path) -> Path:
        """Make an environment in which there is nothing, not even pip; return its interpreter."""
        shutil.rmtree(home, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", home)
        return home / "bin" / "python"

    def pip(self, python: Path, *arguments: str | Path) -> None:
        """Let this checkout's pip install something for another interpreter."""
        own = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        run(*own, "install", "--quiet", "--no-input", *arguments, cwd=self.root)

    def build(self, *, anew: bool = False) -> str:
        """Build the wheel and the sdist; anew: even if kept ones are of the same files."""
        shutil.rmtree(self.out, ignore_errors=True)
        if self.out.exists():
            raise RefusedError(f"{self.out} cannot be emptied: remove it")
        if anew:
            (self.root / ".cache" / "wheel" / "sum").unlink(missing_ok=True)
        run("bash", "scripts/build_wheel.sh", self.out, "sdist", cwd=self.root)
        ((self.wheel,), (self.sdist,)) = self.out.glob("*.whl"), self.out.glob("*.tar.gz")
        return f"{self.wheel.name}, {self.sdist.name}"

    def check_artifacts(self) -> str:
        """Hold both against the list, and let twine render what an index shows."""
        paths = (self.wheel, self.sdist)
        if found := [fault for path in paths for fault in artifacts.faults(path, self.root)]:
            raise RefusedError("\nrelease: ".join(found))
        run(self.tool("twine"), "check", "--strict", *paths)
        return ", ".join(f"{len(artifacts.read(path))} files in {path.name}" for path in paths)

    def check_forge(self, *, may_miss: bool) -> str:
        """Check the files that a forge reads: by their schemas, actionlint and zizmor."""
        checked = 0
        for schema, pattern in SCHEMAS.items():
            paths = sorted(self.root.glob(pattern))
            run(self.tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *paths)
            checked += len(paths)
        run(self.tool("zizmor"), "--offline", "--pedantic", "--no-progress", ".", cwd=self.root)
        linter = self.actionlint()
        if linter is None and not may_miss:
            raise RefusedError("actionlint is missing, and Go to build it, too: put one on PATH")
        if linter is not None:
            run(linter, cwd=self.root)
        missing = "" if linter else "; missing: actionlint, and Go to build it"
        return f"{checked} files{missing}"

    def actionlint(self) -> Path | None:
        """Return actionlint: that of PATH, or one that Go builds; none where there is no Go."""
        kept = self.cache / "bin" / "actionlint"
        if found := shutil.which("actionlint"):
            return Path(found)
        if not kept.exists() and shutil.which("go"):
            run("go", "install", ACTIONLINT, cwd=self.cache, GOBIN=str(kept.parent))
        return kept if kept.exists() else None

    def install(self, python: Path, archive: Path, extras: str = "") -> None:
        """Install a wheel or an sdist, and all that it needs, each by its hash."""
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        wanted = python.parent / "wanted.txt"
        wanted.write_text(f"{archive}{extras} --hash=sha256:{digest}\n", "utf-8")
        self.pip(
            python,
            *("--require-hashes", "--constraint", self.root / HASHES, "--requirement", wanted),
            # What builds a package would come without a hash: it is there by one, or missing.
            "--no-build-isolation",
        )
        run(sys.executable, "-m", "pip", "--python", python, "check")

    def add_builder(self, python: Path) -> None:
        """Install what sdists are built by, ours and PySpark's."""
        self.pip(python, "--require-hashes", "--constraint", self.root / HASHES, "setuptools")

    def demo(self, python: Path) -> str:
        """Run the demo that was installed, and look at its figures."""
        with tempfile.TemporaryDirectory() as elsewhere:
            command = (python.parent / "workstealing", "demo", "--seconds", "5", "--json")
            figures = json.loads(run(*command, cwd=Path(elsewhere)))
        check_figures(figures)
        return f"{figures['requests']} requests, {figures['recruited']} recruits"

    def write_bill(self, python: Path, name: str) -> str:
        """Write what an environment holds as a bill of materials."""
        path = self.out / f"{name}.cdx.json"
        options = ("--pyproject", self.root / "pyproject.toml", "--mc-type", "library")
        reproducible = ("--output-reproducible", "--output-file", path)
        run(self.tool("cyclonedx-py"), "environment", *options, *reproducible, python)
        bill = json.loads(path.read_text("utf-8"))
        found = sorted(each["name"].lower() for each in bill["components"])
        if "redis" not in found:
            raise RefusedError(f"{path.name} does not name redis, which the core needs: {found}")
        bill["components"] += vendored(self.root)
        path.write_text(json.dumps(bill, indent=2) + "\n", "utf-8")
        return f"{len(bill['components'])} components in {path.name}"

    def try_wheel(self) -> None:
        """Install the wheel: alone, with its demo, and with all extras."""
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            python = self.environment(Path(folder) / "wheel")
            self.step("the wheel alone", self.install, python, self.wheel)
            self.step("its bill of materials", self.write_bill, python, "core")
            self.step("the wheel with [demo]", self.install, python, self.wheel, "[demo]")
            self.step("its demo", self.demo, python)
            self.add_builder(python)
            self.step("the wheel with [all]", self.install, python, self.wheel, "[all]")
            own = (sys.executable, "-m", "pip", "--python", python)
            run(*own, "uninstall", "--quiet", "--yes", "setuptools")
            self.step("its bill of materials", self.write_bill, python, "all")

    def try_sdist(self) -> None:
        """Install the sdist, which is built there, with its demo."""
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            python = self.environment(Path(folder) / "sdist")
            self.add_builder(python)
            # [server] is no part of [all], and so the wheel's environments are without it.
            extras = "[demo,server]"
            self.step(f"the sdist with {extras}", self.install, python, self.sdist, extras)
            self.step("its demo", self.demo, python)

    def upgrade(self) -> str:
        """Let the wheel and the checkout work on one Redis."""
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        said = run(*command, "tests/upgrades", "-k", "checkout", cwd=self.root, CI="true")
        return said.strip().splitlines()[-1].strip("= ")

    def write_rest(self, heading: str) -> str:
        """Write the notes of the tag, the hashed constraints and the checksums of all files."""
        text = f"workstealing {version(self.root)}\n\n{notes(self.root, heading)}\n"
        (self.out / "notes.md").write_text(text, "utf-8")
        shutil.copy(self.root / HASHES, self.out)
        files = sorted(path for path in self.out.iterdir() if path.name != "SHA256SUMS")
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
        (self.out / "SHA256SUMS").write_text("".join(sums), "utf-8")
        return ", ".join(path.name for path in files)

    def say_commands(self) -> None:
        """Print what a person types."""
        out = self.out.relative_to(self.root)
        tag = f"git tag -s v{version(self.root)} --cleanup=verbatim -F {out}/notes.md"
        upload = f"twine upload {out}/{self.wheel.name} {out}/{self.sdist.name}"
        print(
            f"\nready in {time.monotonic() - self._begin:.0f} s; nothing is tagged or published."
            f" These are yours:\n    {tag}\n    .cache/release/tools/bin/{upload}\n"
            "Instead of the second one you may push the tag: .github/workflows/release.yml uploads"
            " when a person has approved it."
        )


def vendored(root: Path) -> list[dict[str, Any]]:
    """Return what the package holds of others, as components of a bill of materials."""
    components = []
    for (package, licence), place in VENDORED.items():
        found = re.search(r"\(v([\d.]+)\)", (root / place).read_text("utf-8")[:200])
        if found is None:
            raise RefusedError(f"{place} does not begin with its version, such as (v1.2.3)")
        purl = f"pkg:{package}@{found[1]}"
        components.append(
            {
                "bom-ref": purl,
                "licenses": [{"license": {"acknowledgement": "declared", "id": licence}}],
                "name": package.rpartition("/")[2],
                "purl": purl,
                "type": "library",
                "version": found[1],
            }
        )
    return components


def check_figures(figures: Mapping[str, Any]) -> None:
    """See that a demo has done something. Raises: RefusedError."""
    if not figures["requests"]:
        raise RefusedError("the demo served no request")
    if figures["recruited"] != sum(figures[outcome] for outcome in OUTCOMES):
        raise RefusedError(f"the outcomes of the demo do not add up: {json.dumps(figures)}")


# ---- the commands --------------------------------------------------------------------------------


def write_hashes(release: Release) -> None:
    """Write the hashes of all that the package and its extras install."""
    release.prepare_tools()
    target = release.root / HASHES
    oldest = artifacts.project(release.root)["project"]["requires-python"].removeprefix(">=")
    with tempfile.TemporaryDirectory() as folder:
        builder = Path(folder) / "builder.in"
        builder.write_text("setuptools\n", "utf-8")
        made = Path(folder) / "made.txt"
        options = [
            *("--all-extras", "--constraint", release.root / "constraints.txt"),
            *("--universal", "--python-version", oldest),
            *("--generate-hashes", "--no-annotate", "--no-header", "--output-file", made),
            # An index is each machine's own.
            *("--no-emit-index-url", "--no-emit-find-links"),
        ]
        run(release.tool("uv"), "pip", "compile", *options, "pyproject.toml", builder)
        target.write_text(HASHES_HEAD + made.read_text("utf-8"), "utf-8")


def prepare(release: Release, *, rehearse: bool) -> None:
    """Go through all steps. Raises: RefusedError at the first one that fails."""
    found = [(check, text) for check in REFUSALS for text in check(release.root)]
    for check, text in found:
        if rehearse and check in A_PERSONS:
            print(f"left open: {text}", flush=True)
    if refused := [text for check, text in found if not rehearse or check not in A_PERSONS]:
        raise RefusedError("\nrelease: ".join(refused))
    heading = version(release.root) if notes(release.root, version(release.root)) else "Unreleased"
    release.step("the tools", release.prepare_tools)
    release.step("the wheel and the sdist", lambda: release.build(anew=True))
    release.step("their contents and metadata", release.check_artifacts)
    release.step("the forge's files", lambda: release.check_forge(may_miss=rehearse))
    release.try_wheel()
    release.try_sdist()
    release.step("the wheel beside the checkout, on one Redis", release.upgrade)
    release.step("checksums and notes", release.write_rest, heading)
    release.say_commands()


def try_demo(release: Release) -> None:
    """Build the wheel, install it in an empty environment, and run its demo."""
    with tempfile.TemporaryDirectory() as folder:
        release.out = Path(folder) / "dist"
        release.step("the wheel and the sdist", release.build)
        python = release.environment(Path(folder) / "environment")
        release.step("the wheel with [demo]", release.install, python, release.wheel, "[demo]")
        release.step("its demo", release.demo, python)


def main(arguments: list[str] | None = None) -> int:
    """Read the arguments, and do what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("demo", "hashes"), help="this alone")
    parser.add_argument(
        "--rehearse", action="store_true", help="allow placeholders, and an unnamed version"
    )
    options = parser.parse_args(arguments)
    release = Release(ROOT, ROOT / "dist")
    release.cache.mkdir(parents=True, exist_ok=True)
    try:
        if options.what == "hashes":
            write_hashes(release)
        elif options.what == "demo":
            try_demo(release)
        else:
            prepare(release, rehearse=options.rehearse)
    except RefusedError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
