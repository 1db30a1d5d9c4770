"""The nouns: records from mappings and files, queries, and what an answer can be turned into."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.records.jsonl import read_json_lines


@pytest.fixture
def hits() -> fr.Hits:
    engine = fr.Engine.from_records(
        [fr.Record("a", "tea"), fr.Record("b", "coffee tea"), fr.Record("c", "milk")], analyzer="minimal"
    )
    return engine.search(
        [fr.Query("tea", id="drink"), fr.Query("water"), fr.Query("milk coffee", id="white", k=1)], k=3
    )


def test_record_from_a_mapping() -> None:
    whole = {
        "id": "1",
        "text": "words",
        "namespace": "n",
        "role": "tool",
        "session": "s",
        "user": "u",
        "agent": "a",
        "tool": "t",
        "type": "fact",
        "time": 12,
        "importance": 0.5,
        "fields": {"predicate": "likes"},
        "extra": {"x": 1},
        "passages": ("one", "two"),
        "embedding": None,
        "weights": {"word": 0.5},
        "entities": {"Ana": "ana"},
        "relations": (
            {
                "source": "ana",
                "target": "atlas",
                "kind": "works-on",
                "confidence": 1.0,
                "valid_from": 5.0,
                "valid_to": None,
                "category": None,
            },
        ),
        "payload": {"mood": ["glad", 1]},
        "expires": 4e9,
    }
    record = fr.Record.from_dict(whole)
    assert dataclasses.asdict(record) == whole
    carried = fr.Record.from_dict({"_id": "2", "text": "", "mood": "glad", "extra": {"x": 1}, "fields": None})
    assert (carried.id, dict(carried.extra), dict(carried.fields)) == ("2", {"x": 1, "mood": "glad"}, {})
    both = fr.Record.from_dict({"id": "3", "_id": "4", "text": ""})
    assert (both.id, dict(both.extra)) == ("3", {"_id": "4"})


def test_reading_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = ['{"id": "1", "text": "ä"}', "", "   ", '{"_id": "2", "text": "b", "time": "1970-01-02"}']
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [(r.id, r.text, r.time) for r in fr.read_records(path)] == [("1", "ä", None), ("2", "b", 86_400.0)]
    assert [where for where, _ in read_json_lines(path, fr.Record.from_dict)] == ["r.jsonl:1", "r.jsonl:4"]
    # Lines are read as they are asked for: a broken one later does not matter yet.
    path.write_text('{"id": "1", "text": ""}\nbroken\n')
    source = fr.read_records(path)
    assert next(source).id == "1"
    with pytest.raises(fr.errors.RecordError, match=r"r\.jsonl:2: not JSON"):
        next(source)


def test_to_run(hits: fr.Hits) -> None:
    run = hits.to_run()
    assert run == {"drink": dict(hits[0]), "1": {}, "white": dict(hits[2])}
    assert list(run["drink"]) == ["a", "b"]


def test_to_trec(hits: fr.Hits) -> None:
    lines = list(hits.to_trec("mine"))
    assert [line.split()[:4] + line.split()[5:] for line in lines] == [
        ["drink", "Q0", "a", "1", "mine"],
        ["drink", "Q0", "b", "2", "mine"],
        ["white", "Q0", "c", "1", "mine"],
    ]
    # Scores are printed so that they read back as the same number.
    assert [float(line.split()[4]) for line in lines] == [score for row in hits for _, score in row]
    assert next(hits.to_trec()).endswith(" fanrank")


@pytest.mark.parametrize("name", ["a b", "a\tb", "a\n", " a", "a\u00a0b", "\u2028"])
def test_trec_refuses_ids_with_blanks(name: str) -> None:
    engine = fr.Engine.from_records([fr.Record(name, "tea")])
    with pytest.raises(fr.errors.QueryError, match="white space"):
        list(engine.search(["tea"]).to_trec())
    named = fr.Engine.from_records([fr.Record("x", "tea")])
    with pytest.raises(fr.errors.QueryError, match="white space"):
        list(named.search([fr.Query("tea", id=name)]).to_trec())
    with pytest.raises(fr.errors.QueryError, match="empty"):
        list(named.search([fr.Query("tea", id="")]).to_trec())


@pytest.fixture(scope="module")
def union() -> fr.Engine:
    return fr.Engine.from_records(
        [fr.Record("m1", "tea", namespace="a"), fr.Record("m1", "tea tea", namespace="b"), fr.Record("m2", "tea")]
    )


def test_a_run_refuses_one_id_of_two_namespaces(union: fr.Engine) -> None:
    both = fr.Query("tea", namespaces=["b", "a"], id="q")
    message = r"query 'q' has two hits with the id 'm1', of the namespaces '[ab]' and '[ab]'.*one namespace a query"
    for batch in ([both], ["tea", both], [fr.Query("tea", namespace="a"), both]):
        hits = union.search(batch)
        for call in (hits.to_run, lambda hits=hits: next(hits.to_trec())):
            with pytest.raises(fr.errors.QueryError, match=message):
                call()
    apart = union.search([fr.Query("tea", namespace=name, id=name or "none") for name in ("a", "b", "")])
    assert {name: list(run) for name, run in apart.to_run().items()} == {"a": ["m1"], "b": ["m1"], "none": ["m2"]}
    assert len(list(union.search([fr.Query("tea", namespaces=["", "a"])]).to_trec())) == 2


def test_to_torch_shares_memory(hits: fr.Hits, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        @staticmethod
        def from_numpy(array: np.ndarray) -> np.ndarray:
            return array.view()

    monkeypatch.setitem(sys.modules, "torch", Torch)
    tensors = hits.to_torch()
    for tensor, array in zip(tensors, (hits.scores, hits.documents, hits.counts), strict=True):
        assert np.shares_memory(tensor, array)


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [("to_pandas", "pandas", "tables"), ("to_arrow", "pyarrow", "tables"), ("to_torch", "torch", "gpu")],
)
def test_missing_extras_are_named(
    hits: fr.Hits, monkeypatch: pytest.MonkeyPatch, method: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    with pytest.raises(fr.errors.MissingExtraError) as caught:
        getattr(hits, method)()
    assert str(caught.value) == f"{module} is not installed; run: pip install 'fanrank[{extra}]'"
    assert isinstance(caught.value, ImportError)


def test_a_query_takes_numpy_integers_and_any_sequence_of_terms() -> None:
    query: Any = fr.Query(terms=["tea", "tea"], k=np.int64(2))
    engine = fr.Engine.from_records([fr.Record(str(n), "tea") for n in range(5)], analyzer="minimal")
    assert engine.search([query], 5).counts.tolist() == [2]


def test_a_query_does_not_change_with_the_list_it_was_made_of() -> None:
    terms = ["tea"]
    query = fr.Query(terms=terms)
    terms.append("milk")
    assert query.terms == ("tea",)
    assert query == fr.Query(terms=("tea",))
