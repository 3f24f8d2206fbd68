"""`--app package.module:recruiter`: finding the recruiter that a command is about."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workstealing.cli.output import note
from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.recruiting import Recruiter

VARIABLE = "WORKSTEALING_APP"
_DEFAULT_ATTRIBUTE = "recruiter"
_OUR_CACHES = "workstealing."


def add_app_option(parser: argparse.ArgumentParser) -> None:
    """Add --app to a command's options."""
    parser.add_argument(
        "--app",
        metavar="MODULE:NAME",
        help="the recruiter, as package.module:recruiter, or a function that returns it; without"
        f" :NAME it is called {_DEFAULT_ATTRIBUTE} (default: {VARIABLE} in the environment); the"
        " command looks for modules in the current folder first",
    )


def named_app(name: str | None) -> str:
    """Return the name given by --app, else by the environment, else ""."""
    return os.environ.get(VARIABLE, "").strip() if name is None else name.strip()


def load_app(name: str | None) -> Recruiter:
    """Import a recruiter.

    Output of the application goes to stderr, because stdout belongs to the command.

    Arguments:
        name: "package.module:recruiter"; the second half may be dotted, and may be a function of no
            arguments that returns the recruiter.

    None stands for WORKSTEALING_APP in the environment. Raises: ConfigurationError for any fault of
    the name or the module.
    """
    name = named_app(name)
    if not name:
        raise ConfigurationError(
            f"no recruiter was named: give --app package.module:recruiter, or set {VARIABLE}"
        )
    with application_prints_to_stderr():
        recruiter = _recruiter(found_at(name, "--app", _DEFAULT_ATTRIBUTE), name)
        _open_django_caches()
        return recruiter


def found_at(name: str, option: str, attribute: str) -> Any:
    """Return an object of a module that an option names.

    Arguments:
        name: "package.module:name"; the second half may be dotted.
        option: for the error.
        attribute: the name where there is none.

    Raises: ConfigurationError.
    """
    module_name, colon, path = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or (colon and not path):
        raise ConfigurationError(
            f"{option} {name!r} is malformed: expected package.module:{attribute}"
        )
    found = _module(module_name)
    for part in (path or attribute).removesuffix("()").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"{option} {name!r}: {getattr(found, '__name__', found)!s} has no {part!r}"
            ) from None
    return found


def _open_django_caches() -> None:
    """Open the caches of a Django project: Django does it at their first use, and ours have jobs.

    A command would otherwise say that no job is installed. Nothing is opened without settings, and
    a cache of another kind is left alone.
    """
    if "DJANGO_SETTINGS_MODULE" not in os.environ and "django.conf" not in sys.modules:
        return
    try:
        from django.conf import settings
        from django.core.cache import caches

        if not (settings.configured or "DJANGO_SETTINGS_MODULE" in os.environ):
            return
        for alias, options in settings.CACHES.items():
            if str(options.get("BACKEND", "")).startswith(_OUR_CACHES):
                caches[alias]
    except Exception as error:  # noqa: BLE001 - the recruiter's other jobs are known all the same
        note(f"Django's caches could not be opened, so their jobs are missing: {_said(error)}")


@contextlib.contextmanager
def application_prints_to_stderr() -> Iterator[None]:
    """Send output of the application's code to stderr: the command's answer stands on stdout."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        # As gunicorn and flask do.
        sys.path.insert(0, here)
    try:
        if find_spec(name.partition(".")[0]) is None:
            raise ConfigurationError(
                f"no module {name.partition('.')[0]!r} in {here} or elsewhere on Python's path"
            )
        return import_module(name)
    except WorkStealingError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"importing {name!r} failed: {_said(error)}") from error


def _recruiter(found: Any, name: str) -> Recruiter:
    if callable(found) and not isinstance(found, Recruiter):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"--app {name!r}: calling it failed: {_said(error)}"
            ) from error
    if not isinstance(found, Recruiter):
        raise ConfigurationError(
            f"--app {name!r} is of type {type(found).__name__}; expected a Recruiter, or a function"
            " that returns one"
        )
    return found


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
