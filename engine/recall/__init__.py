"""Recall: evidence from entities, times and conversations, and which of these a query needs."""
