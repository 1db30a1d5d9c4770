"""Options of a search that every backend takes."""

from __future__ import annotations

AUTO = "auto"

EXECUTIONS = (AUTO, "exhaustive", "pruned")
"""The values of `execution`."""
