"""Steps of an operation, run one at a time, for tests that stop between two."""

from __future__ import annotations

from typing import Any

from workstealing.store.operations import Steps, drive


def send(client: Any, step: Any) -> Any:
    """Run one step on a blocking client; return its reply."""

    def one() -> Steps[Any]:
        return (yield step)

    return drive(client, one())
