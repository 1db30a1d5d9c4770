"""`Engine.rewrite`: what is made of live records, in several namespaces, is one durable write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr

Place = tuple[str, str]


@pytest.fixture(params=["memory", "directory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fr.Engine]:
    vectors: Any = {"encoder": fr.OwnVectors(3)}
    engine = fr.Engine(**vectors) if request.param == "memory" else fr.Engine.open(tmp_path / "m", **vectors)
    with engine:
        engine.add(
            [
                fr.Record("a", "tea", "x", embedding=[1, 2, 2], payload={"n": 0}),
                fr.Record("b", "tea and coffee", "x", payload={"n": 0}),
                fr.Record("a", "milk", "y", payload={"n": 0}),
            ]
        )
        yield engine


def counted(record: fr.Record) -> fr.Record:
    return fr.Record(
        record.id, record.text, record.namespace, payload={"n": record.payload["n"] + 1}, embedding=record.embedding
    )


def test_records_are_changed_deleted_and_added_at_once(engine: fr.Engine) -> None:
    before, seen = engine.stats()["writes"], dict[Place, fr.Record]()

    def change(live: Mapping[Place, fr.Record]) -> Iterator[fr.Record]:
        seen.update(live)
        yield fr.Record("c", "cocoa", "z")
        yield counted(live["y", "a"])
        yield counted(live["x", "a"])

    assert engine.rewrite({"x": ["a", "b", "gone"], "y": ["a", "a"], "z": ["c"]}, change) == 3
    assert {place: record.text for place, record in seen.items()} == {
        ("x", "a"): "tea",
        ("x", "b"): "tea and coffee",
        ("y", "a"): "milk",
    }
    assert engine.stats()["writes"] == before + 1
    assert engine.get("b", namespace="x") is None
    first, second = engine.get("a", namespace="x"), engine.get("a", namespace="y")
    assert first.payload == second.payload == {"n": 1}
    assert np.array_equal(first.embedding, fr.Record("a", "", embedding=[1, 2, 2]).embedding)
    assert [hit.id for hit in engine.search([fr.Query("tea coffee", namespace="x")])[0]] == ["a"]
    assert engine.rewrite({"x": ["a"]}, lambda live: ()) == 1
    assert {*engine.namespaces} == {"y", "z"}


@pytest.mark.parametrize(
    ("ids", "change", "kind"),
    [
        (["a"], list, fr.errors.ParameterError),
        ({"x": ["a"]}, None, fr.errors.ParameterError),
        ({"x": ["a"]}, lambda live: None, fr.errors.RecordError),
        ({"x": "a"}, lambda live: (), fr.errors.RecordError),
        ({"x": [1]}, lambda live: (), fr.errors.RecordError),
        ({"x": ["a"]}, lambda live: [*live.values(), fr.Record("b", "", "x")], fr.errors.DuplicateIdError),
        ({"x": ["a"]}, lambda live: [1 / 0], ZeroDivisionError),
        ({"x": ["a"]}, lambda live: [{"id": "a"}], fr.errors.RecordError),
        ({"x": ["a"]}, lambda live: [fr.Record("a", "", "x", embedding=[1.0])], ValueError),
    ],
)
def test_an_error_changes_nothing(
    engine: fr.Engine, ids: Any, change: Callable[[Any], Any], kind: type[Exception]
) -> None:
    before = engine.stats()["writes"]
    with pytest.raises(kind):
        engine.rewrite(ids, change)
    assert engine.stats()["writes"] == before
    kept = engine.get("a", namespace="x")
    assert kept.text == "tea"


def test_what_a_failed_change_did_to_the_records_it_was_given_is_lost(engine: fr.Engine) -> None:
    def spoil(record: fr.Record) -> fr.Record:
        extra: Any = record.extra
        extra["spoiled"] = True
        raise RuntimeError("spoiled")

    with pytest.raises(RuntimeError):
        engine.rewrite({"x": ["a"]}, lambda live: map(spoil, live.values()))
    with pytest.raises(RuntimeError):
        engine.update_where({"role": None}, spoil, namespace="x")
    for kept in (engine.get("a", namespace="x"), *engine.records(namespace="x")):
        assert kept.extra == {}
        spoiled: Any = kept.extra
        spoiled["by the caller"] = True
    hits = engine.search([fr.Query("tea", namespace="x")], texts=True)
    assert hits.records[0, 0].extra == {}
