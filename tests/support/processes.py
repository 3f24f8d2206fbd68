"""Free ports, a folder for the run, and children that cannot outlive the tests."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

RUN = os.environ.get("RUN_OF_WORKSTEALING_TESTS", "/tmp")
"""The folder of this run, which scripts/test.sh removes after it. Its path is short whatever TMPDIR
says, because a UNIX socket's has some hundred bytes at most."""

# Below the range from which the kernel takes the ports of outgoing connections, so that no client
# can sit on a port between our look and the server's bind; and independent of any seeded generator.
_PORTS = range(15_000, 32_000)
_RANDOM = random.SystemRandom()


def free_port() -> int:
    """Return a loopback port on which nobody listens just now.

    Another process may take it before the caller binds it: whoever starts a server tries again
    with another port.
    """
    while True:
        port = _RANDOM.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prepare_child() -> None:
    die_with_parent()
    # Where the tests run in the background of a script, they ignore it, and a child would, too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def spawn(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Start a child that the kernel kills when the thread that started it ends.

    Even a SIGKILL of the test process leaves no orphan then. Call it from a thread that lives as
    long as the child should. Arguments: the command, and any options of subprocess.Popen.
    """
    settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, **options}
    # preexec_fn is unsafe where it takes a lock that another thread may hold; prctl takes none.
    return subprocess.Popen(command, preexec_fn=_prepare_child, **settings)  # noqa: PLW1509


def end(process: subprocess.Popen[Any], patience: float = 5.0) -> None:
    """End exactly this child: SIGTERM, and SIGKILL after `patience` seconds; a dead one is fine."""
    if process.poll() is None:
        process.terminate()
        # A stopped process sees SIGTERM only once it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
