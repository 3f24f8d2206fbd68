"""Dead members of tag sets, with cacheops itself, and with its own scripts in every order."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.leftover_jobs import to_the_end
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.jobs import TagSetLeftovers
from workstealing.jobs.family_leftovers import DeadTags
from workstealing.jobs.leftovers import DECLARED, PROVED, Leftovers
from workstealing.testing import Counterexample, assert_safe, refute

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).parents[2] / "support" / "cached_rows.py"


@pytest.mark.slow
def test_cacheops_goes_on_to_invalidate(redis7: RedisServer, tmp_path: Path) -> None:
    command = [sys.executable, "-P", PROGRAM, redis7.url, tmp_path, "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    # A busy machine comes to less in four seconds than an idle one.
    assert counts["removed"] > 30
    assert counts["read"] > 10
    assert counts["saved"] > 3
    assert counts["stale"] == counts["left"] == counts["members"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("of_type", ["set", "zset"])
def test_members_that_name_keys_in_a_way_of_their_own(any_server: AnyServer, of_type: Any) -> None:
    client = any_server.client()
    for number in range(200):
        member = f"{number}{{t}}"
        if of_type == "set":
            client.sadd("tag:{t}", member)
        else:
            client.zadd("tag:{t}", {member: number})
        if number % 4 == 0:
            client.set(f"row:{member}", 1)
    job = TagSetLeftovers(
        client, "tag:*", of_type=of_type, key_of=lambda member: b"row:" + member, dry_run=False
    )
    assert to_the_end(job) == 150
    left = client.smembers("tag:{t}") if of_type == "set" else client.zrange("tag:{t}", 0, -1)
    assert {int(each.partition(b"{")[0]) for each in left} == set(range(0, 200, 4))


@pytest.mark.slow
def test_a_member_whose_key_is_in_another_slot_is_unknown(cluster: Any) -> None:
    client = cluster.client()
    client.sadd("conj:{a}", "gone{b}", "gone{a}")
    assert to_the_end(TagSetLeftovers(client, dry_run=False)) == 1
    assert client.smembers("conj:{a}") == {b"gone{b}"}


class TestRefuting:
    @staticmethod
    def owners(name: str) -> str:
        """Return a script of cacheops as it was installed."""
        spec = find_spec("cacheops")
        assert spec is not None
        assert spec.origin is not None
        return (Path(spec.origin).parent / "lua" / f"{name}.lua").read_text()

    def caches(self, client: Any) -> None:
        dnfs = json.dumps({"shop_row": [{"id": 1}]})
        client.eval(self.owners("cache_thing"), 3, "", "q:row", "", "new", dnfs, 60)

    def invalidates(self, client: Any) -> None:
        client.eval(self.owners("invalidate"), 1, "", "shop_row", json.dumps({"id": "1"}))

    def start(self, client: Any) -> None:
        self.caches(client)
        client.delete("q:row")
        client.sadd("conj:shop_row:id=1", "q:other")

    @staticmethod
    def lost(client: Any) -> str | None:
        if client.exists("q:row") and not client.sismember("conj:shop_row:id=1", "q:row"):
            return "the row is cached, and no set names it"
        return None

    @staticmethod
    def collect(client: Any) -> Leftovers:
        return TagSetLeftovers(client, dry_run=False, random=lambda: 0.0)

    @pytest.mark.parametrize(
        "writers",
        [
            ["caches", "invalidates"],
            pytest.param(["invalidates", "caches"], marks=pytest.mark.slow),
        ],
    )
    def test_no_order_keeps_a_row_from_being_invalidated(
        self, redis7: RedisServer, writers: list[str]
    ) -> None:
        def both(client: Any) -> None:
            for each in writers:
                getattr(self, each)(client)

        assert_safe(self.collect, both, setup=self.start, lost=self.lost, client=redis7.client())

    def test_the_search_meets_the_removal(self, redis7: RedisServer) -> None:
        def gone(client: Any) -> str | None:
            return None if client.sismember("conj:shop_row:id=1", "q:row") else "it is gone"

        assert refute(self.collect, [], setup=self.start, lost=gone, client=redis7.client())

    @pytest.mark.slow
    def test_an_owner_that_writes_the_tag_before_the_key_may_lose_it(
        self, redis7: RedisServer
    ) -> None:
        """The risk that the documentation names: so the rule is proved for cacheops alone."""
        assert DeadTags().certainty is PROVED
        assert DeadTags("conj:shop_row:*").certainty is PROVED
        for other in (
            DeadTags("tag:*"),
            DeadTags("myconj:*"),
            DeadTags(of_type="zset"),
            DeadTags(key_of=lambda member: b"q:" + member),
        ):
            assert other.certainty is DECLARED

        def one_by_one(client: Any) -> None:
            client.sadd("conj:shop_row:id=1", "q:row")
            client.set("q:row", "new")

        options: dict[str, Any] = {"setup": self.start, "client": redis7.client()}
        found = refute(self.collect, one_by_one, lost=self.lost, **options)
        assert isinstance(found, Counterexample)
        assert [each.actor for each in found.events].count("writer") == 2
