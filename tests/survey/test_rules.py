"""Rules that are no part of the survey: one file holds a rule, and three ways lead to it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import jobs
from workstealing.cli import main
from workstealing.errors import ConfigurationError
from workstealing.jobs.leftovers import (
    CLIENT,
    LIVE,
    PATTERN,
    Declared,
    Item,
    Leftovers,
    Offer,
    Rule,
    Verdicts,
    call,
    key_removed,
    keys,
    look,
    seen_twice,
)
from workstealing.survey import Survey, report_of
from workstealing.survey.garbage import GROUP, MODULES, own_classes, rules_in

JOBS = Path(jobs.__file__).parent
# One file, as a user writes it; nothing else knows of it.
SHOP = """
    from workstealing.jobs.leftovers import LIVE, PROVED, Rule, key_removed, keys, look

    class DeadCarts(Rule):
        name, owner, finds = "shop.carts", "our shop", "Carts of users who are gone."
        certainty, where = PROVED, keys("cart:*", "hash")

        def verdict(self, item):
            user = b"user:" + item.key.removeprefix(b"cart:")
            (there,) = yield look(("EXISTS", user), watch=(user, item.key))
            return LIVE if there else key_removed(item.key)

    rules = [DeadCarts()]
    alike = [DeadCarts(), DeadCarts()]
    number = 17

    def broken():
        raise OSError("no configuration")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The user's module, importable; its name is in `__name__`."""
    (tmp_path / "shop_of_a_test.py").write_text(textwrap.dedent(SHOP))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import shop_of_a_test  # type: ignore[import-not-found]

    yield shop_of_a_test
    sys.modules.pop("shop_of_a_test", None)


@pytest.fixture
def carts(redis8: RedisServer) -> RedisServer:
    """A server with 10 carts, of which 6 have no user."""
    client = redis8.client()
    for number in range(10):
        client.hset(f"cart:{number}", mapping={"item": number})
    client.mset({f"user:{number}": 1 for number in range(4)})
    return redis8


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str], None]:
    """A function that installs a package whose metadata names entry points, `name = place`."""

    def write(points: str) -> None:
        folder = tmp_path / "shop-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")

    return write


def surveyed(client: Any, **options: Any) -> dict[str, Any]:
    """Survey without pauses; return the result."""
    survey = Survey(client, load=1.0, **options)
    survey.run()
    return report_of(survey, 100.0)


def found_in(report: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return how sure each rule is, and how many items it has found; not of keys without a TTL."""
    return {
        one["rule"]: (one["kind"], one["items"])
        for each in report["families"]
        for one in each["findings"]
        if one["items"] and one["kind"] != "no TTL"
    }


CARTS = {"shop.carts": ("certain", 6)}


def test_a_rule_of_the_caller_is_surveyed(shop: Any, carts: RedisServer) -> None:
    client = carts.client()
    assert found_in(surveyed(client)) == {}
    report = surveyed(client, rules=[shop.DeadCarts()])
    assert found_in(report) == CARTS
    (found,) = [one for each in report["families"] for one in each["findings"] if one["items"] == 6]
    assert found["install"].startswith("recruiter.install(Leftovers(client, [DeadCarts()]), rate=")
    assert found["bytes"][0] > 0
    # The line is one that a user can type, and it removes these items.
    job = eval(
        found["removes"].removeprefix("recruiter.install(").partition(", rate=")[0],
        {"Leftovers": Leftovers, "DeadCarts": shop.DeadCarts, "client": client},
    )
    assert job.backlog(30.0).count == 6


@pytest.mark.parametrize(
    "place", ["shop_of_a_test:DeadCarts", "shop_of_a_test", "shop_of_a_test:rules"]
)
def test_a_rule_of_the_command_line_is_surveyed(
    place: str, shop: Any, carts: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["survey", "--url", carts.url, "--load", "1", "--json"]
    assert main([*options, "--rules", place]) == 0
    assert found_in(json.loads(capsys.readouterr().out)) == CARTS


def test_a_rule_of_an_installed_package_is_surveyed(
    shop: Any, carts: RedisServer, install: Callable[[str], None]
) -> None:
    install("shop = shop_of_a_test:rules")
    report = surveyed(carts.client())
    assert found_in(report) == CARTS
    assert [each for each in report["notes"] if "entry point" in each] == []


def test_a_package_that_cannot_be_loaded_is_told_of(
    shop: Any, carts: RedisServer, install: Callable[[str], None]
) -> None:
    """The survey is of use without it."""
    install(
        "a = nowhere_at_all:rules\nb = shop_of_a_test:number\nc = shop_of_a_test:broken\n"
        "d = shop_of_a_test:DeadCarts\ne = shop_of_a_test:rules"
    )
    report = surveyed(carts.client())
    assert found_in(report) == CARTS
    told = " ".join(report["notes"])
    for sentence in (
        "the rules of the entry point 'a' are left out, because 'nowhere_at_all:rules' cannot be",
        "entry point 'b' are left out: 'shop_of_a_test:number' is a int; expected a rule",
        "entry point 'c' are left out: the rules 'shop_of_a_test:broken' cannot be made: OSError",
        "the installed rule 'shop.carts' is left out: another one has its name",
    ):
        assert sentence in told


def test_wrong_rules(shop: Any, redis8: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    client = redis8.client()
    with pytest.raises(ConfigurationError, match="a rule was expected, not 17"):
        Survey(client, rules=[17])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="two rules have the name"):
        Survey(client, rules=shop.alike)
    taken = shop.DeadCarts()
    taken.name = "rq.ghosts"
    with pytest.raises(ConfigurationError, match="is asked by every survey"):
        Survey(client, rules=[taken])
    for place, sentence in (
        ("shop_of_a_test:nothing", "shop_of_a_test has no 'nothing'"),
        ("shop_of_a_test:", "--rules 'shop_of_a_test:' is malformed"),
        ("shop_of_a_test:number", "is a int; expected a rule, rules, or a function"),
        ("shop_of_a_test:broken", "cannot be made: OSError: no configuration"),
        ("no_such_module:rules", "no module 'no_such_module'"),
    ):
        assert main(["survey", "--url", redis8.url, "--rules", place]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert sentence in said.err


class OldDrafts(Rule):
    """A rule that learns a shop's prefix from its keys, and says all of its offer itself."""

    owner, finds = "our shop", "Drafts that nobody has looked at for long."

    def __init__(self, prefix: str, idle: float) -> None:
        self.name = f"shop.drafts.{prefix}"
        self.certainty = seen_twice(idle)
        self.where = keys(f"{prefix}:draft:*", "string")
        self._prefix, self._idle = prefix, idle

    @staticmethod
    def tells(key: bytes) -> dict[str, str] | None:
        """Return the prefix of a shop."""
        prefix, found, _ = key.partition(b":shop:")
        return {"prefix": prefix.decode()} if found else None

    @classmethod
    def surveyed(cls, told: Any) -> list[Rule]:
        """Return the rule of a shop."""
        return [cls(**told, idle=7_200.0)] if told else []

    def offer(self) -> Offer:
        """Offer a job for a time that the user declares."""
        idle = Declared("LONGEST_IDLE", self._idle)
        rule = call(OldDrafts, self._prefix, idle=idle)
        return Offer(call(Leftovers, CLIENT, [rule], name=PATTERN), sized=False)

    def verdict(self, item: Item) -> Verdicts:
        """Judge a draft."""
        (there,) = yield look(("EXISTS", item.key), watch=item.key)
        return key_removed(item.key, b"there") if there else LIVE


def fill_shop(client: Any) -> None:
    """Write drafts, and a key that tells the shop's prefix."""
    client.set("north:shop:name", "North")
    client.mset({f"{shop}:draft:{n}": "text" for shop in ("north", "south") for n in range(9)})


def test_a_rule_says_its_whole_offer(redis8: RedisServer) -> None:
    client = redis8.client()
    fill_shop(client)
    report = surveyed(client, rules=[OldDrafts("west", 60.0)])
    # That of "south" is asked for by no key, and "west" has none.
    (found,) = [
        one
        for each in report["families"]
        for one in each["findings"]
        if one["rule"] == "shop.drafts.north"
    ]
    assert (found["kind"], found["items"], found["declares"]) == ("if declared", 9, "idle=2 h")
    assert found["install"].startswith(
        "recruiter.install(Leftovers(client, [OldDrafts('north', idle=<LONGEST_IDLE>)],"
        " name='north:draft:*'), rate="
    )
    # A rule that removes without a script is measured all the same.
    assert found["measured"] == 9
    assert "south" not in json.dumps([each["findings"] for each in report["families"]])


def test_a_resumed_survey_asks_the_same_rules(
    redis8: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis8.client()
    fill_shop(client)
    path = tmp_path / "state"
    survey = Survey(client, load=1.0, rules=[OldDrafts("west", 60.0)], path=path)
    survey.run()
    again = Survey(client, load=1.0, rules=[OldDrafts("west", 60.0)], path=path)
    again.run()
    # It has met no key itself: what keys have told stands in the state.
    assert set(again.judges.asked) == set(survey.judges.asked)
    assert "shop.drafts.north/north" in again.judges.asked
    with pytest.raises(ConfigurationError, match="of a survey with other rules: give the same"):
        Survey(client, load=1.0, path=path).run()


def test_no_rule_of_the_package_is_forgotten() -> None:
    """A new rule stands in its module's `__all__`, and nowhere else."""
    files = {f"workstealing.jobs.{path.stem}" for path in JOBS.glob("*_leftovers.py")}
    assert set(MODULES) == files
    # A rule in a file of another name would never be asked.
    for path in JOBS.glob("*.py"):
        import_module(f"workstealing.jobs.{path.stem}")
    waiting: list[type[Rule]] = [Rule]
    for each in waiting:
        waiting += each.__subclasses__()
    public = {
        each
        for each in waiting
        if each.__module__.startswith("workstealing.jobs.") and not each.__name__.startswith("_")
    }
    assert set(own_classes()) == public - {Rule}
    assert len(public) > 20


def test_the_survey_names_no_rule() -> None:
    """But those of its two offers that no finding makes: an end for keys, and tag sets."""
    folder = Path(sys.modules["workstealing.survey"].__file__ or "").parent
    names = {each.__name__ for each in own_classes()}
    said = {
        name for path in folder.glob("*.py") for name in names if name in path.read_text("utf-8")
    }
    assert said == {"KeysWithoutTtl", "DeadTags"}


def test_rules_in_takes_one_some_and_a_function() -> None:
    rule = OldDrafts("north", 60.0)
    assert rules_in(rule, "x") == (rule,)
    assert rules_in([rule], "x") == (rule,)
    assert rules_in(lambda: rule, "x") == (rule,)
    assert rules_in(lambda: iter([rule]), "x") == (rule,)
    with pytest.raises(ConfigurationError, match="no rule was given"):
        rules_in([], "x")
