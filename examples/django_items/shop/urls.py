"""The pages."""

from __future__ import annotations

from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path

from shop.maintenance import items, recruiter

ITEMS = 1_000
# Seconds to live, by part.
TTLS = {"description": 12 * 3600, "price": 3600, "stock": 5 * 60}


def look_up(item: int, part: str) -> str:
    """Return a part of an item as the shop's database would."""
    return {
        "description": f"The {item}th thing",
        "price": f"{item % 90 + 10}.00",
        "stock": str(item % 7),
    }[part]


def page(_: HttpRequest, item: int) -> JsonResponse:
    """Show an item, each part of which is cached for its own time."""
    if not 1 <= item <= ITEMS:
        raise Http404
    key = f"item:{item}"
    parts = {
        part: value.decode()
        for part, value in zip(TTLS, items.hmget(key, list(TTLS)), strict=True)
        if value is not None
    }
    missing = [part for part in TTLS if part not in parts]
    for part in missing:
        parts[part] = look_up(item, part)
        items.hsetex(key, mapping={part: parts[part]}, ex=TTLS[part])
    return JsonResponse(
        {part: parts[part] for part in TTLS}, headers={"X-Cache": "miss" if missing else "hit"}
    )


def figures(_: HttpRequest) -> JsonResponse:
    """Show who enlisted in this process, and what came of it."""
    return JsonResponse(dict(recruiter.stats()))


urlpatterns = [path("item/<int:item>", page), path("figures", figures)]
