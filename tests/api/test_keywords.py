"""The keywords of a search are checked once for the usual values, and read as they are for others."""

from __future__ import annotations

from typing import Any

import pytest

from fanrank.engine.hybrid.strategy import PLAIN
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
    assert (answerer, options) == (PLAIN, SearchOptions(timing=timing))
    assert read_keywords({"timing": timing})[1] is options
    for left_out in USUAL:
        given: Any = {key: value for key, value in USUAL.items() if key != left_out}
        assert read_keywords(given) == (PLAIN, SearchOptions())


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
