"""The Lua scripts: their headers, the keys that they touch, and how they are joined."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from importlib.resources import files

import pytest

from support.servers import RedisServer
from workstealing.errors import ScriptError
from workstealing.store import scripts
from workstealing.store.scripts import Script, framed, load

FOLDER = files("workstealing.lua")


def _names() -> tuple[list[str], list[str]]:
    """Return the names of the scripts, and those of the libraries."""
    scripts_, libraries = [], []
    folders = [("", FOLDER)]
    while folders:
        start, folder = folders.pop()
        for item in folder.iterdir():
            if item.is_dir() and item.name != "__pycache__":
                folders.append((f"{start}{item.name}/", item))
            elif item.name.endswith(".lua"):
                is_library = item.read_text().startswith("--@library")
                name = f"{start}{item.name.removesuffix('.lua')}"
                (libraries if is_library else scripts_).append(name)
    return sorted(scripts_), sorted(libraries)


SCRIPTS, INCLUDES = _names()
# Issues of their own write these anew, in the form of the others.
OLD_FORM = {"log/append", "log/read"}
OLD_FORM |= {"ick/exchange", "sharded_ick/exchange"}
OLD_FORM |= {each for each in SCRIPTS + INCLUDES if each.startswith("shuffle_queue/")}
# All scripts by which a queue is in use have the same first three keys and arguments.
OLD_FORM |= {"shared/queue_place"}
# Commands of the server itself, which take no key.
KEYLESS = {"TIME", "INFO", "COMMAND"}


def _source(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8").removeprefix("--@library\n")


def _header(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("--") or line.startswith("--@include"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 40
    assert any(name.endswith("hsetex") for name in SCRIPTS)
    assert any(name.endswith("/clock") for name in INCLUDES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_opens_with_its_purpose_keys_arguments_and_reply(name: str) -> None:
    source = _source(name)
    header = _header(source)
    assert re.match(r"[A-Z][^.]+[.:;,]", header), header
    assert re.search(r"\bReturns\b", header)
    if name not in OLD_FORM:
        return
    assert "KEYS:" in header
    own_code = "\n".join(line for line in source.splitlines() if not line.startswith("--"))
    assert "ARGV:" in header or "ARGV as" in header or "ARGV" not in own_code


@pytest.mark.parametrize("name", INCLUDES)
def test_a_shared_part_says_what_it_is(name: str) -> None:
    assert _header(_source(name)).strip()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_touches_declared_keys_alone(name: str) -> None:
    assert _undeclared(_whole(_source(name), name[: name.rfind("/") + 1])) == []


def test_a_list_of_other_names_is_found() -> None:
    for received, found in (("KEYS[2]", []), ("ARGV[1]", ["UNLINK "])):
        assert (
            _undeclared(
                f"local key = {received}\nours[#ours + 1] = key\n"
                "redis.call('UNLINK', unpack(ours, first, math.min(first + 9, #ours)))\n"
            )
            == found
        )


def _whole(source: str, folder: str = "") -> str:
    """Return a script behind its libraries, each once, still indented."""
    left, libraries = [source], {}
    while left:
        for name in re.findall(r"^ *--@include (\w+)$", left.pop(), re.MULTILINE):
            paths = (f"{folder}{name}", f"shared/{name}")
            found = next(path for path in paths if path in INCLUDES)
            if found not in libraries:
                libraries[found] = _source(found)
                left.append(libraries[found])
    return "".join([*libraries.values(), source])


_FUNCTION = re.compile(r"^local function (\w+)\(([^)]*)\)\n(.*?)^end", re.MULTILINE | re.DOTALL)


def _undeclared(body: str) -> list[str]:
    """Return the commands of a script on keys that are not certainly among its KEYS."""
    # An element of KEYS is a key, and so is the whole of it.
    body = re.sub(r"local ([\w, ]+) = unpack\(KEYS\)", _named_keys, body)
    body = re.sub(r"unpack\(KEYS(, \d+)?\)", "KEYS[1]", re.sub(r"--.*", "", body))
    body = _lists_of_keys(body)
    outside = _FUNCTION.sub("", body)
    scopes = {name: inside for name, _, inside in _FUNCTION.findall(body)} | {"": outside}
    parameters = {name: given.split(", ") for name, given, _ in _FUNCTION.findall(body)}
    keys = {name: {f"{name}/{p}" for p in given} for name, given in parameters.items()}
    shared = _variables(outside)
    # So is an element of a parameter that is given all of KEYS, directly or by another function.
    wholes = {(name, parameter) for name, given in parameters.items() for parameter in given}

    def is_whole(name: str, number: int) -> bool:
        calls = [(scope, each) for scope, text in scopes.items() for each in _arguments(name, text)]
        values = [(scope, each.split(",")[number : number + 1]) for scope, each in calls]
        return all(
            each == ["KEYS"] or (bool(each) and (scope, each[0].strip()) in wholes)
            for scope, each in values
        )

    before = -1
    while before != len(wholes):
        before = len(wholes)
        wholes = {
            (name, each) for name, each in wholes if is_whole(name, parameters[name].index(each))
        }
    for name, parameter in wholes:
        scopes[name] = re.sub(rf"\b{parameter}\[", "KEYS[", scopes[name])

    def is_key(word: str, scope: str) -> bool:
        known = shared | _variables(scopes[scope])
        parameter = f"{scope}/{word}"
        if word.startswith("KEYS[") or word in known or parameter in keys.get(scope, ()):
            return True
        loops = re.findall(rf"for _, {re.escape(word)} in ipairs\(\{{([^}}]*)\}}\)", scopes[scope])
        return any(all(is_key(each.strip(), scope) for each in every.split(",")) for every in loops)

    # A parameter is a key if every call of the function gives one.
    changed = True
    while changed:
        changed = False
        for name, given in parameters.items():
            for scope, text in scopes.items():
                for call in _arguments(name, text):
                    for parameter, value in zip(given, call.split(","), strict=False):
                        own = f"{name}/{parameter}"
                        if own in keys[name] and not is_key(value.strip(), scope):
                            keys[name].discard(own)
                            changed = True
    assert re.search(r"redis\.p?call\b", body)
    return [
        f"{command} {key}"
        for scope, text in scopes.items()
        for command, key in _calls(text)
        if not is_key(key, scope)
    ]


def _named_keys(match: re.Match[str]) -> str:
    """Return what `local a, b = unpack(KEYS)` says, with each key by its number."""
    numbers = range(1, match[1].count(",") + 2)
    return f"local {match[1]} = {', '.join(f'KEYS[{number}]' for number in numbers)}"


@functools.cache
def _arguments(name: str, text: str) -> list[str]:
    """Return what each call of a function gives it, up to its first parenthesis."""
    return [
        each.replace(" ", "") for each in re.findall(rf"(?<!function )\b{name}\(([^()]*)", text)
    ]


def _lists_of_keys(body: str) -> str:
    """Return a script in which a list that has received keys alone is unpacked as KEYS are."""
    keys = _variables(body)
    for name in set(re.findall(r"unpack\((\w+)\b", body)):
        received = re.findall(rf"\b{name}\[#{name} \+ 1\] = ([^\n]+)", body)
        others = re.findall(rf"\b{name}(?:\[[^\]#]+\])? = (?!\{{\}})", body)
        if received and not others and all(each.strip() in keys for each in received):
            body = re.sub(rf"unpack\({name}\b", "unpack(KEYS", body)
    # The bounds of a run of them are no keys.
    return re.sub(r"unpack\(KEYS, first, [^\n]*?\)\)+(?=\n)", "KEYS[1])", body)


@functools.cache
def _variables(text: str) -> set[str]:
    """Return the variables that stand for keys: aliases, and those of loops over keys."""
    found = set()
    for left, right in re.findall(r"local ([\w, ]+) = (KEYS\[[^\n]*)", text):
        for variable, value in zip(left.split(", "), right.split(", "), strict=False):
            if value.startswith("KEYS["):
                found.add(variable)
    for variable, listed in re.findall(r"for _, (\w+) in ipairs\(\{([^}]*)\}\)", text):
        if all(value.strip().startswith("KEYS[") for value in listed.split(",")):
            found.add(variable)
    return found


def _calls(text: str) -> list[tuple[str, str]]:
    # Commands whose key is not their first argument.
    text = re.sub(r"'XREADGROUP'[^()]*'STREAMS'", "'XREADGROUP'", text)
    text = re.sub(r"'(XGROUP|XINFO|MEMORY)', '\w+'", r"'\1'", text)
    # Commands whose key does not stand first.
    text = re.sub(r"'(XINFO|XGROUP|MEMORY)',\s*'(\w+)',", r"'\1 \2',", text)
    text = re.sub(r"'(XREAD|XREADGROUP)',[^()]*?'STREAMS',", r"'\1',", text)
    calls = re.findall(r"redis\.p?call\(\s*([^,()]+?)\s*(?:,\s*([^,()]+?)\s*)?[,)]", text)
    calls += re.findall(r"pcall\(redis\.call, ([^,()]+?)(?:, ([^,()]+?))?[,)]", text)
    return [(word.strip("'"), key) for word, key in calls if word.strip("'") not in KEYLESS]


def test_an_undeclared_key_is_noticed() -> None:
    assert _undeclared("redis.call('GET', KEYS[1])\n") == []
    assert _undeclared("redis.call('GET', ARGV[1])\n") == ["GET ARGV[1]"]
    assert _undeclared("local key = KEYS[2]\nredis.call('GET', key)\n") == []
    assert _undeclared("local key = ARGV[2]\nredis.call('GET', key)\n") == ["GET key"]
    loop = "for _, key in ipairs({ KEYS[1], KEYS[2] }) do\n  redis.call('GET', key)\nend\n"
    assert _undeclared(loop) == []
    assert _undeclared(loop.replace("KEYS[2]", "ARGV[2]")) == ["GET key"]
    named = "local a, b = KEYS[1], KEYS[2]\n" + loop.replace("KEYS[1], KEYS[2]", "a, b")
    assert _undeclared(named) == []
    assert _undeclared(named.replace("= KEYS[1]", "= ARGV[1]")) == ["GET key"]
    assert _undeclared("redis.call('DEL', unpack(KEYS, 4))\n") == []
    assert _undeclared("local a, b = unpack(KEYS)\nredis.call('GET', b)\n") == []
    assert _undeclared("local a, b = unpack(ARGV)\nredis.call('GET', b)\n") == ["GET b"]
    assert _undeclared("redis.call('DEL', unpack(ARGV, 4))\n") == ["DEL "]
    either = "redis.call('ZSCORE', KEYS[is_full and 2 or 3], ARGV[1])\n"
    assert _undeclared(either) == []
    assert _undeclared(either.replace("KEYS", "ARGV")) == ["ZSCORE ARGV[is_full and 2 or 3]"]
    get = "local function get(key)\n  return redis.call('GET', key)\nend\n"
    assert _undeclared(get + "get(KEYS[1])\nget(KEYS[2])\n") == []
    assert _undeclared(get + "get(KEYS[1])\nget(ARGV[2])\n") == ["GET key"]
    through = get + "local function see(one)\n  return get(one)\nend\n"
    assert _undeclared(through + "see(KEYS[1])\n") == []
    assert _undeclared(through + "see(ARGV[1])\n") == ["GET key"]
    whole = "local function see(keys)\n  return redis.call('GET', keys[2])\nend\n"
    assert _undeclared(whole + "see(KEYS)\n") == []
    assert _undeclared(whole + "see(KEYS)\nsee(ARGV)\n") == ["GET keys[2]"]
    for read in ("'XINFO', 'GROUPS', %s", "'XREADGROUP', 'GROUP', ARGV[1], 'STREAMS', %s, '>'"):
        assert _undeclared(f"redis.call({read % 'KEYS[1]'})\n") == []
        (noticed,) = _undeclared(f"redis.call({read % 'ARGV[1]'})\n")
        assert noticed.endswith(" ARGV[1]")


@pytest.mark.parametrize("name", [each for each in SCRIPTS if each in OLD_FORM])
def test_a_header_names_as_many_keys_as_the_script_takes(name: str) -> None:
    (listed,) = re.findall(r"KEYS: ([^.]*)\.", _header(_source(name)))
    highest = max(map(int, re.findall(r"KEYS\[(\d+)\]", load(name).body)), default=1)
    assert highest <= len(listed.split(","))


def _unlisted(source: str) -> list[str]:
    """Return the KEYS and ARGV that a script uses, or its header skips, without their line."""
    lines = re.findall(r"^-- {3}(KEYS|ARGV)\[(\d+)(\.\.)?\] \S", source, re.MULTILINE)
    code = re.sub(r"local ([\w, ]+) = unpack\(KEYS\)", _named_keys, re.sub(r"--.*", "", source))
    found = [] if lines else ["KEYS"]
    for name in ("KEYS", "ARGV"):
        numbers = [int(number) for each, number, _ in lines if each == name]
        ends = [bool(end) for each, _, end in lines if each == name]
        if numbers != [*range(1, len(numbers) + 1)] or any(ends[:-1]):
            found.append(f"{name} out of order")
        most = math.inf if ends[-1:] == [True] else len(numbers)
        used = {int(number) for number in re.findall(rf"\b{name}\[(\d+)\]", code)}
        found += [f"{name}[{number}]" for number in sorted(used) if number > most]
        # Other indexes, and lists of them, take a line with an open end, or several lines.
        if re.search(rf"\b{name}\b(?!\[\d+\])", code) and not numbers:
            found.append(name)
    return found


@pytest.mark.parametrize("name", [each for each in SCRIPTS if each not in OLD_FORM])
def test_each_key_and_each_argument_has_its_line(name: str) -> None:
    assert _unlisted(_source(name)) == []


def test_a_missing_line_is_noticed() -> None:
    header = "-- Reads.\n--   KEYS[1] key\n--   ARGV[1] mark\n--   ARGV[2..] fields\n-- Returns.\n"
    assert _unlisted(header + "return { KEYS[1], ARGV[7], unpack(ARGV, 2) }\n") == []
    assert _unlisted(header + "return KEYS[2]\n") == ["KEYS[2]"]
    assert _unlisted(header + "local key, mark = unpack(KEYS)\nreturn key\n") == ["KEYS[2]"]
    assert _unlisted(header.replace("ARGV[1]", "ARGV[3]")) == ["ARGV out of order"]
    assert _unlisted(header.replace("--   ARGV", "-- ARGV") + "return #ARGV\n") == ["ARGV"]
    assert _unlisted(header.replace("[2..]", "[2]") + "return ARGV[3]\n") == ["ARGV[3]"]


@pytest.mark.parametrize("name", [each for each in INCLUDES if each not in OLD_FORM])
def test_a_library_is_given_its_keys_and_arguments(name: str) -> None:
    """So a reader sees at a call what a function touches, and a script has keys in any order."""
    code = re.sub(r"--.*", "", _source(name))
    assert re.findall(r"\b(?:KEYS|ARGV)\b", code) == []


def test_one_rule_says_how_long_a_call_may_be_under_way() -> None:
    made = [each for each in INCLUDES + SCRIPTS if "local UNDER_WAY_MS" in _source(each)]
    assert made == ["shared/clock"]


# Lua's own functions, as far as scripts use them.
LUA = {
    "error",
    "ipairs",
    "next",
    "pairs",
    "pcall",
    "select",
    "tonumber",
    "tostring",
    "type",
    "unpack",
}


def _strange(body: str) -> list[str]:
    """Return the functions that a script calls too early, and those that it has twice."""
    text = re.sub(r"--.*|'[^'\n]*'|\"[^\"\n]*\"", "", body)
    # Two blocks may each make the same function.
    functions = [name for name, _ in set(re.findall(r"\blocal function (\w+)(.*)", text))]
    found = [name for name in set(functions) if functions.count(name) > 1]
    known: dict[str, int] = {}
    # A name exists from its declaration on, and a parameter does, too.
    for declared in (r"\blocal (?:function )?([\w, ]+)", r"\bfunction \w*\(([^)]+)\)"):
        for match in re.finditer(declared, text):
            for name in match[1].split(","):
                known[name.strip()] = min(match.start(), known.get(name.strip(), len(text)))
    for match in re.finditer(r"(?<![\w.:])([a-z_]\w*)\(", text):
        name = match[1]
        is_there = name in known and known[name] < match.start()
        if name != "function" and name not in LUA and not is_there:
            found.append(name)
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_calls_only_functions_that_it_has_by_then(name: str) -> None:
    assert _strange(load(name).body) == []


def test_a_strange_function_is_noticed() -> None:
    one = "local function one(visit)\n  return visit(tonumber(ARGV[1]))\nend\n"
    assert _strange(one + "return one(KEYS[1])\n") == []
    assert _strange("local a = one(KEYS[1])\n" + one) == ["one"]
    assert _strange(one + one.replace("visit", "call")) == ["one"]
    assert _strange(one + "return two({ 'three(1)' }) -- four(1)\n") == ["two"]


def test_a_function_is_written_once() -> None:
    homes: dict[str, list[str]] = {}
    for name in SCRIPTS:
        for _, parameters, inside in _FUNCTION.findall(_source(name)):
            homes.setdefault(f"({parameters})\n{inside}", []).append(name)
    for name in INCLUDES:
        for _, parameters, inside in _FUNCTION.findall(_source(name)):
            homes.setdefault(f"({parameters})\n{inside}", []).append(f"library {name}")
    assert [names for names in homes.values() if len(names) > 1] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_server_can_compile_it(redis7: RedisServer, name: str) -> None:
    script = load(name)
    sha = redis7.client().script_load(script.body)
    assert sha == script.sha
    shifted = load(name, 1_000)
    assert redis7.client().script_load(shifted.body) == shifted.sha
    assert ("CLOCK_SHIFT_MS = 1000" in shifted.body) == ("CLOCK_SHIFT_MS" in script.body)


# Putting together.


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stand in for the folder: path without the ending -> text."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(scripts, "_read", texts.get)
    return texts


def test_a_missing_script_is_named() -> None:
    with pytest.raises(ScriptError, match=r"^there is no Lua script named 'nowhere'$"):
        load("nowhere")


def test_a_missing_include_is_named(folder: dict[str, str]) -> None:
    folder["things/main"] = "--@include nowhere\nreturn 1\n"
    folder["things/nowhere"] = "return 1\n"  # A script, and no library.
    with pytest.raises(ScriptError, match=r"^there is no Lua include named 'nowhere'$"):
        Script("things/main")


def test_a_library_is_no_script(folder: dict[str, str]) -> None:
    folder["things/library"] = "--@library\nlocal a = 1\n"
    with pytest.raises(ScriptError, match=r"^there is no Lua script named 'things/library'$"):
        Script("things/library")


def test_a_circle_of_includes_is_shown(folder: dict[str, str]) -> None:
    folder["main"] = "--@include a\nreturn 1\n"
    folder["shared/a"] = "--@library\n--@include b\n"
    folder["shared/b"] = "--@library\n--@include a\n"
    with pytest.raises(ScriptError, match=r"in a circle: main -> a -> b -> a$"):
        Script("main")
    folder["shared/b"] = "--@library\n--@include b\n"
    with pytest.raises(ScriptError, match=r"in a circle: main -> a -> b -> b$"):
        Script("main")


def test_each_library_is_taken_in_once_and_before_its_user(folder: dict[str, str]) -> None:
    folder["x/main"] = "-- Purpose.\n--@include a\n--@include b\n--@include a\nreturn a\n"
    folder["x/a"] = "--@library\n--@include b\nlocal a = b\n"
    folder["shared/a"] = "--@library\nlocal a = 'of another'\n"
    folder["shared/b"] = "--@library\n-- What b is.\nlocal b = 1 -- one\n\n"
    script = Script("x/main")
    assert script.body == framed("local b = 1 -- one\nlocal a = b\nreturn a\n")
    assert script.sha == hashlib.sha1(script.body.encode()).hexdigest()
    assert repr(script) == "Script('x/main')"


def test_a_script_is_given_the_definitions_that_it_uses_alone(folder: dict[str, str]) -> None:
    folder["x/main"] = "--@include l\nreturn { deep(), field }\n"
    folder["x/l"] = (
        "--@library\nlocal unused, field = KEYS[1], KEYS[2]\nlocal KINDS = {\n  a = 1,\n}\n"
        "local later\nlocal function idle()\n  return KINDS\nend\n"
        "local function deep()\n  -- not idle\n  return later(base)\nend\n"
        "later = function(x)\n  return x\nend\nlocal base = 5\n"
    )
    assert Script("x/main").body == framed(
        "local unused, field = KEYS[1], KEYS[2]\nlocal later\n"
        "local function deep()\nreturn later(base)\nend\n"
        "later = function(x)\nreturn x\nend\nlocal base = 5\nreturn { deep(), field }\n"
    )


def test_an_indented_include_makes_in_its_block_what_that_alone_uses(
    folder: dict[str, str],
) -> None:
    folder["x/main"] = (
        "--@include l\nlocal a = both()\nif a then\n  --@include l\n  a = seldom()\n\n"
        "  a = both()\nend\nreturn a\n"
    )
    folder["x/l"] = (
        "--@library\nlocal function both()\n  return 1\nend\n"
        "local function deep()\n  return 2\nend\n"
        "local function seldom()\n  return both() + deep()\nend\n"
    )
    assert Script("x/main").body == framed(
        "local function both()\nreturn 1\nend\nlocal a = both()\nif a then\n"
        "local function deep()\nreturn 2\nend\nlocal function seldom()\n"
        "return both() + deep()\nend\na = seldom()\na = both()\nend\nreturn a\n"
    )


def test_a_block_of_a_library_makes_what_it_alone_uses(folder: dict[str, str]) -> None:
    folder["x/main"] = "--@include l\nlocal a = host()\nreturn late() + a\n"
    folder["x/l"] = (
        "--@library\n--@include k\nlocal function early()\n  return 1\nend\n"
        "local function seldom()\n  return early() + deep()\nend\n"
        "local function host()\n  if early() then\n    --@include l\n    return seldom()\n  end\n"
        "  return later()\nend\n"
        "local function late()\n  return early()\nend\n"
    )
    folder["x/k"] = "--@library\nlocal function deep()\n  return 3\nend\n"
    assert Script("x/main").body == framed(
        "local function early()\nreturn 1\nend\n"
        "local function host()\nif early() then\nlocal function deep()\nreturn 3\nend\n"
        "local function seldom()\nreturn early() + deep()\nend\nreturn seldom()\nend\n"
        "return later()\nend\n"
        "local function late()\nreturn early()\nend\nlocal a = host()\nreturn late() + a\n"
    )


def test_a_block_does_not_rely_on_a_function_that_comes_later(folder: dict[str, str]) -> None:
    folder["x/main"] = "--@include l\nreturn host() + late()\n"
    folder["x/l"] = (
        "--@library\nlocal function host()\n  if KEYS[1] then\n    --@include l\n"
        "    return late()\n  end\nend\nlocal function late()\n  return 2\nend\n"
    )
    late = "local function late()\nreturn 2\nend\n"
    assert Script("x/main").body == framed(
        f"local function host()\nif KEYS[1] then\n{late}return late()\nend\nend\n{late}"
        "return host() + late()\n"
    )


def test_a_library_holds_definitions_alone(folder: dict[str, str]) -> None:
    folder["x/main"] = "--@include l\nreturn 1\n"
    folder["x/l"] = "--@library\nredis.call('GET', KEYS[1])\nlocal a = 1\n"
    with pytest.raises(ScriptError, match=r"^the Lua library 'l' begins with no definition: redis"):
        Script("x/main")


@pytest.mark.parametrize("line", ["t.b = 2", "t[1] = 2", "a, b = 1, 2", "redis.call('PING')"])
def test_a_line_of_no_definition_is_refused(folder: dict[str, str], line: str) -> None:
    # It would go with the definition above it, and be left out where a script uses t alone.
    folder["x/main"] = "--@include l\nreturn t\n"
    folder["x/l"] = f"--@library\nlocal t = {{}}\nlocal function idle()\n  return 1\nend\n{line}\n"
    with pytest.raises(ScriptError, match=r"^the Lua library 'l' has a line of no definition: "):
        Script("x/main")


def test_a_definition_is_found_through_a_table_and_a_forward_declaration(
    folder: dict[str, str],
) -> None:
    folder["x/main"] = "--@include l\nreturn TABLE.run(1)\n"
    folder["x/l"] = (
        "--@library\nlocal idle = 1\nlocal later\nlocal function run(n)\n  return later(n)\nend\n"
        "local TABLE = {\n  run = run,\n}\nfunction TABLE.more()\n  return 2\nend\n"
        "function later(n)\n  return n\nend\n"
    )
    assert Script("x/main").body == framed(
        "local later\nlocal function run(n)\nreturn later(n)\nend\nlocal TABLE = {\nrun = run,\n}\n"
        "function TABLE.more()\nreturn 2\nend\nfunction later(n)\nreturn n\nend\n"
        "return TABLE.run(1)\n"
    )


def test_a_script_is_made_once() -> None:
    assert load("volatile_hashes/hget") is load("volatile_hashes/hget")
    assert load("volatile_hashes/hget") is load("volatile_hashes/hget", 0)
    assert load("volatile_hashes/hget") is load("volatile_hashes/hget", clock_shift_ms=0)
    assert load("volatile_hashes/hget") is not load("volatile_hashes/hget", 5)
    assert load("volatile_hashes/hget").sha != load("volatile_hashes/hget", 5).sha
