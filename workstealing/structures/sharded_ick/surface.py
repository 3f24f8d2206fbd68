"""The calls that a ShardedIck and its pipelines share, each written once."""

from __future__ import annotations

from typing import Any

from workstealing.structures.ick.members import Member, Members, pairs_of
from workstealing.structures.sharded_ick.core import Core
from workstealing.structures.steps import Steps


class Surface:
    """What the blocking and the asyncio form and their pipelines have in common."""

    client: Any
    core: Core

    def _perform(self, steps: Steps[Any]) -> Any:
        raise NotImplementedError

    def add(self, members: Members | Member) -> Any:
        """Add members, each to its ick shard; of two scores of a member the lower one wins.

        Arguments and returns: as of `Ick.add`. Errors: ConfigurationError; LayoutError. One round
        trip; one script for each ick shard and 1,000 members, each atomic by itself.
        """
        return self._perform(self.core.add(pairs_of(members)))

    def stats(self) -> Any:
        """Describe the whole, and each ick shard.

        Returns: a dict: ick_shards; pset_size, cset_size, dead_size, moving_size (set aside by a
        resize) and total_size, summed up; pset_min, pset_max, cset_min, cset_max, total_min and
        total_max where there are members; mixed_units; shards: for each ick shard those of
        `Ick.stats`, with moving_size, consumer (None: nobody has leased it) and lease_ms. During a
        resize a member may be counted twice. One round trip.
        """
        return self._perform(self.core.stats())

    def delete(self) -> Any:
        """Delete all members, and what stands beside them.

        The layout stays, with a mark and a lease for each ick shard, so that processes that run
        still agree. Returns: how many keys of redis-ick's layout were deleted, up to three for each
        ick shard. One round trip.
        """
        return self._perform(self.core.delete())
