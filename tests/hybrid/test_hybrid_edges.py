"""Hybrid retrieval where something is missing, gone, huge or wrong."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.hybrid.strategy import NAMED

OWN = fr.OwnVectors(2)


CHECKED = fr.strategies.CheckedReranker(lambda pairs: [-float(len(text)) for _, text in pairs], unchecked=True)


def test_a_record_deleted_meanwhile_stands_behind_the_reranked(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", encoder=OWN) as writer:
        writer.add([fr.Record(name, f"tea {name}", embedding=[1, 0]) for name in ("xxxx", "y", "zz")])
        reader = fr.Engine.open(tmp_path / "m", read_only=True)
        writer.delete(["y"])
        hits = reader.search(["tea"], reranker=CHECKED)
        assert [name for name, _ in hits[0]] == ["zz", "xxxx", "y"]
        assert np.isnan(hits.reranked[0, 2:]).all()
        reader.close()


def test_hits_keep_no_other_tenant_alive() -> None:
    engine = fr.Engine(encoder=OWN)
    engine.add([fr.Record("a", "tea", embedding=[1, 0])])
    engine.add([fr.Record("b", "secret", embedding=[1, 0], namespace="other")])
    held = weakref.ref(engine.index.memory.snapshots["other"].segments[0])
    every = [engine.search([fr.Query("tea", vector=[1, 0])], strategy=strategy) for strategy in ("bm25", "rrf")]
    engine.drop("other")
    gc.collect()
    assert held() is None
    assert all(hits.explain(0, "a") for hits in every)


def test_a_directory_without_records_may_still_get_an_encoder(tmp_path: Path) -> None:
    fr.Engine.open(tmp_path / "m").close()
    with fr.Engine.open(tmp_path / "m", encoder=OWN) as engine:
        engine.add([fr.Record("a", "tea", embedding=[1, 0])])
    with pytest.raises(fr.errors.ModelMismatchError):
        fr.Engine.open(tmp_path / "m", encoder=fr.OwnVectors(3))
    # It knows that its records need no vectors, also without the encoder.
    with fr.Engine.open(tmp_path / "m") as engine:
        assert engine.pin == {"name": "own", "version": "1", "dimension": 2, "encodes": False}
        engine.add([fr.Record("b", "plain tea")])
        assert [name for name, _ in engine.search([fr.Query("tea", vector=[0, 1])], strategy="dense")[0]] == ["a"]


def test_too_many_candidates_are_refused() -> None:
    engine = fr.Engine(encoder=OWN)
    engine.add([fr.Record(f"r{n}", "tea", embedding=[1, n + 1]) for n in range(2000)])
    many = [fr.Query(f"tea {n}", vector=[1, n + 1]) for n in range(9000)]
    with pytest.raises(fr.errors.QueryError, match="candidates"):
        engine.search(many, strategy=NAMED["rrf"].deep())


class Wrong:
    """Encoders that do not keep their word."""

    name, version, dimension = "wrong", "1", 2

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.ones((len(texts), 2), dtype=np.float32)

    def queries(self, texts: Sequence[str]) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [["a"], [["a", "b"]], [[1.0]], None, [[float("nan"), 1.0]], [[0.0, 0.0]]])
def test_an_encoder_that_answers_nonsense_is_named(answer: Any) -> None:
    engine = fr.Engine(encoder=Wrong(answer))
    engine.add([fr.Record("a", "tea")])
    with pytest.raises(fr.errors.EncoderError, match="wrong"):
        engine.search(["tea"], strategy="dense")


class WrongTerms(Wrong):
    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [None, [], [{}, {}], [["a"]], [{1: 2.0}], [{"a": -1.0}], [{"a": float("inf")}]])
def test_an_encoder_of_terms_that_answers_nonsense_is_named(answer: Any) -> None:
    engine = fr.Engine(term_encoder=WrongTerms(answer))
    with pytest.raises(fr.errors.EncoderError, match="wrong"):
        engine.add([fr.Record("a", "tea")])
    engine.add([fr.Record("a", "tea", weights={"t": 1.0})])
    with pytest.raises(fr.errors.EncoderError, match="wrong"):
        engine.search(["tea"], strategy="sparse")


def test_a_channel_may_not_take_the_name_of_a_share() -> None:
    engine = fr.Engine(encoder=OWN)
    engine.add([fr.Record("a", "tea", embedding=[1, 0], time=0.0)])
    strategy = fr.Strategy("x", (fr.strategies.Lexical("recency"), fr.strategies.Dense()), fr.strategies.AgentRRF())
    with pytest.raises(fr.errors.ParameterError, match="another name"):
        engine.search([fr.Query("tea", vector=[1, 0], now=0.0)], strategy=strategy)


def test_a_blank_text_has_no_vector() -> None:
    engine = fr.Engine(encoder=Wrong(None))
    engine.add([fr.Record("a", "  "), fr.Record("b", "tea")])
    found = engine.search([fr.Query("", vector=[1, 0])], strategy="dense")
    assert [name for name, _ in found[0]] == ["b"]
    with pytest.raises(fr.errors.RecordError, match="blank"):
        fr.Record("a", "tea", passages=["tea", " "])
