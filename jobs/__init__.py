"""The ready-made jobs, one file each; every job keeps one structure clean."""

from workstealing.jobs.hash_field_expiry import Backlog, HashFieldExpiry

__all__ = ["Backlog", "HashFieldExpiry"]
