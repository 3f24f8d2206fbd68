"""What happens to a cluster's slots: they move to other nodes, and replicas take them over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import redis

from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing.store.keys import SLOTS


class Migration:
    """One slot on its way from the node that has it to another one, as redis-cli --cluster does."""

    def __init__(self, cluster: RedisCluster3, slot: int) -> None:
        self.slot = slot
        self.source = cluster.node_of(slot)
        self.target = next(node for node in cluster.nodes if node is not self.source)
        self._nodes = cluster.nodes
        self._admins = {node.port: node.probe(5.0) for node in cluster.nodes}
        self._ids = {
            port: admin.execute_command("CLUSTER MYID") for port, admin in self._admins.items()
        }
        self._is_under_way = False

    def begin(self) -> None:
        """Mark the slot: keys that are not on the source any more are answered by ASK."""
        # The target takes a higher epoch than any that it has heard of. If the source's is news,
        # the source's next word wins, and the slot is served by nobody.
        self._wait_for_agreement()
        self._is_under_way = True
        self._set(self.target, "IMPORTING", self._ids[self.source.port])
        self._set(self.source, "MIGRATING", self._ids[self.target.port])

    def move_keys(self) -> int:
        """Move all keys of the slot."""
        admin = self._admins[self.source.port]
        keys = admin.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 1000)
        for key in keys:
            admin.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)
        return len(keys)

    def end(self) -> None:
        """Give the slot to the target: the source answers MOVED from then on."""
        for node in (self.target, self.source, *self._nodes):
            self._set(node, "NODE", self._ids[self.target.port])
        self._is_under_way = False
        self._wait_for_agreement()

    def undo(self) -> None:
        """Bring everything back where it was."""
        self.source, self.target = self.target, self.source
        self.begin()
        self.move_keys()
        self.end()

    def close(self) -> None:
        """End the move, also if a test failed in its midst, for the next test of this cluster."""
        if self._is_under_way:
            self.move_keys()
            self.end()
        for admin in self._admins.values():
            admin.close()

    def _set(self, node: RedisServer, what: str, node_id: str) -> None:
        self._admins[node.port].execute_command("CLUSTER SETSLOT", self.slot, what, node_id)

    def _wait_for_agreement(self) -> None:
        wait_until(self._agree, f"{len(self._nodes)} nodes to agree on the cluster's slots")

    def _agree(self) -> bool:
        """Say whether all nodes know the same epochs and slots of each other."""
        views = [
            {
                (each["node_id"], each["epoch"], repr(each["slots"]))
                for each in admin.cluster("NODES").values()
            }
            for admin in self._admins.values()
        ]
        return all(view == views[0] for view in views)


@contextlib.contextmanager
def replicas_of(cluster: RedisCluster3) -> Iterator[list[RedisServer]]:
    """Give each master a replica; yield them, in the masters' order, and end them."""
    with contextlib.ExitStack() as stack:
        made: list[RedisServer] = []
        for master in cluster.nodes:
            replica = stack.enter_context(
                RedisServer(master.binary, name=f"replica of {master.name}", **master.config)
            )
            made.append(replica)
            with contextlib.closing(master.probe()) as admin:
                admin.execute_command("CLUSTER MEET", "127.0.0.1", replica.port, replica.bus_port)
                ours = admin.execute_command("CLUSTER MYID")
            with contextlib.closing(replica.probe()) as admin:
                wait_until(partial(_knows_all, admin, ours), f"{replica.name} to know its master")
                admin.execute_command("CLUSTER REPLICATE", ours)
                wait_until(partial(_follows, admin), f"{replica.name} to follow")
        yield made


def _knows_all(admin: redis.Redis, master: str) -> bool:
    said = admin.execute_command("CLUSTER INFO")
    return said["cluster_slots_ok"] == str(SLOTS) and master in repr(admin.cluster("NODES"))


def _follows(admin: redis.Redis) -> bool:
    return bool(admin.info("replication").get("master_link_status") == "up")


def take_over(replica: RedisServer, how: str = "") -> None:
    """Make a replica the master of its slots.

    Arguments:
        how: FORCE or TAKEOVER, if its master is not to be asked.
    """
    with contextlib.closing(replica.probe()) as admin:
        admin.execute_command("CLUSTER FAILOVER", *([how] if how else []))
        wait_until(
            lambda: admin.info("replication")["role"] == "master", f"{replica.name} to take over"
        )
