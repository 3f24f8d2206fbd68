"""The offsets of a stream from a ShardedIck, and how a batch is shared out among ick shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from workstealing.errors import ConfigurationError


@dataclass(frozen=True)
class Offset:
    """Where a stream stands: behind the batch whose reservations it names.

    Fields: query: an id of the query, which its checkpoint keeps; seq: how many batches there were;
    tokens: of each ick shard with members in the last batch that of the reservation.
    """

    query: str
    seq: int = 0
    tokens: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Offset:
        """Return the offset of a new query, in which nothing has been read."""
        return cls(uuid4().hex)

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Offset:
        """Read what `as_dict` has made. Errors: ConfigurationError for anything else."""
        try:
            query, seq, tokens = offset["query"], offset["seq"], offset["tokens"]
            return cls(str(query), int(seq), {int(i): str(token) for i, token in tokens.items()})
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ConfigurationError(
                f"the offset {offset!r} in the checkpoint is not one of format 'ick': give this"
                " query a checkpoint of its own"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint, as JSON."""
        tokens = {str(shard): token for shard, token in sorted(self.tokens.items())}
        return {"query": self.query, "seq": self.seq, "tokens": tokens}

    def following(self, tokens: Mapping[int, str]) -> Offset:
        """Return the offset behind the next batch, which has these reservations."""
        return Offset(self.query, self.seq + 1, dict(tokens))


def shared_out(sizes: Mapping[int, int], limit: int, turn: int) -> dict[int, int]:
    """Share a batch of at most `limit` members out among ick shards, as evenly as they allow.

    Arguments: sizes: of each ick shard how many members it has; turn: which batch this is: where
    there are more ick shards than members, each has its turn. Returns: of each ick shard how many
    members, more than 0. What one cannot fill, others do.
    """
    shards = sorted(shard for shard, size in sizes.items() if size > 0)
    if not shards or limit < 1:
        return {}
    if len(shards) > limit:
        first = turn * limit % len(shards)
        return dict.fromkeys((shards + shards)[first : first + limit], 1)
    counts: dict[int, int] = {}
    for position, shard in enumerate(sorted(shards, key=lambda shard: (sizes[shard], shard))):
        share = (limit - sum(counts.values())) // (len(shards) - position)
        counts[shard] = min(sizes[shard], share)
    return counts
