"""The command line where somebody looks on: one of its streams is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Literal

from support.processes import spawn


def on_terminal(
    *arguments: str,
    stream: Literal["stdout", "stderr"] = "stdout",
    columns: int = 140,
    folder: Path | None = None,
    status: int = 0,
) -> tuple[bytes, bytes]:
    """Run `workstealing` in a process of its own, which must end with a status.

    Arguments: the command's; stream: which one is a terminal; columns: how wide that is; folder:
    where it runs; status. Returns: what it drew on the terminal, and what came by the other stream.
    """
    leader, follower = pty.openpty()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: follower}
    process = spawn(
        [sys.executable, "-m", "workstealing", *arguments],
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"},
        cwd=folder,
        **streams,
    )
    os.close(follower)
    drawn = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        drawn += part
    os.close(leader)
    out, err = process.communicate()
    assert process.returncode == status, (drawn, out, err)
    return drawn, err if stream == "stdout" else out
