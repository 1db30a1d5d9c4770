"""Records with all that a record can hold, and what an engine says of them, to compare two engines."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.storage.record_stream import stream_records
from fanrank.engine.storage.row_codec import EncodedRecord, encode

DIMENSION = 3
LATER = 4e9
"""A time of expiry that no test lives to see, so that nothing is swept."""
NAMESPACES = ("", "n", "users/ana")
COLUMNS = {"project": "category", "priority": "number"}
WORDS = ("tea", "pot", "error", "4711", "Straße", "日本", "the", "x\ny", "\u2028")

_texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) | st.text(
    st.characters(exclude_categories=("Cs",)), max_size=20
)
_names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
_numbers = st.floats(-1e15, 1e15) | st.integers(-(10**9), 10**9)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_entities = st.sampled_from(["ana", "bob", "acme corp", "Ünal"])
_relations = st.builds(
    fr.Relation,
    _entities,
    _entities,
    st.sampled_from(["reports-to", "knows"]),
    st.floats(0, 1),
    st.none() | st.floats(-1e9, 0),
    st.none() | st.floats(1, 1e9),
    st.none() | st.sampled_from(["structural", "semantic", "lifecycle"]),
)


@st.composite
def records(draw: st.DrawFn, name: str) -> fr.Record:
    """A record with any of its fields; its id begins with `name`."""
    passages = draw(st.none() | st.lists(st.sampled_from(WORDS[:5]), min_size=1, max_size=3))
    rows = 1 if passages is None else len(passages)
    components = st.floats(-1, 1, width=32)
    embedding: Any = draw(st.none() | st.lists(st.tuples(*[components] * DIMENSION), min_size=rows, max_size=rows))
    if embedding is not None:
        embedding = np.array(embedding) + np.array([2.0, 0.0, 0.0])  # no row of length 0
    extra = draw(st.dictionaries(_names.filter(lambda key: key not in COLUMNS), _json, max_size=2))
    extra |= draw(st.fixed_dictionaries({}, optional={"project": st.none() | st.sampled_from("abc")}))
    extra |= draw(st.fixed_dictionaries({}, optional={"priority": st.none() | st.integers(0, 4)}))
    category = st.none() | st.sampled_from(["a", "b", ""])
    return fr.Record(
        name + draw(_names),
        draw(_texts),
        draw(st.sampled_from(NAMESPACES)),
        **{field: draw(category) for field in ("role", "session", "user", "agent", "tool", "type")},
        time=draw(st.none() | _numbers),
        importance=draw(st.none() | st.floats(0, 1)),
        fields=draw(st.dictionaries(st.sampled_from(["title", "predicate"]), _texts, max_size=2)),
        extra=extra,
        passages=passages,
        embedding=embedding,
        weights=draw(st.none() | st.dictionaries(st.sampled_from(WORDS), st.floats(0, 60), max_size=3)),
        entities=draw(st.none() | st.dictionaries(_entities, _entities, max_size=2)),
        relations=draw(st.none() | st.lists(_relations, max_size=2)),
        payload=draw(st.none() | st.dictionaries(_texts, _json, max_size=2)),
        expires=draw(st.none() | st.floats(LATER, 1e15)),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[fr.Record]:
    """Up to twelve records with ids of their own."""
    count = draw(st.integers(0, 12))
    return [draw(records(f"{number}:")) for number in range(count)]


def plain(count: int, seed: int = 7) -> list[fr.Record]:
    """That many records in three namespaces, with ties, empty texts, vectors, weights, entities, payloads, expiry."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        words = rng.choice(WORDS[:5], rng.integers(0, 6)).tolist()
        found.append(
            fr.Record(
                f"r{number}",
                " ".join(words),
                NAMESPACES[int(rng.integers(3))],
                role=["user", "tool", None][int(rng.integers(3))],
                time=float(rng.integers(1_000)) if rng.random() < 0.8 else None,
                extra={"project": "abc"[int(rng.integers(3))], "priority": int(rng.integers(5))}
                if rng.random() < 0.8
                else {},
                embedding=rng.normal(size=DIMENSION) if rng.random() < 0.6 else None,
                weights={WORDS[int(rng.integers(5))]: float(rng.random())} if rng.random() < 0.4 else None,
                entities={"Ana": "ana"} if rng.random() < 0.2 else None,
                relations=[fr.Relation("ana", "bob", "knows")] if rng.random() < 0.1 else None,
                payload={"n": number} if rng.random() < 0.3 else None,
                expires=LATER + float(rng.integers(1_000)) if rng.random() < 0.3 else None,
            )
        )
    return found


@contextmanager
def engine_at(path: Path, **options: Any) -> Iterator[fr.Engine]:
    """The engine of a directory, for vectors that the caller brings."""
    with fr.Engine.open(path, backend="numpy", **{"encoder": f"own:{DIMENSION}", **options}) as engine:
        yield engine


def held(engine: fr.Engine) -> dict[str, list[EncodedRecord]]:
    """All that an engine's records say, bit by bit, in the order of arrival in each namespace."""
    memory = engine.index.memory
    return encoded(stream_records(memory.store, memory.state))


def encoded(given: Iterable[fr.Record]) -> dict[str, list[EncodedRecord]]:
    """As `held`, of records as they were given."""
    found: dict[str, list[EncodedRecord]] = {}
    for record in given:
        found.setdefault(record.namespace, []).append(encode(record))
    return found


QUESTIONS = [
    fr.Query(text, k=20, namespace=name, **{"now": 1_000.0, **more})
    for name in NAMESPACES
    for text in ("tea pot", "error 4711 tea", "straße")
    for more in (
        {},
        {"now": LATER + 500},
        {"since": 100.0, "half_life": 300.0},
        {"filter": {"role": "user"}, "statistics": "filtered"},
    )
]


def filtered_questions() -> list[fr.Query]:
    """Queries that name declared columns."""
    return [
        fr.Query(text, k=20, now=1_000.0, namespace=name, filter=filter)
        for name in NAMESPACES
        for text in ("tea pot", "error 4711 tea")
        for filter in ({"project": "a"}, {"priority": {">=": 2}}, {"not": {"project": None}})
    ]


def answers(engine: fr.Engine, questions: list[fr.Query] | None = None) -> list[Any]:
    """Ids and scores, bit by bit: of words, and of words and vectors where the engine has these."""
    asked = QUESTIONS if questions is None else questions
    found = [engine.search(asked)]
    if engine.pin is not None:
        near = [fr.Query(q.text, k=9, now=q.now, namespace=q.namespace, vector=[0.6, 0.8, 0.0]) for q in asked]
        found += [engine.search(near, strategy=strategy) for strategy in ("dense", "rrf")]
    return [(hits.ids.tolist(), hits.scores.tobytes(), hits.counts.tolist()) for hits in found]
