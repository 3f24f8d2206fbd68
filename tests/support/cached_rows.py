"""A program: Django's rows are cached and invalidated by cacheops while slices of a job run.

Arguments: the URL of Redis; the folder of the database; seconds. It prints one line of JSON with
its counts. `stale` counts the reads that were answered from the cache after the row was saved: its
key was in no set of keys to invalidate.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import django
import redis
from django.conf import settings

ROWS = 40


def main(url: str, folder: str, seconds: float) -> None:
    """Run the application and the slices; print the counts."""
    settings.configure(
        INSTALLED_APPS=["cacheops"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder, "db"))}
        },
        USE_TZ=True,
        CACHEOPS_REDIS=url,
        CACHEOPS={"cacheops.*": {"ops": "all", "timeout": 1}},
    )
    django.setup()
    from django.db import connection, models

    class Row(models.Model):
        value = models.IntegerField()

        class Meta:
            app_label = "cacheops"

    with connection.schema_editor() as editor:
        editor.create_model(Row)
    Row.objects.bulk_create(Row(pk=number, value=0) for number in range(1, ROWS + 1))

    from workstealing import Slice
    from workstealing.errors import Aborted, OutOfTime
    from workstealing.jobs import TagSetLeftovers

    counts: Counter[str] = Counter()
    client = redis.Redis.from_url(url)
    job = TagSetLeftovers(client, dry_run=False)
    is_over = threading.Event()

    def collect() -> int:
        """Do a slice; return how much garbage is left."""
        try:
            counts["removed"] += job.perform(Slice(20, 10.0))
            left = job.backlog().count
        except Aborted:
            counts["aborted"] += 1
        except (OutOfTime, redis.TimeoutError):
            # The machine is busy.
            counts["late"] += 1
        else:
            if not left:
                job.restart()
            return left
        return 1

    def collect_meanwhile() -> None:
        while not is_over.is_set():
            collect()

    # Each query has a set and a key of its own; its key ends after a second.
    for number in range(300):
        list(Row.objects.filter(value=number + 1_000, pk=number))
    thread = threading.Thread(target=collect_meanwhile, daemon=True)
    thread.start()
    expected = dict.fromkeys(range(1, ROWS + 1), 0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = random.randint(1, ROWS)
        if random.random() < 0.7:
            counts["read"] += 1
            counts["stale"] += Row.objects.get(pk=number).value != expected[number]
        else:
            counts["saved"] += 1
            expected[number] += 1
            Row(pk=number, value=expected[number]).save()
    is_over.set()
    thread.join()
    # All keys end, and all members are dead.
    time.sleep(1.2)
    job.restart()
    left = 1
    for _ in range(500):
        left = collect()
        if not left:
            break
    counts["left"] = left
    counts["members"] = sum(client.scard(each) for each in client.scan_iter("conj:*", count=1000))
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
