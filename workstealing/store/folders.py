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
# Where the temporary folder's own path is too long for what is to lie in it.
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - only for folders of this user alone
_RANDOM_LETTERS = 8


def make_folder(prefix: str, longest: int | None = None) -> tuple[str, int]:
    """Make a folder in a temporary folder, for this user alone, and lock it.

    Arguments: prefix: of its name, for `remove_abandoned`; longest: how many bytes its path may
    have, for which another temporary folder is taken than the user's if need be. Returns: the
    path, and the descriptor that holds the lock: a child that is to hold it too inherits it.
    Errors: OSError, also where no temporary folder's path is short enough.
    """
    parent = _parent(prefix, longest)
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
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


def _parent(prefix: str, longest: int | None) -> str:
    """Return the temporary folder in which the path of a new one is no longer than it may be."""
    usual = tempfile.gettempdir()
    for parent in (usual, *_SHORT):
        size = len(os.fsencode(os.path.join(parent, prefix))) + _RANDOM_LETTERS  # noqa: PTH118
        if longest is not None and size > longest:
            continue
        if parent == usual or _is_shared_safely(parent):
            return parent
    raise OSError(
        f"the temporary folder's path has {len(os.fsencode(usual))} bytes, which is too long for a"
        " UNIX socket in it: set TMPDIR to a shorter one"
    )


def _is_shared_safely(path: str) -> bool:
    """Say whether this user may make folders there that no other user can replace."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    is_sticky = bool(mode & stat.S_ISVTX) or not mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(mode) and is_sticky and os.access(path, os.W_OK | os.X_OK)


def remove_folder(path: str, lock: int) -> None:
    """Remove what `make_folder` made, and close its lock; to be called once."""
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str, most: int = MOST_FOLDERS) -> int:
    """Remove folders of this user's in the temporary folders that nobody uses any more.

    Arguments: prefix: that they were made with; most: how many to look at; they are drawn at
    random, so that none stays hidden behind others. Returns: how many it removed. Raises nothing:
    what cannot be removed stays.
    """
    removed = 0
    found: list[Path] = []
    for folder in dict.fromkeys((tempfile.gettempdir(), *_SHORT)):
        with contextlib.suppress(OSError):
            found += [path for path in Path(folder).iterdir() if path.name.startswith(prefix)]
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
