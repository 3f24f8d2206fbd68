"""Simulate a fleet whose garbage grows in one step, and remove it by different means.

    python benchmarks/simulate.py --traffic 800/s --garbage 120/s --grows 10

The means are an adaptive rate, fixed rates, a sweep each minute from cron or Celery beat,
Redisson's rule, and Redis 8's own field expiry. The same seed gives the same figures. The program
connects to nothing. docs/adaptive.md says what each of them assumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simulation import Run, Scenario, compare, picture, summaries
from workstealing.cli.arguments import Parser, at_least, duration, frequency, number, rate, whole
from workstealing.cli.output import add_json_option, figure, note, print_json, say, table
from workstealing.clock import spell
from workstealing.errors import ConfigurationError

_HEADINGS = (
    "means",
    "mean garbage",
    "worst lag",
    "under target after",
    "operations/s",
    "share of traffic's",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns: the exit status, 0, or 2 after one sentence on stderr."""
    try:
        return _run(_parser().parse_args(argv))
    except SystemExit as done:
        # The parser has printed the help or a sentence.
        return done.code if isinstance(done.code, int) else 2
    except ConfigurationError as error:
        note(f"simulate: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="simulate", description=__doc__, allow_abbrev=False)
    several = at_least(1, "processes")
    parser.add_argument(
        "--processes",
        type=several,
        default=8,
        metavar="N",
        help="how many processes share the traffic (default: %(default)s)",
    )
    parser.add_argument(
        "--traffic",
        type=frequency,
        default=800.0,
        metavar="N/s",
        help="callers who enlist, of all processes together (default: 800/s)",
    )
    parser.add_argument(
        "--garbage",
        type=frequency,
        default=120.0,
        metavar="N/s",
        help="items that become garbage before the step (default: 120/s)",
    )
    parser.add_argument(
        "--grows",
        type=number,
        default=10.0,
        metavar="X",
        help="so many times as much garbage comes from the step on (default: 10)",
    )
    parser.add_argument(
        "--slice",
        type=at_least(1, "items"),
        default=25,
        metavar="ITEMS",
        help="the most items of a slice, the job's limit (default: %(default)s)",
    )
    parser.add_argument(
        "--lag",
        type=duration,
        default=60.0,
        metavar="S",
        help="within how long garbage is to be removed (default: 60s)",
    )
    parser.add_argument(
        "--floor",
        type=rate,
        default=0.00001,
        metavar="R",
        help="the adaptive rate's lowest (default: %(default)g)",
    )
    parser.add_argument(
        "--ceiling",
        type=rate,
        default=0.1,
        metavar="R",
        help="the adaptive rate's highest (default: %(default)g)",
    )
    parser.add_argument(
        "--time",
        type=duration,
        default=3600.0,
        metavar="S",
        help="how long is simulated; the step comes after a third of it (default: 1h)",
    )
    parser.add_argument(
        "--seed", type=whole, default=1, help="of all that is random (default: %(default)s)"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw ages and operations by time into this file"
    )
    add_json_option(parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    seconds = round(options.time)
    scenario = Scenario(
        processes=options.processes,
        traffic=options.traffic,
        garbage=(options.garbage, options.garbage * options.grows),
        step=seconds // 3,
        seconds=seconds,
        limit=options.slice,
        lag=options.lag,
        floor=options.floor,
        ceiling=options.ceiling,
        seed=options.seed,
    )
    runs = compare(scenario, progress=_progress if sys.stderr.isatty() else None)
    if options.svg is not None:
        try:
            options.svg.write_text(picture(runs), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--svg cannot be written: {error}") from None
        note(f"drawn into {options.svg}")
    if options.json:
        print_json(summaries(runs))
    else:
        say(_text(runs))
    return 0


def _progress(name: str) -> None:
    note(f"simulating: {name}")


def _text(runs: Sequence[Run]) -> str:
    scenario = runs[0].scenario
    rows = []
    for each in runs:
        found = each.summary()
        back = found["back_under_lag_after"]
        rows.append(
            (
                each.name,
                figure(found["mean_garbage"]),
                spell(found["worst_lag"]),
                "never" if back is None else spell(back) if back else "always under",
                figure(found["operations_per_second"]),
                f"{found['share_of_traffic']:.3%}",
            )
        )
    before, after = scenario.garbage
    return "\n".join(
        (
            (
                f"{scenario.processes} processes, {figure(scenario.traffic)} enlists/s; garbage"
                f" {figure(before)} items/s, {figure(after)} from {spell(scenario.step)} on, until"
                f" {spell(scenario.seconds)}; lag target {spell(scenario.lag)}"
            ),
            "",
            table(_HEADINGS, rows),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
