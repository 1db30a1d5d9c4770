"""Options of a search that every backend takes."""

from __future__ import annotations

EXECUTIONS = ("auto", "exhaustive", "pruned")
"""The values of `execution`."""
