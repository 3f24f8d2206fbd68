"""Shuffle queues: a queue of many tenants over Redis streams, served fairly."""
