"""The recruiter behind `workstealing.install`, `job`, `enlist`, `enlists` and the rest."""

from __future__ import annotations

from workstealing.recruiting.recruiter import Recruiter

recruiter = Recruiter()
"""This process's default recruiter: an ordinary Recruiter, made when it is first used."""
