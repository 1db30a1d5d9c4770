"""Queries of several namespaces, answered as if their records stood in one; and which stand below a path."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fanrank as fr

WORDS = ["tea", "key", "car", "sun", "sea"]
SPACES = ("", "users/ana", "users/ana/work", "users/anabel", "users/bo")


@pytest.mark.parametrize("strategy", ["recall", "cascade"])
def test_the_answer_is_that_of_one_namespace(strategy: str) -> None:
    """The machine of memories holds what has no loops of its own here."""
    draw = random.Random(7)
    records = [
        fr.Record(
            f"r{n}",
            " ".join(draw.choices(WORDS, k=draw.randrange(0, 6))),
            namespace=SPACES[n * len(SPACES) // 80],
            session=draw.choice(["s", "t", None]),
            type=draw.choice(["Event", "note"]),
            time=draw.choice([None, 1.0, 2e6, 4e6]),
            embedding=[draw.choice([-1.0, 0.5, 1.0]) for _ in range(3)],
            entities={"Sarah": "sarah"} if draw.random() < 0.3 else None,
        )
        for n in range(80)
    ]
    engine = fr.Engine.from_records(records, encoder=fr.OwnVectors(3))
    asked = [{"text": text, "vector": [1.0, 0.5, -1.0]} for text in (*WORDS, "tea key", "Sarah tea", "sun sun sea")]
    for where, names in (({"namespaces": SPACES[1:4]}, SPACES[1:4]), ({"under": "users/ana/"}, SPACES[1:3])):
        own = [replace(record, namespace="") for record in records if record.namespace in names]
        one = fr.Engine.from_records(own, encoder=fr.OwnVectors(3))
        for k in (1, 5, 50):
            found = engine.search([fr.Query(**query, **where, now=5e6) for query in asked], k, strategy=strategy)
            assert list(found) == list(
                one.search([fr.Query(**query, now=5e6) for query in asked], k, strategy=strategy)
            )
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


NAMES = ["é", "a/b/c", "a0", "", "b/a", "a.", "a", "a-b", "ab", "a/b", "b", "a/é"]
BELOW = {
    "a": ("a", "a/b", "a/b/c", "a/é"),
    "a/b": ("a/b", "a/b/c"),
    "a/": ("a", "a/b", "a/b/c", "a/é"),
    "c": (),
    "é": ("é",),
}


def check(engine: fr.Engine, held: list[str]) -> None:
    state = engine.index.ready().state
    assert state.names == tuple(sorted(held))
    for path, below in BELOW.items():
        assert state.names_under(path) == tuple(name for name in below if name in held), path


def test_names_stay_sorted(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path) as engine, fr.Engine.open(tmp_path, read_only=True) as reader:
        for count, name in enumerate(NAMES, 1):
            engine.upsert([fr.Record("1", "tea", name), fr.Record("2", "tea", NAMES[0])])
            check(engine, NAMES[:count])
        for count, name in enumerate(NAMES, 1):
            engine.drop(name)
            check(engine, NAMES[count:])
            reader.refresh()
            check(reader, NAMES[count:])
