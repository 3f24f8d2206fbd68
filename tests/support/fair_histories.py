"""Judges what became of a fair queue's messages, by two histories that were recorded meanwhile.

The notes of the processes say what they did and were told; see `mortal_consumers`. The server's own
history is its append-only file: each change of each script, in the order in which they were made,
transaction by transaction. So whatever is never so between two transactions there, never was.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workstealing.structures.fair_queue import FairQueue
from workstealing.structures.fair_queue.message import unpacked

Command = list[bytes]
_DELIVERY = re.compile(rb"(\d+) (\d+) \d+ \d+ [01] ([01]) \S+ (\d+) ")


class Notes:
    """The notes, summed up.

    Attributes: attempted, wrote: the numbers of messages that a producer was about to write, and
    those whose writing it was told; got: deliveries: message's id, delivery's number; ending: the
    numbers of messages that somebody was about to acknowledge; ended: number -> how often somebody
    was told that an acknowledgement counted; late: how many did not count; counts: of each kind of
    note; in_hand: how many deaths were of consumers that had messages in hand.
    """

    def __init__(self, folder: Path) -> None:
        self.attempted: set[int] = set()
        self.wrote: set[int] = set()
        self.got: set[tuple[bytes, bytes]] = set()
        self.ending: set[int] = set()
        self.ended: Counter[int] = Counter()
        self.late = self.in_hand = 0
        self.counts: Counter[str] = Counter()
        self._hands: defaultdict[str, Counter[str]] = defaultdict(Counter)
        *lines, rest = (folder / "notes").read_text().split("\n")
        assert rest == "", "half a note"
        for line in lines:
            self._add(*line.split(" "))

    def _add(self, kind: str, who: str, *words: str) -> None:
        self.counts[kind] += 1
        if kind == "writing":
            self.attempted.add(int(words[0]))
        elif kind == "wrote":
            self.wrote.add(int(words[0]))
        elif kind == "got":
            self.got.add((words[0].encode(), words[1].encode()))
            self._hands[who][words[1]] += 1
        elif kind == "ending":
            self.ending.add(int(words[2]))
        elif kind == "ended":
            self._hands[who][words[1]] -= 1
            if words[3] == "1":
                self.ended[int(words[2])] += 1
            else:
                self.late += 1
        elif kind == "giving":
            self._hands[who][words[1]] -= 1
        elif kind == "killed":
            self.in_hand += (+self._hands.pop(who, Counter())).total() > 0


class Replay:
    """A server's history of one queue, replayed.

    Arguments:
        directory: the server's.
        queue: any, with that name.
        caps: account -> how many leases may be held of it at once.

    Attributes: written, ended: the numbers of messages that were ever there, and of those that have
    gone from there; granted: all deliveries: message's id, delivery's number; most: account -> the
    most leases that were held of it at once; messages, leases: as they are at the end: id ->
    number; ids; wrong: what must not be, in words; transactions: how many there were.
    """

    def __init__(self, directory: Path, queue: FairQueue, caps: Mapping[str, int]) -> None:
        self._parts = {queue.keys.of(part): part for part in ("messages", "held", "leases", "dead")}
        self._caps = caps
        self.written: set[int] = set()
        self.ended: set[int] = set()
        self.granted: set[tuple[bytes, bytes]] = set()
        self.most: Counter[str] = Counter()
        self.messages: dict[bytes, int] = {}
        self.leases: set[bytes] = set()
        self.wrong: list[str] = []
        self.transactions = 0
        self._accounts: dict[bytes, str] = {}
        self._numbers: dict[bytes, bytes] = {}
        self._fresh: set[bytes] = set()
        self._holding: Counter[str] = Counter()
        for transaction in _transactions(directory):
            self._fresh = set()
            for name, *args in transaction:
                self._take(name.upper().decode(), args)
            self._look()

    def _take(self, name: str, args: Command) -> None:
        for key in args if name in {"DEL", "UNLINK"} else args[:1]:
            part = self._parts.get(key)
            if part is not None and part != "dead":
                known = getattr(self, f"_{part}_{name.lower()}", None)
                assert known is not None, f"{name} on {part} is not understood"
                known(args[1:])

    def _messages_hset(self, pairs: Command) -> None:
        for name, text in zip(pairs[::2], pairs[1::2], strict=True):
            message = unpacked(b"", text, bytes)
            number = int(message.fields[b"n"])
            self.messages[name] = number
            self._accounts[name] = bytes(message.account).decode()
            self.written.add(number)

    def _messages_hdel(self, ids: Command) -> None:
        for name in ids:
            if name in self.messages:
                self.ended.add(self.messages.pop(name))

    def _messages_del(self, _: Command) -> None:
        self._messages_hdel(list(self.messages))

    _messages_unlink = _messages_del

    def _held_hset(self, pairs: Command) -> None:
        for name, text in zip(pairs[::2], pairs[1::2], strict=True):
            found = _DELIVERY.match(text)
            assert found is not None, text
            if found[3] == b"1" and self._numbers.get(name) != found[1]:
                self.granted.add((name, found[1]))
                if name not in self._fresh:
                    self.wrong.append(f"{name!r} was delivered while it was in hand")
            self._numbers[name] = found[1]

    def _held_hdel(self, ids: Command) -> None:
        for name in ids:
            self._numbers.pop(name, None)

    def _held_del(self, _: Command) -> None:
        self._numbers.clear()

    _held_unlink = _held_del

    def _leases_zadd(self, args: Command) -> None:
        for name in args[1::2]:
            if name not in self.leases:
                self.leases.add(name)
                self._fresh.add(name)
                self._holding[self._accounts[name]] += 1

    def _leases_zrem(self, ids: Command) -> None:
        for name in ids:
            if name in self.leases:
                self.leases.discard(name)
                self._holding[self._accounts[name]] -= 1

    def _leases_del(self, _: Command) -> None:
        self._leases_zrem(list(self.leases))

    _leases_unlink = _leases_del

    def _look(self) -> None:
        self.transactions += 1
        for account, cap in self._caps.items():
            held = self._holding[account]
            self.most[account] = max(self.most[account], held)
            if held > cap:
                self.wrong.append(f"{account} held {held} leases at once, and may hold {cap}")


def _transactions(directory: Path) -> Iterator[list[Command]]:
    """Yield what the server has changed since its first, empty snapshot."""
    whole: list[Command] | None = None
    for command in _commands(directory / "appendonlydir"):
        name = command[0].upper()
        if name == b"MULTI":
            whole = []
        elif name == b"EXEC":
            assert whole is not None
            yield whole
            whole = None
        elif whole is None:
            yield [command]
        else:
            whole.append(command)


def _commands(folder: Path) -> Iterator[Command]:
    (manifest,) = folder.glob("*.manifest")
    names = re.findall(r"^file (\S+) seq \d+ type i", manifest.read_text(), re.MULTILINE)
    assert names, "there is no history"
    for name in names:
        text, at = (folder / name).read_bytes(), 0
        while at < len(text):
            end = text.find(b"\r\n", at)
            command: Command = []
            many, at = int(text[at + 1 : end]), end + 2
            for _ in range(many):
                end = text.find(b"\r\n", at)
                size, at = int(text[at + 1 : end]), end + 2
                command.append(text[at : at + size])
                at += size + 2
            yield command


def numbers_in(client: Any, queue: FairQueue) -> dict[bytes, int]:
    """Return the messages that a server holds: id -> number."""
    key = queue.keys.of("messages")
    found = client.hgetall(key)
    return {name: int(unpacked(key, text, bytes).fields[b"n"]) for name, text in found.items()}
