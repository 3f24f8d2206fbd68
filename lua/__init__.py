"""Lua scripts, one per operation; ``README.md`` is the catalogue of every key."""
