"""Tiles that cannot reach the k best are skipped, and the k best of a row are those of a plain sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.cpu_fallback import prune
from fanrank.cpu_fallback.select import (
    CONTIGUOUS_GROUP,
    GROUPS_PER_K,
    MIN_GROUPS,
    NO_KEY,
    best_narrow,
    best_wide,
    select_candidates,
    unpack,
)
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


def plain(scores: np.ndarray, k: int, threshold: int) -> list[tuple[int, int]]:
    pairs = [(-int(score), column) for column, score in enumerate(scores) if score >= threshold]
    return [(column, -score) for score, column in sorted(pairs)[:k]]


def selected(scores: np.ndarray, k: int, thresholds: np.ndarray) -> list[list[tuple[int, int]]]:
    row, column, score = select_candidates(scores, k, thresholds)
    assert (np.diff(row) >= 0).all()
    keys = best_narrow(row, column, score, len(scores), k)
    best_scores, best_columns = unpack(keys)
    shuffled = np.random.default_rng(k).permutation(len(row))
    wide = best_wide(row[shuffled], column[shuffled], score[shuffled], len(scores), k)
    rows = [
        [(int(c), int(s)) for c, s, key in zip(best_columns[r], best_scores[r], keys[r], strict=True) if key != NO_KEY]
        for r in range(len(scores))
    ]
    assert rows == [
        [pair for pair in zip(columns.tolist(), values.tolist(), strict=True) if pair[0] >= 0]
        for columns, values in zip(*wide, strict=True)
    ]
    return rows


BORDER = MIN_GROUPS * CONTIGUOUS_GROUP


@pytest.mark.parametrize(
    ("width", "k"),
    [
        (1, 1),
        (100, 100),
        (101, 100),
        (2 * MIN_GROUPS - 1, 10),
        (2 * MIN_GROUPS, 10),
        (2 * MIN_GROUPS + 1, 10),
        (2 * GROUPS_PER_K * 1024, 1024),
        (5183, 1000),
        (BORDER - 1, 10),
        (BORDER, 10),
        (BORDER + 511, 64),
        (BORDER + 513, 65),
    ],
)
@pytest.mark.parametrize("largest", [1, 7, 2**31 - 1])
def test_every_layout(width: int, k: int, largest: int) -> None:
    rng = np.random.default_rng(width + k)
    scores = rng.integers(0, largest, (3, width), endpoint=True).astype(np.int32)
    scores[0, rng.random(width) < 0.9] = 0
    scores[2] = largest  # every document ties
    thresholds = np.array([1, 1, 1])
    assert selected(scores, k, thresholds) == [plain(row, k, 1) for row in scores]


@pytest.mark.parametrize("width", [2 * MIN_GROUPS + 1, 3 * MIN_GROUPS - 1, 5183, BORDER + 511])
@pytest.mark.parametrize("k", [1, 4, 10])
def test_few_scores_at_both_ends(width: int, k: int) -> None:
    """So few that only their groups are read again, and the columns beyond the last whole group."""
    scores = np.zeros((2, width), dtype=np.int32)
    scores[0, -3:] = [5, 9, 5]
    scores[1, [0, 1, -1]] = [3, 8, 8]
    assert selected(scores, k, np.array([1, 1])) == [plain(row, k, 1) for row in scores]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(-5, 5), min_size=12, max_size=12), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(-5, 5),
)
def test_signed_scores_and_floors(rows: list[list[int]], k: int, threshold: int) -> None:
    scores = np.array(rows, dtype=np.int32)
    assert selected(scores, k, np.full(len(rows), threshold)) == [plain(row, k, threshold) for row in scores]
