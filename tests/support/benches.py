"""Modules of the bench, which no installed package holds."""

import importlib
import sys
from typing import Any

from .source import ROOT


def load(*names: str) -> list[Any]:
    """The modules of these names below `bench`."""
    # Only while importing, and last: the root holds folders named like other people's packages.
    sys.path.append(str(ROOT))
    try:
        return [importlib.import_module(f"bench.{name}") for name in names]
    finally:
        sys.path.remove(str(ROOT))
