"""Strategies as values; and hybrid retrieval where something is missing, gone, huge or wrong."""

import gc
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.feedback.rm3 import RM3
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.strategies import ContextVectors, ContextWords, Cue, Dense, Lexical, Linear


@pytest.mark.parametrize("name", NAMED)
def test_a_strategy_survives_json(name: str) -> None:
    strategy = fr.Strategy.of(name)
    again = fr.Strategy.of(json.loads(json.dumps(strategy.to_dict())))
    assert again == strategy
    assert again.name == name
    assert str(again) == str(strategy)
    assert str(strategy).startswith(f"{name}: ")


OWN = (
    (fr.Strategy("mine", (Lexical(rm3=RM3(5, 7, 0.25)),)), "mine: bm25 (rm3 of 5 hits, 7 terms, alpha 0.25)"),
    (replace(fr.Strategy.of("softcentroid"), search_again=True), ", searched again"),
    (
        fr.Strategy(
            "mine",
            (Lexical(), Dense(), ContextWords(fr.Neighbours(1, 0.5), "w"), ContextVectors(), Cue("asks", "q")),
            Linear({"w": 2.0, "q": -1.0}, ("w",)),
        ),
        "w (1 neighbours by 0.5)",
    ),
    (fr.Strategy.of("dense-hnsw"), "dense-hnsw: dense (late, hnsw)"),
    (
        fr.Strategy("mine", (Dense(mode="hnsw", approximate=fr.strategies.Approximate(7, 33, 11, 5, 9, 33, 4, 1)),)),
        "mine: dense (late, hnsw, neighbours 7, ef_construction 33",
    ),
)


@pytest.mark.parametrize(("own", "shown"), OWN)
def test_a_strategy_of_ones_own_survives_json_and_is_shown(own: fr.Strategy, shown: str) -> None:
    again = fr.Strategy.of(json.loads(json.dumps(own.to_dict())))
    assert (again, str(again), hash(again)) == (own, str(own), hash(own))
    assert shown in str(own)


def test_the_names_of_the_sources_are_there() -> None:
    wanted = """dense-early dense-late dense-top3 dense-lse10 dense-lme10 agent_rrf score_rrf minmax softcentroid
        softcentroid-fused rocchio-floor first-sentence tail-gap adaptive-softcentroid factoid-route hard-top1"""
    assert set(wanted.split()) <= set(fr.published.PUBLISHED)
    assert [name for name, own in NAMED.items() if own.plain] == ["bm25"]


def test_of_takes_what_it_gives() -> None:
    own = fr.Strategy.of("rrf")
    assert fr.Strategy.of(own) is own
    assert fr.Strategy.of({"name": "rrf", "fusion": "rrf", "channels": [{"kind": "lexical"}, {"kind": "dense"}]}) == own
    assert own.deep(complete=True).depth is None


def test_options_of_approximate_search_may_be_told_in_part_or_not_at_all() -> None:
    for told, meant in (({"approximate": {"ef_search": 128}}, fr.strategies.Approximate(ef_search=128)), ({}, None)):
        own = {"name": "mine", "channels": [{"kind": "dense", "mode": "hnsw", **told}]}
        assert fr.Strategy.of(own).dense[0].approximate == meant


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("dialog", r"unknown strategy .dialog.; did you mean .dialogue.\? There are: "),
        (3, "a name, a mapping"),
        ({"channels": []}, "a 'name'"),
        ({"name": "x", "depths": 3}, "no 'depths'"),
        ({"name": "x", "channels": [{"kind": "telepathy"}]}, "there is no kind of channel"),
        ({"name": "x", "channels": [{"kind": "dense", "mode": "fast"}]}, "unknown dense mode"),
        ({"name": "x", "channels": [{"kind": "dense", "size": 3}]}, "size"),
        ({"name": "x", "channels": [{"kind": "dense", "mode": "hnsw", "approximate": {"m": 3}}]}, "approximate.*'m'"),
        ({"name": "x", "channels": [{"kind": "dense", "mode": "hnsw", "approximate": 3}]}, "must be an Approximate"),
        (
            {"name": "x", "channels": [{"kind": "dense", "mode": "hnsw", "approximate": {"ef_search": 0}}]},
            "ef_search of approximate search must be 1 to 65,536, not 0",
        ),
        (
            {"name": "x", "channels": [{"kind": "dense", "mode": "int8", "approximate": {"ef_search": 9}}]},
            "mode 'int8' takes no approximate; use mode 'hnsw'",
        ),
        ({"name": "x", "channels": [{"kind": "dense", "interaction": {"kind": "sum"}}]}, "unknown interaction"),
        ({"name": "x", "channels": [{"kind": "lexical"}, {"kind": "dense"}]}, "no fusion"),
        ({"name": "x", "channels": [{"kind": "dense"}, {"kind": "dense"}], "fusion": "rrf"}, "one name"),
        ({"name": "x", "fusion": "zscore"}, "names the channel"),
        ({"name": "x", "fusion": "sum"}, "unknown fusion"),
        ({"name": "x", "feedback": "rocchio"}, "no channel is dense"),
        ({"name": "x", "depth": 0}, "depth"),
        ({"name": "x", "depth": True}, "depth"),
        ({"name": "x", "complete": True}, "depth None"),
        ({"name": ""}, "non-empty"),
        ({"name": "x", "channels": []}, "needs channels"),
        ({"name": "x", "channels": 5}, "channels must be a list"),
        ({"name": "x", "channels": [{"kind": "lexical", "name": 3}]}, "name must be"),
        ({"name": "x", "channels": [{"kind": "lexical", "name": ""}]}, "name must be"),
    ],
)
def test_bad_strategies_are_named(value: Any, words: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=words):
        fr.Strategy.of(value)


def test_parts_must_be_what_they_say() -> None:
    softcentroid, hybrid = fr.Strategy.of("softcentroid"), fr.Strategy.of("rrf")
    for own, field, value, words in (
        (hybrid, "fusion", "rrf", "fusion_of"),
        (softcentroid, "feedback", "rocchio", "feedback_of"),
        (hybrid, "search_again", True, "search_again needs feedback"),
        (softcentroid, "search_again", 1, "search_again must be true or false"),
    ):
        with pytest.raises(fr.errors.ParameterError, match=words):
            replace(own, **{field: value})


OF_ITS_OWN = fr.OwnVectors(2)


CHECKED = fr.strategies.CheckedReranker(lambda pairs: [-float(len(text)) for _, text in pairs], unchecked=True)


def test_a_record_deleted_meanwhile_stands_behind_the_reranked(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m", encoder=OF_ITS_OWN) as writer:
        writer.add([fr.Record(name, f"tea {name}", embedding=[1, 0]) for name in ("xxxx", "y", "zz")])
        reader = fr.Engine.open(tmp_path / "m", read_only=True)
        writer.delete(["y"])
        hits = reader.search(["tea"], reranker=CHECKED)
        assert [name for name, _ in hits[0]] == ["zz", "xxxx", "y"]
        assert np.isnan(hits.reranked[0, 2:]).all()
        reader.close()


def test_hits_keep_no_other_tenant_alive() -> None:
    engine = fr.Engine(encoder=OF_ITS_OWN)
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
    with fr.Engine.open(tmp_path / "m", encoder=OF_ITS_OWN) as engine:
        engine.add([fr.Record("a", "tea", embedding=[1, 0])])
    with pytest.raises(fr.errors.ModelMismatchError):
        fr.Engine.open(tmp_path / "m", encoder=fr.OwnVectors(3))
    # It knows that its records need no vectors, also without the encoder.
    with fr.Engine.open(tmp_path / "m") as engine:
        assert engine.pin == {"name": "own", "version": "1", "dimension": 2, "encodes": False}
        engine.add([fr.Record("b", "plain tea")])
        assert [name for name, _ in engine.search([fr.Query("tea", vector=[0, 1])], strategy="dense")[0]] == ["a"]


def test_too_many_candidates_are_refused() -> None:
    engine = fr.Engine(encoder=OF_ITS_OWN)
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
    engine = fr.Engine(encoder=OF_ITS_OWN)
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
