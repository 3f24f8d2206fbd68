"""Metrics: the ledger of a fleet, its settings and events, and hooks for StatsD and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.metrics.events import read_events
    from workstealing.metrics.ledger import Ledger
    from workstealing.metrics.opentelemetry import OpenTelemetryHooks
    from workstealing.metrics.prometheus import PrometheusHooks
    from workstealing.metrics.reading import processes, read
    from workstealing.metrics.shared_settings import SharedSettings, follow
    from workstealing.metrics.statsd import StatsDHooks

__all__ = [
    "Ledger",
    "OpenTelemetryHooks",
    "PrometheusHooks",
    "SharedSettings",
    "StatsDHooks",
    "follow",
    "processes",
    "read",
    "read_events",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.metrics.events": "read_events",
            "workstealing.metrics.ledger": "Ledger",
            "workstealing.metrics.opentelemetry": "OpenTelemetryHooks",
            "workstealing.metrics.prometheus": "PrometheusHooks",
            "workstealing.metrics.reading": "processes read",
            "workstealing.metrics.shared_settings": "SharedSettings follow",
            "workstealing.metrics.statsd": "StatsDHooks",
        },
    )
