"""A program: Django's own sessions are made, renewed and read while slices of SqlExpiry run.

Arguments: the URL of the database for SQLAlchemy; its settings for Django as JSON; seconds. It
prints one line of JSON with its counts. A session is live while the deadline that Django's own
`save()` has written is ahead; `lost` counts those that were missing before.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import django
import sqlalchemy as sa
from django.conf import settings

# A renewal that is under way when the deadline passes may lose to a slice, as to clearsessions.
MARGIN_SECONDS = 0.5


def main(url: str, database: dict[str, Any], seconds: float) -> None:
    """Run the application and the slices; print the counts."""
    settings.configure(
        INSTALLED_APPS=["django.contrib.sessions"],
        DATABASES={"default": database},
        USE_TZ=True,
        SECRET_KEY="of the test",
        SESSION_ENGINE="django.contrib.sessions.backends.db",
    )
    django.setup()
    from django.contrib.sessions.models import Session
    from django.core.management import call_command
    from django.utils import timezone

    from workstealing import Slice
    from workstealing.errors import Aborted, OutOfTime, Skipped
    from workstealing.jobs import SqlExpiry

    call_command("migrate", verbosity=0)
    past = timezone.now() - timedelta(hours=1)
    Session.objects.bulk_create(
        Session(session_key=f"dead{i:028d}", session_data="x", expire_date=past) for i in range(500)
    )
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=_use, args=(end, number, counts)) for number in range(3)]
    engine = sa.create_engine(url)
    job = SqlExpiry(engine, "django_session", "expire_date", 20, dry_run=False)
    job.connect(60.0)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            counts["removed"] += job.perform(Slice(20, 10.0))
        except (Aborted, OutOfTime, Skipped) as error:
            counts[type(error).__name__] += 1
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    while True:
        try:
            removed = job.perform(Slice(20, 10.0))
        except (Aborted, OutOfTime, Skipped):
            time.sleep(0.01)
            continue
        counts["removed"] += removed
        if not removed:
            break
    now = timezone.now()
    counts["expired_left"] = Session.objects.filter(
        expire_date__lt=now - timedelta(minutes=1)
    ).count()
    counts["left"] = Session.objects.count()
    sys.stdout.write(json.dumps(counts) + "\n")


def _use(end: float, number: int, counts: Counter[str]) -> None:
    """Make, renew and read sessions until the end; most of them are about to expire."""
    from django.contrib.sessions.backends.base import UpdateError
    from django.contrib.sessions.backends.db import SessionStore
    from django.db import OperationalError, close_old_connections
    from django.utils import timezone

    draw = random.Random(number)
    deadlines: dict[str, Any] = {}
    while time.monotonic() < end:
        key = draw.choice(list(deadlines)) if len(deadlines) >= 8 else None
        before = deadlines.get(key) if key else None
        # The very moment that Django writes, however long its save may wait.
        deadline = timezone.now() + timedelta(seconds=draw.choice([0.3, 0.6, 1.0, 3600]))
        try:
            if key is None:
                store = SessionStore()
                store["user"] = number
                store.set_expiry(deadline)
                store.create()
                counts["made"] += 1
            else:
                # As a request does: it reads the session, and saves it with a later deadline.
                store = SessionStore(session_key=key)
                store.load()
                is_live = before - timezone.now() > timedelta(seconds=MARGIN_SECONDS)
                if store.session_key is None:
                    counts["lost" if is_live else "expired"] += 1
                    del deadlines[key]
                    continue
                store.set_expiry(deadline)
                store.save()
                counts["renewed"] += 1
            deadlines[store.session_key] = deadline
        except UpdateError:
            # The row had gone between this thread's look and its save.
            is_live = before - timezone.now() > timedelta(seconds=0)
            counts["lost" if is_live else "expired"] += 1
            deadlines.pop(key, None)
        except OperationalError:
            counts["app_errors"] += 1
        if draw.random() < 0.05:
            deadlines.pop(draw.choice(list(deadlines)), None)  # A visitor who does not come back.
    close_old_connections()
    for key, deadline in deadlines.items():
        if deadline - timezone.now() > timedelta(seconds=MARGIN_SECONDS):
            counts["checked"] += 1
            counts["lost"] += not SessionStore().exists(key)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]))
