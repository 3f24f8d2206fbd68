"""Programs whose processes are killed at work, by name; each module is one owner of garbage."""

from __future__ import annotations

from importlib import import_module

from support.owners_at_work.owner import Owner

OWNERS = {
    "celery": "Celery",
    "rq": "Rq",
    "streams": "Streams",
    "cacheops": "Cacheops",
    "families": "Families",
    "huey": "Huey",
    "langgraph": "LangGraph",
    "feast": "Feast",
    "sessions": "Sessions",
}
PLANTED = ("rq", "streams", "cacheops", "huey")
"""Those for which there is an unsafe rule, which a checker must find out."""


def owner_named(name: str, home: str, *, planted: bool = False) -> Owner:
    """Return an owner; its package is imported now. Arguments: see `Owner`."""
    made: Owner = getattr(import_module(f"support.owners_at_work.{name}"), OWNERS[name])(
        home, planted=planted
    )
    return made
