"""Every test of this folder runs over several segments in small tiles, which is counted in the launches themselves."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from support import borders

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of two full tiles and a part, and fan-outs that leave their padded shapes."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=75, INLINE_DOCUMENTS=75, BUILD_CHUNK=75)
    borders.shrink(monkeypatch, {"fanout.QUERIES": (2, 4)}, TERMS=(4, 16), WIDTHS=(4, 64))


@pytest.fixture(autouse=True)
def launched() -> Iterator[Any]:
    """What the test launches (`Launches`). It must have launched over several segments at once, if at all."""
    from support.device_cases import launches

    launches.begin()
    yield launches
    assert not launches.made or launches.most("segments") > 1, "all launches of this test had one segment"
