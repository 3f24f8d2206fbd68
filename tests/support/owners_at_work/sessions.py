"""Django's sessions in PostgreSQL: made, renewed and ended by Django, removed by SqlExpiry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import django
import sqlalchemy as sa
from django.conf import settings

from support.killed_journal import Work
from support.owners_at_work.owner import Owner
from workstealing.jobs import SqlExpiry

# A renewal that is under way when the deadline passes may lose to a slice, as to clearsessions.
MARGIN_SECONDS = 0.5


class Sessions(Owner):
    """Django's sessions, most of which are about to end."""

    name = "sessions"
    # It takes a while to connect.
    pace = 3.0

    def __init__(self, home: str, *, planted: bool = False) -> None:
        super().__init__(home, planted=planted)
        url = sa.make_url(home)
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": url.database}
        address = {"USER": url.username, "HOST": url.host, "PORT": url.port}
        settings.configure(
            INSTALLED_APPS=["django.contrib.sessions"],
            DATABASES={"default": {**database, **address}},
            USE_TZ=True,
            SECRET_KEY="of the test",
            SESSION_ENGINE="django.contrib.sessions.backends.db",
        )
        django.setup()

    def connected(self) -> Any:
        """Nobody asks by a client: Django connects where it is asked."""
        return None

    def begin(self, client: Any) -> None:
        """Make the table, and leave no connection to the children."""
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0)
        connections.close_all()

    def jobs(self, client: Any) -> list[Any]:
        """Return the job, with an engine of its own."""
        engine = sa.create_engine(self.home)
        return [SqlExpiry(engine, "django_session", "expire_date", 20, dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Make, renew or end a session of this process' own."""
        from django.contrib.sessions.backends.base import UpdateError
        from django.contrib.sessions.backends.db import SessionStore
        from django.utils import timezone

        deadlines: dict[str, Any] = {}

        def operate() -> None:
            key = work.draw.choice(list(deadlines)) if len(deadlines) >= 8 else None
            seconds = work.draw.choice([0.3, 0.6, 1.0, 3_600.0])
            deadline = timezone.now() + timedelta(seconds=seconds)
            store = SessionStore(session_key=key)
            if key is None:
                store["user"] = work.life
                store.set_expiry(deadline)
                store.create()
            elif work.draw.random() < 0.2:
                work.journal.over(key)
                store.delete()
                del deadlines[key]
                return
            else:
                store.load()
                if store.session_key is None:
                    work.is_there(deadlines.pop(key) < timezone.now(), f"the session {key}")
                    return
                work.journal.moves(key)
                store.set_expiry(deadline)
                try:
                    store.save()
                except UpdateError:
                    # The row had gone between the look and the save.
                    work.is_there(deadlines.pop(key) < timezone.now(), f"the session {key}")
                    return
            name = str(store.session_key)
            deadlines[name] = deadline
            work.journal.live(name, f"{deadline.timestamp() - MARGIN_SECONDS}")

        return operate

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return the sessions that Django does not find before their end."""
        from django.contrib.sessions.models import Session

        found: set[str] = set()
        names = list(items)
        for at in range(0, len(names), 500):
            some = Session.objects.filter(session_key__in=names[at : at + 500])
            found |= set(some.values_list("session_key", flat=True))
        self._disconnect()
        now = time.time()
        return [each for each in names if each not in found and now < float(items[each])]

    def finish(self, client: Any, work: Work) -> None:
        """Wait until the short ones have ended."""
        time.sleep(1.1)

    def left(self, client: Any) -> list[str]:
        """Return the sessions that have ended."""
        from django.contrib.sessions.models import Session
        from django.utils import timezone

        ended = Session.objects.filter(expire_date__lt=timezone.now() - timedelta(seconds=1))
        left = [str(each) for each in ended.values_list("session_key", flat=True)[:100]]
        self._disconnect()
        return left

    @staticmethod
    def _disconnect() -> None:
        """Close what a child would share, if it were forked now."""
        from django.db import connections

        connections.close_all()
