"""The three ways of docs/spark_install.md to bring the package to executors, as files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))


def wheel_in(folder: Path) -> Path:
    """Build the wheel, or take the one that is there."""
    subprocess.run(["bash", str(ROOT / "scripts" / "build_wheel.sh"), str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    """Put into a folder what `pip install --target` puts there: the package, and redis-py."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shutil.copytree(SITE / "redis", folder / "redis", ignore=shutil.ignore_patterns("__pycache__"))


def environment_in(folder: Path) -> Path:
    """Make a virtual environment without a package; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def packages_of(environment: Path) -> Path:
    """Return where an environment's packages live."""
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def zipped(folder: Path) -> Path:
    """Return a zip of a folder's contents, as --py-files takes it."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


def tarred(environment: Path) -> Path:
    """Return a tar of an environment, as spark.archives takes it."""
    archive = environment.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        for each in environment.iterdir():
            tar.add(each, arcname=each.name)
    return archive
