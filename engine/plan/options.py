"""How a search is run."""

from __future__ import annotations

EXECUTIONS = ("auto", "exhaustive", "pruned")
