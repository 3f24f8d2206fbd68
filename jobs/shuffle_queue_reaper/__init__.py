"""The job that keeps a shuffle queue whole when its consumers die."""

from workstealing.jobs.shuffle_queue_reaper.job import ShuffleQueueReaper

__all__ = ["ShuffleQueueReaper"]
