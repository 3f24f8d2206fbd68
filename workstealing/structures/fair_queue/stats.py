"""The state of a fair queue: how many messages wait, of which accounts, and for how long."""

from __future__ import annotations

from typing import Any

from workstealing.recruiting.checks import checked_count
from workstealing.store.operations import Steps, operation
from workstealing.structures.fair_queue.rules import FairRuling
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.names import DELAY_PREFIX
from workstealing.structures.shuffle_queue.stats import TOPS

MOST_CONSUMERS = 1_000
MOST_ACCOUNTS = 1_000
COUNTERS = ("redelivered", "overdue", "cancelled", "lapsed")


class FairDescribing(FairRuling):
    """The operation `stats`."""

    @operation
    def stats(self, most_accounts: int = MOST_ACCOUNTS) -> Steps[dict[str, Any]]:
        """Describe the queue.

        Arguments:
            most_accounts: how many accounts to look at, at most; 0 leaves them out.

        Returns a dict:

        - length: all messages; waiting: those that can be delivered; pending: those in hand;
          returned: those of the waiting that were given back; delayed: those whose time has not
          come; dead: messages that failed too often, which are not in the length;
        - oldest_waiting_seconds: for how long the next message of each account that was looked at
          has been in the queue, the longest; None if none waits;
        - delivered, redelivered, overdue, cancelled: as of `ShuffleQueue.stats`; lapsed: deliveries
          whose lease has ended;
        - pickup_delay_ms: the histogram of first deliveries, as of `ShuffleQueue.stats`;
        - consumers: name -> seen_seconds, for how long it has not been seen; the last 1,000;
        - accounts: name -> `AccountState`; exact: whether all were looked at; known_accounts,
          ready, limited, idle, rules: how many there are.

        Raises: ConfigurationError; LayoutError. One round trip, and one for each 100 accounts.
        """
        return self._describing_all(checked_count(most_accounts, "most_accounts", 0, 100_000))

    def _describing_all(self, most_accounts: int) -> Steps[dict[str, Any]]:
        tops = [f"{DELAY_PREFIX}{top}" for top in TOPS]
        reply = yield self._asking("stats", MOST_CONSUMERS, *COUNTERS, *tops)
        now, length, pending, returned, delayed, dead, known, ready, limited, idle, rules = reply[
            :11
        ]
        _, known_consumers, seen, counts = reply[11:]
        states = []
        if most_accounts:
            states = yield from self._describing(most_accounts)
        ages = [each.oldest_waiting_seconds for each in states if each.waiting]
        delays = zip(TOPS, counts[len(COUNTERS) :], strict=True)
        histogram = {top: count for top, count in delays if count}
        return {
            "length": length,
            "waiting": max(0, length - pending - delayed),
            "pending": pending,
            "returned": returned,
            "delayed": delayed,
            "dead": dead,
            "oldest_waiting_seconds": max((age for age in ages if age is not None), default=None),
            "delivered": sum(histogram.values()),
            **dict(zip(COUNTERS, counts[: len(COUNTERS)], strict=True)),
            "pickup_delay_ms": histogram,
            "consumers": {
                as_text(name): {"seen_seconds": max(0.0, (now - float(at)) / 1000)}
                for name, at in zip(seen[::2], seen[1::2], strict=True)
            },
            "known_consumers": known_consumers,
            "accounts": {each.account: each for each in states},
            "exact": len(states) >= known,
            "known_accounts": known,
            "ready": ready,
            "limited": limited,
            "idle": idle,
            "rules": rules,
        }
