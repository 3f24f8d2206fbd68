"""Helpers that the tests share; import them as `support`, never as `tests.support`."""
