"""A web site's activity, kept in a log: see README.md."""
