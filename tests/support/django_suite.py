"""Runs Django's own tests of cache backends on ours, in a process of its own.

Arguments: the folder `tests` of Django's source distribution; a URL of a Redis. Its test classes
for the Redis backend, and those that use the local-memory backend as any cache, take ours instead.
Prints a JSON object: each test, and how it ended.
"""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from typing import Any

OURS = "workstealing.integrations.django_cache.Cache"
REDIS = "django.core.cache.backends.redis.RedisCache"
LOCAL = "django.core.cache.backends.locmem.LocMemCache"
# It looks into the local-memory backend.
LEFT_OUT = ("LocMemCacheTests",)


class Outcomes(unittest.TestResult):
    """Notes how each test ended: a test with several failed parts is noted once."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    @staticmethod
    def _name(test: Any) -> str:
        whole = getattr(test, "test_case", test)
        return f"{type(whole).__name__}.{getattr(whole, '_testMethodName', 'setUpClass')}"

    def _note(self, test: Any, outcome: str) -> None:
        self.found[self._name(test)] = outcome

    def addSuccess(self, test: Any) -> None:  # noqa: N802 - unittest's own
        self.found.setdefault(self._name(test), "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802 - unittest's own
        self._note(test, f"skipped: {reason}")

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's own
        self._note(test, f"failed: {err[0].__name__}: {err[1]}"[:300])

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's own
        self.addFailure(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802 - unittest's own
        if err is not None:
            self.addFailure(test, err)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's own
        self.addSuccess(test)


def configured(url: str) -> None:
    """Set Django up, as its own suite does for these tests."""
    import django
    from django.conf import settings

    databases = {
        name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        for name in ("default", "other")
    }
    settings.configure(
        SECRET_KEY="of tests",
        DATABASES=databases,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=False,
        ROOT_URLCONF="urls",
        LANGUAGE_CODE="en",
        SITE_ID=1,
        STATIC_URL="static/",
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django.contrib.sites",
            "django.contrib.sessions",
            "django.contrib.messages",
            "django.contrib.staticfiles",
            "cache",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                    ]
                },
            }
        ],
        CACHES={
            "default": {"BACKEND": LOCAL},
            # Its presence lets Django's class for Redis run.
            "redis": {"BACKEND": REDIS, "LOCATION": url},
        },
    )
    django.setup()


def on_ours(caches: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the settings of caches with our backend in place of Redis's and the local one."""
    made = {}
    for name, each in caches.items():
        if each.get("BACKEND") in (REDIS, LOCAL):
            # Each place in memory is a cache of its own.
            place = "".join(filter(str.isalnum, each.get("LOCATION", "")))[:40]
            options = {"NAMESPACE": f"cache{place}", "RATE": 0, "BUCKETS": 16}
            given = each.get("OPTIONS", {})
            made[name] = {
                **each,
                "BACKEND": OURS,
                "LOCATION": url,
                "OPTIONS": {**options, **(given if each["BACKEND"] == LOCAL else {})},
            }
        else:
            made[name] = each
    return made


def main(folder: str, url: str) -> None:
    """Run them all."""
    sys.path.insert(0, folder)
    with tempfile.TemporaryDirectory() as scratch:
        tempfile.tempdir = scratch
        configured(url)
        from cache import tests as module
        from django.test.runner import DiscoverRunner
        from django.test.utils import setup_test_environment

        loader, suite = unittest.TestLoader(), unittest.TestSuite()
        for name, kind in sorted(vars(module).items()):
            if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)):
                continue
            caches = (getattr(kind, "_overridden_settings", None) or {}).get("CACHES", {})
            used = {each.get("BACKEND") for each in caches.values()}
            if kind.__module__ != module.__name__ or name in LEFT_OUT or not used & {REDIS, LOCAL}:
                continue
            kind._overridden_settings = {
                **kind._overridden_settings,
                "CACHES": on_ours(caches, url),
            }
            if REDIS in used:
                # Its class for Redis expects redis-py's own error; ours is that of other caches.
                kind.incr_decr_type_error = TypeError
            suite.addTests(loader.loadTestsFromTestCase(kind))
        setup_test_environment()
        runner = DiscoverRunner(verbosity=0, interactive=False)
        old = runner.setup_databases()
        outcomes = Outcomes()
        suite.run(outcomes)
        runner.teardown_databases(old)
        tempfile.tempdir = None
    sys.stdout.write(json.dumps(outcomes.found))


if __name__ == "__main__":
    main(*sys.argv[1:])
