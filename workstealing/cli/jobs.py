"""`workstealing jobs`: the jobs of a recruiter."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from workstealing.cli.clients import add_app_option, load_app
from workstealing.cli.output import add_json_option, print_json, say, table
from workstealing.recruiting import FunctionJob, Job
from workstealing.recruiting.job import DivisibleJob

DESCRIPTION = "List the jobs that a recruiter has installed. The command performs none of them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_app_option(parser)
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """List the jobs. Returns: 0. Raises: ConfigurationError."""
    recruiter = load_app(options.app)
    figures = recruiter.stats()["jobs"]
    jobs = [_facts(job, figures[name]) for name, job in recruiter.jobs().items()]
    if options.json:
        print_json({"jobs": jobs, "rates_together": sum(each["rate"] for each in jobs)})
    elif not jobs:
        say("no job is installed")
    else:
        say(
            table(
                ("job", "kind", "what it does", "rate", "limit"),
                [
                    (
                        each["name"],
                        each["kind"],
                        each["summary"] or "",
                        f"{each['rate']:.4g}"
                        + (" adaptive" if each["adaptive"] else "")
                        + (" dry run" if each["dry_run"] else ""),
                        f"{each['limit']:,} {each['unit']}",
                    )
                    for each in jobs
                ],
                left=3,
            )
        )
    return 0


def _facts(job: Job, figures: Any) -> dict[str, Any]:
    what = getattr(job, "_function", None) if isinstance(job, FunctionJob) else type(job)
    return {
        "name": job.name,
        "kind": type(job).__name__,
        "summary": _first_sentence(inspect.getdoc(what)),
        "rate": figures["rate"],
        "adaptive": figures["adaptive"],
        "limit": figures["limit"],
        "unit": job.unit,
        "paused": figures["paused"],
        "dry_run": job.dry_run,
        "backlog": job.tells_backlog,
        "divisible": isinstance(job, DivisibleJob),
    }


def _first_sentence(text: str | None) -> str | None:
    return (
        None if not text else " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    )
