"""The cache of sealed blocks: what it keeps, what it lets go, and threads and forks."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from workstealing.errors import ConfigurationError
from workstealing.structures.log.blocks import BlockCache, SealedBlock, open_block, seal

EPOCH = b"1"


def block(text: bytes = b"x") -> SealedBlock:
    return open_block(seal([text]))


def kept(cache: BlockCache, epoch: bytes = EPOCH) -> list[int]:
    """Return which of the first ten are there; each of them is then used."""
    return [number for number in range(10) if cache.get(epoch, number)]


def test_the_one_used_longest_ago_goes() -> None:
    cache = BlockCache(3)
    for number in range(3):
        cache.put(EPOCH, number, block())
    assert cache.get(EPOCH, 0) is not None
    cache.put(EPOCH, 3, block())
    assert kept(cache) == [0, 2, 3]
    assert len(cache) == 3


def test_another_epoch_is_another_log() -> None:
    cache = BlockCache(3)
    mine, other = block(b"mine"), block(b"other")
    cache.put(b"1", 0, mine)
    cache.put(b"2", 0, other)
    assert cache.get(b"1", 0) is mine
    assert cache.get(b"2", 0) is other
    assert cache.get(b"3", 0) is None


def test_none_at_all() -> None:
    cache = BlockCache(0)
    cache.put(EPOCH, 0, block())
    assert len(cache) == 0


def test_never_more_bytes_than_it_may_have() -> None:
    size = block(b"x" * 100).size
    cache = BlockCache(10, most_bytes=2 * size)
    for number in range(4):
        cache.put(EPOCH, number, block(b"x" * 100))
        assert cache.size <= 2 * size
    assert kept(cache) == [2, 3]
    cache.put(EPOCH, 5, block(b"x" * 300))
    assert kept(cache) == [2, 3], "what is too large by itself drives nothing out"
    cache.put(EPOCH, 3, block(b"x"))
    assert cache.size == size + block(b"x").size


def test_what_is_no_more_goes() -> None:
    cache = BlockCache()
    for epoch in (b"1", b"2"):
        for number in range(4):
            cache.put(epoch, number, block())
    cache.clear()
    assert (kept(cache, b"1"), kept(cache, b"2"), cache.size) == ([], [], 0)
    cache.put(b"2", 3, block())
    assert (kept(cache, b"2"), cache.size) == ([3], block().size)


@pytest.mark.parametrize("wrong", [-1, 1.5, None, True])
def test_a_number_of_blocks_that_is_none(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="cache_blocks is"):
        BlockCache(wrong)  # type: ignore[arg-type]


def test_threads() -> None:
    cache = BlockCache(4, most_bytes=40 * block().size)
    errors: list[Exception] = []

    def work(seed: int) -> None:
        try:
            for step in range(3000):
                cache.put(EPOCH, (step * seed) % 11, block())
                cache.get(EPOCH, (step + seed) % 11)
                if step % 100 == 0:
                    cache.clear()
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(cache) <= 4
    assert cache.size == len(cache) * block().size


@pytest.mark.slow
def test_a_fork_while_others_use_it() -> None:
    cache = BlockCache(4)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            cache.put(EPOCH, 1, block())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                # A lock that was copied while it was held would hold this process for ever.
                signal.alarm(10)
                cache.get(EPOCH, 1)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
