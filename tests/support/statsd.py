"""A socket that receives StatsD's datagrams, and a stand-in of statsd_exporter."""

from __future__ import annotations

import re
import select
import socket
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

PATIENCE = 120.0
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels]


class Datagrams:
    """A socket that hooks may send to. Attribute: port."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # Thousands of packets may wait for their reader.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE)
        self.port: int = self._socket.getsockname()[1]

    def next(self) -> list[str]:
        """Wait for a packet; return its lines."""
        return self._socket.recv(65_536).decode("ascii").split("\n")

    def received(self) -> list[str]:
        """Return the lines of all packets that are there, in their order."""
        lines: list[str] = []
        while select.select([self._socket], [], [], 0.0)[0]:
            lines += self.next()
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    name: str
    labels: dict[str, str]
    scale: float = 1.0
    ttl: float | None = None
    buckets: tuple[float, ...] = ()

    def named(self, found: re.Match[str]) -> Sample:
        """Return the metric's name and labels for a StatsD name."""
        labels = {
            label: re.sub(r"\$(\d)", lambda group: found[int(group[1])], value)
            for label, value in self.labels.items()
        }
        return self.name, tuple(sorted(labels.items()))


@dataclass
class StatsDExporter:
    """A stand-in of statsd_exporter, as far as a mapping of globs needs it.

    Of several mappings that fit a name, the first one counts. A counter adds up, a gauge keeps its
    last value for the mapping's `ttl`, and a timing, which comes in milliseconds, is a histogram in
    seconds.

    Arguments:
        mapping: the file.
        now: the time in seconds, which the user moves.
    """

    mapping: Path
    now: float = 0.0
    samples: dict[Sample, float] = field(default_factory=dict)
    unmapped: set[str] = field(default_factory=set)
    _ends: dict[Sample, float] = field(default_factory=dict)
    _rules: list[_Rule] = field(default_factory=list)

    def __post_init__(self) -> None:
        for each in yaml.safe_load(self.mapping.read_text())["mappings"]:
            assert set(each) <= {
                *("match", "name", "labels", "scale", "ttl", "observer_type"),
                "histogram_options",
            }, each
            # In statsd_exporter's globs a star stands for one part between dots.
            pattern = re.escape(each["match"]).replace(r"\*", r"([^.]*)")
            rule = _Rule(re.compile(pattern), each["name"], each.get("labels", {}))
            rule.scale = each.get("scale", 1.0)
            if "ttl" in each:
                rule.ttl = float(each["ttl"][:-1]) * _SECONDS[each["ttl"][-1]]
            if each.get("observer_type") == "histogram":
                rule.buckets = tuple(each["histogram_options"]["buckets"])
            self._rules.append(rule)

    def receive(self, lines: list[str]) -> None:
        """Take the lines of packets in."""
        for line in lines:
            name, value, kind = re.fullmatch(r"([^:|]+):([^|]+)\|(c|g|ms)", line).groups()  # type: ignore[union-attr]
            for rule in self._rules:
                found = rule.pattern.fullmatch(name)
                if found is not None:
                    self._take(rule, rule.named(found), value, kind)
                    break
            else:
                self.unmapped.add(name)

    def _take(self, rule: _Rule, sample: Sample, value: str, kind: str) -> None:
        if kind == "ms":
            self._observe(rule, sample, float(value) / 1000)
            return
        number = float(value) * rule.scale
        # A sign makes a gauge's value a difference.
        adds = kind == "c" or value[0] in "+-"
        self.samples[sample] = self.samples.get(sample, 0.0) * adds + number
        if rule.ttl is not None:
            self._ends[sample] = self.now + rule.ttl

    def _observe(self, rule: _Rule, sample: Sample, seconds: float) -> None:
        name, labels = sample
        bounds = [(f"{each:g}", seconds <= each) for each in rule.buckets] + [("+Inf", True)]
        for bound, is_below in bounds:
            key = (f"{name}_bucket", tuple(sorted((*labels, ("le", bound)))))
            self.samples[key] = self.samples.get(key, 0.0) + is_below
        for suffix, amount in (("sum", seconds), ("count", 1.0)):
            key = (f"{name}_{suffix}", labels)
            self.samples[key] = self.samples.get(key, 0.0) + amount

    def scraped(self) -> dict[Sample, float]:
        """Return all samples as of now, without those whose time to live is over."""
        for sample, end in list(self._ends.items()):
            if end <= self.now:
                del self._ends[sample], self.samples[sample]
        return dict(self.samples)


def series(sample: Sample, **more: str) -> str:
    """Return a sample's name and labels in Prometheus' own way of writing."""
    name, labels = sample
    pairs = sorted({**dict(labels), **more}.items())
    return f"{name}{{{', '.join(f'{label}={quoted(value)}' for label, value in pairs)}}}"


def quoted(value: str) -> str:
    """Return a label's value in quotes."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def samples_in(text: str) -> dict[Sample, Any]:
    """Return the samples of an exposition in Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
