"""Prepares the pages of the site for mkdocs.yml: ``make docs`` runs it before the site is built.

It copies the pages of docs/, the README and the catalogue of the keys into .cache/docs-src. A link
to a page of the site leads there, and each other one to the project's address, by the rule of
scripts/artifacts.py. It makes one page of the API reference for each namespace of
scripts/public_names.py, the package as it is installed for griffe to read, and llms.txt.

    python scripts/docs_site.py
"""

from __future__ import annotations

import argparse
import enum
import functools
import inspect
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import artifacts  # noqa: E402 - the scripts' folder had to be found first
import public_names  # noqa: E402 - the same

PAGES = ROOT / ".cache" / "docs-src"
PACKAGE = ROOT / ".cache" / "docs-package"
REFERENCE = "reference"
ERRORS = "workstealing.errors"
# Files of the checkout that are pages of the site, beside those of docs/: path -> page.
ELSEWHERE = {"README.md": "index.md", "lua/README.md": "keys.md"}
# Loaded by each page: search works without a server.
SHIM = ("scripts/site/iframe_worker.js", "assets/iframe-worker.js")
SENTENCE = re.compile(r".*?[.:?!](?=\s+[A-Z`(*\[]|$)", re.DOTALL)


# ---- the pages that people have written ----------------------------------------------------------


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return the files that the site takes from the checkout: path there -> path on the site.

    The drawings of docs/reading are for contributors, and no part of the site.
    """
    taken = {
        path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix()
        for path in sorted((root / "docs").rglob("*"))
        if path.suffix == ".md" or path.suffix in artifacts.PICTURES
    }
    kept = {path: page for path, page in taken.items() if not page.startswith("reading/")}
    return kept | ELSEWHERE


def moved(text: str, path: str, taken: Mapping[str, str], root: Path = ROOT) -> str:
    """Return a page's text with its links as they lead from its place on the site.

    Arguments:
        path: of the page in the checkout.
        taken: as of `pages`.
    """
    here = posixpath.dirname(taken[path])

    def changed(target: str) -> str:
        bare, mark, part = target.partition("#")
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), bare))
        if aim in taken:
            return posixpath.relpath(taken[aim], here or ".") + mark + part
        return artifacts.address(aim + mark + part, root)

    return artifacts.relinked(text, changed)


# ---- the API reference ---------------------------------------------------------------------------


def reference() -> dict[str, str]:
    """Return the pages of the API reference: path on the site -> text."""
    listed: dict[str, list[tuple[str, Any]]] = dict(public_names.supported())
    errors = import_module(ERRORS)
    listed[ERRORS] = [
        (name, value)
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == ERRORS and not name.startswith("_")
    ]
    said = public_names.NAMESPACES | {ERRORS: "The errors of this package, and their one base."}
    return {
        f"{REFERENCE}/{namespace}.md": "\n".join(_reference_page(namespace, said[namespace], names))
        for namespace, names in listed.items()
    }


def _reference_page(namespace: str, said: str, names: list[tuple[str, Any]]) -> Iterator[str]:
    yield f"# {namespace}\n\n{said}\n"
    for name, value in sorted(names, key=lambda each: public_names.is_record(*each)):
        path = griffe_path(namespace, name, value)
        yield f"::: {path}"
        members = own_members(value)
        yield "    options:"
        yield f"      members: [{', '.join(members)}]" if members else "      members: false"
        if namespace == "workstealing.integrations":
            # Several of its modules have one of this name.
            yield f"      heading: {name}"
            yield f"      toc_label: {name}"
        yield ""
        # Values and names of types have no docstring of their own.
        if sentence := public_names.VALUES.get(name):
            yield f"{sentence}\n"


def griffe_path(namespace: str, name: str, value: Any) -> str:
    """Return where griffe finds a public name."""
    path = f"{namespace}.{name}"
    # A module that bears the name of its function hides it.
    hidden = path in sys.modules and not inspect.ismodule(value)
    return f"{path}.{name}" if hidden else path


def own_members(value: Any) -> list[str]:
    """Return the methods and properties that a class, or a base of it in this package, defines.

    Of an enumeration it returns the members. Fields are in the docstring of their class.
    """
    if not inspect.isclass(value):
        return []
    if issubclass(value, enum.Enum):
        return list(value.__members__)
    try:
        # As `dir()` lists them, which leaves out the inner parts of a structure.
        listed = dir(object.__new__(value))
    except TypeError:
        listed = dir(value)
    return [name for name in listed if not name.startswith("_") and _is_own(value, name)]


def _is_own(value: type, name: str) -> bool:
    home = next((each for each in value.__mro__ if name in vars(each)), None)
    if home is None or not home.__module__.startswith("workstealing"):
        return False
    found = vars(home)[name]
    is_method = inspect.isroutine(getattr(value, name)) and not inspect.isdatadescriptor(found)
    return is_method or isinstance(found, (property, functools.cached_property))


# ---- llms.txt ------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml; a setting that names a function of Python is nothing here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation(root: Path = ROOT) -> list[Any]:
    """Return `nav` of mkdocs.yml."""
    settings: dict[str, Any] = yaml.load((root / "mkdocs.yml").read_text("utf-8"), _Loader)
    nav: list[Any] = settings["nav"]
    return nav


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph, without links and emphasis."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in prose.split("\n\n"):
        if not paragraph.strip() or paragraph.lstrip("\n").startswith(
            ("#", "|", "<", "!", "-", "    ", ":::")
        ):
            continue
        line = " ".join(paragraph.split())
        found = SENTENCE.match(line)
        line = found[0] if found else line
        return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
    return ""


def llms(nav: list[Any], texts: Mapping[str, str]) -> str:
    """Return llms.txt: the site's title and, for each page in the order of `nav`, a line."""
    lines = ["# workstealing", "", f"> {artifacts.project()['project']['description']}"]

    def told(entries: list[Any]) -> None:
        for entry in entries:
            title, aim = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
            if isinstance(aim, list):
                lines.extend(["", f"## {title}", ""])
                told(aim)
                continue
            text = texts[aim]
            shown = title or text.partition("\n")[0].removeprefix("# ").replace("`", "")
            page = aim.removesuffix(".md") + ".html"
            lines.append(f"- [{shown}]({page}): {first_sentence(text)}")

    told(nav)
    return "\n".join(lines) + "\n"


# ---- all together --------------------------------------------------------------------------------


def install(folder: Path = PACKAGE, root: Path = ROOT) -> None:
    """Put the package into a folder as it is installed, with the mapped folders in their places."""
    for name, place in artifacts.INSTALLED.items():
        ignored = shutil.ignore_patterns(*artifacts.CACHES)
        shutil.copytree(root / name, folder / place, ignore=ignored, dirs_exist_ok=True)


def prepare(folder: Path = PAGES, package: Path = PACKAGE, root: Path = ROOT) -> None:
    """Make both folders anew."""
    for each in (folder, package):
        shutil.rmtree(each, ignore_errors=True)
    taken = pages(root)
    texts: dict[str, str] = {}
    for path, page in taken.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            texts[page] = moved((root / path).read_text("utf-8"), path, taken, root)
        else:
            shutil.copy(root / path, folder / page)
    texts |= reference()
    for page, text in texts.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text, encoding="utf-8")
    (folder / SHIM[1]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / SHIM[0], folder / SHIM[1])
    (folder / "llms.txt").write_text(llms(navigation(root), texts), encoding="utf-8")
    install(package, root)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    os.chdir(ROOT)
    prepare()
