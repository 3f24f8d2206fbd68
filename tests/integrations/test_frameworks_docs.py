"""The Python blocks of docs/frameworks.md, django.md and celery_rq.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web
from fastapi import FastAPI, Response

from workstealing import Recruiter
from workstealing.integrations.celery import WorkStealing as CeleryWorkStealing
from workstealing.integrations.rq import Worker
from workstealing.testing import always

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def blocks(page: str, heading: str = "") -> list[str]:
    section = (DOCS / page).read_text("utf-8")
    if heading:
        section = section.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)


def run(block: str, **names: Any) -> dict[str, Any]:
    names.setdefault("__name__", "shop")
    exec(compile(block, "docs", "exec"), names)
    return names


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
    every, some = blocks("frameworks.md", "ASGI: Starlette and FastAPI")
    names = run(every, app=FastAPI())
    assert await enlisted_by(names["app"], names["recruiter"], "/nowhere") == [1]
    # The page leaves the handler's body out.
    hit = "item: int): return Response('', 200, {'X-Cache': 'hit'})"
    names = {**names, "app": FastAPI(), "Response": Response}
    run(some.replace("item: int): ...", hit), **names)
    paths = ("/nowhere", "/item/17")
    assert await enlisted_by(names["app"], names["recruiter"], *paths) == [1, 2]


def test_aiohttp() -> None:
    routes = web.RouteTableDef()
    (block,) = blocks("frameworks.md", "aiohttp")
    run(block, routes=routes, recruiter=always())
    assert len(routes) == 1


def test_django() -> None:
    """In a process of its own: settings are for ever."""
    (block,) = blocks("django.md")
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
    (block,) = blocks("celery_rq.md", "Celery")
    names = run(block)
    assert names["WorkStealing"] is CeleryWorkStealing
    # The boot step for idle moments.
    assert any("Idle" in step.name for step in names["app"].steps["worker"])


def test_rq() -> None:
    (block,) = blocks("celery_rq.md", "RQ")
    worker = run(block)["ShopWorker"]
    assert issubclass(worker, Worker)
