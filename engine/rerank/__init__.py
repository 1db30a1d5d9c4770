"""Rerankers: a second model that reorders the best of each list."""
