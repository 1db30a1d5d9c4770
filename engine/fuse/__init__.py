"""Rank lists to one list, one method a file."""
