"""Deciding per query: which strategy answers it, and whether words alone are enough."""
