"""Logs with offsets that never change, on any Redis."""
