"""What the proofs of law 6 share: whatever a killed writer or job leaves behind, slices find.

A proof says of one structure: how it is written to, which job collects it, and what must not be
left. The single server's and the cluster's deaths are the same for all.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import redis

from support.deaths import deaths_among, doors_of, every_death
from support.faulty_server import FaultyServer
from support.servers import RedisCluster3, RedisServer
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot

DAY_MS = 86_400_000
NAMESPACE = "orphans"

Writer = Callable[[Any, str], Any]


class Proof(ABC):
    """One structure's proof.

    Arguments:
        writers: its commands, each on a name.
    """

    def __init__(self, writers: Iterable[Writer]) -> None:
        self.writers: Sequence[Writer] = list(writers)

    @abstractmethod
    def on(self, client: Any, shift_ms: int = 0) -> Any:
        """Return the structure, in a new process's state."""

    @abstractmethod
    def seed(self, structure: Any, name: str) -> Any:
        """Write something to a name that has a deadline within the day."""

    @abstractmethod
    def job(self, structure: Any, **options: Any) -> Any:
        """Return the job."""

    @abstractmethod
    def waiting(self, job: Any) -> int:
        """Return how many keys a job's backlog has, up to some thousand."""

    @abstractmethod
    def left_on(self, client: redis.Redis) -> list[Any]:
        """Return everything on one node that must not be left."""

    def late(self, client: Any) -> Any:
        """Return the structure a day later, when every deadline has passed."""
        return self.on(client, DAY_MS)

    def collect_all(self, client: Any, *, limit: int = 100, slices: int = 600) -> None:
        """Let a new process's job collect until there is no backlog."""
        job = self.job(self.late(client), limit=limit)
        for _ in range(slices):
            if not job.perform(Slice(limit, 10.0)) and self.waiting(job) == 0:
                return
        raise AssertionError(f"after {slices} slices there is still {job.backlog()}")

    def slice_through(self, door: FaultyServer) -> None:
        """Perform one slice through a faulty server."""
        structure = self.late(redis.Redis(port=door.port, protocol=2))
        # Chance made certain: every run sends the same commands.
        self.job(structure, random=lambda: 0.0).perform(Slice(5, 10.0))

    def write_in_turn(self, client: Any, names: Sequence[str]) -> None:
        """Seed each name, and write to it by every command in turn."""
        structure = self.on(client)
        for name, writer in zip(names, itertools.cycle(self.writers), strict=False):
            self.seed(structure, name)
            writer(structure, name)

    def prove_above_maxmemory(self, server: RedisServer, names: Sequence[str]) -> None:
        """Let the job die at each of its commands on a server that takes no more writes."""
        direct = server.client()

        def prepare() -> None:
            direct.config_set("maxmemory", 0)
            direct.flushall()
            for name in names:
                self.seed(self.on(direct), name)
            direct.config_set("maxmemory", 1)

        with FaultyServer(server.port) as door:
            for death in every_death([door], lambda: self.slice_through(door), prepare):
                self.collect_all(direct)
                assert self.left_on(direct) == [], death

    def prove_on_cluster(
        self, cluster: RedisCluster3, *, writing: int, collecting: int, slices: int
    ) -> None:
        """Let writers and jobs die on three masters, with a thousand untagged names.

        Arguments:
            writing: at how many of their commands they die.
            collecting: at how many of their commands they die.
            slices: how many a job that is to die performs.
        """
        names = [f"name:{i}" for i in range(1000)]
        assert len({key_slot(name.encode()) for name in names}) >= 500
        direct = cluster.client()
        self.on(direct).open()
        with doors_of(cluster) as (doors, client):
            todo = iter(names)

            def write(at: int) -> Callable[[], None]:
                # About as many names as the child will come to before it dies.
                mine = list(itertools.islice(todo, 1 + at // 3))
                return partial(self.write_in_turn, client, mine)

            assert deaths_among(doors, writing, write) > 1.6 * writing
            # The others are written by a process that lives on.
            self.write_in_turn(direct, names)
            assert self.waiting(self.job(self.late(direct))) > 600

            def collect() -> None:
                job = self.job(self.late(client), limit=5)
                for _ in range(slices):
                    job.perform(Slice(5, 10.0))

            assert deaths_among(doors, collecting, lambda _: collect) > 1.5 * collecting
            for door in doors:
                assert door.switch is None
        self.collect_all(direct)
        for node in cluster.nodes:
            assert self.left_on(node.client()) == []
