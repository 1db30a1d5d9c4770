"""How many of fanrank's own functions are called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import fanrank as fr

OWN = str(Path(fr.__file__).parent)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts, as ``own``, the calls of fanrank's functions in this thread."""
    counts = Counter({"own": 0})

    def note(frame: FrameType, event: str, argument: object) -> None:
        counts["own"] += event == "call" and frame.f_code.co_filename.startswith(OWN)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(before)
