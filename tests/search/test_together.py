"""Queries of several namespaces: answered as if their records stood in one, by every strategy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from support import borders

import fanrank as fr

WORDS = ["tea", "key", "car", "sun", "sea"]
SPACES = ("", "users/ana", "users/ana/work", "users/anabel", "users/bo")
BELOW = ("users/ana", "users/ana/work")
BACKENDS = ("native", "numpy")


def made(seed: int, count: int = 80) -> list[fr.Record]:
    """Records of several namespaces; many ids stand in more than one of them."""
    draw = random.Random(seed)
    found: dict[tuple[str, str], fr.Record] = {}
    for _ in range(count):
        record = fr.Record(
            f"r{draw.randrange(count // 2)}",
            " ".join(draw.choices(WORDS, k=draw.randrange(0, 6))),
            namespace=draw.choice(SPACES),
            session=draw.choice(["s", "t", None]),
            type=draw.choice(["Event", "note"]),
            time=draw.choice([None, 1.0, 2e6, 4e6]),
            embedding=[draw.choice([-1.0, 0.5, 1.0]) for _ in range(3)],
            weights={draw.choice(WORDS): 1.0},
            entities={"Sarah": "sarah"} if draw.random() < 0.3 else None,
        )
        found[record.namespace, record.id] = record
    return list(found.values())


def grown(records: list[fr.Record], backend: str) -> fr.Engine:
    engine = fr.Engine(backend=backend, encoder=fr.OwnVectors(3))
    for start in range(0, len(records), 9):
        engine.add(records[start : start + 9])
    engine.index.memory.join()
    return engine


def joined(records: list[fr.Record], names: tuple[str, ...]) -> list[fr.Record]:
    """The records of these namespaces in one namespace, with the namespace in their ids."""
    return [
        replace(record, id=f"{name} {record.id}", namespace="")
        for name in sorted(names)
        for record in records
        if record.namespace == name
    ]


def rows(hits: fr.Hits, spaces: bool) -> list[list[tuple[str, float]]]:
    if not spaces:
        return [[(name, score) for name, score in row] for row in hits]
    return [
        [(f"{space} {name}", score) for space, (name, score) in zip(found, row, strict=False)]
        for found, row in zip(hits.namespaces.tolist(), hits, strict=True)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        # The machine of memories holds what has no loops of its own here.
        ("bm25", {"since": 1.0, "until": 3e6, "scope": fr.SearchScope.session("t", 4)}),
        ("rrf", {"filter": {"session": "s"}}),
        ("recall", {"now": 5e6}),
        ("cascade", {"now": 5e6}),
    ],
)
def test_the_answer_is_that_of_one_namespace(
    backend: str, strategy: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=4, COUNTED_DOCUMENTS=30, MAX_SEGMENT_DOCUMENTS=16)
    records = made(7)
    engine = grown(records, backend)
    words = [*WORDS, "tea key", "Sarah tea", "sun sun sea"]
    asked = [{"text": text, "vector": [1.0, 0.5, -1.0], "weights": {text.split()[0]: 1.0}} for text in words]
    for where, names in (({"namespaces": SPACES[1:4]}, SPACES[1:4]), ({"under": "users/ana/"}, BELOW)):
        assert sum(engine.namespace(name).stats()["segments"] for name in names) > len(names)
        one = fr.Engine.from_records(joined(records, names), backend=backend, encoder=fr.OwnVectors(3))
        for k in (1, 5, 50):
            found = engine.search([fr.Query(**query, **where, **options) for query in asked], k, strategy=strategy)
            wanted = one.search([fr.Query(**query, **options) for query in asked], k, strategy=strategy)
            assert rows(found, True) == rows(wanted, False), (where, k)
            assert found.counts.tolist() == wanted.counts.tolist()
            assert set(found.namespaces[found.documents >= 0].tolist()) <= {*names}


def test_a_write_is_seen_and_other_unions_stay() -> None:
    engine = fr.Engine.from_records([fr.Record("m", "tea", namespace=name) for name in ("a", "b", "c")])
    both, others = [fr.Query("tea", namespaces=["a", "b"])], [fr.Query("tea", namespaces=["a", "c"])]
    assert engine.search(both).namespaces[0, :2].tolist() == ["a", "b"]
    engine.search(others)
    kept = engine.index.memory.state.union(("a", "c"))
    engine.add([fr.Record("n", "tea tea", namespace="b")])
    assert engine.search(both).namespaces[0, :3].tolist() == ["b", "a", "b"]
    assert engine.index.memory.state.union(("a", "c")) is kept
    engine.drop("b")
    assert engine.search(both).namespaces[0, :2].tolist() == ["a", None]


def test_explanations_name_what_they_cannot_tell_apart() -> None:
    engine = fr.Engine.from_records(
        [fr.Record("m", "tea", namespace="a"), fr.Record("m", "tea key", namespace="b"), fr.Record("n", "key", "b")]
    )
    hits = engine.search([fr.Query("key tea", namespaces=["a", "b"])])
    assert hits.explain(0, "n").score == dict(hits[0])["n"]
    with pytest.raises(fr.errors.QueryError, match="several of the namespaces"):
        hits.explain(0, "m")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"namespaces": "ab"}, "must be a sequence of names"),
        ({"namespaces": []}, "must be a sequence of names"),
        ({"namespaces": [1]}, "must be a sequence of names"),
        ({"under": ""}, "must be a path"),
        ({"under": "/"}, "must be a path"),
        ({"under": "a", "namespace": "b"}, "has one of"),
        ({"under": "a", "namespaces": ["b"]}, "has one of"),
    ],
)
def test_bad_names_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(fr.errors.QueryError, match=what):
        fr.Query("tea", **fields)
