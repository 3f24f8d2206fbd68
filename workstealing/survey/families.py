"""Families of keys: names of the same shape, however many names there are.

Ids in a name, such as numbers, dates and UUIDs, become placeholders. The words between them are the
levels of a tree. A level that is crowded with rare words, such as users' names, is closed: its rare
words become one placeholder. So a billion names take a bounded memory, and each key is counted in
one family. The idea of such a tree of tokens with a bounded number of children is Drain's (He, Zhu,
Zheng, Lyu: Drain: An Online Log Parsing Approach with Fixed Depth Tree, ICWS 2017); that counts
decide which words stay, is lossy counting's (Manku, Motwani, VLDB 2002).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from workstealing.survey.sizing import Choice, Finding, Total

MOST_FAMILIES = 4_096
"""The most families while names are read."""

EXAMPLES = 3
_MOST_TOKENS, _LONGEST_TOKEN, _LONGEST_KEY = 24, 48, 1_024
_MOST_CACHED = 20_000

# Control characters stand for ids, since those of the names become placeholders, too.
NUMBER, UUID, HEX, DATE, ADDRESS, ID, WORD, BYTES, REST = map(chr, range(1, 10))
NAMES = {
    NUMBER: "<n>",
    UUID: "<uuid>",
    HEX: "<hex>",
    DATE: "<date>",
    ADDRESS: "<ip>",
    ID: "<id>",
    WORD: "<*>",
    BYTES: "<bytes>",
    REST: "<...>",
}
_PLACEHOLDERS = "".join(NAMES)
_DELIMITERS = r":./|#@,;=\-\s?&{}()\[\]"
_TOKEN = re.compile(f"[^{_DELIMITERS}]*[{_DELIMITERS}]*")
_BARE = re.compile(f"[{_DELIMITERS}_{_PLACEHOLDERS}]*")
_ENDING = re.compile(f"[{_DELIMITERS}]*$")
_CONTROLS = re.compile("[\x00-\x1f\x7f]+")
_NOT_ASCII = re.compile("[\x00-\x1f\x7f-\xff]+")
_PARTS = re.compile(
    r"(?P<uuid>(?<![0-9a-zA-Z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9a-zA-Z]))"
    r"|(?P<date>(?<!\d)(?:19|20)\d\d-(?:0[1-9]|1[0-2])-[0-3]\d(?!\d)"
    r"(?:[T ]\d\d:\d\d(?::\d\d(?:[.]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)"
    r"|(?P<ip>(?<![\d.])(?:\d{1,3}[.]){3}\d{1,3}(?![\d.]))"
    r"|(?P<base64>(?<![0-9A-Za-z])[0-9A-Za-z+/_-]{20,}={0,2}(?![0-9A-Za-z]))"
    r"|(?P<word>[0-9A-Za-z]+)"
)
_INNER = re.compile(_PARTS.pattern.replace("(?P<base64>", "(?P<never>(?!)"))
# Django appends a session's key to its own name.
_DJANGO = re.compile(r"(sessions[.]cache(?:d_db)?)([0-9a-z]{32})$")
_DIGITS = re.compile(r"\d+")
_HEX = re.compile("[0-9a-f]+|[0-9A-F]+")
_CHANGES = re.compile("(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[0-9]|(?<=[0-9])[a-zA-Z]|(?<=[A-Z])[a-z]")


def shape_of(key: bytes) -> str:
    """Return a key's name with a placeholder, a control character of `NAMES`, for each id in it."""
    try:
        text = _CONTROLS.sub(BYTES, key[:_LONGEST_KEY].decode())
    except UnicodeDecodeError:
        text = _NOT_ASCII.sub(BYTES, key[:_LONGEST_KEY].decode("latin-1"))
    text = _DJANGO.sub(rf"\1{ID}", text)
    text = _PARTS.sub(_placeholder, text)
    return text if len(key) <= _LONGEST_KEY else text + REST


def shown(shape: str) -> str:
    """Return a shape for people: its placeholders in angle brackets."""
    return "".join(NAMES.get(each, each) for each in shape)


def pattern_of(shape: str) -> str:
    """Return a pattern of MATCH for the names of a shape."""
    text = "".join(
        "*" if each in NAMES else f"\\{each}" if each in r"\*?[]^" else each for each in shape
    )
    return re.sub(r"(?<!\\)\*+", "*", text)


def _placeholder(found: re.Match[str]) -> str:
    kind, text = found.lastgroup, found[0]
    if kind == "word":
        return _word(text)
    if kind == "base64":
        if "-" not in text and "_" not in text and "/" not in text and "+" not in text:
            return _word(text.rstrip("=")) + "=" * text.count("=")
        has_all = any(map(str.isdigit, text)) and any(map(str.isupper, text))
        if has_all and 3 * len(_CHANGES.findall(text)) >= len(text):
            return ID
        # Words in a row: each for itself, with the dates and UUIDs among them.
        return _INNER.sub(_placeholder, text)
    return {"uuid": UUID, "date": DATE, "ip": ADDRESS}.get(str(kind), ID)


def _word(text: str) -> str:
    """Return a run of letters and digits with its ids replaced."""
    size = len(text)
    if text.isdigit():
        return NUMBER
    digits = sum(map(str.isdigit, text))
    if size >= 8 and (digits or size >= 16) and _HEX.fullmatch(text):
        return HEX
    changes = len(_CHANGES.findall(text))
    if not digits:
        # CamelCase changes at each word, noise at every second letter.
        return ID if size >= 20 and 5 * changes >= 2 * size else text
    if size >= 16 and 4 * changes >= size:
        return ID
    if (size >= 20 and digits >= 3) or (size >= 6 and changes >= 3):
        return ID
    return _DIGITS.sub(NUMBER, text)


class Family:
    """Keys with names of one shape.

    Attributes: keys: how many; bytes and endless: the measured ones' sizes, and whether they have
    no time to live; types: how many of the measured keys, by weight, have each type; findings: what
    rules have found, by the rule's name; oldest: in seconds, None: nobody knows, and oldest_by;
    owners: how many keys each has by their names; proofs: by owner, how many keys had what proves
    it, of how many; tags: how many members of its keys name keys that are there, of how many;
    examples: some names; largest: the bytes and the name of the largest key that was measured.
    """

    __slots__ = (
        "bytes",
        "choice",
        "endless",
        "examples",
        "findings",
        "keys",
        "largest",
        "oldest",
        "oldest_by",
        "owners",
        "proofs",
        "tags",
        "ttls",
        "types",
    )

    def __init__(self, share: float | None = None) -> None:
        self.keys = 0
        self.bytes, self.endless = Total(), Total()
        self.types: dict[str, float] = {}
        self.findings: dict[str, Finding] = {}
        self.owners: dict[str, int] = {}
        self.proofs: dict[str, list[int]] = {}
        self.tags = [0, 0]
        self.oldest: float | None = None
        self.oldest_by: str | None = None
        # The least and the greatest time to live of those measured, and how many have one.
        self.ttls: tuple[float, float, int] = (math.inf, 0.0, 0)
        self.examples: list[bytes] = []
        self.largest: tuple[float, bytes] = (0.0, b"")
        self.choice = Choice(share)

    def merge(self, other: Family) -> None:
        """Add the keys of another family."""
        self.keys += other.keys
        self.bytes.merge(other.bytes)
        self.endless.merge(other.endless)
        for counted, more in ((self.types, other.types), (self.owners, other.owners)):
            for name, number in more.items():
                counted[name] = counted.get(name, 0) + number  # type: ignore[assignment]
        for name, of in other.proofs.items():
            self.proofs[name] = _sums(self.proofs.get(name, [0, 0]), of)
        self.tags = _sums(self.tags, other.tags)
        for name, finding in other.findings.items():
            if name in self.findings:
                self.findings[name].merge(finding)
            else:
                self.findings[name] = finding
        if other.oldest is not None:
            self.note_age(other.oldest, other.oldest_by)
        low, high, number = other.ttls
        self.ttls = (min(self.ttls[0], low), max(self.ttls[1], high), self.ttls[2] + number)
        self.examples = (self.examples + other.examples)[:EXAMPLES]
        self.largest = max(self.largest, other.largest)
        self.choice.merge(other.choice)

    def state(self) -> list[Any]:
        """Return it as plain data."""
        low, high, number = self.ttls
        return [
            self.keys,
            self.bytes.state(),
            self.endless.state(),
            self.types,
            {name: each.state() for name, each in self.findings.items()},
            self.owners,
            [self.oldest, self.oldest_by],
            [low if number else 0.0, high, number],
            [base64.b64encode(each).decode("ascii") for each in self.examples],
            self.choice.room,
            [self.largest[0], base64.b64encode(self.largest[1]).decode("ascii")],
            self.proofs,
            self.tags,
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any], share: float | None) -> Family:
        """Return it from plain data."""
        made = cls(share)
        made.keys = int(state[0])
        made.bytes, made.endless = Total.from_state(state[1]), Total.from_state(state[2])
        made.types, made.owners = dict(state[3]), dict(state[5])
        made.findings = {name: Finding.from_state(each) for name, each in state[4].items()}
        made.oldest, made.oldest_by = state[6]
        low, high, number = state[7]
        made.ttls = (low if number else math.inf, high, number)
        made.examples = [base64.b64decode(each) for each in state[8]]
        made.choice = Choice(share, int(state[9]))
        made.largest = (float(state[10][0]), base64.b64decode(state[10][1]))
        made.proofs, made.tags = dict(state[11]), list(state[12])
        return made

    def note_size(self, key: bytes, size: float, weight: float, variance: float = 0.0) -> None:
        """Note the bytes of one of its keys.

        Arguments:
            weight: see `Total.note`.
            variance: see `Total.note`.
        """
        self.bytes.note(size, weight, variance)
        self.choice.look(self.bytes, self.keys)
        if size > self.largest[0]:
            self.largest = (size, key[:_LONGEST_KEY])

    def note_proof(self, owner: str, *, is_proved: bool) -> None:
        """Note whether a key had what proves its owner."""
        self.proofs[owner] = _sums(self.proofs.get(owner, [0, 0]), [int(is_proved), 1])

    def note_age(self, seconds: float, by: str | None) -> None:
        """Note how old one of its keys is, and how that is known."""
        if self.oldest is None or seconds > self.oldest:
            self.oldest, self.oldest_by = seconds, by


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


class _Node:
    """A level of the tree. Attributes: is_closed: new words become a placeholder."""

    __slots__ = ("children", "family", "is_closed")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.family: Family | None = None
        self.is_closed = False

    def families(self) -> Iterator[Family]:
        """Yield the families of this part of the tree."""
        if self.family is not None:
            yield self.family
        for each in self.children.values():
            yield from each.families()

    def state(self) -> list[Any]:
        """Return it as plain data."""
        return [
            None if self.family is None else self.family.state(),
            self.is_closed,
            {token: each.state() for token, each in self.children.items()},
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any], share: float | None) -> _Node:
        """Return it from plain data."""
        made = cls()
        made.family = None if state[0] is None else Family.from_state(state[0], share)
        made.is_closed = bool(state[1])
        made.children = {token: cls.from_state(each, share) for token, each in state[2].items()}
        return made

    def merge(self, other: _Node) -> None:
        """Add another part of the tree to this one."""
        self.is_closed = self.is_closed or other.is_closed
        if other.family is not None:
            if self.family is None:
                self.family = other.family
            else:
                self.family.merge(other.family)
        for token, child in other.children.items():
            known = self.children.get(token)
            if known is None:
                self.children[token] = child
            else:
                known.merge(child)


class Families:
    """The families of the names seen so far, in a bounded memory.

    Arguments:
        share: of the keys of a large family that are measured, see `Choice`.
        most: families.
    """

    def __init__(self, share: float | None = None, most: int = MOST_FAMILIES) -> None:
        self._root = _Node()
        self._share, self._most = share, most
        self._number = 0
        self._cache: dict[str, Family] = {}
        self.keys = 0

    def __len__(self) -> int:
        return self._number

    def add(self, key: bytes) -> str:
        """Count a key; return its shape."""
        shape = shape_of(key)
        family = self.of(shape)
        self.keys += 1
        family.keys += 1
        if len(family.examples) < EXAMPLES:
            family.examples.append(key[:_LONGEST_KEY])
        return shape

    def of(self, shape: str) -> Family:
        """Return the family of a shape; it may be another one after the next key."""
        return self._cache.get(shape) or self._family(shape)

    def shapes(self) -> Iterator[tuple[str, Family]]:
        """Yield each family after its shape."""
        stack = [("", self._root)]
        while stack:
            shape, node = stack.pop()
            if node.family is not None:
                yield shape, node.family
            stack += [(shape + token, child) for token, child in node.children.items()]

    def merge_rare(self) -> None:
        """Merge rare shapes for a reader, when all names have been seen."""
        self._close(self._root, 16, max(16, self.keys / 1_000), self._heavy())
        self._join_digits(self._root)
        self._recount()

    def state(self) -> list[Any]:
        """Return it as plain data."""
        return [self.keys, self._root.state()]

    @classmethod
    def from_state(cls, state: Sequence[Any], share: float | None) -> Families:
        """Return it from plain data."""
        made = cls(share)
        made.keys = int(state[0])
        made._root = _Node.from_state(state[1], share)
        made._recount()
        return made

    def _family(self, shape: str) -> Family:
        node = self._node(shape)
        if node.family is None:
            if self._number >= self._most:
                self._compress()
                node = self._node(shape)
            if node.family is None:
                node.family = Family(self._share)
                self._number += 1
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[shape] = node.family
        return node.family

    def _node(self, shape: str) -> _Node:
        node = self._root
        for token in tokens_of(shape):
            child = node.children.get(token)
            if child is None and node.is_closed:
                known = _wild(token) if _is_word(token) else token
                child = node.children.get(known)
                if child is None and (rest := node.children.get(REST)) is not None:
                    return rest
                if child is None:
                    child = node.children[known] = _Node()
            elif child is None:
                child = node.children[token] = _Node()
            node = child
        return node

    def _compress(self) -> None:
        """Merge rare shapes until half of the room is free again."""
        self._cache.clear()
        share = self.keys / 2_000
        steps = ((64, 4.0), (16, 4.0), (16, 16.0), (8, 64.0), (2, 256.0), (0, math.inf))
        for crowd, least in steps:
            self._close(self._root, crowd, max(least, share), self._heavy())
            self._recount()
            if self._number <= self._most // 2:
                return
        for depth in range(_MOST_TOKENS, -1, -1):
            _cut(self._root, depth, 64 if depth else 1)
            self._recount()
            if self._number <= self._most // 2:
                return

    def _recount(self) -> None:
        self._cache.clear()
        self._number = sum(1 for _ in self._root.families())

    def _close(self, node: _Node, crowd: int, least: float, heavy: float) -> None:
        """Merge the rare words of each level with more than `crowd` words."""
        words = [token for token in node.children if _is_word(token)]
        if len(words) > crowd:
            rare = [each for each in words if _is_rare(node.children[each], least, heavy)]
            if len(rare) > max(1, crowd // 2):
                node.is_closed = True
                for token in rare:
                    child = node.children.pop(token)
                    known = node.children.setdefault(_wild(token), child)
                    if known is not child:
                        known.merge(child)
        for child in node.children.values():
            self._close(child, crowd, least, heavy)

    def _heavy(self) -> float:
        """Return the bytes from which on a family keeps its name, however rare it is."""
        return 0.01 * sum(each.keys * each.bytes.mean for each in self._root.families())

    def _join_digits(self, node: _Node) -> None:
        """Count hexadecimal ids without a letter with their siblings."""
        for token in [each for each in node.children if each.startswith(NUMBER)]:
            sibling = node.children.get(HEX + token[1:])
            if sibling is None:
                continue
            digits = sum(each.keys for each in node.children[token].families())
            if 8 * digits <= sum(each.keys for each in sibling.families()):
                sibling.merge(node.children.pop(token))
        for child in node.children.values():
            self._join_digits(child)


def tokens_of(shape: str) -> list[str]:
    """Return the words of a shape, each with the delimiters behind it."""
    tokens = [each for each in _TOKEN.findall(shape) if each]
    if len(tokens) > _MOST_TOKENS:
        tokens = [*tokens[: _MOST_TOKENS - 1], REST]
    return [_wild(each) if len(each) > _LONGEST_TOKEN else each for each in tokens]


def _is_word(token: str) -> bool:
    return _BARE.fullmatch(token) is None


def _wild(token: str) -> str:
    """Return the placeholder for a word, with its delimiter."""
    found = _ENDING.search(token)
    return WORD + (found[0][:1] if found is not None else "")


def _is_rare(node: _Node, least: float, heavy: float) -> bool:
    keys = size = 0.0
    for each in node.families():
        keys += each.keys
        size += each.keys * each.bytes.mean
        if keys >= least or (heavy and size >= heavy):
            return False
    return True


def _cut(node: _Node, depth: int, crowd: int) -> None:
    """Merge all that lies deeper in the tree, where it is more than a crowd."""
    if depth:
        for child in node.children.values():
            _cut(child, depth - 1, crowd)
        return
    below = [each for child in node.children.values() for each in child.families()]
    if len(below) <= crowd:
        return
    rest = _Node()
    rest.family = below[0]
    for each in below[1:]:
        rest.family.merge(each)
    node.children = {REST: rest}
    node.is_closed = True
