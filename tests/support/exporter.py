"""A real statsd_exporter, for as long as a test needs it."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path
from typing import Any

from support.processes import free_port, spawn
from support.statsd import Sample, samples_in

PATIENCE = 120.0


class Exporter:
    """A running statsd_exporter. Attributes: port, for StatsD by TCP and UDP; web, for scrapes."""

    def __init__(self, program: str, mapping: Path) -> None:
        self.port, self.web = free_port(), free_port()
        self.process = spawn(
            [
                program,
                f"--statsd.mapping-config={mapping}",
                f"--statsd.listen-udp=127.0.0.1:{self.port}",
                f"--statsd.listen-tcp=127.0.0.1:{self.port}",
                f"--web.listen-address=127.0.0.1:{self.web}",
                "--log.level=error",
            ]
        )
        self._until(lambda: bool(self.text()))

    def text(self) -> str:
        """Return what a scrape shows, nothing while nobody answers."""
        try:
            url = f"http://127.0.0.1:{self.web}/metrics"
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    def samples(self) -> dict[Sample, float]:
        """Return our own samples."""
        found = samples_in(self.text())
        return {each: value for each, value in found.items() if each[0].startswith("workstealing")}

    def becomes(self, expected: Any) -> bool:
        """Wait until a look at the samples is true."""
        return self._until(lambda: bool(expected(self.samples())))

    def _until(self, look: Any) -> bool:
        until = time.monotonic() + PATIENCE
        while not look():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True
