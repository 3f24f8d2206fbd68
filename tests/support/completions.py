"""What a shell completes by the script that `workstealing completion` prints."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping
from pathlib import Path


def assert_completed(script: str, parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """See that the script knows these commands by their names, and all their options."""
    for name, parser in parsers.items():
        assert name in script
        for action in parser._actions:
            for option in action.option_strings:
                # fish names options without their dashes.
                assert option.lstrip("-") in script, (name, option)


def offered_by_bash(script: str, typed: tuple[str, ...], folder: Path) -> set[str]:
    """Return what bash offers for the last of the words that were typed.

    Arguments:
        script: for bash.
        typed: the words.
        folder: where a file may be written.
    """
    file = folder / "completion"
    file.write_text(script)
    words = " ".join(f"'{word}'" for word in typed)
    program = (
        f"source {file}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1};"
        f" _shtab_workstealing workstealing '{typed[-1]}'; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
