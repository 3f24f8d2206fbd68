"""A griffe extension: it reads the docstrings and the forms of this package for the API reference.

Griffe itself reads `Arguments:` alone on its line. The extension reads the running text behind it:
`Returns:`, `Raises:`, `Yields:`, `Fields:` and `Attributes:` become sections, and each other
sentence, such as that of the costs, stays where it is. An operation, written once as a generator of
steps, is shown as each form has it: with its result in place of `Steps[...]`, and as a coroutine in
the class that awaits it. The functions of `workstealing` are methods of `default_recruiter`, and
are shown as functions.

mkdocs.yml names it. It runs in the environment of `make docs`, and a test reads what it makes:

    .cache/docs/bin/python scripts/reference_dialect.py FOLDER NAME...    print a table of JSON
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import griffe

PACKAGE = "workstealing"
OPTIONS = {"returns_named_value": False, "returns_multiple_items": False, "warnings": False}
# They make a method of a function that returns a generator: workstealing/store/operations.py and
# workstealing/store/grants.py.
DECORATORS = {"operation", "asks"}
GENERATORS = {"Steps", "Asking"}
SAID = re.compile(r"(?:(?<=^)|(?<=[.:;)`] ))(Returns|Raises|Yields|Fields|Attributes): ")
SENTENCE = re.compile(r"(?<=[^.][.])\s+(?=[A-Z`(])")
ERRORS = re.compile(r"((?:[A-Z]\w+(?:, | and | or )?)+|errors of redis-py)(?:,? +(.*))?", re.DOTALL)
ITEM = re.compile(r"((?:[a-z_]\w*(?:, | and )?)+)(?:: (.*)|,? (.*))?", re.DOTALL)


class Dialect(griffe.Extension):
    """Make the package's docstrings and forms ready when the whole of it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the objects of this package, and of no other."""
        if pkg.path != PACKAGE:
            return
        show_as_functions(pkg)
        found = list(objects(pkg))
        for each in found:
            if isinstance(each, griffe.Class) and "Asynchronous" in bases(each):
                show_as_awaited(each)
        for each in objects(pkg):
            if isinstance(each, griffe.Function):
                unwrap(each)
            if each.docstring is not None:
                each.docstring.__dict__["parsed"] = list(sections(each.docstring))


def objects(top: griffe.Object) -> Iterator[griffe.Object]:
    """Yield an object and all below it, but for what it imports."""
    yield top
    for member in list(top.members.values()):
        if isinstance(member, griffe.Object):
            yield from objects(member)


# ---- forms ---------------------------------------------------------------------------------------


def bases(found: griffe.Class) -> set[str]:
    """Return the names of the classes of this package below which a class stands."""
    try:
        return {each.name for each in found.mro()}
    except ValueError:
        # A base that another package has made out of several.
        return set()


def is_operation(member: griffe.Object | griffe.Alias) -> bool:
    """Say whether a member is a method that has been written as a generator of steps."""
    function = member.final_target if isinstance(member, griffe.Alias) else member
    names = {str(each.value) for each in function.decorators} if function.is_function else set()
    return bool(names & DECORATORS)


def show_as_awaited(found: griffe.Class) -> None:
    """Give an asyncio form its own copy of each operation, marked as one that is awaited."""
    for name, member in list(found.all_members.items()):
        if is_operation(member):
            target = member.final_target if isinstance(member, griffe.Alias) else member
            own = copied(target)
            own.labels.add("async")
            found.set_member(name, own)


def show_as_functions(pkg: griffe.Module) -> None:
    """Put functions in the place of the names that are bound methods of the default recruiter."""
    recruiter = pkg["recruiting.recruiter.Recruiter"]
    for name, member in list(pkg.members.items()):
        value = str(member.value) if isinstance(member, griffe.Attribute) else ""
        if value == f"default_recruiter.{name}":
            own = copied(recruiter.all_members[name])
            own.parameters = griffe.Parameters(*list(own.parameters)[1:])
            pkg.set_member(name, own)


def copied(member: griffe.Function | griffe.Alias) -> griffe.Function:
    """Return a copy of a function, with a docstring of its own, to be put elsewhere."""
    target: Any = member.final_target if isinstance(member, griffe.Alias) else member
    own = copy.copy(target)
    own.labels = set(target.labels)
    if target.docstring is not None:
        said = target.docstring
        own.docstring = griffe.Docstring(said.value, lineno=said.lineno, parent=own)
    return own


def unwrap(function: griffe.Function) -> None:
    """Show the result of an operation in the place of the generator that returns it."""
    function.returns = result_of(function.returns)


def result_of(annotation: Any) -> Any:
    """Return the result in the place of the type of a generator that returns it."""
    while isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) in GENERATORS:
        annotation = annotation.slice
    return annotation


# ---- docstrings ----------------------------------------------------------------------------------


def sections(docstring: griffe.Docstring) -> Iterator[griffe.DocstringSection]:
    """Yield the sections of a docstring."""
    for section in docstring.parse("google", **OPTIONS):
        if section.kind is not griffe.DocstringSectionKind.text:
            yield section
            continue
        kept: list[str] = []
        for paragraph in section.value.split("\n\n"):
            if paragraph.startswith((" ", "```")) or not SAID.search(" ".join(paragraph.split())):
                kept.append(paragraph)
                continue
            for told in running(" ".join(paragraph.split()), docstring):
                if isinstance(told, str):
                    kept.append(told)
                    continue
                if kept:
                    yield griffe.DocstringSectionText("\n\n".join(kept))
                    kept = []
                yield told
        if kept:
            yield griffe.DocstringSectionText("\n\n".join(kept))


def running(paragraph: str, docstring: griffe.Docstring) -> Iterator[str | griffe.DocstringSection]:
    """Yield the parts of a paragraph of running text: sections, and the text between them."""
    before, *parts = SAID.split(paragraph)
    if before.strip():
        yield before.strip()
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        yield from MADE[kind](text.strip(), docstring)


def returned(text: str, docstring: griffe.Docstring) -> Iterator[griffe.DocstringSection]:
    """Yield the section of a result, whose type the signature has."""
    annotation = result_of(getattr(docstring.parent, "returns", None))
    result = griffe.DocstringReturn(name="", annotation=annotation, description=text)
    yield griffe.DocstringSectionReturns([result])


def yielded(text: str, docstring: griffe.Docstring) -> Iterator[griffe.DocstringSection]:
    """Yield the section of the values that a generator or a context manager hands out."""
    annotation = getattr(docstring.parent, "returns", None)
    if isinstance(annotation, griffe.ExprSubscript):
        inner = annotation.slice
        annotation = inner.elements[0] if isinstance(inner, griffe.ExprTuple) else inner
    value = griffe.DocstringYield(name="", annotation=annotation, description=text)
    yield griffe.DocstringSectionYields([value])


def raised(text: str, docstring: griffe.Docstring) -> Iterator[str | griffe.DocstringSection]:
    """Yield the section of the errors, which the first sentence lists, and the text behind it."""
    first, _, rest = SENTENCE.sub("\0", text, count=1).partition("\0")
    errors: list[griffe.DocstringRaise] = []
    for part in first.rstrip(".").split("; "):
        found = ERRORS.fullmatch(part)
        if found is None and errors:
            errors[-1].description = f"{errors[-1].description}; {part}".removeprefix("; ")
        elif found is None:
            # "as `read`": a sentence, and no name of a class.
            errors.append(griffe.DocstringRaise(annotation="", description=part))
        else:
            names = re.split(r", | and | or ", found[1].rstrip(", "))
            for name in filter(None, names):
                annotation = griffe.parse_docstring_annotation(name, docstring)
                if " " in name:
                    annotation = griffe.parse_docstring_annotation("redis.RedisError", docstring)
                errors.append(
                    griffe.DocstringRaise(annotation=annotation, description=found[2] or "")
                )
    if all(error.annotation == "" for error in errors):
        yield f"Raises: {first}"
    else:
        yield griffe.DocstringSectionRaises(errors)
    if rest:
        yield rest


def listed(text: str, docstring: griffe.Docstring) -> Iterator[str | griffe.DocstringSection]:
    """Yield the section of the fields of a record, or the text as it is if a name is no field."""
    members = docstring.parent.all_members if isinstance(docstring.parent, griffe.Class) else {}
    fields: list[griffe.DocstringAttribute] = []
    for part in text.rstrip(".").split("; "):
        found = ITEM.fullmatch(part)
        names = re.split(r", | and ", found[1]) if found else []
        if found is None or not all(name in members for name in names):
            if not fields:
                yield f"Fields: {text}"
                return
            fields[-1].description = f"{fields[-1].description}; {part}".removeprefix("; ")
            continue
        for name in names:
            annotation = getattr(members[name], "annotation", None)
            said = found[2] or found[3] or ""
            fields.append(griffe.DocstringAttribute(name, annotation=annotation, description=said))
    yield griffe.DocstringSectionAttributes(fields)


MADE: dict[str, Any] = {
    "Returns": returned,
    "Yields": yielded,
    "Raises": raised,
    "Fields": listed,
    "Attributes": listed,
}


# ---- for the test --------------------------------------------------------------------------------


def described(found: griffe.Object | griffe.Alias) -> dict[str, Any]:
    """Return an object as plain data."""
    said = [] if found.docstring is None else found.docstring.parsed
    data: dict[str, Any] = {
        "kind": found.kind.value,
        "path": found.path,
        "labels": sorted(found.labels),
        "sections": [{"kind": each.kind.value, "value": _plain(each.value)} for each in said],
        "members": sorted(name for name in found.all_members if not name.startswith("_")),
    }
    if found.is_function or found.is_class:
        try:
            data["parameters"] = [each.name for each in found.parameters]
        except KeyError:
            data["parameters"] = []
    if found.is_function:
        data["returns"] = None if found.returns is None else str(found.returns)
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return str(value)
    return [
        {
            "name": getattr(each, "name", ""),
            "type": None if each.annotation is None else str(each.annotation),
            "said": each.description,
        }
        for each in value
    ]


def main() -> None:
    """Print the objects of the given names."""
    folder, *names = sys.argv[1:]
    loader = griffe.GriffeLoader(
        search_paths=[folder], extensions=griffe.load_extensions(Dialect), allow_inspection=False
    )
    # Not the folder of this name in the checkout, which lacks the mapped ones.
    package = loader.load(PACKAGE, try_relative_path=False)
    table = {}
    for name in names:
        found: Any = package
        for part in name.split(".")[1:]:
            found = found.all_members[part]
        table[name] = described(found)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
