"""The Python blocks of docs/shuffle_queue.md run in order, and its figures are true."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

from support.pages import running, text_of
from support.servers import RedisServer
from workstealing.structures import Message, ShuffleQueue
from workstealing.structures.shuffle_queue import overlap_probability

PAGE = text_of("docs/shuffle_queue.md")


def test_the_blocks(redis7: RedisServer) -> None:
    here = {"redis://localhost:6379/0": redis7.url}
    with running("docs/shuffle_queue.md", replace=here) as page:
        names = page.run()
        assert len(names["done"]) <= 5
        while "work" not in names:
            page.run()
        stop_when_empty(names)
        page.run_rest()
    queue: ShuffleQueue = names["queue"]
    assert queue.length() == 0
    assert set(names["recruiter"].stats()["jobs"]) == {
        "shuffle_queue_reaper.predictions",
        "queue_expiry.shuffle_queues",
    }


def stop_when_empty(names: dict[str, Any]) -> None:
    """Let two of the page's workers empty the queue."""
    ends = [threading.Thread(target=names["work"], args=(f"worker {n}",)) for n in (1, 2)]
    enlisted = names["recruiter"].stats()["enlisted"]
    for each in ends:
        each.start()
    while names["queue"].length():
        time.sleep(0.01)
    names["stop"].set()
    for each in ends:
        each.join()
    assert names["recruiter"].stats()["enlisted"] - enlisted > 990


def test_the_table_of_overlaps() -> None:
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)
    assert len(rows) == 6
    for streams, each, *said in rows:
        of = (int(streams.replace(",", "")), int(each))
        for at_least, words in zip((1, 2, of[1]), said, strict=True):
            true = overlap_probability(*of, at_least)
            if words.endswith(" %"):
                digits = len(words.removesuffix(" %").replace(".", "").lstrip("0"))
                assert float(f"{100 * true:.{digits}g}") == float(words.removesuffix(" %")), words
            else:
                assert words == f"1 in {round(1 / true):,}"


def test_every_method_and_field_is_named() -> None:
    table = PAGE.split("## Methods", 1)[1].split("## ", 1)[0]
    for name in dir(ShuffleQueue):
        if (
            not name.startswith("_")
            and not name.endswith("_steps")
            and callable(getattr(ShuffleQueue, name))
        ):
            assert name in OF_THE_HOUSE or f"`{name}(" in table, name
    for name in Message.__dataclass_fields__:
        assert f"`{name}`" in table


OF_THE_HOUSE = {"forget", "inspect", "monotonic"}
"""What other parts of this package call."""
