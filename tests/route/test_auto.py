"""The strategy ``auto``: BM25 where it is far ahead or alone, words and vectors elsewhere, each with its own bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.hashing import Hashing

import fanrank as fr
from fanrank.engine.fuse import Boosted
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.cascade import AUTO
from fanrank.engine.route.confidence import margin
from fanrank.engine.route.policy import answerer_to_dict, strategy_of

DIMENSION = 4


def memory() -> fr.Engine:
    """Three namespaces: with vectors, without any, and with a vector of a deleted record alone."""
    engine = fr.Engine(encoder=fr.OwnVectors(DIMENSION, "hashing", "1"), analyzer="minimal")
    # BM25 is sure of the first record for the query that has all of its words and one more.
    texts = ["a b c d e f g h i j", "w1 w2 w3 w4 w5 w6 w7 w8 w1 w2 w3 w4", "w1 w2", "w2 w3 w1", "w3"]
    for start in (0, 2):
        for space in ("both", "words", "gone"):
            engine.add(
                fr.Record(
                    f"{space}{n}", texts[n], space, embedding=[1, n, 0, 1] if space == "both" and n != 3 else None
                )
                for n in range(start, min(start + 3, 5) if start else 2)
            )
    engine.add([fr.Record("deleted", "w1", "gone", embedding=[1, 0, 0, 0])])
    engine.delete(["deleted"], namespace="gone")
    # An encoder that encodes texts, which no record above asked for.
    engine.searcher.models.encoder = Hashing(dimension=DIMENSION)  # type: ignore[assignment]
    return engine


QUERIES = [
    *(
        fr.Query(text, namespace=space, k=k)
        for text in ("a b c d e f g h i j w8", "w1 w2", "w3")
        for space in ("both", "words", "gone")
        for k in (1, 30)
    ),
    fr.Query("w1 w2", namespaces=["both", "words"]),
    fr.Query("", namespace="both"),
    fr.Query("nope"),
]


def rows(hits: fr.Hits) -> list[list[tuple[str, float]]]:
    return [[tuple(hit) for hit in row] for row in hits]


def test_each_row_has_the_bits_of_the_strategy_that_its_margin_and_its_vectors_choose() -> None:
    engine, queries = memory(), QUERIES
    hits = engine.search(queries, strategy="auto")
    plain = engine.search(queries)
    deeper = engine.search([fr.Query(q.text, namespace=q.namespace, namespaces=q.namespaces, k=50) for q in queries])
    sure = np.nan_to_num(margin(deeper.scores, deeper.counts.astype(np.int64)), nan=-1.0) >= AUTO.tau
    decisions = hits.decisions or ()
    seen = set()
    for row, (query, decision) in enumerate(zip(queries, decisions, strict=True)):
        lacks = (query.namespaces is None and query.namespace != "both") or not query.text.strip()
        expected = "bm25" if lacks or sure[row] else "recall"
        assert decision.strategy == expected
        assert decision.escalated == (expected == "recall")
        assert ("dense" in decision.skipped) == lacks
        found = rows(plain)[row] if expected == "bm25" else rows(engine.search([query], strategy="recall"))[0]
        assert rows(hits)[row] == found == rows(engine.search([query], strategy="auto"))[0]
        seen.add((expected, bool(lacks)))
    assert seen == {("bm25", True), ("bm25", False), ("recall", False)}


@pytest.mark.parametrize(("vectors", "names"), [(True, ["dialogue", "recall"]), (False, ["dialogue-words", "bm25"])])
@pytest.mark.parametrize(("beside", "texts"), [(3, True), (2, True), (3, False)])
def test_dialogues_have_strategies_of_their_own(vectors: bool, names: list[str], beside: int, texts: bool) -> None:
    # Of five live records so many stand in one session, as does a deleted one.
    engine = fr.Engine(encoder=fr.OwnVectors(2), keep_texts=texts)
    for n, text in enumerate(["w1 w2", "w1", "w3 w1", "w3", "w1 w4", "w1 w2"]):
        session = f"{n}" if beside <= n < 5 else "s"
        engine.add([fr.Record(f"{n}", text, session=session, type="Event", time=86_400.0 * n, embedding=[1, n])])
    engine.delete(["5"])
    own = {"vector": [1, 2]} if vectors else {}
    asked = [
        fr.Query("w1", **own),
        fr.Query("what happened yesterday?", now=3 * 86_400.0, **own),
        fr.Query("w1 w3", **own),
    ]
    hits = engine.search(asked, strategy="auto")
    chosen = names[not (texts and beside == 3)]
    assert [decision.strategy for decision in hits.decisions or ()] == [chosen, names[1], chosen]
    with pytest.raises(fr.errors.QueryError, match="3 dimensions"):
        engine.search([fr.Query("w1", vector=[0, 1, 2])], strategy="auto")
    for row, decision in enumerate(hits.decisions or ()):
        assert vectors or decision.skipped == {"dense": "no vectors to compare"}
        assert rows(hits)[row] == rows(engine.search([asked[row]], strategy=decision.strategy))[0]


@pytest.mark.parametrize("terms", [40, 39])
def test_exchanges_of_long_answers_have_a_strategy_of_their_own(terms: int) -> None:
    engine = fr.Engine(encoder=fr.OwnVectors(2), analyzer="minimal")
    said = enumerate([("user", 2), ("assistant", terms), ("assistant", 40), ("assistant", 400)])
    engine.add(fr.Record(f"{n}", "w1 " * many, session="s", role=role, embedding=[1, n]) for n, (role, many) in said)
    engine.delete(["3"])
    asked = [fr.Query("w1", unit=unit, vector=[1, 2]) for unit in ("exchange", "record")]
    asked.append(fr.Query("w1", unit="exchange"))
    hits = engine.search(asked, strategy="auto")
    chosen = [decision.strategy for decision in hits.decisions or ()]
    assert chosen == ["dialogue-exchanges" if terms == 40 else "dialogue", "dialogue", "dialogue-words"]
    assert rows(hits) == [rows(engine.search([q], strategy=own))[0] for q, own in zip(asked, chosen, strict=True)]


def test_it_is_a_policy_like_the_others() -> None:
    engine = memory()
    assert strategy_of("auto") is AUTO
    assert AUTO.escalate == NAMED["recall"]
    assert AUTO.escalate.fusion == Boosted(alpha=0.6, below=0.5)
    again = strategy_of(json.loads(json.dumps(answerer_to_dict(AUTO))))
    assert again == AUTO
    query = fr.Query("w1 w2 w3", namespace="both", strategy="auto")
    hits = engine.search([query, fr.Query("w1", namespace="both")])
    assert rows(hits)[0] == rows(engine.search([query], strategy=again))[0]
    explained = engine.explain(query, rows(hits)[0][0][0], strategy="auto")
    assert explained.score == rows(hits)[0][0][1]
    by_space = engine.search([fr.Query("w1 w2 w3", namespace="both")], strategy={"both": "auto", "": "bm25"})
    assert rows(by_space)[0] == rows(hits)[0]
    with pytest.raises(fr.errors.ParameterError, match="needs_vectors must be true or false"):
        fr.Cascade(needs_vectors=1)  # type: ignore[arg-type]
