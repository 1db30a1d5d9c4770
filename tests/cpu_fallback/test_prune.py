"""Tiles that cannot reach the k best are skipped, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.cpu_fallback import prune
from fanrank.engine.check.oracle import Oracle


class Scored:
    """What the pruned path scored: in each call, how many of the segment's tiles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int]] = []
        plain: Any = prune._score_tiles

        def watched(part: Any, lists: Any, chosen: np.ndarray, tiles: int, *rest: Any) -> Any:
            self.calls.append((len(chosen), tiles))
            return plain(part, lists, chosen, tiles, *rest)

        monkeypatch.setattr(prune, "_score_tiles", watched)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Scored:
    return Scored(monkeypatch)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of four documents, two of them scored first."""
    borders.shrink(monkeypatch, TILE_BITS=2, MIN_TILES=2)


def build(documents: list[list[str]], **options: Any) -> fr.Engine:
    records = [fr.Record(f"r{number}", " ".join(terms)) for number, terms in enumerate(documents)]
    return fr.Engine.from_records(records, analyzer="minimal", backend="numpy", **options)


def pruned(engine: fr.Engine, query: Any, k: int) -> list[tuple[int, int]]:
    """A query asked alone, so that it is its tiles that are pruned."""
    hits = engine.search([query], k, execution="pruned")
    quanta = np.rint(hits.scores[0, : hits.counts[0]] * 2**18).astype(int)
    return list(zip(hits.documents[0, : hits.counts[0]].tolist(), quanta.tolist(), strict=True))


def test_hopeless_tiles_are_skipped(scored: Scored) -> None:
    size = 20_000
    needles = [5, 63, 64, 127, 128, 9_999, 10_048, 15_000, 19_967, 19_968, 19_999]
    engine = build([["hay", "needle" if number in needles else f"x{number % 50}"] for number in range(size)])
    expected = list(engine.search(["hay needle"], 11, execution="exhaustive"))
    assert not scored.calls
    hits = engine.search(["hay needle"], 11, execution="pruned")
    assert hits.documents[0].tolist() == needles
    assert list(hits) == expected
    tiles = -(-size // 64)
    assert {total for _, total in scored.calls} == {tiles}
    assert len(needles) - 3 <= sum(chosen for chosen, _ in scored.calls) < tiles // 4


@pytest.mark.parametrize("k", [1, 2, 10, 200])
def test_older_documents_win_ties_whatever_tile_is_scored_first(k: int, scored: Scored) -> None:
    engine = build([["a1"]] * 3000)
    assert [document for document, _ in pruned(engine, "a1", k)] == list(range(k))
    assert len(scored.calls) == (2 if 2 * k < 47 else 1)


@pytest.mark.usefixtures("small_tiles")
def test_a_repeated_term_bounds_its_tile_as_often() -> None:
    """Without that the tile of "needle" is left out: two other terms together weigh more than it does once."""
    held = [["x", f"y{number}"] for number in range(48)]
    held[21] = ["needle", "x"]
    for number in (3, 30, 44):
        held[number] = ["c3", "d4"]
    query = ["needle"] * 5 + ["c3", "d4"]
    plain = Oracle([[terms] for terms in held])
    assert plain.search(["needle"], 1)[0][1] < plain.search(["c3", "d4"], 1)[0][1]
    assert pruned(build(held), tuple(query), 1) == plain.search(query, 1) != plain.search(["c3", "d4"], 1)
