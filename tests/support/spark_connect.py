"""A server of Spark Connect from the pip package, in a process of its own, on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from support import spark_jvms
from support.processes import end, free_port, spawn
from support.spark_cluster import START_SECONDS

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextlib.contextmanager
def connect_server(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Start a server, `local[2]`; it ends with the block.

    Arguments:
        folder: for its log and its files.
        environment: what its Python workers find beside this process's own.

    Yields: its address, as SPARK_REMOTE takes it.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    port = free_port()
    settings = {
        **spark_jvms.SETTINGS,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with (folder / "connect.log").open("wb") as log:
        server = spawn(
            [
                *(home / "bin" / "spark-submit", "--class", _CLASS, "--master", "local[2]"),
                *(each for pair in settings.items() for each in ("--conf", "=".join(pair))),
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                **environment,
            },
        )
    try:
        give_up = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            said = (folder / "connect.log").read_text(errors="replace")[-3_000:]
            assert server.poll() is None, said
            assert time.monotonic() < give_up, said
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(server, patience=20.0)
