"""Contributions are derived once an epoch, and a namespace without a term has counts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support import borders

import fanrank as fr

TERMS = [f"t{n}" for n in range(9)]


def test_lists_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine(backend="numpy")
    rng = random.Random(1)
    texts = [rng.choices(TERMS, weights=[2.0**-n for n in range(9)], k=rng.randrange(7)) for _ in range(40)]
    engine.add([fr.Record(str(n), " ".join(text)) for n, text in enumerate(texts)])
    counted: list[int] = []
    plain = fr.BM25.quanta

    def counting(self: fr.BM25, saturated: np.ndarray, idf: np.ndarray) -> np.ndarray:
        counted.append(len(saturated))
        return plain(self, saturated, idf)

    monkeypatch.setattr(fr.BM25, "quanta", counting)
    engine.search(["t0 t1", "t1"])
    once = sum(counted)
    assert once > 0
    engine.search(["t1", "t0"])
    assert sum(counted) == once
    engine.search(["t2"])
    assert sum(counted) > once
    counted.clear()
    engine.add([fr.Record("new", "t0")])  # a new epoch: N and every idf changed
    engine.search(["t0 t1"])
    assert sum(counted) >= once


def test_a_large_namespace_without_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are an empty array, and a term of another namespace may be asked for."""
    borders.shrink(monkeypatch, COUNTED_DOCUMENTS=1)
    engine = fr.Engine.from_records([fr.Record("1", ""), fr.Record("2", "?!")])
    snapshot = engine.index.memory.snapshot("")
    assert snapshot.counts is not None
    assert snapshot.document_frequencies(np.array([0, 7], dtype=np.int32)).tolist() == [0, 0]
