"""Batches that differ in their text alone: what is decided for all of them, and the answers that are made of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.backends.choose import Backend
from fanrank.engine.records.hits import Hits
from fanrank.engine.search import batch as batches
from fanrank.engine.search import direct, lexical
from fanrank.engine.search.alike import Alike, read_alike
from fanrank.engine.search.batch import as_queries, prepare
from fanrank.engine.search.options import SearchOptions
from fanrank.engine.storage.memory import Memory

WORDS = ["tea", "milk", "jam", "bread", "salt"]


def make_engine() -> fr.Engine:
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    for first in (0, 25):
        engine.add(
            fr.Record(
                f"{space}{n}é" if n % 5 == 0 else f"{space}{n}",
                " ".join(WORDS[(n + shift) % 5] for shift in range(1 + n % 4)),
                time=float(n),
                session=f"s{n % 3}",
                namespace=space,
            )
            for space in ("", "other")
            for n in range(first, first + 25)
        )
    engine.delete(["3"])
    return engine


ENGINE = make_engine()
MEMORY = ENGINE.index.memory.state

texts = st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=4).map(" ".join)
settings_of_a_query = st.fixed_dictionaries(
    {},
    optional={
        "k": st.sampled_from([0, 1, 3, 60]),
        "namespace": st.sampled_from(["other", "empty"]),
        "filter": st.sampled_from([{}, {"session": "s1"}, fr.col("session") == "s1", {"session": "no"}]),
        "scope": st.sampled_from([fr.SearchScope.session("s1"), fr.SearchScope.session("s1", None)]),
        "statistics": st.just("filtered"),
        "since": st.sampled_from([0, 0.0, 10.0]),
        "until": st.just(40.0),
        "windows": st.sampled_from([1, "auto"]),
    },
)
decay = st.sampled_from([{}, {"now": 30.0}, {"now": 50.0}, {"now": 30.0, "half_life": 5.0}])
words_of_a_query = st.fixed_dictionaries(
    {"text": texts}, optional={"id": st.just("q"), "type": st.just("fact"), "vector": st.just([1.0, 2.0])}
)


def shared_batch(shared: dict[str, Any], words: Sequence[dict[str, Any]]) -> list[Any]:
    return [fr.Query(**own, **shared) for own in words]


alike_batches = st.one_of(
    st.lists(texts, min_size=1, max_size=6),
    st.builds(
        lambda settings, timed, words: shared_batch({**settings, **timed}, words),
        settings_of_a_query,
        decay,
        st.lists(words_of_a_query, min_size=1, max_size=6),
    ),
    st.lists(st.one_of(texts, texts.map(fr.Query)), min_size=1, max_size=6),
)


def serve(memory: Memory, queries: Any, k: int, windows: Any, backend: Backend, options: SearchOptions) -> Hits | None:
    """As `direct.answer`, with the arrays of the general way."""
    alike = read_alike(memory, queries, k, windows)
    if alike is None:
        return None
    batch = prepare(memory, as_queries(queries, "search"), k, windows)
    found = lexical.answer_lexical(batch, backend, options)
    source = np.array(found.source)
    return Hits.of(
        found.scores, found.documents, found.counts, alike, "direct", alike.snapshot.record_ids, source=source
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "answer", serve)


def read(batch: Any, k: Any = 4) -> Alike | None:
    return read_alike(MEMORY, batch, k, ENGINE.monitor.windows)


@given(alike_batches)
def test_what_is_shared_is_decided_as_for_each_query(batch: list[Any]) -> None:
    alike = read(batch)
    prepared = prepare(MEMORY, as_queries(batch, "search"), 4, ENGINE.monitor.windows)
    if not prepared.rows:
        assert alike is None
        return
    assert alike is not None
    for text, query, asked in zip(alike.texts, alike.queries(), prepared.asked, strict=True):
        assert (query, alike.k, alike.corpus, alike.settings) == asked
        assert text == query.text
    assert alike.k == prepared.width
    assert alike.snapshot is prepared.asked[0].snapshot


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"k": 3}),
    ({}, {"namespace": "other"}),
    ({}, {"filter": {"session": "s1"}}),
    ({"filter": {"session": "s1"}}, {"filter": {"session": "s2"}}),
    ({}, {"scope": fr.SearchScope.session("s1")}),
    ({}, {"statistics": "filtered"}),
    ({"since": 1.0}, {"since": 2.0}),
    ({}, {"until": 2.0}),
    ({"windows": 1}, {"windows": 2}),
    ({"windows": 1, "now": 1.0}, {"windows": 1, "now": 2.0}),
    ({"half_life": 5.0, "now": 1.0}, {"half_life": 5.0, "now": 2.0}),
    ({"half_life": 5.0, "now": 1.0}, {"half_life": 6.0, "now": 1.0}),
    ({}, {"terms": ["tea"]}),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_queries_with_different_settings_are_not_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert read([fr.Query("tea", **one), fr.Query("jam", **other)]) is None
    assert read([fr.Query("tea", **other), fr.Query("jam", **one)]) is None


@pytest.mark.parametrize(
    "batch",
    [
        [],
        "tea",
        fr.Query("tea"),
        {"tea": 1},
        iter(["tea"]),
        [["tea", 5]],
        ["tea", ["jam"]],
        [fr.Query(terms=["tea"])],
        [fr.Query(terms=[])],
        ["tea", 5],
        [None],
        [fr.Query("tea", namespace="empty")],
    ],
)
def test_other_batches_go_the_general_way(batch: Any) -> None:
    assert read(batch) is None


def test_lists_of_terms_are_kept_as_they_were() -> None:
    batch = [["tea", "jam"], ("milk",), [], ["tea", "jam"]]
    alike = read(batch)
    assert alike is not None
    assert alike.termed
    batch[0].append("salt")  # type: ignore[union-attr]
    assert alike.texts == (("tea", "jam"), ("milk",), (), ("tea", "jam"))
    assert [query.terms for query in alike.queries()] == [*alike.texts]


def test_an_iterator_is_not_used_up() -> None:
    batch = iter(["tea", "jam"])
    assert read(batch) is None
    assert len(ENGINE.search(batch)) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [-1, True, 2.0, "3", None, np.int64(3)])
def test_a_k_that_is_not_a_usual_number_goes_the_general_way(k: Any) -> None:
    assert read(["tea"], k) is None


def test_too_many_places_go_the_general_way_and_are_refused(served: None) -> None:
    most = batches.MAX_HITS // 2
    assert read(["tea", "jam"], most) is not None
    assert read(["tea", "jam"], most + 1) is None
    with pytest.raises(fr.errors.QueryError, match="ask for fewer"):
        ENGINE.search(["tea", "jam"], most + 1)


def test_the_batch_is_as_it_was_when_it_was_read() -> None:
    batch = ["tea", "jam"]
    alike = read(batch)
    assert alike is not None
    batch[0] = "salt"
    assert alike.texts == ("tea", "jam")
    assert [query.text for query in alike.queries()] == ["tea", "jam"]


@given(alike_batches, st.sampled_from([0, 1, 4]))
def test_an_answer_made_of_texts_is_that_of_queries(batch: list[Any], k: int) -> None:
    general = ENGINE.search(batch, k)
    alike = read(batch, k)
    hits = serve(MEMORY, batch, k, ENGINE.monitor.windows, ENGINE.backend, SearchOptions())
    assert (alike is None) == (hits is None)
    if hits is None:
        return
    assert len(hits) == len(general)
    assert "queries" not in vars(hits)
    assert hits.ids.tolist() == general.ids.tolist()
    assert "queries" not in vars(hits)
    assert list(hits) == list(general)
    assert hits.namespace == general.namespace
    assert hits.distinct == general.distinct
    assert hits.queries == general.queries
    assert hits.query_ids() == general.query_ids()
    for row, found in enumerate(hits):
        for name, _ in found[:2]:
            assert hits.explain(row, name) == general.explain(row, name)
            assert hits.explain(row - len(hits), name) == general.explain(row, name)
    start, stop = len(batch) // 2, len(batch)
    part, other = (
        whole.slice(start, stop, whole.scores.shape[1], whole.queries[start:stop]) for whole in (hits, general)
    )
    assert list(part) == list(other)
    for row, found in enumerate(part):
        for name, _ in found[:1]:
            assert part.explain(row, name) == other.explain(row, name)


def test_explanations_are_those_of_the_search_after_later_writes(served: None) -> None:
    engine = make_engine()
    hits = engine.search(["tea jam unknown", "milk"], 3)
    assert hits.backend == "direct"
    name, score = hits[0][0]
    before = hits.explain(0, name)
    engine.add([fr.Record(f"n{n}", "tea unknown") for n in range(100)])
    engine.delete([name])
    assert hits.explain(0, name) == before
    assert before.score == score
    for position, record in ((0, "n1"), (0, "nobody")):
        with pytest.raises(fr.errors.UnknownIdError):
            hits.explain(position, record)
    for position in (2, -3):
        with pytest.raises(fr.errors.QueryError, match="no query"):
            hits.explain(position, name)


def test_callers_of_a_launch_get_their_own_part(served: None) -> None:
    engine = make_engine()
    gate, begun = threading.Event(), threading.Event()

    def wait(*_: Any) -> Hits | None:
        begun.set()
        assert gate.wait(60)
        return None

    coalescer = fr.Coalescer(engine)
    direct.answer, kept = wait, direct.answer
    try:
        first = coalescer.submit(["salt"])
        assert begun.wait(60)
        direct.answer = kept
        calls = [coalescer.submit([f"{WORDS[n]} jam", "tea"], 3) for n in range(4)]
        gate.set()
        first.result(60)
        answers = [call.result(60) for call in calls]
    finally:
        gate.set()
        direct.answer = kept
        coalescer.close()
    for n, hits in enumerate(answers):
        assert hits.backend == "direct"
        alone = engine.search([f"{WORDS[n]} jam", "tea"], 3)
        assert list(hits) == list(alone)
        assert hits.queries == alone.queries
        name = hits[1][0][0]
        assert hits.explain(1, name) == alone.explain(1, name)


def test_a_filter_is_compiled_once_for_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    compiled: list[object] = []
    compile_filter = batches.compile_filter

    def counting(filter: Any, *rest: Any) -> Any:
        compiled.append(filter)
        return compile_filter(filter, *rest)

    monkeypatch.setattr(batches, "compile_filter", counting)
    query = fr.Query("tea", filter={"session": "new"}, scope=fr.SearchScope.user("u", None))
    for _ in range(3):
        assert engine.search([query])[0] == []
    assert len(compiled) == 1
    # Another scope with the same filter object, the same scope without it, and an equal filter that is another object.
    engine.search([replace(query, scope=None)])
    engine.search([replace(query, filter=None)])
    engine.search([replace(query, filter={"session": "new"})])
    assert len(compiled) == 4
    # The value is known only after this write.
    engine.add([fr.Record("n", "tea", session="new", user="u")])
    assert [name for name, _ in engine.search([query])[0]] == ["n"]
    assert len(compiled) == 5


def test_compiled_filters_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    borders.shrink(monkeypatch, COMPILED=3)
    batch = [fr.Query("tea", filter={"time": {">": n}}) for n in range(8)]
    for query in batch:
        assert engine.search([query])[0] == engine.search([replace(query)])[0]
        assert len(engine.index.memory.snapshot("").compiled) <= 3
    assert list(engine.search(batch)) == [engine.search([query])[0] for query in batch]


def count_calls(run: Callable[[], object]) -> int:
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


def kept_answer(engine: fr.Engine, batch: list[Any]) -> Callable[..., Hits | None]:
    """Stands in for the compiled call: it has the answer already."""
    found = engine.search(batch)
    arrays = found.scores, found.documents, found.counts

    def answer(memory: Memory, queries: Any, k: int, windows: Any, backend: Any, options: Any) -> Hits | None:
        alike = read_alike(memory, queries, k, windows)
        assert alike is not None
        return Hits.of(*arrays, alike, "direct", alike.snapshot.record_ids)

    return answer


FILTER = fr.Query(filter={"session": "s1"}).filter


@pytest.mark.parametrize(
    ("ask", "limit"),
    [
        (str, 45),
        (fr.Query, 45),
        (lambda text: fr.Query(text, filter=FILTER, since=3.0), 60),
        (lambda text: fr.Query(text, now=60.0, half_life=9.0), 60),
    ],
    ids=["text", "query", "filter", "decay"],
)
@pytest.mark.parametrize("options", [{}, {"timing": True}, {"k": 10, "strategy": "bm25", "execution": "auto"}])
def test_the_calls_around_the_compiled_one_do_not_grow_with_the_batch(
    ask: Callable[[str], Any], limit: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fr.Engine.from_records([fr.Record(f"r{n}", WORDS[n % 5], time=float(n)) for n in range(50)])
    counts = []
    for size in (1, 5, 20):
        batch = [ask(WORDS[n % 5]) for n in range(size)]
        monkeypatch.undo()
        monkeypatch.setattr(direct, "answer", kept_answer(engine, batch))

        def run(batch: list[Any] = batch) -> object:
            hits = engine.search(batch, **options)
            return hits.ids, hits.scores

        run()
        counts.append(count_calls(run))
    assert max(counts) <= limit
    # The ids of more than `LISTED` hits are gathered by arrays.
    assert counts[1] - counts[0] <= 2
    assert counts[2] - counts[1] <= 9
