"""Calls that are sent once, whatever the client's own retries.

A reply that was cut off leaves two answers open: done, and not done. redis-py's retries send the
command again, and then a count counts twice, and an `add` of an absent key says that it was there.
So a call whose repetition would do, or answer, something else is never sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError

from workstealing.errors import ResentError


class SentOnce(str):
    """A command's name that is packed once: a client that sends the command again is stopped.

    Each packer of redis-py's encodes the name anew whenever it sends, and nothing else tells a
    retry, in a pipeline and on an asyncio client too. Subclasses and instruments of the client
    still see the call.
    """

    __slots__ = ("_is_sent",)

    _is_sent: bool

    def encode(self, *args: Any, **options: Any) -> bytes:
        """Return the name as bytes, the first time. Raises: ResentError later on."""
        if getattr(self, "_is_sent", False):
            raise ResentError(str(self))
        self._is_sent = True
        return super().encode(*args, **options)


class MayRepeat(str):
    """The name of a command that is otherwise sent once, and may be sent again here.

    The command's sender can tell by another reply whether it was done.
    """

    __slots__ = ()


@contextmanager
def sending_once() -> Iterator[None]:
    """Stop the client before it sends again. Raises: redis.exceptions.ConnectionError then."""
    try:
        yield
    except ResentError as error:
        raise ConnectionError(
            f"the connection failed before the reply to {error} was there: whether it was done is"
            " not known, so it was not sent again; look, or call again if twice does no harm"
        ) from None


def once_on_cluster(client: Any, keys: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return the options by which a cluster's client sends once, and still follows a moved slot.

    Arguments:
        client: of a cluster, which knows the cluster's map.
        keys: of one slot.
    """
    # redis-py retries only where it may choose the node itself.
    return {"target_nodes": client.get_node_from_key(keys[0])}


def node_known(client: Any, keys: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return the options that tell a cluster's pipeline the node of a script.

    Without them redis-py 8 asks a node for the script's keys, in a round trip of its own for each
    script of the pipeline. If the slot has moved, the pipeline looks for the node by itself.
    """
    if client.keyslot(keys[0]) not in client.nodes_manager.slots_cache:
        # The client has not read the cluster's map yet.
        return {}
    return {"target_nodes": client.get_node_from_key(keys[0])}
