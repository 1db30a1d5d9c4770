"""A hit is the pair of its id and its score, and knows more; answers travel."""

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine.records.hit import Hit

TRAVEL: list[Callable[[Any], Any]] = [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy]


LEXICAL = fr.Cascade(
    tau=1.0,
    escalate=fr.Strategy("two", (fr.strategies.Lexical("one"), fr.strategies.Lexical("other")), fr.strategies.RRF()),
)
"""A policy that needs neither vectors nor times."""


def make_engine() -> fr.Engine:
    engine = fr.Engine(analyzer="minimal")
    engine.add(
        [
            fr.Record("a", "tea and jam", time=5.0, role="user", extra={"n": [1, 2]}, payload={"deep": {"x": 1}}),
            fr.Record("b", "tea", importance=0.5),
            fr.Record("a", "bread", namespace="other"),
        ]
    )
    return engine


ENGINE = make_engine()
BATCH = ["tea", fr.Query("bread", namespace="other", id="q"), "nothing"]


def test_a_hit_is_a_pair() -> None:
    hits = ENGINE.search(BATCH, texts=True)
    (best, second), (other,), none = hits
    assert best == ("b", best.score)
    assert second != best
    name, score = second
    assert (len(second), second[0], second.id, second[1], second.score) == (2, name, "a", score, score)
    assert {second: 1}["a", score] == 1
    assert json.loads(json.dumps(hits[0])) == [list(best), list(second)]
    assert [(hit.rank, hit.namespace) for hit in (best, second, other)] == [(1, ""), (2, ""), (1, "other")]
    assert (second.text, second.record.time, other.text) == ("tea and jam", 5.0, "bread")
    assert none == []
    assert hits[-2] == [other]


@pytest.mark.parametrize(("spaces", "expected"), [("", None), ("a", "a"), ("aaa", "a"), ("aba", None)])
def test_the_namespace_is_that_of_all_queries(spaces: str, expected: str | None) -> None:
    assert ENGINE.search([fr.Query("tea", namespace=space) for space in spaces]).namespace == expected


def test_what_the_search_did_not_bring_is_refused_with_the_keyword() -> None:
    plain, texts, payload = (
        ENGINE.search(["jam"], **how)[0][0]  # type: ignore[arg-type]
        for how in ({}, {"texts": True}, {"payload": True})
    )
    for hit, missing in ((plain, "record text payload"), (payload, "record text"), (texts, "")):
        for name in missing.split():
            keyword = "payload" if name == "payload" else "texts"
            with pytest.raises(fr.errors.NotBroughtError, match=f"'a' has no {name}: search with {keyword}=True"):
                getattr(hit, name)
            assert not hasattr(hit, name)
    assert payload.payload == texts.payload == {"deep": {"x": 1}}


def test_dictionaries_hold_what_was_brought() -> None:
    score = ENGINE.search(["jam"])[0][0].score
    plain: dict[str, Any] = {"id": "a", "score": score, "rank": 1, "namespace": ""}
    words = {"text": "tea and jam", "time": 5.0, "metadata": {"n": [1, 2], "role": "user"}}
    carried = {"payload": {"deep": {"x": 1}}}
    assert ENGINE.search(["jam"]).to_dicts() == [[plain]]
    assert ENGINE.search(["jam"], texts=True).to_dicts() == [[plain | words]]
    assert ENGINE.search(["jam"], payload=True).to_dicts() == [[plain | carried]]
    assert ENGINE.search(["jam"], texts=True, payload=True).to_dicts() == [[plain | words | carried]]
    assert ENGINE.search(["salt"], texts=True).to_dicts() == [[]]


def test_dictionaries_say_what_a_reranker_gave() -> None:
    def shortest(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [-float(len(text)) for _, text in pairs]

    checked = fr.strategies.CheckedReranker(shortest, unchecked=True)
    hits = ENGINE.search(["tea", "jam"], reranker=checked, rerank_depth=1)
    (first, second), (only,) = hits.to_dicts()
    assert (first["reranked"], second["reranked"], only["reranked"]) == (-3.0, None, -11.0)


@pytest.mark.parametrize("travel", TRAVEL)
@pytest.mark.parametrize("how", [{}, {"texts": True, "payload": True}, {"strategy": LEXICAL}, {"timing": True}])
def test_answers_travel(travel: Callable[[Any], Any], how: dict[str, Any]) -> None:
    for batch in (BATCH, ["tea", "jam"], []):
        hits = ENGINE.search(batch, **how)
        other = travel(ENGINE.search(batch, **how))
        assert other.to_dicts() == hits.to_dicts()
        assert other.scores.tobytes() == hits.scores.tobytes()
        assert other.documents.tolist() == hits.documents.tolist()
        assert (other.ids.tolist(), other.queries, other.notes) == (hits.ids.tolist(), hits.queries, hits.notes)
        assert (other.namespace, other.distinct, other.decisions is None) == (
            hits.namespace,
            hits.distinct,
            hits.decisions is None,
        )
        assert other.to_run() == hits.to_run()
        assert repr(other) == repr(hits)
        again = travel(other)
        assert again.to_dicts() == hits.to_dicts()
        if len(batch) > 1:
            part = other.slice(1, len(batch), hits.scores.shape[1], hits.queries[1:])
            assert part.to_dicts() == hits.to_dicts()[1:]


def test_a_pickled_answer_explains_no_scores_and_a_copied_one_does() -> None:
    hits = ENGINE.search(["tea"])
    with pytest.raises(fr.errors.QueryError, match="were pickled"):
        pickle.loads(pickle.dumps(hits)).explain(0, "a")
    copied = copy.deepcopy(hits)
    assert copied.explain(0, "a") == hits.explain(0, "a")
    copied.scores[0, 0] = 0.0
    copied.ids[0, 0] = "changed"
    assert hits[0][0] == ("b", hits.scores[0, 0])


@pytest.mark.parametrize("travel", TRAVEL)
def test_a_hit_travels_alone(travel: Callable[[Any], Any]) -> None:
    hit = ENGINE.search(["jam"], texts=True)[0][0]
    other = travel(hit)
    assert type(other) is Hit
    assert (other, other.rank, other.to_dict()) == (hit, 1, hit.to_dict())


def test_short_lines_say_what_a_thing_is() -> None:
    engine = make_engine()
    assert repr(engine) == f"Engine(3 records, 2 namespaces, backend {engine.backend.name!r}, in memory)"
    engine.add([fr.Record("gone", "tea", expires=1.0), fr.Record("gone", "tea", "nobody", expires=1.0)])
    assert repr(engine) == f"Engine(3 records, 2 namespaces, backend {engine.backend.name!r}, in memory)"
    shown = repr(engine.search(["tea", "jam", "salt", "bread"], texts=True)).splitlines()
    assert shown[0] == f"Hits(4 queries, 3 hits, backend {engine.backend.name!r})"
    assert shown[1].startswith("  0 'tea': b 0.")
    assert shown[3] == "  2 'salt': no record holds a word of the query"
    assert shown[4:] == ["  ..."]
    assert repr(fr.Record("a", "x" * 200, namespace="n")) == f"Record('a', '{'x' * 78}…, namespace='n')"
    assert repr(fr.Record("a", "tea")) == "Record('a', 'tea')"
    with pytest.raises(fr.errors.StorageError):
        fr.Engine(keep_texts=False).search(["tea"], texts=True)


def test_the_repr_of_a_directory_names_it(tmp_path: Any) -> None:
    with fr.Engine.open(tmp_path) as engine:
        assert repr(engine) == f"Engine(0 records, 0 namespaces, backend {engine.backend.name!r}, {str(tmp_path)!r})"
