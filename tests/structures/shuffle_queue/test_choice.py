"""The streams of a tenant: the same everywhere and for ever, evenly chosen, seldom shared."""

from __future__ import annotations

import hashlib
import itertools
import math
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from workstealing.errors import ConfigurationError
from workstealing.structures.shuffle_queue.names import MOST_STREAMS
from workstealing.structures.shuffle_queue.streams import overlap_probability, streams_of

# Messages lie where these say: whoever changes one of them strands no message, but takes from
# every tenant the streams that it has.
VECTORS: dict[tuple[str | bytes, int, int], tuple[int, ...]] = {
    ("", 64, 4): (21, 1, 11, 45),
    ("tenant", 1, 1): (0,),
    ("tenant", 16, 4): (4, 0, 8, 11),
    ("tenant", 64, 4): (34, 0, 27, 24),
    ("tenant", 128, 4): (34, 0, 97, 104),
    ("tenant", 1024, 4): (34, 620, 979, 164),
    ("7", 64, 4): (6, 29, 52, 49),
    ("\xfc\u2603", 64, 4): (8, 11, 5, 4),
    (b"\xff\x00", 64, 4): (46, 45, 63, 6),
    ("a" * 100, 64, 4): (10, 17, 36, 40),
    ("tenant", 8, 8): (4, 0, 3, 2, 7, 6, 1, 5),
    ("tenant", 4096, 6): (2406, 2388, 1671, 3263, 2691, 3459),
}


@pytest.mark.parametrize(
    ("tenant", "streams", "each", "expected"), [(*k, v) for k, v in VECTORS.items()]
)
def test_a_tenant_has_the_same_streams_for_ever(
    tenant: str | bytes, streams: int, each: int, expected: tuple[int, ...]
) -> None:
    assert streams_of(tenant, streams, each) == expected


def by_the_description(tenant: bytes, streams: int, each: int) -> tuple[int, ...]:
    """Choose as the docstring says, in the plainest way, without the code's own helpers."""
    chosen: list[int] = []
    for i in itertools.count():
        turn, word = divmod(i, 4)
        digest = hashlib.sha256(tenant + bytes([0, 0, turn >> 8, turn & 255])).digest()
        state = sum(digest[8 * word + k] << (56 - 8 * k) for k in range(8))
        stream = place = 0
        while place < streams:
            stream = place
            state = (state * 2862933555777941757 + 1) % 2**64
            place = math.floor(Fraction((stream + 1) * 2**31, state // 2**33 + 1))
        if stream not in chosen:
            chosen.append(stream)
        if len(chosen) == each:
            return tuple(chosen)
    raise AssertionError


def test_others_can_follow_the_description() -> None:
    for i in range(200):
        tenant = f"tenant {i}".encode()
        for streams, each in ((1, 1), (4, 4), (64, 4), (1000, 9)):
            assert streams_of(tenant, streams, each) == by_the_description(tenant, streams, each)


@pytest.mark.slow
def test_another_process_with_other_hash_seeds_chooses_alike() -> None:
    code = (
        "from workstealing.structures.shuffle_queue.streams import streams_of;"
        "print([streams_of(f't{i}', 64, 4) for i in range(300)])"
    )
    for seed in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.strip() == str([streams_of(f"t{i}", 64, 4) for i in range(300)])


def test_a_text_and_its_bytes_are_the_same_tenant() -> None:
    assert streams_of("\u00fc\u2603", 64, 4) == streams_of("\u00fc\u2603".encode(), 64, 4)


@pytest.mark.parametrize("each", [1, 2, 4, 63, 64])
def test_each_has_so_many_different_streams(each: int) -> None:
    for i in range(100):
        chosen = streams_of(str(i), 64, each)
        assert len(set(chosen)) == len(chosen) == each
        assert all(0 <= stream < 64 for stream in chosen)


def chi_square(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


def most(freedom: int) -> float:
    """Return what chi-square exceeds by chance once in a million times (Wilson and Hilferty)."""
    share = 2 / (9 * freedom)
    return freedom * (1 - share + 4.7534 * math.sqrt(share)) ** 3


@pytest.mark.parametrize(("streams", "each"), [(16, 1), (64, 4), (65, 4), (1024, 8)])
def test_all_streams_are_chosen_equally_often(streams: int, each: int) -> None:
    # At each place of the order too: the first stream in it is the one that an idle queue takes.
    chosen = [streams_of(f"customer {i}", streams, each) for i in range(10_000)]
    for place in range(each):
        counts = Counter(one[place] for one in chosen)
        assert chi_square([counts[stream] for stream in range(streams)]) < most(streams - 1)


def test_all_selections_are_equally_likely() -> None:
    counts = Counter(frozenset(streams_of(f"customer {i}", 9, 3)) for i in range(20_000))
    selections = [frozenset(one) for one in itertools.combinations(range(9), 3)]
    assert chi_square([counts[one] for one in selections]) < most(len(selections) - 1)


@pytest.mark.parametrize(("few", "many"), [(64, 65), (64, 128), (16, 1024)])
def test_a_growing_queue_leaves_most_choices_alone(few: int, many: int) -> None:
    kept = new = 0
    for i in range(5_000):
        before, after = set(streams_of(str(i), few, 4)), set(streams_of(str(i), many, 4))
        kept += len(before & after)
        new += sum(stream >= few for stream in after - before)
    # Two words of one tenant that meant the same stream may part; that is all there is else.
    assert kept / 20_000 == pytest.approx(few / many, abs=0.02)
    assert new >= 0.9 * (20_000 - kept)


def test_the_probability_of_an_overlap_is_exact() -> None:
    for streams in range(1, 9):
        for each in range(1, streams + 1):
            own = set(range(each))
            shared = [
                len(own & set(other)) for other in itertools.combinations(range(streams), each)
            ]
            for at_least in range(each + 1):
                expected = Fraction(sum(n >= at_least for n in shared), len(shared))
                assert overlap_probability(streams, each, at_least) == float(expected)


def test_known_probabilities() -> None:
    assert overlap_probability(64, 4) == pytest.approx(1 - math.comb(60, 4) / math.comb(64, 4))
    assert overlap_probability(64, 4, 4) == 1 / math.comb(64, 4)
    assert overlap_probability(64, 4, 0) == overlap_probability(4, 4, 4) == 1.0
    assert overlap_probability(MOST_STREAMS, 1000, 1000) == 1 / math.comb(MOST_STREAMS, 1000)


def test_tenants_overlap_as_often_as_is_said() -> None:
    chosen = [set(streams_of(f"customer {i}", 64, 4)) for i in range(20_000)]
    pairs = list(zip(chosen[::2], chosen[1::2], strict=True))
    for at_least in (1, 2):
        share = sum(len(one & other) >= at_least for one, other in pairs) / len(pairs)
        said = overlap_probability(64, 4, at_least)
        assert share == pytest.approx(said, abs=5 * math.sqrt(said * (1 - said) / len(pairs)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", 0, 1), "streams=0 is no number of streams: give 1 to 4096"),
        (("t", 4097, 1), "streams=4097"),
        (("t", 64.0, 4), r"streams=64\.0"),
        (("t", True, 1), "streams=True"),
        (("t", 64, 0), "streams_per_tenant=0 .* give 1 to streams, which is 64"),
        (("t", 64, 65), "streams_per_tenant=65"),
        (("t", 64, True), "streams_per_tenant=True"),
        ((7, 64, 4), "the tenant 7 is not usable: give a text"),
        ((None, 64, 4), "the tenant None"),
        (("\ud800", 64, 4), "the tenant '.ud800'"),
    ],
)
def test_what_cannot_be_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        streams_of(*arguments)


@pytest.mark.parametrize("at_least", [-1, 5, 1.0, True])
def test_an_overlap_that_cannot_be_is_refused(at_least: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"at_least=.* streams_per_tenant, which is 4"):
        overlap_probability(64, 4, at_least)
    with pytest.raises(ConfigurationError, match="streams_per_tenant=65"):
        overlap_probability(64, 65)
