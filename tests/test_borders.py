"""A border is set wherever it is held, or not at all."""

from __future__ import annotations

import pytest
from support import borders

from fanrank.cpu_fallback import prune
from fanrank.engine.index import contributions, snapshot
from fanrank.engine.storage import storage


def test_a_border_is_set_wherever_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot.MAX_SEGMENT_DOCUMENTS, contributions.TILE_BITS, prune.TILE
    with monkeypatch.context() as patch:
        borders.shrink(patch, MAX_SEGMENT_DOCUMENTS=7, TILE_BITS=3)
        assert (snapshot.MAX_SEGMENT_DOCUMENTS, storage.MAX_SEGMENT_DOCUMENTS) == (7, 7)
        assert (contributions.TILE_BITS, prune.TILE_BITS, prune.TILE) == (3, 3, 8)
        assert borders.value("TILE_BITS") == 3
    assert before == (storage.MAX_SEGMENT_DOCUMENTS, prune.TILE_BITS, prune.TILE)
    for name, words in (("NOT_THERE", "no module"), ("QUERIES", "cpu_fallback.dense"), ("MAX_BATCH", "once, when")):
        with pytest.raises(LookupError, match=words):
            borders.shrink(monkeypatch, {name: 1})
