"""The Python blocks of docs/fair_queue.md run in order."""

from __future__ import annotations

import threading
import time

from support.pages import running
from support.servers import RedisServer


def test_the_blocks(redis7: RedisServer) -> None:
    here = {"redis://localhost:6379/0": redis7.url}
    with running("docs/fair_queue.md", replace=here) as page:
        names = page.run()
        queue = names["queue"]
        assert names["served"][-1].tenant == "alice"
        assert set(names["recruiter"].stats()["jobs"]) == {
            "fair_queue_reaper.renderings",
            "queue_expiry.fair_queues",
        }
        page.run()
        assert queue.explain_wait("bulk importer").state.weight == 0.5
        names = page.run_rest()
    worker = threading.Thread(target=names["work"], args=("worker 2",))
    worker.start()
    while queue.length():
        time.sleep(0.01)
    names["stop"].set()
    worker.join()
    assert queue.stats()["lapsed"] == 0
