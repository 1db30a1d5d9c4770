"""One memory over several shards: the same answers, bit for bit, as one engine that holds all records."""
