"""cacheops: rows of Django are cached, and their keys are invalidated, by cacheops itself.

Each process has the rows of its own, with numbers that nobody else has, in a database in memory:
what is shared are the cached keys and the sets that name them.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import django
from django.conf import settings

from support.killed_journal import Work
from support.owners_at_work.owner import Owner
from workstealing.jobs import TagSetLeftovers
from workstealing.jobs.family_leftovers import DeadTags
from workstealing.jobs.leftovers import LIVE, Item, Leftovers, Verdicts, look, member_removed

ROWS, SHARED, CACHED_SECONDS, LOOK_SECONDS = 12, 50, 1, 0.2
# Each cached key is in one set at least: cacheops writes both, and removes both, at once.
_UNNAMED = """
local named, bare = {}, {}
for _, set in ipairs(redis.call('KEYS', 'conj:*')) do
    for _, each in ipairs(redis.call('SMEMBERS', set)) do named[each] = true end
end
local cached = redis.call('KEYS', 'q:*')
for _, each in ipairs(cached) do
    if not named[each] then bare[#bare + 1] = each end
end
return bare
"""


class Cacheops(Owner):
    """cacheops, whose keys end after a second."""

    name = "cacheops"

    def __init__(self, home: str, *, planted: bool = False) -> None:
        super().__init__(home, planted=planted)
        settings.configure(
            INSTALLED_APPS=["cacheops"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            USE_TZ=True,
            CACHEOPS_REDIS=home,
            CACHEOPS={"cacheops.*": {"ops": "all", "timeout": CACHED_SECONDS}},
        )
        django.setup()
        from cacheops import getset
        from django.db import models

        getset.load_script = functools.cache(functools.partial(_exact, getset.load_script))

        class Row(models.Model):
            value = models.IntegerField()

            class Meta:
                app_label = "cacheops"

        self._row: Any = Row

    def jobs(self, client: Any) -> list[Any]:
        """Return the job."""
        if self.planted:
            return [Leftovers(client, [Careless()], name="p", dry_run=False)]
        return [TagSetLeftovers(client, dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Read a row, or save it; what was saved must be what is read from then on."""
        from django.db import connection

        row, client = self._row, self.connected()
        with connection.schema_editor() as editor:
            editor.create_model(row)
        numbers = [1_000 * work.life + number for number in range(ROWS)]
        row.objects.bulk_create([row(pk=number, value=0) for number in numbers])
        expected, values = dict.fromkeys(numbers, 0), itertools.count(1)

        def operate() -> None:
            number = work.draw.choice(numbers)
            chance = work.draw.random()
            if chance < 0.6:
                found = row.objects.get(pk=number).value
                work.is_there(found == expected[number], f"the invalidation of row {number}")
            elif chance < 0.7:
                # A key and a set that nobody asks for again.
                list(row.objects.filter(pk=number, value=1_000_000 + next(values)))
            elif chance < 0.9:
                # One that all processes ask for, again and again: it comes back when it has ended.
                list(row.objects.filter(pk=work.draw.randrange(SHARED), value=-1))
                if work.draw.random() < 0.2:
                    work.is_there(not client.eval(_UNNAMED, 0), "a name of a cached key")
            else:
                expected[number] = next(values)
                row(pk=number, value=expected[number]).save()

        return operate

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Nothing is in the journal: the processes compare what they read."""
        return []

    def broken(self, client: Any) -> list[str]:
        """Return the cached keys that no set names, so that nothing can invalidate them."""
        return [f"{each!r} is in no set" for each in client.eval(_UNNAMED, 0)]

    def finish(self, client: Any, work: Work) -> None:
        """Wait until all keys have ended."""
        while list(client.scan_iter(match="q:*", count=1_000)):
            time.sleep(0.05)

    def left(self, client: Any) -> list[str]:
        """Return the members that name no key."""
        return [
            f"{each!r} in {key!r}"
            for key in client.scan_iter(match="conj:*", count=1_000)
            for each in client.smembers(key)
            if not client.exists(each)
        ]


def _exact(load: Callable[[str], Any], name: str) -> Any:
    """Return a script of cacheops' whose sets live as long as their keys.

    cacheops 7.2 compares their rest of life by TTL, which rounds: a set may end half a second
    before the key that it names, by itself. That is not what is looked for here.
    """
    from cacheops.redis import redis_client

    text = load(name).script
    return redis_client.register_script(
        text.replace("redis.call('ttl', conj_key)", "redis.call('pttl', conj_key) / 1000")
    )


class Careless(DeadTags):
    """An unsafe rule, as cacheops' own reaper goes by: it looks, and WATCHes no key."""

    def verdict(self, item: Item) -> Verdicts:
        """Judge by a look that is not so new any more when the member goes."""
        (there,) = yield look(("EXISTS", item.member), watch=b"something else")
        if there:
            return LIVE
        # As if it had looked at a whole page at once: some keys come back meanwhile. Those that
        # nobody asks for again would only keep it from the others.
        if b"value=-1" in item.key:
            time.sleep(LOOK_SECONDS)
        return member_removed(item.key, "set", item.member or b"")
