"""The drop-in for rank_bm25 beside rank_bm25 itself."""

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rank_bm25")

import rank_bm25

from fanrank.engine.errors import ParameterError
from fanrank.integrations import rank_bm25 as ours

NAMES = ("BM25Okapi", "BM25L", "BM25Plus")
OPTIONS: dict[str, dict[str, Any]] = {
    "BM25Okapi": {"k1": 0.9, "b": 0.4, "epsilon": 0.1},
    "BM25L": {"k1": 1.2, "b": 0.5, "delta": 0.7},
    "BM25Plus": {"k1": 2.0, "b": 0.9, "delta": 0.3},
}


def corpus(seed: int, size: int) -> tuple[list[list[str]], list[list[str]]]:
    """Documents, some of them empty or twins, with words of which some are in most documents; and queries."""
    rng = random.Random(seed)

    def some(most: int) -> list[str]:
        return [f"w{int(rng.paretovariate(0.7))}" for _ in range(rng.randrange(most))]

    documents = [some(30) for _ in range(size)] + [["w1"], []]
    return documents + documents[:3], [some(9) for _ in range(25)] + [[], ["w1", "w1", "absent"], ["absent"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 12, 300])
@pytest.mark.parametrize("options", [False, True])
def test_scores_are_those_of_rank_bm25(name: str, size: int, options: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "COUNTS_AT_ONCE", 1_000)  # several parts of a batch
    documents, queries = corpus(size, size)
    given = OPTIONS[name] if options else {}
    theirs, made = (getattr(module, name)(documents, **given) for module in (rank_bm25, ours))
    scores = made.get_scores_many(queries)
    for query, row in zip(queries, scores, strict=True):
        expected = theirs.get_scores(query)
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(made.get_scores(query), row)
        places = [0, len(documents) - 1, 0, -1]
        np.testing.assert_allclose(made.get_batch_scores(query, places), theirs.get_batch_scores(query, places))
    for n in (0, 1, 5, len(documents) + 3):
        for row, found in zip(scores, made.get_top_n_many(queries, range(len(documents)), n), strict=True):
            best = sorted(range(len(row)), key=lambda place: (row[place], place), reverse=True)
            assert found == best[:n]
    assert made.doc_freqs == theirs.doc_freqs
    assert (made.corpus_size, made.doc_len) == (theirs.corpus_size, theirs.doc_len)
    assert made.idf == pytest.approx(theirs.idf)


def test_a_tokenizer_is_used_and_mistakes_are_named() -> None:
    texts = ["Ana drinks tea", "Bo drinks coffee", "cake"]
    made = ours.BM25Okapi(texts, tokenizer=str.split)
    assert made.get_top_n(["tea"], texts, 1) == texts[:1]
    for wrong in (lambda: made.get_top_n(["tea"], texts[:2]), lambda: made.get_batch_scores([], [3])):
        with pytest.raises(ParameterError):
            wrong()
    with pytest.raises(ParameterError, match="no token"):
        ours.BM25L([[], []])
