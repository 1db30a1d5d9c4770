"""Queries with time in the numpy backend: answered as a batch, in every layout of ranges, ages and segments."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import borders, history
from support.history import WORDS

import fanrank as fr
from fanrank.cpu_fallback import newest, search
from fanrank.cpu_fallback.segment_work import SegmentWork
from fanrank.cpu_fallback.select import NO_KEY, pack, unpack
from fanrank.engine.plan.plan import Plan

NOW = 1_700_000_000.0
HOUR, DAY = 3600.0, 86_400.0
EXECUTIONS = ("exhaustive", "pruned", "auto")


def memory(rng: random.Random, count: int, kind: str) -> list[fr.Record]:
    """Records an hour apart; "late" ones come in any order, and of "timeless" ones some have no time."""
    ages = [HOUR * (count - number) for number in range(count)]
    if kind != "in order":
        rng.shuffle(ages)
    timeless = 0.1 if kind == "timeless" else 0.0
    return [
        fr.Record(
            f"r{number}",
            " ".join(rng.choices(WORDS, [9, 5, 3, 2, 1, 1], k=rng.randrange(1, 7))),
            time=None if rng.random() < timeless else NOW - ages[number],
            session=rng.choice("st"),
        )
        for number in range(count)
    ]


def mixed_batch(rng: random.Random, count: int) -> list[fr.Query]:
    """Every kind of query beside every other: over all time, nothing or everything excluded, parts, decay, filters."""
    span = HOUR * count
    ranges: list[dict[str, Any]] = [
        {},
        {"since": 0.0},
        {"until": NOW + DAY},
        {"since": NOW + DAY},
        {"since": NOW - span / 2},
        {"until": NOW - span / 3},
        {"since": NOW - span * 0.7, "until": NOW - span * 0.3},
        {"since": NOW - 5 * HOUR},
        {"since": NOW - 7 * HOUR, "until": NOW - 7 * HOUR},
    ]
    decays: list[dict[str, Any]] = [
        {},
        {},
        {"half_life": 5 * HOUR},
        {"half_life": span / 4},
        {"half_life": 1e3 * span, "now": NOW - span / 2},
    ]
    batch = [
        fr.Query(
            terms=rng.choices(WORDS, k=rng.randrange(1, 5)),
            k=rng.choice([None, 1, 2, 30, 2 * count]),
            filter=history_filter,
            **{"now": NOW + rng.choice([0.0, HOUR, rng.random()]), **own, **decay},
        )
        for own in ranges
        for decay in decays
        for history_filter in (None, {"session": "s"})
    ]
    return rng.sample(batch, 40)


def expected_of(records: Sequence[fr.Record], batch: Sequence[fr.Query], k: int) -> list[history.Answer]:
    def answer(query: fr.Query) -> history.Answer:
        passes = (lambda record: True) if query.filter is None else (lambda record: record.session == "s")
        return history.expected(records, query, k, passes=passes)

    return [answer(query) for query in batch]


# The borders as they are, and two sets so small that every layout of groups, blocks and lists occurs.
LAYOUTS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "groups": {"FEW_RANGES": 0, "select.GROUPS_PER_K": 2, "DENSE_POSTINGS": 8},
    "chunks": {
        "CHUNK_BYTES": 512,
        "search.GROUP": 7,
        "DERIVE_SHARE": 1,
        "DENSE_POSTINGS": 8,
        "FEW_RANGES": 3,
        "MAX_PENDING": 9,
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "segments"), [("in order", 5), ("late", 1), ("late", 5), ("timeless", 5)])
def test_a_batch_of_every_kind(monkeypatch: pytest.MonkeyPatch, layout: str, kind: str, segments: int) -> None:
    borders.shrink(monkeypatch, LAYOUTS[layout])
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=240 // segments, INLINE_DOCUMENTS=240 // segments)
    rng = random.Random(f"{layout} {kind}")
    records = memory(rng, 240, kind)
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    for start in range(0, 240, 240 // segments):
        engine.add(records[start : start + 240 // segments])
    gone = {f"r{number}" for number in rng.sample(range(240), 12)} if segments > 1 else set()
    engine.delete(sorted(gone))
    records = [record for record in records if record.id not in gone]
    assert engine.stats()["segments"] == segments
    batch = mixed_batch(rng, 240)
    expected = expected_of(records, batch, 6)
    assert {len(row) for row in expected} > {0, 1, 6, 30}
    for execution in EXECUTIONS:
        assert list(engine.search(batch, 6, execution=execution)) == expected, execution
    assert [row for query in batch[::9] for row in engine.search([query], 6)] == expected[::9]


def test_scores_beyond_int32_decay_and_lie_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for layout in LAYOUTS.values():
        with borders.shrunken(layout):
            rng = random.Random(4)
            records = memory(rng, 120, "late")
            engine = fr.Engine.from_records(records, analyzer="minimal", backend="numpy")
            batch = [
                replace(query, terms=[*(query.terms or ()), *["f6"] * 9000] if number % 2 else query.terms)
                for number, query in enumerate(mixed_batch(rng, 120)[::8])
            ]
            expected = expected_of(records, batch, 5)
            assert max(score for row in expected for _, score in row) > 2**13
            assert list(engine.search(batch, 5)) == expected


class Scored:
    """What `score_chunk` was asked for: (segment, queries, widest row) of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, list[int], int]] = []
        plain = newest.score_chunk

        def watched(plan: Plan, work: SegmentWork, chunk: Any, *rest: Any) -> Any:
            matrix = plain(plan, work, chunk, *rest)
            self.calls.append((work.part.number, work.queries[chunk].tolist(), matrix.shape[1]))
            return matrix

        for module in (newest, search):
            monkeypatch.setattr(module, "score_chunk", watched)

    def __iter__(self) -> Iterator[tuple[int, list[int], int]]:
        return iter(self.calls)


def grown(segments: int, each: int = 50) -> fr.Engine:
    """A memory of an hour a record, in this many segments: "a1" in every record, "b2" in every fifth."""
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    count = segments * each
    for start in range(0, count, each):
        engine.add(
            fr.Record(f"r{n}", "a1 b2" if n % 5 == 0 else "a1", time=NOW - HOUR * (count - n))
            for n in range(start, start + each)
        )
    assert engine.stats()["segments"] == segments
    return engine


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=50, INLINE_DOCUMENTS=50)


@pytest.mark.parametrize("options", [{"since": 0.0}, {"since": NOW - 30 * HOUR}, {"half_life": DAY}])
def test_a_chunk_serves_the_whole_batch(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    engine = grown(1, 60)
    batch = [fr.Query(terms=WORDS[: 1 + n % 2], k=1 + n // 2, now=NOW, **options) for n in range(200)]
    scored = Scored(monkeypatch)
    hits = engine.search(batch)
    assert [len(queries) for _, queries, _ in scored] == [200]
    passing = 30 if options.get("since") else 60
    assert hits.counts.tolist() == [min(1 + n // 2, passing) for n in range(200)]


def test_a_narrow_range_scores_its_documents_alone(monkeypatch: pytest.MonkeyPatch, small_segments: None) -> None:
    """It reads them from the impact classes too: no list is derived for them."""
    engine = grown(4)
    scored = Scored(monkeypatch)
    hits = engine.search([fr.Query("a1 b2", since=NOW - 5 * HOUR), fr.Query("a1", since=NOW - 60 * HOUR)], timing=True)
    # In the newest segment the second query has all 50 documents, in the one before its last 10.
    assert sorted((number, width) for number, _, width in scored) == [(2, 10), (3, 50)]
    assert hits.postings == 5 + 1 + 60
    parts = engine.index.memory.snapshot("").contributions
    assert [int((part.maxima > 0).sum()) for part in parts] == [0, 0, 1, 1]


def test_a_search_ends_where_nothing_older_can_enter(monkeypatch: pytest.MonkeyPatch, small_segments: None) -> None:
    engine = grown(8)
    scored = Scored(monkeypatch)
    for query, segments in (
        (fr.Query("a1", now=NOW, half_life=2 * HOUR), {7}),
        (fr.Query("a1", now=NOW, half_life=DAY, k=60), {6, 7}),
        (fr.Query("a1 b2", now=NOW, half_life=2 * HOUR, until=NOW - 120 * HOUR), {5}),
        (fr.Query("a1", now=NOW, half_life=1e9 * DAY), {*range(8)}),
        (fr.Query("unknown", now=NOW, half_life=DAY), set()),
    ):
        scored.calls.clear()
        hits = engine.search([query], 3)
        assert {number for number, _, _ in scored} == segments
        assert engine.search([query], 3, execution="exhaustive").scores.tobytes() == hits.scores.tobytes()
    assert {number for number, _, _ in scored} == set()


def test_a_bound_that_is_reached_ends_nothing(monkeypatch: pytest.MonkeyPatch, small_segments: None) -> None:
    """An older document wins ties, so a search goes on where the bound of what is older equals the k-th key."""
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    for start in range(0, 150, 50):
        engine.add(fr.Record(f"r{n}", "a1", time=NOW - DAY) for n in range(start, start + 50))
    query = fr.Query("a1", now=NOW, half_life=DAY)
    score = engine.search([query], 2).scores[0, :1] * 2.0**18
    monkeypatch.setattr(Plan, "bounds_before", lambda plan, number, queries: score.view(np.int64))
    assert [name for name, _ in engine.search([query], 2)[0]] == ["r0", "r1"]


def test_bounds_of_ages_hold_at_every_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-lives and moments at which the estimated age overflows, is endless, or is off by a tick."""
    borders.shrink(monkeypatch, LAYOUTS["groups"])
    records = [fr.Record(f"r{n}", "a1" if n % 7 else "a1 a1 a1", time=NOW - 2.0 ** (40 - n / 3)) for n in range(200)]
    engine = fr.Engine.from_records(records, analyzer="minimal", backend="numpy")
    batch = [
        fr.Query("a1", now=NOW + late, half_life=half_life)
        for half_life in (1e-299, 1e-6, 1.0, HOUR, DAY, 1e4 * DAY, 1e300)
        for late in (-math.inf, -DAY, 0.0, 1e12)
        if math.isfinite(late)
    ]
    expected = [history.expected(records, query, 4) for query in batch]
    assert list(engine.search(batch, 4)) == expected
    assert list(engine.search(batch, 4, execution="exhaustive")) == expected


def test_later_segments_must_beat_the_last_hit_by_a_quantum() -> None:
    best = np.full((3, 2), NO_KEY)
    thresholds = np.array([1, 1, 1])
    new = pack(np.array([[9, 7], [8, 5]]), np.array([[3, 4], [1, 2]]))
    new[1, 1] = NO_KEY
    search._keep_best(best, thresholds, new, np.array([2, 0]))
    assert thresholds.tolist() == [1, 1, 8]
    assert best[2].tolist() == new[0].tolist()
    search._keep_best(best, thresholds, pack(np.array([[6, 6]]), np.array([[11, 12]])), np.array([0]))
    assert unpack(best[0])[0].tolist() == [8, 6]
    assert thresholds.tolist() == [7, 1, 8]


def test_a_flood_of_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many candidates as documents: the first win, in any layout."""
    records = [fr.Record(f"r{n}", "a1 b2", time=NOW - DAY) for n in range(700)]
    records[333] = fr.Record("new", "a1", time=NOW)
    asked = [
        fr.Query(text, now=NOW, half_life=life, since=since)
        for text in ("a1", "b2")
        for life in (DAY, None)
        for since in (None, NOW - DAY)
    ]
    for layout in LAYOUTS.values():
        with borders.shrunken(layout):
            engine = fr.Engine.from_records(records, analyzer="minimal", backend="numpy")
            assert list(engine.search(asked, 5)) == [history.expected(records, query, 5) for query in asked]
