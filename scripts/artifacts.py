"""The wheel and the sdist: the copy of the checkout that both are built from, and their checks.

In the copy the README's relative links and pictures lead to the project's address, because an index
shows the README without the files beside it. The address stands in pyproject.toml, under
[tool.workstealing], or in WORKSTEALING_HOME_URL.

    python scripts/artifacts.py copy FOLDER      make the copy (scripts/build_wheel.sh builds it)
    python scripts/artifacts.py settle FILE      take the builder's name and clock out of an sdist
    python scripts/artifacts.py check FILE...    say what is wrong with built wheels and sdists
"""

from __future__ import annotations

import email
import email.message
import email.policy
import gzip
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "WORKSTEALING_HOME_URL"
CONTENTS: dict[str, Any] = tomllib.loads(
    (ROOT / "scripts" / "contents.toml").read_text(encoding="utf-8")
)
# Folder of the checkout -> folder of the wheel, as [tool.setuptools.package-dir] has it.
INSTALLED = {"workstealing": "workstealing", "jobs": "workstealing/jobs", "lua": "workstealing/lua"}
CACHES = ("__pycache__", "*.pyc")
PICTURES = {".svg", ".png", ".jpg", ".gif", ".webp"}
LINK = re.compile(r"(\]\(|<(?:img|a)\b[^>]*?\b(?:src|href)=\")([^)\s\"]+)")
ABSOLUTE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)
LEAST_CLASSIFIERS = 10


# ---- the copy ------------------------------------------------------------------------------------


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def home(root: Path = ROOT) -> str:
    """Return the project's address, without a slash at its end."""
    written: str = project(root)["tool"]["workstealing"]["home"]
    return (os.environ.get(VARIABLE) or written).rstrip("/")


def address(path: str, root: Path = ROOT) -> str:
    """Return where the world finds a path of the checkout, at the tag of this version.

    Raises: SystemExit if there is no such path.
    """
    if not path:
        return home(root)
    bare = path.partition("#")[0]
    if not (root / bare).exists():
        sys.exit(f"artifacts: a page or pyproject.toml links to {path}, which does not exist")
    kind = "tree" if (root / bare).is_dir() else "blob"
    if PurePosixPath(bare).suffix in PICTURES:
        kind = "raw"
    return f"{home(root)}/{kind}/v{project(root)['project']['version']}/{path.rstrip('/')}"


def prose(text: str, change: Callable[[str], str]) -> str:
    """Change a page of Markdown outside of its blocks of code."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def relinked(text: str, change: Callable[[str], str]) -> str:
    """Return a page of Markdown with the targets of its relative links to other files changed."""

    def replaced(found: re.Match[str]) -> str:
        target = found[2]
        stays = ABSOLUTE.match(target) or target.startswith("#")
        return found[1] + (target if stays else change(target))

    return prose(text, lambda part: LINK.sub(replaced, part))


def absolute(text: str, root: Path = ROOT) -> str:
    """Return a page of Markdown with its relative links made absolute."""
    return relinked(text, lambda target: address(target, root))


def copy(folder: Path, root: Path = ROOT) -> None:
    """Put into a folder what the wheel and the sdist are built from."""
    for name in INSTALLED:
        ignored = shutil.ignore_patterns(*CACHES)
        shutil.copytree(root / name, folder / name, ignore=ignored, dirs_exist_ok=True)
    shutil.copy(root / "LICENSE", folder)
    readme = (root / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(absolute(readme, root), encoding="utf-8")
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    told = project(root)["tool"]["workstealing"]
    urls = {label: address(path, root) for label, path in told["urls"].items()}
    lines = [f"{label} = {json.dumps(url)}\n" for label, url in urls.items()]
    text = text.replace(told["home"], home(root)) + "\n[project.urls]\n" + "".join(lines)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def settle(path: Path, moment: int) -> None:
    """Write an sdist anew, so that the same files make the same bytes, whoever builds it.

    The builder's program puts a login's name, its umask and the clock into it.
    """
    with tarfile.open(path) as old:
        files = {each: old.extractfile(each) for each in old}
        members = [(each, file.read() if file else b"") for each, file in files.items()]
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=moment) as packed,
        tarfile.open(fileobj=packed, mode="w") as new,
    ):
        for member, content in sorted(members, key=lambda each: each[0].name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = moment, {}
            member.mode = 0o755 if member.isdir() else 0o644
            new.addfile(member, io.BytesIO(content))


# ---- what is inside ------------------------------------------------------------------------------


def read(path: Path) -> dict[str, bytes]:
    """Return a wheel's or an sdist's files: name -> content. An sdist's own folder is left out."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if name[-1] != "/"}
    with tarfile.open(path) as sdist:
        files = {member.name: sdist.extractfile(member) for member in sdist if member.isfile()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file}


def tree(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield folder and path inside it for each file of the package in the checkout."""
    for folder in INSTALLED:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not any(map(path.match, CACHES)):
                inner = path.relative_to(root / folder).as_posix()
                if "__pycache__" not in inner:
                    yield folder, inner


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a path fits one of the patterns of contents.toml."""
    return any(re.fullmatch(_as_regex(pattern), name) for pattern in patterns)


def _as_regex(pattern: str) -> str:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    found = re.findall(r"\*\*/|\*\*|\*|[^*]+", pattern)
    return "".join(parts.get(part) or re.escape(part) for part in found)


def contents_faults(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each file that a wheel or an sdist lacks, or has and should not."""
    files, kind = read(path), "wheel" if path.suffix == ".whl" else "sdist"
    listed: list[str] = CONTENTS[kind]["files"]
    wanted = {}
    for folder, inner in tree(root):
        if not matches(inner, CONTENTS["package"][folder]):
            yield (
                f"scripts/contents.toml does not name {folder}/{inner}: name it there, or remove it"
            )
        shipped = INSTALLED[folder] if kind == "wheel" else folder
        wanted[f"{shipped}/{inner}"] = root / folder / inner
    for name in sorted(wanted.keys() - files.keys()):
        yield (
            f"the {kind} lacks {name}: add its folder to [tool.setuptools] packages, or its kind to"
            " package-data"
        )
    for pattern in listed:
        if not any(matches(name, [pattern]) for name in files):
            yield f"the {kind} lacks {pattern}, which scripts/contents.toml names"
    for name, content in files.items():
        if matches(name, CONTENTS["stray"]["files"]):
            yield f"the {kind} holds {name}, which is a test: tests are not for users"
        elif name not in wanted and not matches(name, listed):
            yield (
                f"the {kind} holds {name}, which is neither in the checkout nor in"
                " scripts/contents.toml: keep it out, or name it there"
            )
        elif name in wanted and wanted[name].read_bytes() != content:
            yield f"the {kind} holds another {name} than the checkout: build it again"


# ---- what it says of itself ----------------------------------------------------------------------


def metadata(path: Path) -> email.message.EmailMessage:
    """Return the metadata of a wheel or an sdist; its content is the README as an index has it."""
    (name,) = [
        name for name in read(path) if name == "PKG-INFO" or name.endswith(".dist-info/METADATA")
    ]
    return email.message_from_bytes(read(path)[name], policy=email.policy.EmailPolicy(utf8=True))


def links(text: str) -> list[str]:
    """Return the targets of all links and pictures of a page of Markdown."""
    found: list[str] = []

    def noted(part: str) -> str:
        found.extend(each[2] for each in LINK.finditer(part))
        return part

    prose(text, noted)
    return found


def metadata_faults(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each thing that an index would show wrongly, or not at all."""
    said, own = metadata(path), home(root)
    text = said.get_content()
    version = project(root)["project"]["version"]
    if said["Version"] != version:
        yield f"{path.name} has version {said['Version']}, pyproject.toml {version}: build it again"
    for name in ("Author", "Keywords", "License-Expression", "Requires-Python", "Summary"):
        if not said[name]:
            yield f"{path.name} has no {name}: write it into [project] of pyproject.toml"
    classifiers = said.get_all("Classifier", [])
    if len(classifiers) < LEAST_CLASSIFIERS:
        known = len(classifiers)
        yield f"{path.name} has {known} classifiers, expected {LEAST_CLASSIFIERS} or more"
    urls = dict(each.split(", ", 1) for each in said.get_all("Project-URL", []))
    for label in project(root)["tool"]["workstealing"]["urls"]:
        if not urls.get(label, "").startswith(own):
            yield (
                f"{path.name} says {urls.get(label)} for {label}, expected an address below {own}:"
                " build it by scripts/build_wheel.sh"
            )
    targets = links(text)
    if not targets:
        yield f"{path.name} has a description without a single link, expected that of README.md"
    for target in (*targets, *urls.values()):
        if not ABSOLUTE.match(target):
            yield f"{path.name} has the relative link {target}: build it by scripts/build_wheel.sh"
        elif target.startswith(own + "/"):
            kind, tag, place = target.removeprefix(own + "/").split("/", 2)
            here = root / place.partition("#")[0]
            if tag != f"v{version}" or not here.exists() or (kind == "tree") != here.is_dir():
                yield f"{path.name} links to {target}, which is no path of this checkout"


def faults(path: Path, root: Path = ROOT) -> list[str]:
    """Return a sentence for each thing that is wrong with a wheel or an sdist."""
    return [*contents_faults(path, root), *metadata_faults(path, root)]


def main() -> int:
    """Read the arguments, and make the copy or check files."""
    match sys.argv[1:]:
        case ["copy", folder]:
            copy(Path(folder))
            return 0
        case ["settle", path]:
            settle(Path(path), int(os.environ["SOURCE_DATE_EPOCH"]))
            return 0
        case ["check", *paths] if paths:
            found = [sentence for path in paths for sentence in faults(Path(path))]
            for sentence in found:
                print(f"artifacts: {sentence}", file=sys.stderr)
            return int(bool(found))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
