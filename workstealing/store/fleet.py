"""Fleets: several servers that know nothing of each other; the client chooses one by the key.

Each key has a home, by rendezvous hashing: of all nodes, the one whose name gives the highest hash
together with the key's hash slot. So a further node takes over its share of the keys from all the
others, and no other key moves. Keys with a common {tag} have a common home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, ClassVar, Generic
from urllib.parse import urlsplit

from workstealing.errors import ConfigurationError, CrossSlotError
from workstealing.store.client import checked_url, connect, connect_async
from workstealing.store.job_client import (
    AsyncClient,
    BlockingClient,
    ClientT,
    is_async,
    is_cluster,
    job_client_of,
)
from workstealing.store.keys import SLOTS, key_slot, to_bytes
from workstealing.store.valkey_clients import redis_client

_LONGEST_NAME = 255


class _EitherFleet(Generic[ClientT]):
    """The part that both kinds of fleets share."""

    _is_async_client: ClassVar[bool]

    def __init__(
        self,
        nodes: Mapping[str, Any] | Iterable[Any],
        *,
        previous: Mapping[str, Any] | Iterable[str] = (),
        **options: Any,
    ) -> None:
        self._clients: dict[str, ClientT] = self._made(_named(nodes), options)
        self._homes: list[str | None] = [None] * SLOTS
        if not isinstance(previous, Mapping):
            previous = self._of_names(previous)
        rest = {name: node for name, node in previous.items() if name not in self._clients}
        others = self._made(_named(rest), options) if rest else {}
        everyone = {**self._clients, **others}
        self._former: dict[str, ClientT] = {name: everyone[name] for name in previous}
        for client in everyone.values() if previous else ():
            if is_cluster(client):
                raise ConfigurationError(
                    "keys are not carried over between nodes that are clusters of their own: leave"
                    " out previous="
                )

    def _of_names(self, previous: Iterable[str]) -> dict[str, Any]:
        """Return the former nodes that are given by the names of present ones."""
        if isinstance(previous, str | bytes):
            raise ConfigurationError(f"previous= takes several names: give [{previous!r}]")
        names = list(previous)
        for name in names:
            if name not in self._clients:
                raise ConfigurationError(
                    f"the former node {name!r} is no node of the fleet any more: give previous= as"
                    " a mapping of names to URLs or clients"
                )
        return {name: self._clients[name] for name in names}

    def _made(self, given: Mapping[str, Any], options: dict[str, Any]) -> dict[str, ClientT]:
        clients: dict[str, ClientT] = {}
        for name, node in given.items():
            clients[name] = (
                self._connected(node, options) if isinstance(node, str) else redis_client(node)
            )
            # Checks the client; makes no connection.
            job_client_of(clients[name])
            if is_async(clients[name]) is not self._is_async_client:
                right = "AsyncFleet" if is_async(clients[name]) else "Fleet"
                raise ConfigurationError(
                    f"the node {name!r} of a {type(self).__name__} has the other kind of client:"
                    f" give it to {right}"
                )
        return clients

    @property
    def former_nodes(self) -> dict[str, ClientT]:
        """The client of each former node, by its name; empty when no keys are on the move."""
        return dict(self._former)

    def former_home(self, key: Any) -> str | None:
        """Return the node that was a key's home; None if it is the same, or nothing is moving."""
        if not self._former:
            return None
        former = home_of(key_slot(to_bytes(key)), self._former)
        return former if former != self.home(key) else None

    @property
    def nodes(self) -> dict[str, ClientT]:
        """The client of each node, by the node's name."""
        return dict(self._clients)

    def home(self, key: Any) -> str:
        """Return the name of the node where a key lives.

        Arguments:
            key: as redis-py takes it.

        No round trip; O(nodes) for the first key of a slot.
        """
        slot = key_slot(to_bytes(key))
        name = self._homes[slot]
        if name is None:
            name = self._homes[slot] = home_of(slot, self._clients)
        return name

    def client_of(self, key: Any) -> ClientT:
        """Return the client of the node where a key lives. No round trip."""
        return self._clients[self.home(key)]

    def common_home(self, keys: Iterable[Any]) -> str:
        """Return the node where all keys of one command live; without keys, any node.

        Raises: CrossSlotError.
        """
        homes = {self.home(key): key for key in keys}
        if len(homes) > 1:
            (one, key), (other, another) = list(homes.items())[:2]
            raise CrossSlotError(
                f"the keys {key!r} and {another!r} live on two nodes of the fleet ({one} and"
                f" {other}), and one command runs on one: give them a common {{tag}}, or give one"
                " command for each"
            )
        return next(iter(homes), next(iter(self._clients)))

    def __repr__(self) -> str:
        # Without the clients, whose repr fills a page and may show a password.
        return f"<{type(self).__name__} of {', '.join(self._clients)}>"

    @staticmethod
    def _connected(url: str, options: dict[str, Any]) -> Any:
        raise NotImplementedError


class Fleet(_EitherFleet[BlockingClient]):
    """Several servers over which keys are spread by rendezvous hashing.

    Arguments:
        nodes: URLs or blocking clients by name (``{"a": "redis://10.0.0.1", ...}``), or a list of
            URLs, whose names are their addresses without credentials.
        previous: while keys move to new homes, the nodes before the change: names, or a mapping if
            a node leaves.
        options: redis-py's, for clients made of URLs.

    The names decide which keys live where: with a name of its own, a node may get another address,
    and no key moves. Raises: ConfigurationError. Makes no connection.

    Give it to a structure in the place of a client. `VolatileHashes` and `DurableKeys` are spread
    by their keys. A structure of any other class lives as a whole on one node, which its name
    decides. A dead node harms its own keys only. See docs/fleets.md.
    """

    _is_async_client = False

    @staticmethod
    def _connected(url: str, options: dict[str, Any]) -> BlockingClient:
        return connect(url, **options)


class AsyncFleet(_EitherFleet[AsyncClient]):
    """A `Fleet` for the asyncio classes of structures; its clients are of redis.asyncio."""

    _is_async_client = True

    @staticmethod
    def _connected(url: str, options: dict[str, Any]) -> AsyncClient:
        return connect_async(url, **options)


AnyFleet = Fleet | AsyncFleet


def placed(client: Any, name: Any) -> Any:
    """Return the client for a structure that lives on one node: a fleet's by the structure's name.

    Arguments:
        client: a fleet, or a client, of valkey-py, too.

    Returns: a client of redis-py; anything else as it is. Raises: ConfigurationError if the name's
    home has changed.
    """
    if not isinstance(client, AnyFleet):
        return redis_client(client)
    former = client.former_home(name)
    if former is not None:
        raise ConfigurationError(
            f"{name!r} would move from the node {former} to {client.home(name)}, and only volatile"
            " hashes and durable keys are carried over: give it the client of its node for as long"
            " as it holds data"
        )
    return client.client_of(name)


def one_server(client: Any, what: str) -> Any:
    """Return the client for a thing that lives on one server, and has no home on a fleet.

    Arguments:
        client: a client, of valkey-py, too.
        what: the thing, for the error.

    Returns: a client of redis-py; anything else as it is. Raises: ConfigurationError for a fleet.
    """
    if isinstance(client, AnyFleet):
        node = next(iter(client.nodes))
        raise ConfigurationError(
            f"{what} lives on one server, and was given a fleet: give it the client of one node,"
            f" such as fleet.nodes[{node!r}]"
        )
    return redis_client(client)


def home_of(slot: int, names: Iterable[str]) -> str:
    """Return, of the names of nodes, the one where a hash slot lives. O(names)."""
    return max(names, key=lambda name: (_weight(name, slot), name))


def _weight(name: str, slot: int) -> bytes:
    # Part of the layout of every fleet: with another hash, keys would not be found.
    return blake2b(f"{slot}:{name}".encode(), digest_size=8).digest()


def _named(nodes: Any) -> dict[str, Any]:
    if isinstance(nodes, str | bytes) or not isinstance(nodes, Iterable):
        raise ConfigurationError(
            "a fleet takes several nodes: give a list of URLs, or a mapping of names to URLs or"
            " clients"
        )
    if isinstance(nodes, Mapping):
        given = dict(nodes)
    else:
        given = {}
        for node in nodes:
            if not isinstance(node, str):
                raise ConfigurationError(
                    f"a {type(node).__name__} in a list of nodes has no name: give a mapping of"
                    " names to clients"
                )
            name = _address(node)
            if name in given:
                raise ConfigurationError(f"the fleet names the node {name} twice: name it once")
            given[name] = node
    if not given:
        raise ConfigurationError("the fleet has no node: give one or more")
    for name in given:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise ConfigurationError(
                f"the name {name!r} of a node is not usable: give 1 to {_LONGEST_NAME} characters"
            )
    return given


def _address(url: str) -> str:
    """Return a URL's address without scheme, credentials and options."""
    checked, scheme = checked_url(url)
    if scheme == "embedded":
        raise ConfigurationError("an embedded:// server has no address: give a mapping of names")
    parts = urlsplit(checked)
    place = parts.netloc.rpartition("@")[2]
    if scheme in ("redis", "rediss") and ":" not in place.rpartition("]")[2]:
        place = f"{place}:6379"
    return f"{place}{parts.path.rstrip('/') or '/0'}"
