"""The demo: one web app, its traffic, and how much garbage its fast exits collect."""

from workstealing.cli.demo.arguments import DESCRIPTION, EPILOG, add_arguments
from workstealing.cli.demo.run import run

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]
