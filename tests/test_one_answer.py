"""One answer: every path gives the oracle's documents, scores and order, with tolerance zero.

Long because every path is compared with every other over one set of corpora.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import borders
from support.answers import (
    PROFILES,
    TERMS,
    answer,
    build,
    corpus,
    document,
    made,
    oracle,
    parameters,
    profiles,
    queries,
    query,
    records,
    terms,
)
from support.history import unused_entries

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.oracle import Oracle, VectorOracle, WeightOracle, borrow, reciprocal_ranks
from fanrank.engine.index.profiles import DEFAULT_PROFILE
from fanrank.engine.settings import PROFILE_VARIABLE

pytestmark = pytest.mark.usefixtures("small_borders")

# How the corpus came about: in one go, or by the history with this seed.
histories = st.none() | st.integers(0, 1 << 16)


def forms(engine: fr.Engine) -> Iterator[str]:
    """Bring the index into other forms that hold the same, and back at the end."""
    memory = engine.index.memory
    state = memory.state
    memory.flush()
    yield "merged"
    memory.state = replace(state, snapshots={name: own.compacted(1 << 20) for name, own in state.snapshots.items()})
    yield "in few segments"
    memory.renumber(all_unused=True)
    assert not unused_entries(engine)
    yield "renumbered"
    memory.state = state


def paths(
    engine: fr.Engine, batch: list[fr.Query], k: int, *, gaps: bool = False, steps: int = 1
) -> Iterator[tuple[str, list[list[tuple[int, int]]]]]:
    """Every way of asking that must not change the answer.

    With `gaps`, documents are not numbered as their records are, though none is deleted. `steps` is as in `answer`.
    """
    engine.index.memory.join()
    dense = engine.stats()["deleted"] == 0 and not gaps

    def ask(asked: list[Any], **options: object) -> list[list[tuple[int, int]]]:
        return answer(engine.search(asked, k, **options), dense, steps)  # type: ignore[arg-type]

    # All records have a time, so that these pass them all, and they are all of the future, so that none fades.
    ways: dict[str, list[Any]] = {"": batch, ", newest first": [replace(q, since=-1e300) for q in batch]}
    if not engine.bm25.signed:
        ways[", unfaded"] = [replace(q, now=-1e9, half_life=1.0) for q in batch]
        ways[", in turns"] = [ways[("", ", newest first", ", unfaded")[n % 3]][n] for n in range(len(batch))]
    # Batches of texts with settings in common take a way of their own where loops are compiled.
    for way, asked in [*ways.items()][:3]:
        ways[f"{way}, as texts"] = [replace(q, text=" ".join(q.terms or ()), terms=None) for q in asked]
    if all(q == fr.Query(terms=q.terms) for q in batch):
        ways[", as lists"] = [list(q.terms or ()) for q in batch]
    for name in (status.name for status in backend.statuses() if status.usable and not status.by_name):
        engine.backend = backend.choose(name)
        for execution, (way, asked) in itertools.product(("exhaustive", "pruned", "auto"), ways.items()):
            for threads in (1, 3):
                yield f"{name}, {execution}, {threads} threads{way}", ask(asked, execution=execution, threads=threads)
    yield "one by one", [row for q in batch for row in ask([q], execution="pruned")]
    yield "other neighbours", ask(batch[::-1])[::-1]
    shuffled = [replace(q, terms=random.Random(0).sample(q.terms or (), len(q.terms or ()))) for q in batch]
    yield "other term order", ask(shuffled)
    for form in forms(engine):
        yield form, ask(batch)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(corpus, queries, st.integers(0, 45), histories, parameters())
# Words that most records hold, one of them twice in a query.
@example([["a1"], ["a1", "b2"]] * 9, [["a1", "a1", "b2"], ["a1"]], 9, None, {})
def test_every_road_equals_the_oracle(
    documents: list[list[str]], batch: list[list[str]], k: int, history: int | None, options: dict[str, object]
) -> None:
    expected = [oracle(documents, **options).search(q, k) for q in batch]
    engine = build(documents, history, **options)
    for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], k):
        assert got == expected, path


# Few different numbers: equal scores are common, and so are weights that round to 0 or stand between two steps.
vector = st.lists(st.integers(-2, 2), min_size=3, max_size=3).filter(any)
weights = st.dictionaries(terms, st.sampled_from([0.0, 2.0**-12, 1.5 * 2.0**-10, 0.75, 2.0]), max_size=4)
evidence = st.tuples(document, st.lists(vector, max_size=3), weights)


@settings(max_examples=14, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(evidence, max_size=40),
    st.lists(st.tuples(query, st.none() | vector, weights), min_size=1, max_size=4),
    st.integers(0, 45),
    histories,
    profiles,
)
def test_every_strategy_equals_the_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[tuple[list[str], list[list[int]], dict[str, float]]],
    batch: list[tuple[list[str], list[int] | None, dict[str, float]]],
    k: int,
    history: int | None,
    profile: str,
) -> None:
    plain_records = [
        replace(record, embedding=rows or None, weights=own)
        for record, (_, rows, own) in zip(records([t for t, _, _ in documents]), documents, strict=True)
    ]
    asked = [fr.Query(terms=tuple(t), vector=v, weights=own) for t, v, own in batch]
    rows = [[] if record.embedding is None else record.embedding.tolist() for record in plain_records]
    vectors = [None if q.vector is None else q.vector[0].tolist() for q in asked]
    near = [VectorOracle(rows).search(own, len(rows)) for own in vectors]
    every = oracle([t for t, _, _ in documents], profile=profile)
    lists = [
        [[document for document, _ in found] for found in (every.search(t, len(rows)), own)]
        for (t, _, _), own in zip(batch, near, strict=True)
    ]
    learned = WeightOracle([own for _, _, own in documents])
    expected = {
        "dense": [own[:k] for own in near],
        "dense-int8": [VectorOracle(rows, int8=True).search(own, k) for own in vectors],
        "sparse": [learned.search(own, k) for _, _, own in batch],
        "rrf": [reciprocal_ranks(own, k) for own in lists],
    }
    engine = made(plain_records, history, encoder=fr.OwnVectors(3), profile=profile)
    for strategy, wanted in expected.items():
        for path, got in strategy_paths(engine, asked, k, strategy):
            assert got == wanted, (strategy, path)
    path = tmp_path_factory.mktemp("index")
    engine.save(path)
    for strategy, wanted in expected.items():
        assert numbered(fr.Engine.load(path).search(asked, k, strategy=strategy)) == wanted, strategy


def numbered(hits: fr.Hits) -> list[list[tuple[int, float]]]:
    return [[(int(name.removeprefix("r")), score) for name, score in row] for row in hits]


def strategy_paths(
    engine: fr.Engine, batch: list[fr.Query], k: int, strategy: str
) -> Iterator[tuple[str, list[list[tuple[int, float]]]]]:
    """As `paths`, of what a strategy can be asked by."""
    engine.index.memory.join()

    def ask(asked: list[fr.Query], **options: object) -> list[list[tuple[int, float]]]:
        return numbered(engine.search(asked, k, strategy=strategy, **options))  # type: ignore[arg-type]

    for name in (status.name for status in backend.statuses() if status.usable and not status.by_name):
        engine.backend = backend.choose(name)
        for execution in ("exhaustive", "pruned", "auto"):
            yield f"{name}, {execution}", ask(batch, execution=execution)
        yield f"{name}, 3 threads", ask(batch, threads=3)
        yield f"{name}, one by one", [row for q in batch for row in ask([q])]
    yield "other neighbours", ask(batch[::-1])[::-1]
    for form in forms(engine):
        yield form, ask(batch)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, st.sampled_from(["s", "t", None])), max_size=40),
    queries,
    st.integers(1, 12),
    histories,
    profiles,
)
def test_filters_apply_before_selection(
    documents: list[tuple[list[str], str | None]], batch: list[list[str]], k: int, history: int | None, profile: str
) -> None:
    plain_records = records([t for t, _ in documents])
    in_sessions = [replace(r, session=s) for r, (_, s) in zip(plain_records, documents, strict=True)]
    engine = made(in_sessions, history, profile=profile)
    plain = oracle([t for t, _ in documents], profile=profile)
    # Texts with a filter in common take a way of their own.
    for filters in (["s"], [["s", None]], [None, "nobody", []]):
        asked, expected = [], []
        for q, wanted in itertools.product(batch, filters):
            accepted = wanted if isinstance(wanted, list) else [wanted]
            asked.append(fr.Query(terms=tuple(q), filter={"session": wanted}))
            expected.append(plain.search(q, k, [s in accepted for _, s in documents]))
        for path, got in paths(engine, asked, k):
            assert got == expected, (filters, path)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, st.sampled_from(["s", None])), max_size=40),
    queries,
    st.integers(0, 45),
    histories,
    parameters(),
)
def test_one_of_those_that_agree_in_their_texts_is_the_same_by_every_road(
    documents: list[tuple[list[str], str | None]],
    batch: list[list[str]],
    k: int,
    history: int | None,
    options: dict[str, object],
) -> None:
    texts = [t for t, _ in documents]
    plain = oracle(texts, **options)
    engine = made(
        [replace(r, session=s) for r, (_, s) in zip(records(texts), documents, strict=True)], history, **options
    )
    for within in (None, {"session": "s"}):
        passes = [within is None or s == "s" for _, s in documents]
        expected = []
        for q in batch:
            ranked, best = plain.search(q, len(texts), passes), dict[tuple[str, ...], tuple[int, int]]()
            for d, total in ranked:
                best.setdefault(tuple(texts[d]), (d, total))
            expected.append([*best.values()][:k])
        asked = [fr.Query(terms=tuple(q), collapse="text", filter=within) for q in batch]
        for path, got in paths(engine, asked, k):
            assert got == expected, (within, path)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, st.sampled_from("stuv") | st.none(), st.none() | st.integers(0, 3)), max_size=40),
    queries,
    st.integers(0, 45),
    histories,
    parameters(),
)
def test_the_newest_of_those_that_agree_is_the_same_by_every_road(
    documents: list[tuple[list[str], str | None, int | None]],
    batch: list[list[str]],
    k: int,
    history: int | None,
    options: dict[str, object],
) -> None:
    texts = [t for t, _, _ in documents]
    plain = oracle(texts, **options)
    dated = zip(records(texts), documents, strict=True)
    engine = made(
        [replace(r, session=s, time=None if at is None else float(at)) for r, (_, s, at) in dated], history, **options
    )
    for now, within in ((None, {}), (1.0, {}), (2.0, {"since": 1.0})):
        passes = [not within or (at is not None and at >= 1) for _, _, at in documents]
        for d, (_, key, at) in enumerate(documents):
            later = [
                (-1 if other is None else other, e)
                for e, (_, held, other) in enumerate(documents)
                if held == key and (not within or (other or 0) >= 1) and (now is None or (other or 0) <= now)
            ]
            passes[d] &= key is None or (-1 if at is None else at, d) == max(later, default=None)
        expected = [[(d, total / 2.0**18) for d, total in plain.search(q, k, passes)] for q in batch]
        asked = [fr.Query(terms=tuple(q), latest="session", now=now, **within) for q in batch]
        for path, got in strategy_paths(engine, asked, k, "bm25"):
            assert got == expected, (now, path)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, st.sampled_from(["s", "t", None])), max_size=40),
    queries,
    st.integers(0, 45),
    st.lists(st.sampled_from([1, 16, 64]), min_size=1, max_size=3),
    histories,
    parameters(),
)
def test_what_neighbours_lend_is_the_same_by_every_road(
    documents: list[tuple[list[str], str | None]],
    batch: list[list[str]],
    k: int,
    lent: list[int],
    history: int | None,
    options: dict[str, object],
) -> None:
    texts, sessions = [t for t, _ in documents], [s for _, s in documents]
    plain = oracle(texts, **options)
    expected = []
    for q in batch:
        sums = borrow([plain.score(q, d) for d in range(len(texts))], sessions, lent)
        found = [(d, total) for d, total in enumerate(sums) if total is not None]
        expected.append(sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k])
    engine = made([replace(r, session=s) for r, s in zip(records(texts), sessions, strict=True)], history, **options)
    neighbours = fr.Neighbours(len(lent), [steps / 64 for steps in lent])
    asked = [fr.Query(terms=tuple(q), neighbours=neighbours) for q in batch]
    for path, got in paths(engine, asked, k, steps=64):
        assert got == expected, path


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, st.sampled_from(["x", "x/a", "xy", "z"])), max_size=40),
    queries,
    st.integers(0, 45),
    histories,
    parameters(),
)
def test_several_namespaces_are_as_one(
    documents: list[tuple[list[str], str]],
    batch: list[list[str]],
    k: int,
    history: int | None,
    options: dict[str, object],
) -> None:
    # One namespace after another, in the order of their names: so a union numbers its documents, and so are the ids.
    order = sorted(range(len(documents)), key=lambda n: documents[n][1])
    place = {n: number for number, n in enumerate(order)}
    engine = made(
        [
            replace(r, id=f"r{place[n]}", namespace=documents[n][1])
            for n, r in enumerate(records([t for t, _ in documents]))
        ],
        history,
        **options,
    )
    for where, names in (({"namespaces": ["z", "x/a", "nobody"]}, ["x/a", "z"]), ({"under": "x"}, ["x", "x/a"])):
        own = [n for n in order if documents[n][1] in names]
        plain = oracle([documents[n][0] for n in own], **options)
        expected = [[(place[own[d]], quanta) for d, quanta in plain.search(q, k)] for q in batch]
        for path, got in paths(engine, [fr.Query(terms=tuple(q), **where) for q in batch], k, gaps=True):
            assert got == expected, (where, path)
    assert not engine.search([fr.Query(terms=tuple(q), under="w") for q in batch], k).counts.any()


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, document), max_size=20),
    queries,
    parameters(),
    st.sampled_from([(1.0, 4.0), (2.5, 0.5), (3.0,)]),
    histories,
)
def test_fields(
    documents: list[tuple[list[str], list[str]]],
    batch: list[list[str]],
    options: dict[str, object],
    weights: tuple[float, ...],
    history: int | None,
) -> None:
    names = ("text", "predicate")[: len(weights)]
    plain_records = records([t for t, _ in documents])
    engine = made(
        [
            # A field that no search would find is refused.
            replace(r, fields={"predicate": " ".join(p)} if "predicate" in names else {})
            for r, (_, p) in zip(plain_records, documents, strict=True)
        ],
        history,
        fields=dict(zip(names, weights, strict=True)),
        **options,
    )
    delta = engine.bm25.delta
    plain = Oracle([d[: len(weights)] for d in documents], weights=weights, delta=delta, **options)  # type: ignore[arg-type]
    expected = [plain.search(q, 6) for q in batch]
    for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], 6):
        assert got == expected, path


@pytest.mark.parametrize(
    ("size", "k"),
    [
        *((1, 1), (17, 10), (65, 1024)),
        *(
            pytest.param(size, k, marks=pytest.mark.extended)
            for size in (1, 16, 17, 64, 65, 256, 257)
            for k in (1, 10, 1024)
        ),
    ],
)
def test_sizes_around_every_border(monkeypatch: pytest.MonkeyPatch, size: int, k: int) -> None:
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=256 if size > 65 else 64)
    rng = random.Random(size)
    documents = [rng.choices(TERMS, weights=[64, 32, 16, 8, 4, 2, 1], k=rng.randrange(5)) for _ in range(size)]
    batch = [["a1"], ["g7", "a1"], TERMS, ["f6", "f6", "b2"], ["c3"] * 300]
    for history, profile in zip((None, size), PROFILES, strict=True):
        expected = [oracle(documents, profile=profile).search(q, k) for q in batch]
        for path, got in paths(
            build(documents, history, profile=profile), [fr.Query(terms=tuple(q)) for q in batch], k
        ):
            assert got == expected, (history, path)


def test_real_block_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unshrunk tiles, groups and chunks, with a corpus that has several of each."""
    monkeypatch.undo()
    rng = random.Random(7)
    weights = [1.0 / (rank + 1) for rank in range(200)]
    words = [f"w{rank}" for rank in range(200)]
    documents = [rng.choices(words, weights, k=rng.randrange(12)) for _ in range(3000)]
    batch = [rng.choices(words, weights, k=rng.randrange(1, 8)) for _ in range(20)]
    for history, profile, ks in ((None, PROFILES[0], (1, 10, 100)), (7, PROFILES[1], (10,))):
        plain, engine = oracle(documents, profile=profile), build(documents, history, profile=profile)
        ranked = [plain.search(q, max(ks)) for q in batch]
        for k in ks:
            expected = [own[:k] for own in ranked]
            for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], k):
                assert got == expected, (history, k, path)


@pytest.mark.parametrize("method", ["lucene", "robertson"])
def test_scores_beyond_int32_take_the_wide_path(method: str) -> None:
    documents = [["a1", "b2"], ["a1"], ["b2"], [], ["c3", "a1"], ["c3"], ["d4"], ["e5"]]
    batch = [["c3"] * 9000 + ["a1"], ["a1"], ["c3"] * 3000 + ["b2"] * 3000]
    plain = oracle(documents, method=method)
    expected = [plain.search(q, 4) for q in batch]
    assert max(score for row in expected for _, score in row) >= 1 << 31
    for history in (None, 1):
        engine = build(documents, history, method=method)
        for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], 4):
            assert got == expected, (history, path)


def test_contributions_beyond_int32() -> None:
    documents = [["a1"] * 30, ["a1", "b2"], ["b2"] * 9, [], ["c3"] * 100]
    options = {"k1": 1000.0, "b": 0.0}
    batch = [["a1"], ["b2", "a1"], ["c3"] * 400]
    expected = [oracle(documents, **options).search(q, 4) for q in batch]
    for history in (None, 1):
        for path, got in paths(build(documents, history, **options), [fr.Query(terms=tuple(q)) for q in batch], 4):
            assert got == expected, (history, path)


def test_streaming_build_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    documents = [rng.choices(TERMS, k=rng.randrange(6)) for _ in range(100)]
    batch = [rng.choices(TERMS, k=3) for _ in range(10)]
    expected = [oracle(documents, profile=DEFAULT_PROFILE).search(q, 10) for q in batch]
    for chunk in (1, 7, 64, 1000):
        borders.shrink(monkeypatch, BUILD_CHUNK=chunk)
        monkeypatch.delenv(PROFILE_VARIABLE, raising=False)  # what an engine has outside of tests
        assert answer(build(documents).search(batch, 10)) == expected


def test_saved_files_are_reproducible(tmp_path: Path) -> None:
    documents = [["b2", "a1"], ["c3"], ["a1"]]
    one, two = build(documents), build(documents)
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")

    def contents(folder: Path) -> dict[str, bytes]:
        return {p.name.split(".")[0]: p.read_bytes() for p in folder.glob("*.npy")}

    assert contents(tmp_path / "one") == contents(tmp_path / "two")
