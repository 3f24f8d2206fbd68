"""The options of ``format("tracked_set")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workstealing.errors import LayoutError
from workstealing.spark.clients import ClientSettings
from workstealing.spark.sources.options import OptionReader, without_path

if TYPE_CHECKING:
    from workstealing.store.twin import Twin
    from workstealing.structures.tracked_set.layout import Names

FORMAT = "tracked_set"
PARTITIONS = 16


@dataclass(frozen=True, slots=True)
class TrackedSetOptions:
    """What a user said about a tracked set; hashable and safe to pickle.

    Fields: name; client; sub_sets: how many it should have, None: as many as it has; partitions:
    the most; ids: "string" or "binary", the type of the column id.
    """

    name: str
    client: ClientSettings
    sub_sets: int | None = None
    partitions: int = PARTITIONS
    ids: str = "string"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TrackedSetOptions:
        """Return what Spark's options say.

        Errors: ConfigurationError for unknown, missing or contradictory ones. No round trip.
        """
        from workstealing.structures.tracked_set.layout import MOST_SUB_SETS

        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "name"))
        parsed = cls(
            name=reader.required("name", 'the tracked set\'s name, or a path as in load("ids")'),
            client=reader.client(),
            sub_sets=reader.number("subSets", 0, most=MOST_SUB_SETS) or None,
            partitions=reader.number("partitions", PARTITIONS),
            ids=reader.choice("ids", ("string", "binary")),
        )
        reader.finish()
        return parsed

    def tracked_names(self, sub_sets: int) -> Names:
        """Return the keys of the tracked set, laid out over so many sub-sets."""
        from workstealing.structures.tracked_set.layout import Names

        return Names(self.name, sub_sets)

    def twin(self) -> Twin:
        """Return one-attempt connections beside this process's client; no round trip."""
        from workstealing.store.twin import twin_of

        return twin_of(self.client.connected())

    def require_sub_sets(self, found: int) -> None:
        """Raise a LayoutError if another number of sub-sets was asked for than there is."""
        if self.sub_sets not in (None, found):
            raise LayoutError(
                f"format {FORMAT!r}: the tracked set {self.name!r} was laid out over {found}"
                f" sub-sets, not {self.sub_sets}: leave the option 'subSets' out"
            )
