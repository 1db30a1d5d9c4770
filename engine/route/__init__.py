"""Routing: decides for each query which strategy answers it, and whether BM25 alone is enough."""
