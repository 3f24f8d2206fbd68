"""Where frameworks meet the recruiter; one file each, which needs that framework alone."""
