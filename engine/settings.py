"""Environment variables that fanrank reads."""

from __future__ import annotations

import os
from types import ModuleType

from ..native import compiled

ENVIRONMENT_VARIABLE = "FANRANK_BACKEND"
"""The variable that names the backend to use."""


def compiled_loops() -> ModuleType | None:
    """The extension module; None where it was not built, or where the environment names numpy as the backend."""
    return None if os.environ.get(ENVIRONMENT_VARIABLE) == "numpy" else compiled
