"""Listeners that carry the recruiter's counts to where they are watched."""
