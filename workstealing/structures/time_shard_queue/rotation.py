"""The turns of time shards: pure functions of a clock, on which everything else rests.

With t = whole periods since the Unix epoch, producers write into time shard t mod N and consumers
read (t - 2) mod N. The period's number grows by one for ever, so no end of an hour, a day or a year
is special, whatever N is.
"""

from __future__ import annotations

from dataclasses import dataclass

from workstealing.clock import seconds_of
from workstealing.errors import ConfigurationError

BEHIND = 2
"""How many periods the consumers are behind the producers."""
FEWEST_TIME_SHARDS = 4
FEWEST_WITH_A_QUIET_ONE = 6
"""With so many time shards one is untouched, with a period of skew either way."""
MOST_TIME_SHARDS = 1024

PRODUCING, CONSUMING, QUIET = "producing", "consuming", "quiet"


@dataclass(frozen=True)
class Rotation:
    """How many time shards take turns, and how long a turn is.

    Fields: time_shards: 4 to 1,024; period_ms: 1 and up. All moments are Unix times in whole
    milliseconds by the caller's own clock, which may be wrong by less than a period.
    """

    time_shards: int
    period_ms: int

    def require(
        self,
        found: Rotation | None,
        queue: str,
        *,
        shards: str = "shards=",
        period: str = "period=",
    ) -> None:
        """Check that a queue has no other rotation than this one.

        Arguments:
            found: what its layout says, None without one.
            queue: its name, as text.
            shards: the caller's own words for these arguments, before their values.
            period: the caller's own words for these arguments, before their values.

        Raises: ConfigurationError if the queue's layout says another rotation.
        """
        if found is None or found == self:
            return
        raise ConfigurationError(
            f"the queue {queue!r} has {found.time_shards} time shards with a period of"
            f" {found.period_ms / 1000:g} s, not {self.time_shards} with"
            f" {self.period_ms / 1000:g} s: give {shards}{found.time_shards} and"
            f" {period}{found.period_ms / 1000:g}, or use another name; nothing was changed"
        )

    def period(self, now_ms: int) -> int:
        """Return the number of whole periods since the epoch."""
        return now_ms // self.period_ms

    def producing(self, now_ms: int) -> int:
        """Return the time shard that producers write into."""
        return self.period(now_ms) % self.time_shards

    def consuming(self, now_ms: int) -> int:
        """Return the time shard that consumers read."""
        return (self.period(now_ms) - BEHIND) % self.time_shards

    def role(self, time_shard: int, now_ms: int) -> str:
        """Return the role of a time shard now, without skew: producing, consuming or quiet."""
        if time_shard == self.producing(now_ms):
            return PRODUCING
        return CONSUMING if time_shard == self.consuming(now_ms) else QUIET

    def margin_ms(self, time_shard: int, now_ms: int, lasting_ms: int = 0) -> int:
        """Return by how much a client's clock must be wrong for the client to touch a time shard.

        Arguments:
            lasting_ms: for how long from now on it is to be untouched.

        Returns: 0 if producers or consumers with the caller's own clock touch it meanwhile, else
        the distance to their nearest turn, past or to come, in ms. Clocks that are wrong by less do
        not touch it.
        """
        first, last = self.period(now_ms), self.period(now_ms + lasting_ms)
        margins = []
        for behind in (0, BEHIND):
            turn = (time_shard + behind) % self.time_shards
            before = first - (first - turn) % self.time_shards
            after = before + self.time_shards
            if before == first or after <= last:
                return 0
            margins.append(now_ms - (before + 1) * self.period_ms)
            # Less the fraction of a millisecond by which it may be later than it says.
            margins.append(after * self.period_ms - (now_ms + lasting_ms + 1))
        return min(margins)

    def untouched(
        self, now_ms: int, lasting_ms: int = 0, skew_ms: int | None = None
    ) -> tuple[int, ...]:
        """Return the time shards that nobody touches now, nor for a while.

        Arguments:
            lasting_ms: that while.
            skew_ms: any other clock differs from the caller's by less than this, by default a whole
                period.

        Returns: the safest ones first; with a whole period, none for an N of 4 or 5, and N - 5 for
        6 or more, one less if a period ends meanwhile.
        """
        skew = self.period_ms if skew_ms is None else max(1, skew_ms)
        margins = [
            (self.margin_ms(time_shard, now_ms, lasting_ms), time_shard)
            for time_shard in range(self.time_shards)
        ]
        safe = sorted((-margin, time_shard) for margin, time_shard in margins if margin >= skew)
        return tuple(time_shard for _, time_shard in safe)

    def least_touched(self, now_ms: int, lasting_ms: int = 0) -> tuple[int, ...]:
        """Return the time shards for which another clock would have to be the most wrong.

        Ties are all returned: with N = 4 there are two, and a choice of one would leave the other
        out for ever. Returns nothing if right clocks touch each time shard meanwhile.
        """
        every = range(self.time_shards)
        margins = [self.margin_ms(time_shard, now_ms, lasting_ms) for time_shard in every]
        most = max(margins)
        return tuple(number for number in every if margins[number] == most > 0)

    def next_turn_ms(self, time_shard: int, now_ms: int) -> int:
        """Return when consumers read a time shard next: now_ms itself if they read it now."""
        ahead = (time_shard + BEHIND - self.period(now_ms)) % self.time_shards
        return (self.period(now_ms) + ahead) * self.period_ms if ahead else now_ms


def rotation_of(time_shards: object, period: object) -> Rotation:
    """Return the rotation of a number of time shards and a period.

    Arguments:
        period: in seconds, or a timedelta.

    Raises: ConfigurationError for fewer than 4 time shards (the error explains why), for too many,
    and for a period that is not in whole milliseconds.
    """
    if isinstance(time_shards, bool) or not isinstance(time_shards, int):
        raise ConfigurationError(
            f"shards={time_shards!r} is no number of time shards: give {FEWEST_TIME_SHARDS} to"
            f" {MOST_TIME_SHARDS}"
        )
    if time_shards < FEWEST_TIME_SHARDS:
        raise ConfigurationError(
            f"shards={time_shards} time shards are too few: give {FEWEST_TIME_SHARDS} or more,"
            f" because consumers are {BEHIND} periods behind producers, 1 to 3 where clocks differ"
            " by a period, and must never come to the producers' own time shard"
        )
    if time_shards > MOST_TIME_SHARDS:
        raise ConfigurationError(
            f"shards={time_shards} time shards are too many: give at most {MOST_TIME_SHARDS}"
        )
    seconds = seconds_of(period, "period", least=0.001)
    if abs(seconds * 1000 - round(seconds * 1000)) > 1e-6:
        raise ConfigurationError(
            f"period={period!r} is not usable: give a whole number of milliseconds"
        )
    return Rotation(time_shards, round(seconds * 1000))
