"""Loops in C++, compiled when the package is built. Without them, numpy and plain Python give the same answers.

`compiled` is the extension module, or None where it was not built; `reason` says why, or what it is. The C++ files know
nothing of Python, except for the ``*_binding.cpp`` files, `python.hpp` and `module.cpp`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

compiled: ModuleType | None
reason: str

try:
    compiled = importlib.import_module(f"{__name__}._compiled")
    reason = "compiled loops on the CPU"
except ImportError as error:
    compiled = None
    reason = (
        f"the extension was not built ({error}); install a C++20 compiler, such as g++ 11 or clang 14, "
        "then run: pip install --no-cache-dir --force-reinstall --no-deps fanrank"
    )
