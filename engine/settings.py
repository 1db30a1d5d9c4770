"""Environment variables that fanrank reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


ENVIRONMENT_VARIABLE = "FANRANK_BACKEND"
