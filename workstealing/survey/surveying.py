"""A survey: one walk over all keys, which counts, measures and judges, and can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError
from workstealing.jobs.leftovers import Rule
from workstealing.store.connection import Command
from workstealing.store.job_client import Node, job_client_of
from workstealing.store.keys import to_bytes
from workstealing.survey.families import Families, Family
from workstealing.survey.garbage import Judges, further_rules
from workstealing.survey.measuring import NESTED, SMALL_BYTES, Measurer, measuring
from workstealing.survey.owners import OWN, PROOFS, KeyLayout, Owners, layout_of
from workstealing.survey.scanning import BEGINNING, Reader, ServerFacts, refused
from workstealing.survey.sizing import Finding

LOAD = 0.05
_STATE = 3
_SAVE_SECONDS = 2.0
# Servers give their shared objects the greatest count that fits, of 29 to 31 bits.
_SHARED = 1 << 24
# So many members of sets that nobody knows are looked at in a family, and of each key.
_MOST_TAGS, _TAGS_A_KEY = 256, 16
_DRAWS = {"set": "SRANDMEMBER", "zset": "ZRANDMEMBER"}
_EPOCH = re.compile(rb"cluster_current_epoch:(\d+)")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a survey is. Fields: keys; of: None if unknown; seconds: of this run; left."""

    keys: int
    of: int | None
    seconds: float
    left: float | None


class Survey:
    """A survey of all keys of a client's database, or of its cluster.

    Arguments:
        client: a blocking client of redis-py or valkey-py.
        load: the share of each server's time that it may take, 0 < load <= 1.
        share: of the keys that are measured after the first 1,000 of a family, 0 < share <= 1,
            None: as many as an interval of +-5 % takes.
        rules: of the caller, which are asked beside the package's own and those of installed
            packages (entry points of the group ``workstealing.rules``).
        path: of the file that keeps the survey's state, None: nowhere.
        progress: is called now and then.

    It sends reading commands alone. Raises: ConfigurationError.
    """

    def __init__(
        self,
        client: Any,
        *,
        load: float = LOAD,
        share: float | None = None,
        rules: Sequence[Rule] = (),
        path: Path | None = None,
        progress: Callable[[Progress], None] | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
        save_seconds: float = _SAVE_SECONDS,
    ) -> None:
        if not 0.0 < load <= 1.0:
            raise ConfigurationError(f"a load of {load:g} is out of bounds: expected 0 < load <= 1")
        if share is not None and not 0.0 < share <= 1.0:
            raise ConfigurationError(
                f"a share of {share:g} is out of bounds: expected 0 < share <= 1"
            )
        # The job client holds no client: it must live as long as the survey.
        self._client = client
        self._job_client = job_client_of(client)
        self.reader = Reader(self._job_client, load, sleep=sleep, monotonic=clock.monotonic)
        self._share, self._path = share, path
        self._rules = further_rules(rules, self.reader.note)
        self._progress = progress or (lambda _: None)
        self._random, self._clock = random, clock
        self._save_seconds, self._saved = save_seconds, 0.0
        self._is_whole = True
        self._begin()

    def _begin(self) -> None:
        self.families = Families(self._share)
        self.owners = Owners()
        self.measurer = Measurer(self.reader, self._random)
        self.judges = Judges(
            self.reader,
            self.measurer,
            whole=self._share == 1.0,
            random=self._random,
            rules=self._rules,
        )
        self.cursors: dict[Node, bytes | None] = dict.fromkeys(self._job_client.nodes(), BEGINNING)
        self.facts: dict[Node, ServerFacts] = {}
        self.seconds = 0.0
        self._no_memory = self._no_idle = self._no_shared = False
        self._processes: dict[Node, str] = {}

    def run(self) -> None:
        """Walk over all keys, from the state's place on if there is one.

        Raises: ConfigurationError if SCAN is refused, or if the state is another survey's;
        connection faults, after which the state's file goes on from the last page.
        """
        self._load()
        before = self.seconds
        began = self._clock.monotonic()
        for node in self.cursors:
            self.facts[node] = self.reader.facts(node)
        self._check_processes()
        self._look_at_policy()
        self._epochs = {node: self._epoch(node) for node in self.cursors if node is not None}
        seen = self.families.keys
        try:
            while waiting := [each for each, cursor in self.cursors.items() if cursor is not None]:
                # Page by page from node to node: names of all nodes shape the families early.
                for node in waiting:
                    self._is_whole = False
                    self._page(node)
                    self._is_whole = True
                    self.seconds = before + self._clock.monotonic() - began
                    self._tell(seen)
                    self._save()
        finally:
            # Half of a page is no state to go on from: its keys would be counted twice.
            if self._is_whole:
                self._save(at_once=True)
        self._check_epoch()
        self.families.merge_rare()

    @property
    def client(self) -> Any:
        """The client whose database is surveyed."""
        return self._client

    @property
    def database(self) -> int:
        """The number of the database that is surveyed, 0 on a cluster."""
        pool = getattr(self._client, "connection_pool", None)
        return int(getattr(pool, "connection_kwargs", {}).get("db") or 0)

    @property
    def other_databases(self) -> dict[int, int]:
        """The keys of the servers' other databases, by number; these are not surveyed."""
        found: dict[int, int] = {}
        for each in self.facts.values():
            for number, keys in each.databases.items():
                if number != self.database:
                    found[number] = found.get(number, 0) + keys
        return found

    @property
    def keys(self) -> int | None:
        """How many keys the servers said they have; None if one did not say."""
        counts = [each.keys for each in self.facts.values()]
        return None if None in counts else sum(each or 0 for each in counts)

    def _page(self, node: Node) -> None:
        """Count, measure and judge one page of keys."""
        cursor = self.cursors[node]
        assert cursor is not None, "a page of a node that is done was asked for"
        behind, keys = self.reader.scan(node, cursor)
        seen: list[tuple[bytes, str, str]] = []
        measured: list[tuple[bytes, str, float]] = []
        for key in keys:
            shape = self.families.add(key)
            family = self.families.of(shape)
            owner = self.owners.of(key)
            family.owners[owner] = family.owners.get(owner, 0) + 1
            self.judges.notice(key)
            seen.append((key, shape, owner))
            weight = family.choice.weight(family.keys, self._random)
            if weight:
                measured.append((key, shape, weight))
        types = self._measure(node, measured)
        self._judge(node, seen, types)
        self.cursors[node] = None if behind == BEGINNING else behind

    def _measure(self, node: Node, keys: Sequence[tuple[bytes, str, float]]) -> dict[bytes, str]:
        """Measure keys; return their types."""
        questions: list[Command] = []
        asked: list[list[str]] = []
        for key, _, _ in keys:
            names = ["TYPE", "PTTL"]
            commands: list[Command] = [("TYPE", key), ("PTTL", key)]
            if not self._no_memory:
                names.append("MEMORY")
                commands.append(measuring(key))
            if not self._no_idle:
                names.append("OBJECT")
                commands.append(("OBJECT", "IDLETIME", key))
            asked.append(names)
            questions += commands
        replies = iter(self.reader.read(node, questions))
        types: dict[bytes, str] = {}
        nested: list[tuple[bytes, str, float, str, int]] = []
        further: list[tuple[bytes, str, float, str]] = []
        idle: dict[str, list[tuple[int, bytes]]] = {}
        for (key, shape, weight), names in zip(keys, asked, strict=True):
            told = {name: next(replies) for name in names}
            for name in names:
                self._learn_refusal(name, told)
            of_type = told["TYPE"]
            if isinstance(of_type, Exception):
                of_type = b"?"
            of_type = to_bytes(of_type).decode()
            if of_type == "none":
                continue
            types[key] = of_type
            family = self.families.of(shape)
            family.types[of_type] = family.types.get(of_type, 0.0) + weight
            self._note_times(family, told, weight)
            seconds = told.get("OBJECT")
            if isinstance(seconds, int):
                if of_type == "string":
                    idle.setdefault(shape, []).append((seconds, key))
                else:
                    family.note_age(float(seconds), "idle")
            size = told.get("MEMORY")
            if isinstance(size, int):
                if size >= SMALL_BYTES and of_type in NESTED:
                    nested.append((key, shape, weight, of_type, size))
                else:
                    family.note_size(key, size, weight)
            further.append((key, shape, weight, of_type))
        self._note_strings(node, idle)
        sizes = self.measurer.nested(node, [(key, kind, size) for key, _, _, kind, size in nested])
        for (key, shape, weight, _, _), found in zip(nested, sizes, strict=True):
            self.families.of(shape).note_size(key, found.value, weight, found.variance)
        self._ask_further(node, further)
        self._look_at_tags(node, further)
        return types

    def _note_times(self, family: Family, told: dict[str, Any], weight: float) -> None:
        left = told["PTTL"]
        if isinstance(left, int):
            family.endless.note(float(left == -1), weight)
            if left >= 0:
                low, high, number = family.ttls
                family.ttls = (min(low, left / 1000), max(high, left / 1000), number + 1)

    def _note_strings(self, node: Node, idle: dict[str, list[tuple[int, bytes]]]) -> None:
        """Note the ages of strings that would be the oldest of their families.

        The small integers are objects of the server that many keys share, so their idle time is no
        key's own.

        Arguments:
            idle: by shape, the idle seconds of each key.
        """
        # The first of each family is enough, unless it is shared.
        for is_first in (True, False):
            asked: list[tuple[Family, int, bytes]] = []
            for shape, keys in idle.items():
                family = self.families.of(shape)
                known = -1.0 if family.oldest is None else family.oldest
                older = [each for each in keys if each[0] > known]
                if is_first and older:
                    older = [max(older)]
                    keys.remove(older[0])
                asked += [(family, *each) for each in older]
            if self._no_shared:
                return
            commands = [("OBJECT", "REFCOUNT", key) for _, _, key in asked]
            replies = self.reader.read(node, commands)
            for (family, seconds, _), count in zip(asked, replies, strict=True):
                self._learn_refusal("REFCOUNT", {"REFCOUNT": count})
                if isinstance(count, int) and count < _SHARED:
                    family.note_age(float(seconds), "idle")

    def _look_at_tags(self, node: Node, keys: Sequence[tuple[bytes, str, float, str]]) -> None:
        """Look whether members of sets that nobody knows name keys, and whether these are there."""
        # On a cluster most of the keys would lie on other nodes.
        if self._job_client.is_cluster:
            return
        asked: list[tuple[Family, bytes]] = []
        commands: list[Command] = []
        for key, shape, _, of_type in keys:
            family = self.families.of(shape)
            if of_type not in _DRAWS or family.tags[1] >= _MOST_TAGS or layout_of(key) is not None:
                continue
            asked.append((family, key))
            commands.append((_DRAWS[of_type], key, _TAGS_A_KEY))
        members = self.reader.read(node, commands)
        named = [
            (family, to_bytes(member))
            for (family, _), some in zip(asked, members, strict=True)
            for member in (some if isinstance(some, list) else ())
        ]
        there = self.reader.read(node, [("EXISTS", member) for _, member in named])
        for (family, _), count in zip(named, there, strict=True):
            if isinstance(count, int):
                family.tags = [family.tags[0] + count, family.tags[1] + 1]

    def _ask_further(self, node: Node, keys: Sequence[tuple[bytes, str, float, str]]) -> None:
        """Ask for the age of streams' first entries, for owners' versions, and for their proofs."""
        commands: list[Command] = []
        about: list[tuple[bytes, str, KeyLayout | None]] = []
        for key, shape, _, of_type in keys:
            if of_type == "stream":
                commands.append(("XRANGE", key, "-", "+", "COUNT", 1))
                about.append((key, shape, None))
                continue
            layout = layout_of(key, of_type)
            if layout is None:
                continue
            command = self.owners.question(key, of_type)
            if command is not None:
                commands.append(command)
                about.append((key, shape, None))
            proofs = self.families.of(shape).proofs.get(layout.owner, [0, 0])
            if layout.proof is not None and proofs[1] < PROOFS:
                commands.append(layout.proof(key))
                about.append((key, shape, layout))
        now = self.reader.now(node)
        for (key, shape, layout), command, reply in zip(
            about, commands, self.reader.read(node, commands), strict=True
        ):
            if layout is not None:
                if not isinstance(reply, Exception):
                    is_proved = layout.is_proof(key, reply)
                    self.families.of(shape).note_proof(layout.owner, is_proved=is_proved)
            elif command[0] != "XRANGE":
                self.owners.answer(key, reply)
            elif isinstance(reply, list) and reply:
                age = now - int(to_bytes(reply[0][0]).partition(b"-")[0]) / 1000
                if 0 <= age < 100 * 366 * 86_400:
                    family = self.families.of(shape)
                    if family.oldest_by != "stream id":
                        family.oldest = None
                    family.note_age(age, "stream id")

    def _judge(
        self, node: Node, seen: Sequence[tuple[bytes, str, str]], types: dict[bytes, str]
    ) -> None:
        """Ask the rules for the keys of a page."""
        wanted: list[tuple[bytes, str]] = []
        for key, shape, owner in seen:
            if owner == OWN:
                continue
            known = self.families.of(shape).types
            if self.judges.wants(key) or not self.judges.types.isdisjoint(known):
                wanted.append((key, owner))
        missing = [key for key, _ in wanted if key not in types]
        replies = self.reader.read(node, [("TYPE", each) for each in missing])
        for key, reply in zip(missing, replies, strict=True):
            if not isinstance(reply, Exception):
                types[key] = to_bytes(reply).decode()
        shapes = {key: shape for key, shape, _ in seen}

        def finding(key: bytes, name: str) -> Finding:
            family = self.families.of(shapes[key])
            found = family.findings.get(name)
            if found is None:
                found = family.findings[name] = Finding(name)
            return found

        judged = [(key, types[key], owner) for key, owner in wanted if key in types]
        self.judges.judge(node, judged, finding)

    def _learn_refusal(self, name: str, told: dict[str, Any]) -> None:
        if not isinstance(told[name], Exception) or next(refused([told[name]]), None) is None:
            return
        if name == "MEMORY":
            self._no_memory = True
            self.reader.note("MEMORY USAGE is refused: nobody knows how many bytes there are")
        elif name == "OBJECT":
            self._no_idle = True
            self.reader.note("OBJECT IDLETIME is refused: nobody knows how long keys are idle")
        elif name == "REFCOUNT":
            self._no_shared = True
            self.reader.note("OBJECT REFCOUNT is refused: nobody knows how long strings are idle")
        else:
            self.reader.note(f"{name} is refused: what it tells is unknown")

    def _look_at_policy(self) -> None:
        """Leave idle times out where they mean something else."""
        if any("lfu" in each.policy for each in self.facts.values()):
            self._no_idle = True
            self.reader.note("the server evicts by LFU, so it knows no idle times")
        elif any(each.is_replica for each in self.facts.values()):
            self._no_idle = True
            self.reader.note(
                "a replica is surveyed: what its primary's readers use is not known there, so idle"
                " times are left out"
            )

    def _check_processes(self) -> None:
        """Begin the survey again if a server was restarted: the server's cursors are gone."""
        for node, run_id in self._processes.items():
            if node in self.facts and run_id != self.facts[node].run_id:
                facts = self.facts
                self._begin()
                self.facts = facts
                self.reader.note(
                    "a server was started anew since the survey was left, so it begins anew, too"
                )
                break
        self._processes = {node: each.run_id for node, each in self.facts.items()}

    def _check_epoch(self) -> None:
        if self._epochs != {node: self._epoch(node) for node in self._epochs}:
            self.reader.note(
                "the cluster's slots have moved to other nodes during the survey, so some keys may"
                " have been missed, or counted twice"
            )

    def _epoch(self, node: Node) -> bytes:
        """Return bytes that change when a cluster's slots move; empty without a cluster."""
        if not self._job_client.is_cluster:
            return b""
        (reply,) = self.reader.read(node, [("CLUSTER", "INFO")])
        found = None if isinstance(reply, Exception) else _EPOCH.search(to_bytes(reply))
        return b"" if found is None else found[1]

    def _tell(self, before: int) -> None:
        total, done = self.keys, self.families.keys
        began_here = done - before
        left = None
        if total is not None and began_here:
            left = max(0.0, (total - done) * self.seconds / max(1, done))
        self._progress(Progress(done, total, self.seconds, left))

    # ---- the state -------------------------------------------------------------------------------

    def _identity(self) -> str:
        """Return a text that tells this database from others, without any credentials."""
        told = f"{tuple(self._job_client.identity)!r}/{self.database}"
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def finish(self) -> None:
        """Remove the state's file, because the survey has been shown."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _save(self, *, at_once: bool = False) -> None:
        """Write the state down from time to time, all of it or nothing."""
        now = self._clock.monotonic()
        if self._path is None or (now < self._saved and not at_once):
            return
        state = {
            "state": _STATE,
            "of": self._identity(),
            "share": self._share,
            "rules": [each.name for each in self._rules],
            "seconds": self.seconds,
            "cost": [self.reader.seconds, self.reader.commands, self.reader.longest],
            "cursors": [
                [node, None if cursor is None else cursor.decode(), self._processes.get(node, "")]
                for node, cursor in self.cursors.items()
            ],
            "families": self.families.state(),
            "versions": self.owners.versions,
            "judged": self.judges.judged,
            "told": self.judges.told,
            "notes": list(self.reader.notes),
        }
        # It holds names of keys: they are for its owner alone.
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(state, file)
            beside.replace(self._path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ConfigurationError(
                f"the state's file {str(self._path)!r} cannot be written: {error.strerror}"
            ) from error
        took = self._clock.monotonic() - now
        self._saved = now + max(self._save_seconds, 20 * took if self._save_seconds else 0.0)

    def _load(self) -> None:
        """Take the state up, if there is one. Raises: ConfigurationError for a foreign one."""
        if self._path is None or not self._path.exists():
            return
        try:
            state = json.loads(self._path.read_text(encoding="ascii"))
            if state["state"] != _STATE:
                raise ValueError(f"its layout is {state['state']!r}")
            self._take_up(state)
        except ConfigurationError:
            raise
        except OSError as error:
            raise ConfigurationError(
                f"the state's file {str(self._path)!r} cannot be read: {error.strerror}"
            ) from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigurationError(
                f"{str(self._path)!r} is no state of a survey ({type(error).__name__}): give"
                " another file, or remove this one"
            ) from error

    def _take_up(self, state: dict[str, Any]) -> None:
        if state["of"] != self._identity():
            raise ConfigurationError(
                f"the state in {str(self._path)!r} is of another server: give another file"
            )
        if state["share"] != self._share:
            raise ConfigurationError(
                f"the state in {str(self._path)!r} is of a survey with another --sample: give the"
                " same one, or another file"
            )
        if state["rules"] != [each.name for each in self._rules]:
            raise ConfigurationError(
                f"the state in {str(self._path)!r} is of a survey with other rules: give the same"
                " ones, or another file"
            )
        cursors = {
            (node if node is None else (node[0], int(node[1]))): (cursor, run_id)
            for node, cursor, run_id in state["cursors"]
        }
        if set(cursors) != set(self.cursors):
            self.reader.note("the cluster has other nodes by now, so the survey begins anew")
            return
        for node, (cursor, run_id) in cursors.items():
            self.cursors[node] = None if cursor is None else cursor.encode()
            self._processes[node] = run_id
        self.seconds = float(state["seconds"])
        self.reader.seconds, self.reader.commands, self.reader.longest = state["cost"]
        self.families = Families.from_state(state["families"], self._share)
        self.owners.versions = dict(state["versions"])
        self.judges.take_up(state["told"])
        self.judges.judged = dict(state["judged"])
        for each in state["notes"]:
            self.reader.note(each)
