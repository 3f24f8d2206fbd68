"""Abandoned temporary folders are removed by other processes, and used ones never are."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workstealing.store.embedded import make_folder, remove_abandoned, remove_folder

PREFIX = "workstealing-of-a-test-"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def used() -> Iterator[Path]:
    """A folder that is in use."""
    path, lock = make_folder(PREFIX)
    yield Path(path)
    remove_folder(path, lock)


def abandon() -> Path:
    """Make a folder with something in it, as a process that was killed leaves it."""
    path, lock = make_folder(PREFIX)
    (Path(path) / "server.log").write_text("text")
    os.close(lock)
    return Path(path)


def test_only_abandoned_folders_are_removed(used: Path) -> None:
    path = abandon()
    assert remove_abandoned(PREFIX) == 1
    assert not path.exists()
    assert used.exists()


def test_a_folder_is_in_use_as_long_as_a_copy_of_its_lock_is_open() -> None:
    path, lock = make_folder(PREFIX)
    copy = os.dup(lock)
    os.close(lock)
    assert remove_abandoned(PREFIX) == 0
    os.close(copy)
    assert remove_abandoned(PREFIX) == 1
    assert not Path(path).exists()


def test_what_is_not_ours_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "file").write_text("text")
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}file").write_text("text")
    (temporary / f"{PREFIX}open").mkdir(mode=0o755)
    assert remove_abandoned(PREFIX) == 0
    path = abandon()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert remove_abandoned(PREFIX) == 0
    assert (elsewhere / "file").exists()
    assert len(list(temporary.glob(f"{PREFIX}*"))) == 4


def test_a_start_looks_at_so_many_and_the_next_one_finds_the_rest() -> None:
    for _ in range(7):
        abandon()
    assert remove_abandoned(PREFIX, most=5) == 5
    assert remove_abandoned(PREFIX, most=5) == 2


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def making(**options: str) -> str:
        made.append(mkdtemp(**options))
        if len(made) == 1:
            assert remove_abandoned(PREFIX) == 1
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", making)
    path, lock = make_folder(PREFIX)
    assert made[1:] == [path]
    assert Path(path).exists()
    remove_folder(path, lock)


def test_a_folder_that_is_being_removed_while_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    flock = fcntl.flock

    def locking(lock: int, operation: int) -> None:
        opened.append(str(Path(f"/proc/self/fd/{lock}").readlink()))
        if len(opened) == 1:
            # This acts as if all of `remove_abandoned` had happened between open and lock.
            shutil.rmtree(opened[0])
        if len(opened) == 2:
            # Here it happens in the middle.
            raise BlockingIOError(errno.EAGAIN, "somebody has the lock")
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", locking)
    path, lock = make_folder(PREFIX)
    assert opened[2:] == [path]
    assert Path(path).exists()
    remove_folder(path, lock)
    shutil.rmtree(opened[1])


def test_where_there_are_no_locks_nothing_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EBADF, "no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", refused)
    path, lock = make_folder(PREFIX)
    os.close(lock)
    assert remove_abandoned(PREFIX) == 0
    assert Path(path).exists()


def test_a_temporary_folder_that_cannot_be_read_is_no_error(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    assert remove_abandoned(PREFIX) == 0
