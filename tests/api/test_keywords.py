"""The keywords of a search: what is checked once for most calls, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import fanrank as fr
from fanrank.engine.hybrid.strategy import PLAIN, STRATEGIES
from fanrank.engine.search.options import SearchOptions
from fanrank.engine.signatures import read_keywords

USUAL: dict[str, Any] = {
    "strategy": "bm25",
    "reranker": None,
    "rerank_depth": 10,
    "threads": 1,
    "execution": "auto",
    "timing": False,
}


@pytest.mark.parametrize("timing", [False, True])
def test_usual_keywords_share_one_checked_object(timing: bool) -> None:
    answerer, options = read_keywords({**USUAL, "timing": timing})  # type: ignore[typeddict-item]
    assert answerer is PLAIN is STRATEGIES["bm25"]
    assert options == SearchOptions(timing=timing)
    assert read_keywords({"timing": timing})[1] is options


@pytest.mark.parametrize("name", USUAL)
def test_keywords_that_are_left_out_have_their_defaults(name: str) -> None:
    given: Any = {key: value for key, value in USUAL.items() if key != name}
    assert read_keywords(given) == read_keywords({}) == (PLAIN, SearchOptions())


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"threads": 2}, SearchOptions(threads=2)),
        ({"execution": "pruned", "timing": True}, SearchOptions(execution="pruned", timing=True)),
        ({"rerank_depth": 7}, SearchOptions(rerank_depth=7)),
        ({"execution": "".join(["au", "to"]), "strategy": "".join(["bm", "25"])}, SearchOptions()),
    ],
)
def test_unusual_keywords_are_read_as_they_are(keywords: Any, expected: SearchOptions) -> None:
    assert read_keywords(keywords) == (PLAIN, expected)


@pytest.mark.parametrize(
    "keywords",
    [
        {"threads": True},
        {"threads": 1.0},
        {"threads": 0},
        {"threads": None},
        {"execution": "fast"},
        {"strategy": "bm26"},
        {"strategy": None},
        {"reranker": "no reranker"},
    ],
)
def test_wrong_values_are_refused(keywords: Any) -> None:
    engine = fr.Engine.from_records([fr.Record("a", "tea")])
    with pytest.raises(fr.errors.ParameterError):
        engine.search(["tea"], **keywords)
    assert engine.health().failure_count == {"ParameterError": 1}
    with pytest.raises(fr.errors.ParameterError):
        read_keywords({**USUAL, **keywords})


@pytest.mark.parametrize("name", ["stratgy", "k"])
def test_a_misspelled_keyword_is_refused(name: str) -> None:
    engine = fr.Engine.from_records([fr.Record("a", "tea")])
    with pytest.raises(TypeError, match="stratgy" if name == "stratgy" else "k"):
        read_keywords({**USUAL, name: "bm25"})  # type: ignore[typeddict-unknown-key, misc]
    with pytest.raises(TypeError, match="stratgy"):
        engine.search(["tea"], stratgy="bm25")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="stratgy"):
        engine.namespace("").search(["tea"], stratgy="bm25")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_a_strategy_works_out_once_is_what_its_parts_say(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.plain == (name == "bm25")
    assert strategy.recalls == (name in ("graph", "temporal", "conversation", "recall", "recall-source"))
    assert strategy.aged == (strategy.recalls or name in ("agent_rrf", "decay"))
    again = fr.Strategy.of(strategy.to_dict())
    assert (again == strategy, hash(again), repr(again)) == (True, hash(strategy), repr(strategy))
