"""What tests need of work stealing: certain recruiters, a clock to set, hooks that remember.

Chance made certain, in a test of your own:

    from workstealing.testing import always

    recruiter = always()
    recruiter.install(my_job, rate=0.003)
    assert recruiter.enlist() is Outcome.WORKED    # every enlist is recruited

and for a recruiter that your application holds already:

    from workstealing.testing import always_recruiting, never_recruiting

    with always_recruiting(app.recruiter):
        client.get("/item/17")
    assert app.recruiter.stats()["jobs"]["my job"]["recruited"] == 1

Both are real recruiters with a scripted random: rates, pauses, breakers, the single flight and the
counts are those of production. For pytest there are fixtures:

    pytest_plugins = ["workstealing.testing.pytest_plugin"]
"""

from __future__ import annotations

from workstealing.testing.clocks import ManualClock
from workstealing.testing.hooks import OutcomeEvent, RecordingHooks
from workstealing.testing.recruiters import always, always_recruiting, never, never_recruiting

__all__ = [
    "ManualClock",
    "OutcomeEvent",
    "RecordingHooks",
    "always",
    "always_recruiting",
    "never",
    "never_recruiting",
]
