"""Small corpora and queries, engines that hold them, and their answers as (document, quanta)."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.index.bm25 import METHODS, SCALE
from fanrank.engine.index.profiles import DEFAULT_PROFILE

TERMS = ["a1", "b2", "c3", "d4", "e5", "f6", "g7"]
terms = st.sampled_from(TERMS)
# Few distinct terms and short documents: ties, empty documents and terms in every document are common.
document = st.lists(terms, max_size=6)
corpus = st.lists(document, max_size=40)
query = st.lists(st.sampled_from([*TERMS, "unknown"]), max_size=6)
queries = st.lists(query, min_size=1, max_size=6)

# The papers' constants, which tests take unless they say otherwise, and those of an engine outside of tests.
CONSTANTS = {
    "literature": {"method": "lucene", "k1": 1.2, "b": 0.75},
    "general": {"method": "bm25l", "k1": 2.0, "b": 0.75},
}
PROFILES = ("literature", DEFAULT_PROFILE)
profiles = st.sampled_from(PROFILES)


def of(weights: Sequence[int]) -> fr.Neighbours:
    """Neighbours that lend by these weights, in 64ths."""
    return fr.Neighbours(len(weights), [weight / 64 for weight in weights])


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, object]:
    return {
        "method": draw(st.sampled_from(METHODS)),
        "k1": draw(st.sampled_from([0.0, 0.9, 1.2, 1.5, 2.0])),
        "b": draw(st.sampled_from([0.0, 0.4, 0.75, 1.0])),
        "query_tf": draw(st.sampled_from(["count", "unique"])),
    }


def build(documents: list[list[str]], history: int | None = None, **options: object) -> fr.Engine:
    return made(records(documents), history, **options)


def records(documents: list[list[str]], start: int = 0) -> list[fr.Record]:
    """Records in no order of time, in several windows."""
    return [
        fr.Record(f"r{number}", " ".join(terms), time=number * 5 % 7 * 200_000.0)
        for number, terms in enumerate(documents, start)
    ]


def made(wanted: list[fr.Record], history: int | None, **options: object) -> fr.Engine:
    """An engine that holds these records in this order: built at once, or by the history with this seed.

    That grows in pieces, between which some records stand for a while with the text of others, and others come that
    are deleted later. Tombstones, merges that leave them out and documents numbered with gaps are what remains of it.
    """
    engine = fr.Engine(analyzer="minimal", **options)  # type: ignore[arg-type]
    if history is None:
        engine.add(wanted)
        return engine
    rng = random.Random(history)
    early: set[str] = set()
    doomed: list[tuple[str, str]] = []
    start = 0
    while start < len(wanted):
        end = min(start + rng.randrange(1, 12), len(wanted))
        piece: list[fr.Record] = []
        for own in rng.choices(wanted, k=rng.randrange(4)):
            unused = f"unused{len(doomed)}"  # a term that no record keeps
            gone = replace(
                own,
                id=f"gone{len(doomed)}-{start}-{len(piece)}",
                text=f"{own.text} {unused}",
                weights=own.weights and {**own.weights, unused: 1.0},
            )
            piece.append(gone)
            doomed.append((gone.namespace, gone.id))
        for own in rng.sample(wanted[end:], k=min(rng.randrange(3), len(wanted) - end)):
            if own.id not in early:
                other = rng.choice(wanted)
                evidence = {"text": other.text, "embedding": other.embedding, "weights": other.weights}
                piece.append(replace(own, session="early", **evidence))
                early.add(own.id)
        piece += wanted[start:end]
        if early.isdisjoint(own.id for own in wanted[start:end]):
            engine.add(piece)
        else:
            engine.upsert(piece)
        if rng.random() < 0.5:
            engine.search([[own] for own in TERMS], 3)  # contributions and rows of an epoch that the next write ends
        rng.shuffle(doomed)
        delete(engine, [doomed.pop() for _ in range(rng.randrange(len(doomed) + 1))])
        start = end
    delete(engine, doomed)
    return engine


def delete(engine: fr.Engine, doomed: list[tuple[str, str]]) -> None:
    for namespace in sorted({namespace for namespace, _ in doomed}):
        engine.delete([record_id for own, record_id in doomed if own == namespace], namespace=namespace)


def oracle(documents: list[list[str]], *, profile: str = "literature", **options: object) -> Oracle:
    options = {**CONSTANTS[profile], **options}
    delta = fr.BM25(method=str(options["method"])).delta
    return Oracle([[terms] for terms in documents], **{"delta": delta, **options})  # type: ignore[arg-type]


def order(numbers: list[int]) -> list[int]:
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def answer(hits: fr.Hits, dense: bool = True, steps: int = 1) -> list[list[tuple[int, int]]]:
    """The hits as the oracle's (document, quanta) pairs, after checking shapes, dtypes, padding and ids.

    Documents are numbered in the order of the records, without gaps where the engine holds no deleted ones (`dense`).
    `steps` is 64 where records borrow: the oracle's sums are then in 64ths of quanta.
    """
    b, k = hits.scores.shape
    assert hits.scores.dtype == np.float64
    assert hits.documents.dtype == np.int64
    assert hits.counts.dtype == np.int32
    assert hits.documents.shape == hits.ids.shape == (b, k)
    assert hits.counts.shape == (b,)
    rows = []
    for row in range(b):
        count = int(hits.counts[row])
        assert (hits.documents[row, count:] == -1).all()
        assert (hits.scores[row, count:] == -np.inf).all()
        assert all(i is None for i in hits.ids[row, count:])
        quanta = hits.scores[row, :count] * (SCALE * steps)
        assert (quanta == np.rint(quanta)).all()
        numbers = hits.documents[row, :count].tolist()
        names = [int(name.removeprefix("r")) for name in hits.ids[row, :count]]
        assert numbers == names or (not dense and order(numbers) == order(names))
        rows.append(list(zip(names, quanta.astype(int).tolist(), strict=True)))
    return rows


def remembered(seed: int, count: int) -> tuple[fr.Engine, list[fr.Query]]:
    """An engine whose records have times, sessions and deleted neighbours, and queries of every kind in one batch."""
    rng = random.Random(seed)
    day = 86_400.0
    moments = sorted(rng.choice([rng.uniform(0, 60 * day), 30 * day]) for _ in range(count))
    if seed % 3 == 0:
        rng.shuffle(moments)
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    for start in range(0, count, 40):
        engine.add(
            fr.Record(
                f"r{n}",
                " ".join(rng.choices(TERMS, k=rng.randrange(6))),
                time=None if rng.random() < 0.1 * (seed % 2) else moments[n],
                session=f"s{n % 3}",
                importance=rng.random(),
            )
            for n in range(start, min(start + 40, count))
        )
    engine.delete([f"r{n}" for n in range(0, count, 7)])
    engine.update([fr.Record(f"r{n}", "a1 b2", time=moments[n]) for n in range(1, count, 19) if n % 7])
    asked = []
    for _ in range(24):
        now = rng.uniform(20 * day, 70 * day)
        since = rng.choice([None, rng.uniform(0, 50 * day)])
        asked.append(
            fr.Query(
                " ".join(rng.choices([*TERMS, "unknown"], k=rng.randrange(1, 5))),
                k=rng.choice([1, 3, 10, 200]),
                now=now,
                half_life=rng.choice([None, 1.0, day, 7 * day, 3650 * day]),
                since=since,
                until=rng.choice([None, 30 * day, rng.uniform(0, 60 * day)]),
                windows=rng.choice([None, None, 1, 3, "auto"]),
                filter=rng.choice([None, {"session": "s1"}, fr.col("importance") > 0.5]),
                statistics=rng.choice(["namespace", "filtered"]),
            )
        )
    return engine, asked


def assert_same(found: fr.Hits, wanted: fr.Hits) -> None:
    for name in ("scores", "documents", "counts"):
        own, other = getattr(found, name), getattr(wanted, name)
        assert (own.dtype, own.shape, own.tobytes()) == (other.dtype, other.shape, other.tobytes()), name
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.queries == wanted.queries
    assert found.backend == wanted.backend
