"""The job that takes over the hashes of another program."""

from workstealing.jobs.adopt_hashes.job import AdoptHashes
from workstealing.jobs.adopt_hashes.walk import AdoptionExample, AdoptionReport

__all__ = ["AdoptHashes", "AdoptionExample", "AdoptionReport"]
