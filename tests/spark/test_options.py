"""Options of sources and sinks: what is taken, what is refused, and what is never shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.options import OptionReader, runs, without_path
from workstealing.spark.sources.tracked_set import TrackedSetOptions
from workstealing.spark.sources.volatile_hashes import VolatileHashOptions

SECRET_URL = "redis://user:pass-word@127.0.0.1:1/0"


def reader(**options: str) -> OptionReader:
    """Return a reader of these options."""
    return OptionReader("things", options)


def test_names_differ_by_more_than_case_and_sparks_own_are_passed_over() -> None:
    options = reader(MAXthings="3", checkpointLocation="/x", queryName="q")
    assert options.number("maxThings", 1) == 3
    options.finish()


def test_defaults_hold_for_what_was_not_given() -> None:
    options = reader()
    assert options.text("a") is None
    assert options.text("a", "b") == "b"
    assert options.number("n", 7) == 7
    assert options.choice("c", ("x", "y")) == "x"
    assert options.choice_or_none("c", ("x", "y")) is None
    assert options.boolean("b", True) is True
    assert options.seconds("s") is None
    assert options.words("w") == ()
    options.finish()


@pytest.mark.parametrize(
    ("take", "problem"),
    [
        (lambda o: o.text("empty"), "'empty' is empty"),
        (lambda o: o.required("absent", "the name"), "'absent' is missing: give the name"),
        (lambda o: o.number("word", 1), "'word' is 'x': give a whole number, 1 or more"),
        (lambda o: o.number("nought", 1, most=9), "'nought' is '0': give a whole number, 1 to 9"),
        (lambda o: o.number("ten", 1, most=9), "'ten' is '10': give a whole number, 1 to 9"),
        (lambda o: o.choice("word", ("y", "z")), "'word' is 'x': give y or z"),
        (lambda o: o.boolean("word", False), "'word' is 'x': give true or false"),
        (lambda o: o.seconds("word"), "'word' is 'x': give a number of seconds above 0"),
        (lambda o: o.seconds("nought"), "'nought' is '0'"),
        (lambda o: o.seconds("nan"), "'nan' is 'nan'"),
        (lambda o: o.seconds("endless"), "'endless' is 'inf'"),
        (lambda o: (o.text("word"), o.finish()), "unknown options: .*'endless'.*; it has word"),
    ],
)
def test_what_is_wrong_is_said_with_the_formats_name(take: Any, problem: str) -> None:
    options = reader(empty="", word="x", nought="0", ten="10", nan="nan", endless="inf")
    with pytest.raises(ConfigurationError, match=f"^format 'things': .*{problem}"):
        take(options)


def test_words_and_booleans_are_read_as_people_write_them() -> None:
    options = reader(w=" a, b ,,c", yes="TRUE", no="no")
    assert options.words("w") == ("a", "b", "c")
    assert options.boolean("yes", False) is True
    assert options.boolean("no", True) is False


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "rodis://:pass-word@host"}, "begins with rodis://"),
        ({"url": "redis://:pass-word@host:x"}, "is malformed"),
        ({"url": "embedded://"}, "a server of its own in every executor"),
        ({"client": "pass-word"}, "import path"),
        ({"client": SECRET_URL}, "'client' holds a URL"),
        ({"client": "a:b", "url": SECRET_URL}, "both a client and a url"),
    ],
)
def test_a_client_that_cannot_be_made_is_refused_before_any_connection(
    options: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^format 'things': .*{problem}") as caught:
        OptionReader("things", options).client()
    if options.get("client") != "pass-word":
        assert "pass-word" not in str(caught.value)
    assert str(caught.value).count("format 'things'") == 1


@pytest.mark.parametrize("name", ["word", "number", "choice"])
def test_a_url_in_the_wrong_place_is_not_shown(name: str) -> None:
    options = OptionReader("things", {name: SECRET_URL})
    with pytest.raises(ConfigurationError, match=f"'{name}' holds a URL") as caught:
        {"word": options.text, "number": lambda n: options.number(n, 1)}.get(
            name, lambda n: options.choice(n, ("a",))
        )(name)
    assert "pass-word" not in str(caught.value)


def test_a_path_stands_for_the_name() -> None:
    assert without_path({"Path": "x", "Other": "y"}, "name") == {"name": "x", "other": "y"}
    assert without_path({"name": "x"}, "name") == {"name": "x"}
    with pytest.raises(ConfigurationError, match="both the option 'name' and a path"):
        without_path({"NAME": "x", "path": "x"}, "name")


@given(st.lists(st.integers(), max_size=60), st.integers(1, 80))
def test_runs_hold_all_items_in_order_and_are_even(items: list[int], most: int) -> None:
    found = runs(items, most)
    assert [item for run in found for item in run] == items
    assert len(found) == min(most, len(items))
    sizes = {len(run) for run in found}
    assert not sizes or (min(sizes) >= 1 and max(sizes) - min(sizes) <= 1)


def test_the_options_of_volatile_hashes() -> None:
    said = {
        "path": "items",
        "backend": "native",
        "allowEviction": "allkeys-lru",
        "names": "binary",
        "values": "binary",
        "match": "item:*",
        "partitions": "3",
        "url": SECRET_URL,
    }
    options = VolatileHashOptions.parse(said)
    assert (options.namespace, options.backend, options.partitions) == ("items", "native", 3)
    assert (options.names, options.values, options.match) == ("binary", "binary", "item:*")
    assert options.allow_eviction == ("allkeys-lru",)
    assert options.for_reading() is options
    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, VolatileHashOptions.parse(said)}) == 1
    assert "pass-word" not in repr(options)
    assert VolatileHashOptions.parse({"namespace": "x", "ttlSeconds": "0.5"}).ttl_seconds == 0.5


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "'namespace' is missing"),
        ({"namespace": "a", "path": "a"}, "both the option 'namespace' and a path"),
        ({"namespace": "no spaces"}, "the namespace 'no spaces' is not usable"),
        ({"namespace": "a", "nmes": "binary"}, "unknown options: 'nmes'"),
        ({"namespace": "a", "backend": "quick"}, "'backend' is 'quick'"),
        ({"namespace": "a", "values": "int"}, "'values' is 'int': give string or binary"),
        ({"namespace": "a", "partitions": "0"}, "'partitions' is '0'"),
        ({"namespace": "a", "ttlSeconds": "-1"}, "'ttlSeconds' is '-1'"),
        ({"namespace": "a", "ttlSeconds": "1e12"}, "'ttlSeconds' is above"),
        ({"namespace": SECRET_URL}, "'namespace' holds a URL"),
    ],
)
def test_wrong_options_of_volatile_hashes(options: dict[str, str], problem: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"^format 'workstealing.volatile_hashes': .*{problem}"
    ) as caught:
        VolatileHashOptions.parse(options)
    assert "pass-word" not in str(caught.value)


def test_an_option_for_the_other_direction_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'ttlSeconds' is for writing"):
        VolatileHashOptions.parse({"namespace": "a", "ttlSeconds": "1"}).for_reading()
    for name, value in (
        ("names", "binary"),
        ("values", "string"),
        ("match", "*"),
        ("partitions", "1"),
    ):
        with pytest.raises(ConfigurationError, match=f"'{name}' is for reading"):
            VolatileHashOptions.parse({"namespace": "a", name: value}).for_writing()


def test_the_options_of_a_tracked_set() -> None:
    options = TrackedSetOptions.parse({"path": "ids", "subSets": "8", "ids": "binary"})
    assert (options.name, options.sub_sets, options.ids, options.partitions) == (
        "ids",
        8,
        "binary",
        16,
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "'name' is missing"),
        ({"name": "a", "path": "b"}, "both the option 'name' and a path"),
        ({"name": "a", "subSets": "4097"}, "'subSets' is '4097'"),
        ({"name": "a", "partitions": "none"}, "'partitions' is 'none'"),
        ({"name": "a", "ids": "int"}, "'ids' is 'int'"),
        ({"name": "a", "sub_sets": "8"}, "unknown options: 'sub_sets'; it has name, client, url"),
    ],
)
def test_wrong_options_of_a_tracked_set(options: dict[str, str], problem: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"^format 'workstealing.tracked_set': .*{problem}"
    ):
        TrackedSetOptions.parse(options)
