"""Documents, and a search index that follows them by Spark: the story of the dirty list, on tasks.

Run it from the checkout: `make pipeline`
"""
