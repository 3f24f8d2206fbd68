"""Calls that redis-py's usual way would harm: sent once, read fresh, kept as bytes, sent aside.

Sent once: if a reply was cut off, nobody knows whether the command was done. If redis-py's retries
send the command again, a count may count twice, and an `add` of an absent key may answer that the
key was there. So a call whose repetition would do, or answer, something else is never sent twice.

Read fresh: a client with a `CacheConfig` answers a command from a reply that it has kept. It needs
the keys of each command as an option, and what it has kept outlives the deadline of a field. Such
reads bypass its client-side cache.

Kept as bytes: redis-py decodes all of EXEC's reply, also for commands that ask for bytes.

Sent aside: a caller that is interrupted gives back what it may have been granted. The caller's own
connection may still owe it a reply, its pool may be full, and redis-py would try again for a long
time. A job's connection is not taken either: what is sent on it must fit into a slice. So commands
are sent in a bounded time, on a connection of their own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.exceptions import ConnectionError, DataError, ResponseError, TimeoutError

from workstealing.errors import ResentError, WorkStealingError, is_pool_full
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, spelled
from workstealing.store.job_client import JobClient, Node, is_cluster


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


def keep_bytes(target: Any) -> None:
    """Let a pipeline of redis-py, one MULTI/EXEC, give the replies to `NEVER_DECODE` as bytes.

    Arguments:
        target: of a client of either kind; all others of its replies are decoded as ever.
    """
    encoder = target.connection_pool.get_encoder()
    if not encoder.decode_responses:
        return
    parse = target.parse_response

    def decoded(reply: Any) -> Any:
        if isinstance(reply, list | set):
            return type(reply)(map(decoded, reply))
        if isinstance(reply, dict):
            return {decoded(name): decoded(value) for name, value in reply.items()}
        return encoder.decode(reply)

    def of_commands(reply: Any) -> Any:
        if not isinstance(reply, list):
            # Of MULTI, or of a command that is queued.
            return reply
        sent = [options for _, options in target.command_stack if EMPTY_RESPONSE not in options]
        return [
            each if NEVER_DECODE in options else decoded(each)
            for each, options in zip(reply, sent, strict=True)
        ]

    def read(connection: Any, name: Any, **options: Any) -> Any:
        if name != "_":
            return parse(connection, name, **options)
        reply = parse(connection, name, **{NEVER_DECODE: True})
        return awaited(reply) if inspect.isawaitable(reply) else of_commands(reply)

    async def awaited(reply: Any) -> Any:
        return of_commands(await reply)

    target.parse_response = read


class MayRepeat(str):
    """The name of a command that is otherwise sent once, and may be sent again here.

    The command's sender can tell by another reply whether it was done.
    """

    __slots__ = ()


def not_sent_again(error: ResentError) -> ConnectionError:
    """Return the error of a call whose command the client would have sent again."""
    return ConnectionError(
        f"the connection failed before the reply to {error} was there: whether it was done is"
        " not known, so it was not sent again; look, or call again if twice does no harm"
    )


@contextmanager
def sending_once() -> Iterator[None]:
    """Stop the client before it sends again. Raises: redis.exceptions.ConnectionError then."""
    try:
        yield
    except ResentError as error:
        raise not_sent_again(error) from None


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


def keeps_replies(client: Any) -> bool:
    """Say whether a blocking client, or that of a cluster, has a client-side cache."""
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        return getattr(pool, "cache", None) is not None
    return getattr(getattr(client, "nodes_manager", None), "_cache", None) is not None


def ask_uncached(client: Any, words: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Run one of Redis's commands on a blocking client; the reply is the server's own.

    Arguments:
        words: the command.
        options: those of redis-py by which the reply is parsed.

    One round trip.
    """
    words = spelled(words)
    if not keeps_replies(client):
        return client.execute_command(*words, **options)
    # A pipeline has a form of its own on the wire, which the cache does not look into.
    options = {name: value for name, value in options.items() if name != "keys"}
    pipeline = client.pipeline(**({} if is_cluster(client) else {"transaction": False}))
    pipeline.execute_command(*words, **options)
    (reply,) = pipeline.execute(raise_on_error=False)
    if isinstance(reply, Exception):
        raise reply
    return reply


# The time-out where the application's client has none; and how long a cancelled caller waits.
PATIENCE_SECONDS = 1.0
# An event loop itself holds its tasks weakly.
_tasks: set[asyncio.Task[Any]] = set()
_CERTAIN = (WorkStealingError, ResponseError, DataError)


def leaves_open(error: BaseException) -> bool:
    """Say whether nobody knows, after an error, what the server has done, and there is time to ask.

    A server's refusal is certain, and so is an error before anything was sent. After a time-out of
    the client's own, the caller has waited for as long as it wanted to. Every other error may be a
    cut connection, or an interruption: a cancelled task, a signal handler's exception.
    """
    return not (is_certain(error) or isinstance(error, TimeoutError))


def is_certain(error: BaseException) -> bool:
    """Say whether an error tells that nothing was done: a refusal, or nothing could be sent."""
    return isinstance(error, _CERTAIN) or is_pool_full(error)


def nothing_was_done(error: BaseException) -> bool:
    """Say whether an error is certain, or nobody listened at the address; else nobody knows."""
    return is_certain(error) or _was_refused(error)


def _was_refused(error: BaseException) -> bool:
    """Say whether nobody listened at the address, so that nothing was sent."""
    chain = list(_chain(error))
    if any(isinstance(each, ResentError) for each in chain):
        return False
    found = [each for each in chain if isinstance(each, OSError)]
    return bool(found) and all(isinstance(each, ConnectionRefusedError) for each in found)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def send_aside(job_client: JobClient, node: Node, commands: Sequence[Command]) -> list[Any]:
    """Send commands to a node; return the replies, errors in their places.

    Arguments:
        job_client: of the application's client, whose time-out bounds it.

    Raises: connection faults; OutOfTime. One round trip, and those of a new connection.
    """
    seconds = _patience(job_client, node)
    connection = job_client.made_for(node)
    try:
        return connection.call_each(commands, Budget.whole(seconds))
    finally:
        connection.disconnect()


async def send_aside_async(
    job_client: JobClient, node: Node, commands: Sequence[Command]
) -> list[Any]:
    """Send commands to a node on an asyncio connection; see `send_aside`."""
    kind, options = job_client.settings_of(node)
    connection = kind(**options)
    try:
        async with asyncio.timeout(_patience(job_client, node)):
            await connection.connect()
            for each in commands:
                await connection.send_command(*spelled(each))
            return [await _reply(connection) for _ in commands]
    finally:
        await connection.disconnect(nowait=True)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _patience(job_client: JobClient, node: Node) -> float:
    return float(job_client.settings_of(node)[1].get("socket_timeout") or PATIENCE_SECONDS)


async def finish(work: Coroutine[Any, Any, Any], interruption: BaseException | None) -> bool:
    """Let work go on to its end in a task of its own, which a cancelled caller cannot cancel.

    The caller waits for it for a bounded time; not at all if it is being closed, when nobody can
    await any more. Returns: whether the work is done. Work that raises is over; it raises nothing
    here.
    """
    try:
        task = asyncio.get_running_loop().create_task(work)
    except RuntimeError:
        # A coroutine that is closed after its event loop.
        work.close()
        return False
    _tasks.add(task)
    task.add_done_callback(_forget)
    if not isinstance(interruption, GeneratorExit):
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    return task.done() and not task.cancelled() and task.exception() is None


def _forget(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        # Retrieved, so that the event loop does not log it.
        task.exception()
