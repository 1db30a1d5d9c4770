"""A better query vector from the first hits, without another encoder pass (seed 004)."""
