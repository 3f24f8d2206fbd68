"""Surveys: whose keys fill a Redis, how much is garbage, and how sure that is.

`workstealing survey` runs one. It reads only.
"""

from workstealing.survey.report import report_of
from workstealing.survey.surveying import Progress, Survey

__all__ = ["Progress", "Survey", "report_of"]
