"""Strategies as values: named, printed, compared, and the same after JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

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
