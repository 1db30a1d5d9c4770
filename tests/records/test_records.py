"""The nouns: records from mappings and files, entities, queries, and what an answer can be turned into."""

import dataclasses
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.entity_cases import edges, record_parts

import fanrank as fr
from fanrank.engine.records.entities import Relation
from fanrank.engine.records.jsonl import read_json_lines
from fanrank.engine.records.query import Query, zone_of
from fanrank.engine.records.record import Record
from fanrank.engine.storage.row_codec import ENTITIES_VERSION, PLAIN_VERSION, decode, encode


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


@settings(max_examples=30)
@given(record_parts())
def test_a_record_comes_back_from_its_row(parts: dict[str, Any]) -> None:
    record = Record("r", "x", "n", **parts)
    encoded = encode(record)
    stated = record.entities is not None or record.relations is not None
    assert encoded.version == (ENTITIES_VERSION if stated else PLAIN_VERSION)
    back = decode("n", encoded)
    assert back == record
    assert Record.from_dict(dataclasses.asdict(record)) == record
    assert encode(back) == encoded


def test_what_stands_in_extra_stays_there() -> None:
    """Rows of before there were entities, and what a caller calls so of its own."""
    old = '{"text":"a","extra":{"entities":["ana"],"relations":7}}'
    encoded = encode(Record("r", "a", extra={"entities": ["ana"], "relations": 7}))
    assert (encoded.data, encoded.version) == (old, PLAIN_VERSION)
    back = decode("", encoded)
    assert (back.entities, back.relations, back.extra) == (None, None, {"entities": ["ana"], "relations": 7})


@pytest.mark.parametrize(
    ("entities", "match"),
    [
        ("ana", "'entities' must map names to entity ids, or list ids, not str"),
        (7, "'entities' must map .* not int"),
        ([7], "'entities' has an entity that must be a non-empty string, not 7"),
        ([""], "'entities' has an entity that must be a non-empty string"),
        ({"Ana": " "}, "'entities' has an entity that must be a non-empty string"),
        ({"": "ana"}, "'entities' has an entity's name that must be a non-empty string"),
        ({3: "ana"}, "'entities' has an entity's name that must be"),
        (["a\x1fb"], "unit separator"),
        (["a\ud800"], "lone surrogate"),
        ({"a\ud800": "ana"}, "lone surrogate"),
    ],
)
def test_entities_that_are_refused(entities: Any, match: str) -> None:
    with pytest.raises(fr.errors.RecordError, match=f"id 'r1': .*{match}"):
        Record("r1", "", entities=entities)
    with pytest.raises(fr.errors.RecordError, match=f"id 'r1': .*{match}"):
        Record.from_dict({"id": "r1", "text": "", "entities": entities})


EDGE = {"source": "a", "target": "b", "kind": "knows"}


@pytest.mark.parametrize(
    ("relations", "match"),
    [
        ("a-b", "'relations' must be a sequence of relations, not str"),
        (EDGE, "'relations' must be a sequence of relations, not dict"),
        ([("a", "b", "knows")], "'relations' must hold relations, not tuple"),
        ([{"source": "a"}], "'relations' has a relation that is not one: .*missing"),
        ([EDGE | {"since": 3}], "'relations' has a relation that has no 'since'; there are"),
        ([EDGE | {"source": ""}], "a relation's 'source' that must be a non-empty string"),
        ([EDGE | {"kind": None}], "a relation's 'kind' that must be a non-empty string"),
        ([EDGE | {"target": "\ud800"}], "lone surrogate"),
        ([EDGE | {"confidence": 1.5}], r"'confidence' must lie in \[0, 1\], not 1.5"),
        ([EDGE | {"confidence": True}], "'confidence' must lie"),
        ([EDGE | {"confidence": float("nan")}], "'confidence' must lie"),
        ([EDGE | {"confidence": "high"}], "'confidence' must lie"),
        ([EDGE | {"valid_from": float("inf")}], "'valid_from' must be finite seconds"),
        ([EDGE | {"valid_to": 10**400}], "'valid_to' must be finite seconds"),
        ([EDGE | {"valid_to": "2026"}], "'valid_to' must be finite seconds"),
        ([EDGE | {"valid_from": 2, "valid_to": 1}], "ends before it begins"),
        ([EDGE | {"category": "loose"}], "unknown category 'loose': structural, semantic, lifecycle"),
    ],
)
def test_relations_that_are_refused(relations: Any, match: str) -> None:
    with pytest.raises(fr.errors.RecordError, match=f"id 'r1': .*{match}"):
        Record("r1", "", relations=relations)


@pytest.mark.parametrize(
    ("fields", "reliance"),
    [
        ({"kind": "reports-to"}, "structural"),
        ({"kind": "knows"}, "semantic"),
        ({"kind": "reports-to", "valid_to": 5}, "lifecycle"),
        ({"kind": "knows", "valid_from": 5}, "semantic"),
        ({"kind": "knows", "valid_to": 5, "category": "structural"}, "structural"),
    ],
)
def test_how_far_an_edge_is_relied_on(fields: dict[str, Any], reliance: str) -> None:
    assert Relation(**(EDGE | fields)).reliance == reliance


@given(edges)
def test_a_relation_is_its_dictionary(edge: Relation) -> None:
    assert Relation.of(edge.to_dict()) == Relation.of(edge) == edge
    assert None not in edge.to_dict().values()
    assert {"source", "target", "kind", "confidence"} <= edge.to_dict().keys()


@pytest.mark.parametrize("name", ["entities", "hints"])
@pytest.mark.parametrize("value", ["ana", b"ana", 7, [7], [""], [None], {"ana"}, {"Ana": "ana"}])
def test_a_query_that_names_no_sequence_of_strings(name: str, value: Any) -> None:
    with pytest.raises(fr.errors.QueryError, match=f"a query's '{name}' must be a sequence of strings"):
        Query("x", **{name: value})


@pytest.mark.parametrize(
    "name",
    ["Mars/Olympus", "", "Europe", "../etc/passwd", "/etc/localtime", "a\0b", "\ud800", "tzdata.zi", 7, "A" * 9999],
)
def test_a_time_zone_that_is_none(name: Any) -> None:
    with pytest.raises(fr.errors.QueryError, match="unknown time zone"):
        Query("x", timezone=name)


def test_time_zones() -> None:
    assert zone_of(None) is zone_of("UTC") is timezone.utc
    summer = datetime(2026, 7, 1, tzinfo=zone_of("America/New_York"))
    assert summer.utcoffset() == timedelta(hours=-4)
    assert Query("x", timezone="UTC").timezone == "UTC"
