"""A program: a Huey with Redis, its tasks, and a worker that may be killed.

Arguments: the URL of Redis; the name of the queue; "work": execute tasks for ever, or "enqueue N":
enqueue so many, revoke every second one, and print their ids as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import huey


def main(url: str, name: str, what: str, count: int) -> None:
    """Do what the arguments say."""
    queue = huey.RedisHuey(name, url=url)

    @queue.task()
    def double(number: int) -> int:
        time.sleep(0.002)
        return 2 * number

    if what == "enqueue":
        made = [double(number) for number in range(count)]
        for each in made[::2]:
            each.revoke(revoke_once=False)
        sys.stdout.write(json.dumps([each.id for each in made]))
        return
    while True:
        task = queue.dequeue()
        if task is not None:
            queue.execute(task)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
