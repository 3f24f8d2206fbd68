"""The project's command; `runserver --noreload` serves it on a free port, or on PORT."""

from __future__ import annotations

import os
import socket
import sys

from django.core.management import execute_from_command_line


def free_port() -> int:
    """Return the number of a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    if sys.argv[1:] == ["runserver", "--noreload"]:
        where = f"127.0.0.1:{os.environ.get('PORT') or free_port()}"
        print(f"curl -i http://{where}/item/17     # X-Cache: miss, then hit", flush=True)
        print(f"curl http://{where}/figures        # who enlisted, who was recruited", flush=True)
        sys.argv.append(where)
    try:
        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.exit(130)
