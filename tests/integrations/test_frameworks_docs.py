"""The Python blocks of docs/frameworks.md, django.md and celery_rq.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys

import httpx
from aiohttp import web
from fastapi import FastAPI, Response

from support.pages import ROOT, run_page, running, text_of
from workstealing import Recruiter
from workstealing.integrations.celery import WorkStealing as CeleryWorkStealing
from workstealing.integrations.rq import Worker
from workstealing.testing import always


async def enlisted_by(app: FastAPI, recruiter: Recruiter, *paths: str) -> list[int]:
    counts = []
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as client:
        for path in paths:
            await client.get(path)
            counts.append(recruiter.stats()["enlisted"])
    return counts


async def test_asgi() -> None:
    # The page leaves the handler's body out.
    hit = "item: int): return Response('', 200, {'X-Cache': 'hit'})"
    with running(
        "docs/frameworks.md",
        section="ASGI: Starlette and FastAPI",
        replace={"item: int): ...": hit},
    ) as page:
        names = page.run(app=FastAPI())
        assert await enlisted_by(names["app"], names["recruiter"], "/nowhere") == [1]
        page.run(app=FastAPI(), Response=Response)
        paths = ("/nowhere", "/item/17")
        assert await enlisted_by(names["app"], names["recruiter"], *paths) == [1, 2]


def test_aiohttp() -> None:
    routes = web.RouteTableDef()
    given = {"routes": routes, "recruiter": always()}
    run_page("docs/frameworks.md", given, section="aiohttp")
    assert len(routes) == 1


def test_django() -> None:
    """In a process of its own: settings are for ever."""
    with running("docs/django.md") as page:
        block = page.take()
    program = f"""
import sys, types
shop, maintenance = types.ModuleType("shop"), types.ModuleType("shop.maintenance")
maintenance.was_fast = lambda response: True
sys.modules.update({{"shop": shop, "shop.maintenance": maintenance}})
names = {{}}
exec({block!r}, names)
import django
from django.conf import settings
settings.configure(**{{key: value for key, value in names.items() if key.isupper()}})
django.setup()
from django.core.management import call_command
call_command("check", fail_level="WARNING")
from workstealing.integrations.django import WorkStealingMiddleware
WorkStealingMiddleware(lambda request: None)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_celery() -> None:
    names = run_page("docs/celery_rq.md", {"__name__": "shop"}, section="Celery")
    assert names["WorkStealing"] is CeleryWorkStealing
    # The boot step for idle moments.
    assert any("Idle" in step.name for step in names["app"].steps["worker"])


def test_rq() -> None:
    worker = run_page("docs/celery_rq.md", section="RQ")["ShopWorker"]
    assert issubclass(worker, Worker)


def test_links() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text_of("docs/frameworks.md")):
        assert (ROOT / "docs" / target).exists(), target
