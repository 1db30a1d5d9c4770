"""Environment variables that fanrank reads."""

from __future__ import annotations

import os
from types import ModuleType

from .. import native

ENVIRONMENT_VARIABLE = "FANRANK_BACKEND"
"""The variable that names the backend to use."""
PROFILE_VARIABLE = "FANRANK_PROFILE"
"""The variable that names the profile of new engines that name none."""
KEY_VARIABLE = "FANRANK_KEY"
"""The variable that holds the key for a server, where the command line names one by its address."""
WORKER_VARIABLE = "FANRANK_WORKER"
"""The variable in which `fanrank serve --workers` tells a process what it serves. Nobody else sets it."""


def compiled_loops() -> ModuleType | None:
    """The extension module, or None where it was not built or the numpy backend is asked for."""
    return None if os.environ.get(ENVIRONMENT_VARIABLE) == "numpy" else native.compiled
