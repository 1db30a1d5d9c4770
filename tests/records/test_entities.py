"""What records and queries may say of entities, what is refused by name, and the terms that it becomes (B003, B020)."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from support.entity_cases import edges, record_parts

import fanrank as fr
from fanrank.engine.records.entities import Relation
from fanrank.engine.records.query import Query, zone_of
from fanrank.engine.records.record import Record
from fanrank.engine.storage.row_codec import ENTITIES_VERSION, PLAIN_VERSION, decode, encode


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
