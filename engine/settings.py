"""Environment variables that fanrank reads."""

from __future__ import annotations

ENVIRONMENT_VARIABLE = "FANRANK_BACKEND"
"""The variable that names the backend to use."""
