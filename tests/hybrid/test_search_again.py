"""Feedback with a second search: the moved query finds records that the first pool left out (E012)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.arrays import Floats, Integers
from fanrank.engine.errors import ParameterError
from fanrank.engine.hybrid.evidence import EvidenceCollector
from fanrank.engine.hybrid.strategy import STRATEGIES, Dense, Strategy
from fanrank.engine.vectors.vectors import Halves, unit_rows

DIMENSION = 16
AGAIN = {name: replace(STRATEGIES[name], search_again=True) for name in ("softcentroid", "softcentroid-fused")}


def engine_on(backend: str, size: int = 400, seed: int = 7) -> fr.Engine:
    try:
        engine = fr.Engine(backend=backend, encoder=fr.OwnVectors(DIMENSION))
    except fr.errors.BackendUnavailableError as error:
        pytest.skip(str(error))
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(["tea", "river", "deploy", "invoice"], 2)) for _ in range(size)]
    rows = draw.normal(size=(size, DIMENSION))
    records = [fr.Record(f"r{n}", text, embedding=row) for n, (text, row) in enumerate(zip(texts, rows, strict=True))]
    for start in range(0, size, 150):
        engine.add(records[start : start + 150])
    return engine


def queries(count: int = 12) -> list[fr.Query]:
    rows = np.random.default_rng(3).normal(size=(count, DIMENSION))
    return [fr.Query("tea river", vector=row) for row in rows]


def test_records_outside_the_first_pool_are_found() -> None:
    engine = engine_on("numpy")
    narrow = replace(STRATEGIES["softcentroid"], depth=10)
    again = replace(narrow, search_again=True)
    everything = replace(narrow, depth=None)
    first, second, wanted = (engine.search(queries(), k=10, strategy=one) for one in (narrow, again, everything))
    # With a single channel a second search gives what scoring all records again gives.
    assert second.ids.tolist() == wanted.ids.tolist()
    assert (second.scores == wanted.scores).all()
    pool = engine.search(queries(), k=10, strategy="dense")
    assert [set(row) for row in first.ids] == [set(row) for row in pool.ids]
    assert sum(len(set(row) - set(own)) for row, own in zip(second.ids, pool.ids, strict=True)) > 12


def test_the_answer_is_that_of_the_moved_vector_without_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on("numpy")
    searched: list[Halves] = []
    search = EvidenceCollector.search_dense

    def spy(self: EvidenceCollector, channel: Dense, vectors: Halves) -> tuple[Floats, Integers]:
        searched.append(vectors.copy())
        return search(self, channel, vectors)

    monkeypatch.setattr(EvidenceCollector, "search_dense", spy)
    strategy = replace(STRATEGIES["softcentroid-fused"], depth=10, search_again=True)
    hits = engine.search(queries(), k=8, strategy=strategy)
    own, moved = searched
    assert (own != moved).any(axis=1).all()
    # Normalising a rounded vector once more changes the last bit of a few.
    same = [row for row in range(len(moved)) if (unit_rows(moved[row]) == moved[row]).all()]
    assert len(same) > 6
    again = engine.search(
        [replace(queries()[row], vector=moved[row]) for row in same],
        k=8,
        strategy=replace(STRATEGIES["minmax"], depth=10),
    )
    assert hits.ids[same].tolist() == again.ids.tolist()
    assert (hits.scores[same] == again.scores).all()


def test_it_asks_each_channel_no_more_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are searched once and vectors twice, each time all queries together."""
    engine = engine_on("numpy")
    verbs = engine.backend.dense()
    sizes: list[int] = []
    best = verbs.best
    monkeypatch.setattr(verbs, "best", lambda *own, **how: sizes.append(len(own[0])) or best(*own, **how))
    served: list[int] = []
    search = type(engine.backend).serve
    monkeypatch.setattr(type(engine.backend), "serve", lambda *own, **how: served.append(own[2]) or search(*own, **how))
    engine.search(queries(), k=5, strategy=AGAIN["softcentroid-fused"])
    assert (sizes, served) == ([12, 12], [12])


def test_what_is_refused() -> None:
    with pytest.raises(ParameterError, match="search_again needs feedback"):
        Strategy("again", search_again=True)
    with pytest.raises(ParameterError, match="search_again must be true or false"):
        replace(STRATEGIES["softcentroid"], search_again=1)  # type: ignore[arg-type]
