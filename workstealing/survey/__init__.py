"""Surveys: whose keys fill a Redis, what of it is garbage, how sure that is, and what removes it.

`workstealing survey` runs one. It reads only.
"""

from workstealing.survey.report import report_of
from workstealing.survey.surveying import Progress, Survey

__all__ = ["Progress", "Survey", "report_of"]
