"""Feedback: the first hits improve the query vector without another encoder pass (the Test-Time Compute paper)."""
