"""An example, run as its README says it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120
# On a busy machine a recruit may run out of time, and says so.
_BUSY = re.compile(
    r"(?m)^job '[\w.:]+'(?: failed: TimeoutError: .*|: its slice of .* was over .*)\n"
)


def run_by_readme(folder: Path, *arguments: str, **environment: str) -> str:
    """Run the one command of an example's README, which must succeed without a complaint.

    Arguments: the example's folder; more arguments for its command, and more variables of its
    environment. Returns what it printed.
    """
    (command,) = re.findall(
        r"^    \.venv/bin/python (\S+)$", (folder / "README.md").read_text(), re.M
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "-P", command, *arguments],
        cwd=EXAMPLES.parent,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not _BUSY.sub("", done.stderr)
    return done.stdout


def refusal_of(program: Path, *arguments: str) -> str:
    """Run an example's program with what it cannot use; return the only thing that it says."""
    done = subprocess.run(
        [sys.executable, "-P", program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr
