"""Temporary folders that somebody finds, whoever was killed while using them.

A folder is locked (flock) by all who use it: the process that made it, what it has forked, and the
child that its lock is handed to. The kernel gives the lock up with the last of them, however it
ended, so a folder that can be locked is nobody's. Where a file system has no such locks, nothing is
removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import stat
import tempfile
from pathlib import Path

MOST_FOLDERS = 100


def make_folder(prefix: str) -> tuple[str, int]:
    """Make a folder in the temporary folder, for this user alone, and lock it.

    Arguments: prefix: of its name, for `remove_abandoned`. Returns: the path, and the descriptor
    that holds the lock: a child that is to hold it too inherits it. Errors: OSError.
    """
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        # Before it is locked, somebody may take it for an abandoned one: then another is made.
        with contextlib.suppress(FileNotFoundError):
            lock = _open(path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:
                # No locks here, for nobody.
                return path, lock
            if _is_at(path, lock):
                return path, lock
            os.close(lock)


def remove_folder(path: str, lock: int) -> None:
    """Remove what `make_folder` made, and close its lock; to be called once."""
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str, most: int = MOST_FOLDERS) -> int:
    """Remove folders of this user's in the temporary folder that nobody uses any more.

    Arguments: prefix: that they were made with; most: how many to look at; they are drawn at
    random, so that none stays hidden behind others. Returns: how many it removed. Raises nothing:
    what cannot be removed stays.
    """
    removed = 0
    with contextlib.suppress(OSError):
        folder = Path(tempfile.gettempdir())
        found = [path for path in folder.iterdir() if path.name.startswith(prefix)]
        for path in random.sample(found, min(most, len(found))):
            with contextlib.suppress(OSError):
                removed += _remove_unused(str(path))
    return removed


def _remove_unused(path: str) -> bool:
    lock = _open(path)
    try:
        facts = os.fstat(lock)
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) != stat.S_IRWXU:
            # Not as we make them.
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, lock):
            return False
        shutil.rmtree(path)
        return True
    finally:
        os.close(lock)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(path: str, lock: int) -> bool:
    """Say whether an open folder is still what stands at a path."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(lock))
