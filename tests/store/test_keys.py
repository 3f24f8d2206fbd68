"""The names of keys: hash slots, and the shipped table of tags."""

from __future__ import annotations

import itertools

from workstealing.store.keys import SLOT_TAGS, SLOTS, key_slot


def test_the_shipped_tags_are_the_first_words_of_their_slots() -> None:
    # The rule, which is part of the data layout: shorter words over 0-9a-z first, then in order.
    first: dict[int, bytes] = {}
    for length in itertools.count(1):
        for letters in itertools.product(b"0123456789abcdefghijklmnopqrstuvwxyz", repeat=length):
            first.setdefault(key_slot(bytes(letters)), bytes(letters))
            if len(first) == SLOTS:
                break
        if len(first) == SLOTS:
            break
    assert tuple(first[slot] for slot in range(SLOTS)) == SLOT_TAGS


def test_every_slot_has_a_tag_of_its_own() -> None:
    assert all(key_slot(b"{" + tag + b"}:x") == slot for slot, tag in enumerate(SLOT_TAGS))
    assert len(set(SLOT_TAGS)) == SLOTS
