"""RQ: a worker enlists after each job, and now and then while its queues are empty.

    class ShopWorker(workstealing.integrations.rq.Worker):
        recruiter = recruiter                          # in shop/workers.py

    rq worker --worker-class shop.workers.ShopWorker

It is always the worker itself that enlists, never the work horse: RQ forks one for each job and
waits for its end, so a slice there would be paid for with a new connection, and by the worker's own
time. The worker enlists when the job is over and its result is stored, however it ended, and not
when it has been asked to stop. A request to stop that comes during a slice ends the slice.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from workstealing.clock import Duration
from workstealing.errors import MissingExtraError
from workstealing.integrations.wsgi import or_default
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.deferral import (
    Deferral,
    Enlister,
    current,
    is_host_timeout,
    when_faults,
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
    enlist to the worker, so that each job counts once; the worker's `when()` decides.
    """

    recruiter: Enlister | None = None
    idle_interval: Duration = 5.0
    """How often a worker with empty queues enlists, in seconds, rounded up to whole ones. Each time
    costs RQ a handful of commands: it ends its blocking read, sends its heartbeat and begins again.
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Refuse a class with a wrong `idle_interval`.

        Raises: ConfigurationError.
        """
        super().__init_subclass__(**options)
        checked_seconds(cls.idle_interval, f"idle_interval of {cls.__qualname__}")

    def when(self, job: Job) -> object:
        """Say whether the worker enlists after this job; by default after every one.

        Arguments: job, as the worker knows it: its status and result are not read anew.
        """
        del job
        return True

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Let RQ do a job, then enlist."""
        super().execute_job(job, queue)
        if self._stop_requested:
            return
        try:
            wanted = bool(self.when(job))
        except Exception as error:
            if is_host_timeout(or_default(self.recruiter), error):
                raise
            when_faults.report("the `when` of an RQ worker", error)
            return
        if wanted:
            self._enlist()

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """Let RQ run a job's function, which leaves its enlist to the worker."""
        # In a work horse the offer dies with the process; in a SimpleWorker it is dropped alike.
        deferral = Deferral(or_default(self.recruiter))
        token = current.set(deferral)
        try:
            return super().perform_job(job, queue)
        finally:
            current.reset(token)
            deferral.drop()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Let RQ wait for a job, and enlist each time that `idle_interval` have brought none."""
        if timeout is None:
            # Burst mode, which ends at an empty queue.
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
