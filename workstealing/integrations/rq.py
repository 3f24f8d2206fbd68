"""RQ: a worker enlists after each job, and now and then while its queues are empty.

    class ShopWorker(workstealing.integrations.rq.Worker):
        recruiter = recruiter                          # in shop/workers.py

    rq worker --worker-class shop.workers.ShopWorker

The worker itself enlists, never the work horse. RQ forks a horse for each job and waits for its
end, so a slice in it would cost a new connection and the worker's own time. The worker enlists
after a job's end, by success or failure, when the result is stored. The worker does not enlist
after a request to stop. Such a request during a slice ends the slice.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from workstealing.clock import Duration
from workstealing.errors import MissingExtraError
from workstealing.integrations.wsgi import or_default
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.deferral import (
    Deferral,
    Enlister,
    current,
    is_wanted,
)

try:
    import rq
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "rq":
        raise
    raise MissingExtraError("rq", "RQ") from error

if TYPE_CHECKING:
    from rq.job import Job
    from rq.queue import Queue
    from rq.worker import BaseWorker as _Base
else:
    # A mixin: it stands before one of RQ's workers.
    _Base = object


class WorkStealing(_Base):
    """Lets an RQ worker enlist; for a worker class of your own: `class Mine(WorkStealing, Base)`.

    Set `recruiter` (by default the one behind `workstealing.enlist`) and `idle_interval` in the
    class, and override `when()`. A job's function decorated with `Recruiter.enlists` leaves its
    enlist to the worker, so each job counts once. The worker's `when()` decides.
    """

    recruiter: Enlister | None = None
    idle_interval: Duration = 5.0
    """The time between two enlists of a worker with empty queues: a number of seconds, rounded up,
    or a timedelta. Each enlist costs RQ a handful of commands, for a new blocking read and a
    heartbeat."""

    def __init_subclass__(cls, **options: object) -> None:
        """Check `idle_interval`.

        Raises: ConfigurationError if it is wrong.
        """
        super().__init_subclass__(**options)
        checked_seconds(cls.idle_interval, f"idle_interval of {cls.__qualname__}")

    def when(self, job: Job) -> object:
        """Say whether the worker enlists after this job; by default after each one.

        Arguments:
            job: the worker's object; its status and result are not read anew.
        """
        del job
        return True

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Let RQ do a job, then enlist."""
        super().execute_job(job, queue)
        if self._stop_requested:
            return
        if is_wanted(or_default(self.recruiter), self.when, job):
            self._enlist()

    def perform_job(self, job: Job, queue: Queue, *execution: Any) -> bool:
        """Let RQ run a job's function; its enlist is left to the worker."""
        # RQ 3 passes the job's execution as well; RQ 2 keeps it.
        # The offer dies with a work horse's process; a SimpleWorker drops it alike.
        deferral = Deferral(or_default(self.recruiter))
        token = current.set(deferral)
        try:
            return super().perform_job(job, queue, *execution)
        finally:
            current.reset(token)
            deferral.drop()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Let RQ wait for a job, and enlist after each `idle_interval` without one."""
        if timeout is None:
            # Burst mode ends at an empty queue.
            found = super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
            if found is None:
                self._enlist()
            return found
        # RQ takes whole seconds.
        turn = math.ceil(checked_seconds(self.idle_interval, "idle_interval"))
        end = math.inf if max_idle_time is None else time.monotonic() + max_idle_time
        while True:
            left = end - time.monotonic()
            found = super().dequeue_job_and_maintain_ttl(
                timeout, turn if left > turn else max(1, math.ceil(left))
            )
            if found is not None:
                return found
            self._enlist()
            if time.monotonic() >= end:
                return None

    def _enlist(self) -> None:
        or_default(self.recruiter).enlist()


class Worker(WorkStealing, rq.Worker):
    """RQ's Worker, which forks a work horse for each job, and enlists itself."""


class SimpleWorker(WorkStealing, rq.SimpleWorker):
    """RQ's SimpleWorker, which runs its jobs in its own process, and enlists there."""
