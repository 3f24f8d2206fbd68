"""RedisWaiting: a take that sleeps on Redis wakes when a message may be taken.

The first moment of a time shard is the earliest of three: the least due time of what waits, the
least end of a lease, and the least due time of a release that nobody has applied yet. A take before
it finds nothing. From then on a take finds something, or moves the first moment on. A look, one
script for each time shard, returns the first moment and the last id of the notifications.

Why no wake-up is lost. Whatever a sleeper waits for lies at its look's first moment or later, and
there its wait ends. A script that makes the first moment earlier adds a notification: a put, a
release, the withdrawal of a take, a revival. XREAD BLOCK from the id of the look returns at once if
one was added since. Nothing else makes it earlier. A take leases only what was due, when every
sleeper's wait was over already; an extension makes an end later; a sweeper lets a message wait that
was due at the first moment of before. So a sleeper that was not notified is never later than the
first moment. The end of its turn it knows by its own clock.

A sleeper looks again after five seconds at most, all the same: a process of an older release does
not notify, a failover may lose a notification, and the server's clock may be set forward. A sleeper
of one server listens to all time shards that it would take from. On a cluster these lie in
different slots, and one command has one slot. There a take that looks at every time shard listens
to the producers' alone, where puts come, and looks at all of them each second: so late may it find
a message that was released in another time shard, or put by a process whose clock is another
period's. A take of the consumers' time shard alone listens to it, on a cluster too.

A kill leaves nothing: a sleeper writes nothing, and a script notifies or has changed nothing. The
stream of notifications is removed by the server, a minute after the last one; a stream that begins
anew has later ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from workstealing.store.blocking import block_ms
from workstealing.store.job_client import JobClient
from workstealing.store.operations import Operation, Steps, Wait

UNTOLD_SECONDS = 5.0
"""After so long a sleeping take looks again, whether or not it was notified."""
APART_SECONDS = 1.0
"""The same on a cluster, where it listens to one of several time shards."""


class TimeShardLook(NamedTuple):
    """What a look at a time shard has seen.

    Fields: notification: the last id; wait_ms: for how long no take finds anything, 0 if one may
    now, -1 if nothing is to come without a notification.
    """

    notification: bytes
    wait_ms: int


class RedisWaiting:
    """The steps of a take that waits, for `RedisTimeShards`."""

    job_client: JobClient
    names: Callable[[int], Any]
    _operation: Callable[..., Operation]

    def wait(
        self,
        time_shards: Sequence[int],
        producing: int,
        seconds: float,
        waits: int,  # noqa: ARG002 - for a store that polls
    ) -> Steps[list[int]]:
        """Sleep until a time shard may have something to take; see `wait` in the store's module.

        Three round trips at most, each to each node, of a script for each time shard but for the
        wait itself; one if there is something already.
        """
        looks = yield from self._looking(time_shards)
        found = _ready(looks)
        if found:
            return found
        heard = list(time_shards)
        most = UNTOLD_SECONDS
        if self.job_client.is_cluster and len(heard) > 1:
            heard = [producing if producing in looks else heard[0]]
            most = APART_SECONDS
        least = min((each.wait_ms for each in looks.values() if each.wait_ms >= 0), default=None)
        seconds = min(seconds, most)
        if least is not None:
            # The server's clock has whole milliseconds.
            seconds = min(seconds, (least + 1) / 1000)
        names = [self.names(each) for each in heard]
        streams = [each.notifications for each in names]
        ids = [looks[each].notification for each in heard]
        waiting = ("XREAD", "COUNT", 1, "BLOCK", block_ms(seconds), "STREAMS", *streams, *ids)
        yield Wait(names[0].slot, waiting, seconds)
        return _ready((yield from self._looking(time_shards)))

    def _looking(self, time_shards: Sequence[int]) -> Steps[dict[int, TimeShardLook]]:
        operations = []
        for time_shard in time_shards:
            names = self.names(time_shard)
            keys = (names.waiting, names.leased, names.released, names.notifications)
            operations.append(self._operation("look", keys, time_shard, (), TimeShardLook._make))
        return dict(zip(time_shards, (yield operations), strict=True))


def _ready(looks: dict[int, TimeShardLook]) -> list[int]:
    return [time_shard for time_shard, look in looks.items() if look.wait_ms == 0]
