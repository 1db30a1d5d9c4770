"""What a planted fault is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """One piece of a file replaced by another."""

    name: str
    """What is wrong in the product once it is planted."""
    file: str
    """From the root of the checkout."""
    code: str
    """Stands there exactly once."""
    fault: str
    """In its place."""
    test: str
    """The test that must fail: arguments of pytest, parted by spaces."""
    thread_sanitizer: bool = False
    """Whether the test only fails on an extension that is built with it."""

    def reason(self, root: Path) -> str | None:
        """Why the fault cannot be planted in this checkout, or None."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} is not there"
        found = path.read_text(encoding="utf-8").count(self.code)
        if found != 1:
            return f"{self.file} holds its code {found} times: {self.code!r}"
        return None if self.fault != self.code else "it changes nothing"

    @property
    def builds(self) -> str | None:
        """What must be built once it is planted: "native", "cuda-host" or nothing."""
        if self.file.startswith("native/"):
            return "native"
        if self.file.startswith(("kernels/cuda/", "kernels/cuda_host/")) and not self.file.endswith(".py"):
            return "cuda-host"
        return None
