"""What a Spark task does: it indexes the pages of its partition, and then it enlists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from archive.parts import parts
from workstealing.spark import enlisting


@enlisting
def index(pages: Iterable[bytes]) -> Iterator[int]:
    """Index the pages of a partition; yield how many.

    It may run twice, and late: the index takes a page's version only over an older one.
    """
    yield parts().store.index([page.decode() for page in pages])
