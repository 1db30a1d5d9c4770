"""A better query vector from the first hits, without another encoder pass (the Test-Time Compute paper)."""
