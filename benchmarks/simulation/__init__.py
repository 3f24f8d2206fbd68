"""Simulations of a fleet and its garbage: the real controllers, on simulated traffic and time."""

from __future__ import annotations

from simulation.picture import picture
from simulation.running import Run, Scenario, compare, run, summaries

__all__ = ["Run", "Scenario", "compare", "picture", "run", "summaries"]
