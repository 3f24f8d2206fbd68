"""ShuffleQueue: a fair queue of many tenants over Redis streams."""
