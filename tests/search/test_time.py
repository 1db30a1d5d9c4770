"""Decay, time ranges and windows: exactly what plain Python says, by every path, and without looking at what is old."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import borders, history
from support.history import WORDS

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.monitor.recency import Recency

NOW = 1_700_000_000.0
HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400.0
WINDOW = 7 * DAY
FILTER = {"session": "s"}

# Few times, so that there are ties, each also as the end of a range; later than now among them.
moments = st.sampled_from([NOW - age for age in (0.0, 1.0, HOUR, DAY, 6 * DAY, 8 * DAY, 40 * DAY, -DAY, -9 * DAY)])
times = st.one_of(st.none(), moments, st.floats(NOW - YEAR, NOW + DAY))
texts = st.lists(st.sampled_from(WORDS[:4]), max_size=4).map(" ".join)
documents = st.lists(st.tuples(texts, times, st.sampled_from(["s", None])), max_size=30)


@dataclass(frozen=True)
class TimedQuery:
    query: fr.Query
    passes: Callable[[fr.Record], bool]
    newest: int | None

    def expected(self, records: Sequence[fr.Record], k: int) -> history.Answer:
        return history.expected(records, self.query, k, passes=self.passes, window=WINDOW, newest=self.newest)


@st.composite
def questions(draw: st.DrawFn) -> TimedQuery:
    half_life = draw(st.sampled_from([None, None, 1.0, HOUR, DAY, 30 * DAY, 10 * YEAR]))
    windows = draw(st.sampled_from([None, None, 1, 2, "auto"]))
    filtered = draw(st.booleans())
    query = fr.Query(
        terms=draw(st.lists(st.sampled_from([*WORDS[:4], "unknown"]), max_size=4)),
        k=draw(st.sampled_from([None, 0, 1, 3, 50])),
        now=NOW if half_life is not None else draw(st.sampled_from([None, NOW])),
        half_life=half_life,
        since=draw(st.none() | moments),
        until=draw(st.none() | moments),
        windows=windows,
        filter=FILTER if filtered else None,
        statistics=draw(st.sampled_from(["namespace", "filtered"])),
    )
    passes = (lambda record: record.session == "s") if filtered else (lambda record: True)
    return TimedQuery(query, passes, 3 if windows == "auto" else windows)


def filled(
    documents: Sequence[tuple[str, float | None, str | None]], cuts: Sequence[int], deleted: Sequence[int]
) -> tuple[fr.Engine, list[fr.Record]]:
    """An engine that was given the documents in these pieces and then lost some, and the records that remain."""
    records = [fr.Record(f"r{n}", text, time=time, session=s) for n, (text, time, s) in enumerate(documents)]
    engine = fr.Engine(analyzer="minimal", window=WINDOW)
    edges = sorted({0, len(records), *(min(cut, len(records)) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        engine.add(records[start:end])
    gone = {f"r{number}" for number in deleted if number < len(records)}
    engine.delete(sorted(gone))
    return engine, [record for record in records if record.id not in gone]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    documents,
    st.lists(st.integers(0, 30), max_size=4),
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(questions(), min_size=1, max_size=7),
    st.sampled_from([True, False]),
)
def test_every_road_is_the_plain_statement(
    documents: list[tuple[str, float | None, str | None]],
    cuts: list[int],
    deleted: list[int],
    asked: list[TimedQuery],
    in_order: bool,
) -> None:
    if in_order:
        documents.sort(key=lambda document: -math.inf if document[1] is None else document[1])
    with pytest.MonkeyPatch.context() as monkeypatch:
        history.shrink(monkeypatch)
        engine, records = filled(documents, cuts, deleted)
        held = [{record.id: record for record in records}] * len(asked)
        batch = [one.query for one in asked]
        expected = [one.expected(records, 4) for one in asked]
        for path, hits in history.paths(engine, batch, 4):
            assert history.rows(hits, held) == expected, path
        assert [row for query in batch for row in engine.search([query], 4)] == expected
        engine.flush()
        assert list(engine.search(batch[::-1], 4)) == expected[::-1]


def every_backend(engine: fr.Engine) -> Any:
    for name in history.backends():
        engine.backend = backend.choose(name)
        yield name


def test_half_lives_of_any_length() -> None:
    rng = random.Random(5)
    records = [
        fr.Record(
            f"r{n}", " ".join(rng.choices(WORDS, k=4)), time=NOW - rng.choice([1e-3, 1.0, HOUR, YEAR]) * rng.random()
        )
        for n in range(200)
    ]
    engine = fr.Engine.from_records(records, analyzer="minimal")
    batch = [
        fr.Query(terms=[word, "a1"], now=NOW + late, half_life=half_life)
        for half_life in (1e-299, 1e-6, 0.5, 60.0, 7 * DAY, 1e4 * YEAR, 1e300)
        for late in (0.0, 12 * HOUR, -DAY, 1e12)
        for word in WORDS[1:3]
    ]
    expected = [history.expected(records, query, 12) for query in batch]
    assert len({score for row in expected for _, score in row}) > 100
    for path, hits in history.paths(engine, batch, 12):
        assert list(hits) == expected, path


def test_ranges_are_closed() -> None:
    records = [fr.Record(f"r{n}", "a1", time=100.0 * (n // 2)) for n in range(8)] + [fr.Record("timeless", "a1")]
    late = [fr.Record("late", "a1", time=100.0), fr.Record("r7", "a1", time=300.0)]
    for own in (records[:-1], records, records[:-2] + late):
        engine = fr.Engine.from_records(own, analyzer="minimal")
        for name in every_backend(engine):
            for since, until in itertools.product([None, -1.0, 0.0, 100.0, 150.0, 200.0, 300.0, 301.0], repeat=2):
                hits = engine.search([fr.Query("a1", since=since, until=until)], 20)[0]
                expected = [
                    record.id
                    for record in own
                    if (since is None and until is None)
                    or (
                        record.time is not None
                        and (since is None or since <= record.time)
                        and (until is None or record.time <= until)
                    )
                ]
                assert [name for name, _ in hits] == expected, (name, since, until)


def long_history(count: int) -> tuple[fr.Engine, list[fr.Query]]:
    rng = random.Random(11)
    records = [
        fr.Record(f"r{n}", " ".join(rng.choices(WORDS, k=rng.randrange(1, 6))), time=NOW - 60.0 * (count - n))
        for n in range(count)
    ]
    batch = [fr.Query(terms=rng.sample(WORDS, 2), now=NOW, half_life=half) for half in (60.0, HOUR, DAY)]
    return fr.Engine.from_records(records, analyzer="minimal"), batch


def test_the_search_of_a_long_history_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, LEAST_WORK=1)
    engine, batch = long_history(30_000)
    for name in every_backend(engine):
        whole = engine.search(batch, 10, execution="exhaustive", timing=True)
        early = engine.search(batch, 10, execution="auto", timing=True)
        assert early.scores.tobytes() == whole.scores.tobytes()
        assert early.documents.tobytes() == whole.documents.tobytes()
        assert whole.postings is not None
        assert early.postings is not None
        assert whole.postings > 45_000
        assert early.postings < whole.postings / 3, name
        plain = engine.search([fr.Query(terms=query.terms) for query in batch], 10, timing=True)
        assert plain.postings == whole.postings


def test_a_range_reads_nothing_outside_it() -> None:
    engine, batch = long_history(10_000)
    ranged = [fr.Query(terms=query.terms, since=NOW - 6000.0) for query in batch]
    for _ in every_backend(engine):
        hits = engine.search(ranged, 10, execution="exhaustive", timing=True)
        assert hits.counts.tolist() == [10] * 3
        assert hits.postings is not None
        assert 0 < hits.postings <= 100 * 6


@pytest.mark.parametrize("half_life", [None, HOUR])
@pytest.mark.parametrize("k", [1, 3, 4, 7])
def test_ties_at_the_stop_go_to_the_older(monkeypatch: pytest.MonkeyPatch, half_life: float | None, k: int) -> None:
    """Every document reaches the bound of every block, so that a search which stops at a tie misses the older ones."""
    history.shrink(monkeypatch)
    for together in (True, False):
        engine = fr.Engine(analyzer="minimal")
        records = [fr.Record(f"r{n}", "a1", time=NOW - DAY) for n in range(40)]
        for start in range(0, 40, 40 if together else 9):
            engine.add(records[start : start + (40 if together else 9)])
        asked = [fr.Query("a1", now=NOW, half_life=half_life, since=NOW - YEAR)]
        for path, hits in history.paths(engine, asked, k):
            assert [name for name, _ in hits[0]] == [f"r{n}" for n in range(k)], (path, together)


def test_a_late_arrival_is_found_behind_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    history.small_blocks(monkeypatch)
    records = [fr.Record(f"r{n}", "a1 b2", time=NOW - DAY * (60 - n)) for n in range(60)]
    records.insert(3, fr.Record("new", "a1 c3", time=NOW))
    records.insert(1, fr.Record("timeless", "a1 d4"))
    engine = fr.Engine.from_records(records, analyzer="minimal")
    query = fr.Query("a1", now=NOW, half_life=DAY)
    expected = history.expected(records, query, 3)
    assert [name for name, _ in expected] == ["timeless", "new", "r59"]
    for path, hits in history.paths(engine, [query], 3):
        assert hits[0] == expected, path


@pytest.mark.parametrize("method", ["robertson", "okapi"])
def test_signed_methods_refuse_to_decay(method: str) -> None:
    records = [fr.Record("1", "a1", time=NOW), fr.Record("2", "a1 b2", time=NOW - DAY), fr.Record("3", "c3")]
    engine = fr.Engine.from_records(records, analyzer="minimal", method=method)
    with pytest.raises(fr.errors.QueryError, match=f"method '{method}'"):
        engine.search([fr.Query("a1", now=NOW, half_life=DAY)])
    ranged = fr.Query("a1 c3", since=NOW - HOUR)
    for path, hits in history.paths(engine, [ranged], 5):
        assert hits[0] == history.expected(records, ranged, 5, method=method), path


def test_what_a_query_must_say() -> None:
    with pytest.raises(fr.errors.QueryError, match="needs its own 'now'"):
        fr.Query("a1", half_life=DAY)
    for half_life in (0.0, -1.0, math.nan, math.inf, True):
        with pytest.raises(fr.errors.QueryError, match="half_life"):
            fr.Query("a1", now=NOW, half_life=half_life)
    for windows in (0, -1, 1.5, "all", True):
        with pytest.raises(fr.errors.QueryError, match="windows"):
            fr.Query("a1", windows=windows)  # type: ignore[arg-type]
    with pytest.raises(fr.errors.QueryError, match="since"):
        fr.Query("a1", since=math.nan)


def weekly(weeks: int = 8) -> fr.Engine:
    records = [fr.Record(f"w{week}", "a1", time=NOW - WINDOW * week) for week in range(weeks)]
    return fr.Engine.from_records(records[::-1], analyzer="minimal")


def found(engine: fr.Engine, **asked: Any) -> set[str]:
    return {name for name, _ in engine.search([fr.Query("a1", **asked)], 100)[0]}


def test_windows_are_the_newest_that_hold_records() -> None:
    engine = weekly()
    engine.add([fr.Record("timeless", "a1"), fr.Record("future", "a1", time=NOW + 3 * WINDOW)])
    assert found(engine, windows=2) == {"future", "w0"}
    assert found(engine, windows=2, now=NOW) == {"w0", "w1"}
    assert found(engine, windows=2, now=NOW - 3 * WINDOW) == {"w3", "w4"}
    assert found(engine, windows=99, now=NOW) == {f"w{week}" for week in range(8)}
    assert found(engine, windows=2, now=NOW, until=NOW - WINDOW) == {"w1"}
    assert found(engine, windows=1, now=0.0) == set()
    # A window that nobody is left in is none.
    engine.delete(["w0", "w2"])
    assert found(engine, windows=2, now=NOW) == {"w1", "w3"}
    assert found(engine, windows=1, now=NOW, filter={"session": "s"}) == set()


def test_a_window_with_dead_records_alone_is_no_window() -> None:
    """However the deleted lie among the segments: here one of many, so that no merge leaves it out."""
    records = [fr.Record(f"r{n}", "a1", time=WINDOW * 0.1 * n) for n in range(40)]
    engine = fr.Engine.from_records([*records, fr.Record("last", "a1", time=100 * WINDOW)], analyzer="minimal")
    engine.delete(["last"])
    assert engine.stats()["deleted"] == 1
    expected = {record.id for record in records if record.time is not None and record.time >= 3 * WINDOW}
    assert found(engine, windows=1) == expected
    assert found(engine, windows=1, now=200 * WINDOW) == expected
    for _ in range(100):
        engine.observe(["r39"], windows=2)
    assert engine.recency().rate > 2.0


@pytest.mark.parametrize("window", [0.1, 1.0 / 3.0, 0.7, 86_400.0, WINDOW, 1e7 / 3.0])
def test_times_at_the_border_of_a_window(window: float) -> None:
    """Just before, at and just after: each record is in one window, and the newest windows are never empty."""
    times = []
    for number in (1, 3, 6, 7, 100, 2047, 2811):
        border = number * window
        times += [math.nextafter(border, -math.inf), border, math.nextafter(border, math.inf)]
    records = [fr.Record(f"r{n}", "a1", time=time) for n, time in enumerate(times)]
    for count in range(1, len(records) + 1):
        own = records[:count]
        engine = fr.Engine.from_records(own, analyzer="minimal", window=window)
        newest = max(math.floor(time / window) for time in times[:count])
        expected = {record.id for record, time in zip(own, times, strict=False) if math.floor(time / window) == newest}
        assert found(engine, windows=1) == expected
        assert found(engine, windows=1, now=times[count - 1]) == expected


def test_auto_follows_what_was_used() -> None:
    """SPEC A032: epsilon .05 at a rate of 1.4 are 3 windows; A030 caps them at 4."""
    engine = weekly()
    assert engine.recency().windows() == 3
    assert found(engine, windows="auto", now=NOW) == {"w0", "w1", "w2"}
    for _ in range(20):
        engine.observe(["w6", "w7", "nobody"], now=NOW)
    assert engine.recency().windows() == 4
    assert found(engine, windows="auto", now=NOW) == {"w0", "w1", "w2", "w3"}
    newest = weekly()
    for _ in range(1000):
        newest.observe(["w0"], now=NOW)
    assert found(newest, windows="auto", now=NOW) == {"w0"}
    # What is not live, has no time, or lay beyond the windows searched teaches nothing.
    other = weekly()
    other.add([fr.Record("timeless", "a1"), fr.Record("future", "a1", time=NOW + 2 * WINDOW)])
    other.observe(["timeless", "nobody", "future"], now=NOW)
    other.observe(["w5"], now=NOW, windows=3)
    assert other.recency().to_dict() == Recency().to_dict()
    other.observe(["w1"], now=NOW - WINDOW)
    assert other.recency().to_dict()["observed"] == 1
    with pytest.raises(fr.errors.ParameterError, match="epsilon"):
        fr.Engine(epsilon=0.0)
    loose = fr.Engine(epsilon=0.5, recency_rate=1.4, max_windows=None)
    assert loose.recency().windows() == 1


def test_statistics_of_the_filtered_records_alone() -> None:
    rng = random.Random(2)
    records = [
        fr.Record(
            f"r{n}",
            " ".join(rng.choices(WORDS, k=rng.randrange(1, 6))),
            session=rng.choice(["s", "t", None]),
            user=rng.choice(["u", "v"]),
            time=NOW - HOUR * rng.randrange(200),
        )
        for n in range(150)
    ]
    engine = fr.Engine(analyzer="minimal")
    for start in range(0, 150, 40):
        engine.add(records[start : start + 40])
    engine.delete([f"r{n}" for n in range(0, 150, 11)])
    left = [record for record in records if int(record.id[1:]) % 11]
    alone = fr.Engine.from_records(
        [record for record in left if record.session == "s" and record.user == "u"], analyzer="minimal"
    )
    more: list[dict[str, Any]] = [{}, {"now": NOW, "half_life": DAY}, {"since": NOW - 99 * HOUR, "until": NOW - HOUR}]
    for own in more:
        own = {"terms": ("a1", "b2"), **own}
        scoped = fr.SearchScope.user("u", None)
        batch = [
            fr.Query(filter={"session": "s", "user": "u"}, statistics="filtered", **own),
            fr.Query(filter={"session": "s"}, scope=scoped, statistics="filtered", **own),
            fr.Query(filter={"session": "s"}, scope=scoped, **own),
        ]
        expected = alone.search([fr.Query(**own)], 9)
        whole = history.expected(
            left, fr.Query(**own), 9, passes=lambda record: record.session == "s" and record.user == "u"
        )
        assert whole != expected[0]
        for path, hits in history.paths(engine, batch, 9):
            assert list(hits) == [expected[0], expected[0], whole], path
        explained = engine.search(batch, 9)
        for name, score in expected[0]:
            assert explained.explain(0, name).score == score
            assert explained.explain(0, name).terms == expected.explain(0, name).terms
    nobody = fr.Query("a1", filter={"session": "nobody"}, statistics="filtered")
    assert engine.search([nobody], 3).counts.tolist() == [0]


def test_scopes_and_whose_k_counts() -> None:
    records = [
        fr.Record(f"{user}{session}{n}", "a1", user=user, session=f"{user}{session}")
        for user in "uv"
        for session in "12"
        for n in range(4)
    ]
    engine = fr.Engine.from_records(records, analyzer="minimal")

    def ids(batch_k: int, **asked: Any) -> list[str]:
        return [name for name, _ in engine.search([fr.Query("a1", **asked)], batch_k)[0]]

    scope = fr.SearchScope
    assert ids(9, scope=scope.session("u2")) == ["u20", "u21", "u22"]
    assert ids(9, scope=scope.user("v")) == ["v10", "v11"]
    assert len(ids(9, scope=scope.everything())) == 9
    assert len(ids(9, scope=scope.everything(5))) == 5
    # The query's own k before the scope's limit, that before the batch's.
    assert len(ids(1, scope=scope.user("v"), k=7)) == 7
    assert len(ids(1, scope=scope.user("v", 6))) == 6
    assert len(ids(5, scope=scope.user("v", None))) == 5
    assert ids(9, scope=scope.session("u2"), filter={"user": "v"}) == []
    assert ids(9, scope=scope.session("nobody")) == []
    for bad in ({"column": "role", "id": "x"}, {"column": None, "id": "x"}, {"column": "user", "id": None}):
        with pytest.raises(fr.errors.QueryError, match="scope"):
            scope(limit=None, **bad)  # type: ignore[arg-type]
    with pytest.raises(fr.errors.QueryError, match="k must"):
        scope.user("u", -1)


@pytest.mark.parametrize("pieces", [1, 4, 40])
def test_explanations_do_not_depend_on_segments(pieces: int) -> None:
    """Of a hit, and of what a range, a filter or a missing word keeps from being one."""
    records = [
        fr.Record(f"r{n}", "a1 b2" if n % 3 else "c3", time=NOW - HOUR * (40 - n), session="s" if n % 2 else None)
        for n in range(40)
    ]
    engine = fr.Engine(analyzer="minimal")
    for start in range(0, 40, 40 // pieces):
        engine.add(records[start : start + 40 // pieces])
    batch = [
        fr.Query("a1 a1 b2", k=50),
        fr.Query("a1", k=50, now=NOW, half_life=DAY),
        fr.Query("a1", k=50, since=NOW - 9 * HOUR, until=NOW - 2 * HOUR),
        fr.Query("a1", k=50, filter=FILTER),
        fr.Query("a1", k=50, filter=FILTER, statistics="filtered"),
        fr.Query("unknown", k=50),
    ]
    hits = engine.search(batch)
    for row, query in enumerate(batch):
        found = dict(hits[row])
        numbers = dict(zip(hits.ids[row].tolist(), hits.documents[row].tolist(), strict=True))
        for record in records:
            explained = hits.explain(row, record.id)
            matched = "a1" in record.text and row != 5
            ranged = row != 2 or (record.time is not None and NOW - 9 * HOUR <= record.time <= NOW - 2 * HOUR)
            passed = ranged and (query.filter is None or record.session == "s")
            assert explained.passed == passed, (row, record)
            if row != 4 or passed:
                assert explained.matched == matched
                assert explained.length == {"text": len(record.text.split())}
            assert (record.id in found) == (matched and passed)
            if record.id in found:
                assert explained.score == found[record.id]
                assert explained.document == numbers[record.id]
                assert (explained.decay == 1.0) == (row != 1)
                if row != 1:
                    assert sum(term.score for term in explained.terms) == explained.score
                else:
                    assert explained.score == history.faded(explained.quanta, record.time, NOW, DAY)
                    assert "quanta x 0." in str(explained)
            elif not passed:
                assert "does not pass" in str(explained)
    assert engine.explain(batch[1], "r20").score == dict(hits[1])["r20"]
    before = hits.explain(0, "r20")
    engine.delete(["r20"])
    with pytest.raises(fr.errors.UnknownIdError):
        engine.explain(batch[0], "r20")
    with pytest.raises(fr.errors.UnknownIdError):
        hits.explain(0, "nobody")
    # What was answered before is explained as it was answered.
    assert hits.explain(0, "r20") == before
    assert engine.explain(batch[0], "r22").terms[0].document_frequency == before.terms[0].document_frequency - 1


def test_events_of_an_interval() -> None:
    rng = random.Random(5)
    engine = fr.Engine(analyzer="minimal")
    records = [
        fr.Record(
            f"r{n}",
            "",
            time=None if n % 11 == 0 else float(rng.randrange(40)),
            type=rng.choice(["Event", "Fact", None]),
            session=f"s{n % 2}",
        )
        for n in range(120)
    ]
    for start in range(0, 120, 30):
        engine.add(records[start : start + 30])
    engine.delete([f"r{n}" for n in range(0, 120, 5)])
    left = [(n, record) for n, record in enumerate(records) if n % 5]

    def expected(since: float, until: float, accepts: Callable[[fr.Record], bool]) -> list[tuple[str, float]]:
        held = [
            (record.time, n)
            for n, record in left
            if record.time is not None and since <= record.time <= until and accepts(record)
        ]
        return [(f"r{n}", time) for time, n in sorted(held, reverse=True)]

    for since, until in ((0.0, 39.0), (10.0, 20.0), (7.0, 7.0), (20.0, 10.0), (100.0, 200.0)):
        assert engine.events(since, until) == expected(since, until, lambda r: r.type == "Event")
        assert engine.events(since, until, type=None) == expected(since, until, lambda r: True)
        found = engine.events(since, until, type="Fact", filter={"session": "s1"})
        assert found == expected(since, until, lambda r: r.type == "Fact" and r.session == "s1")
    assert engine.events(0.0, 39.0) == engine.namespace("").events(0.0, 39.0) != []
    assert engine.events(0.0, 39.0, namespace="nobody") == engine.namespace("other").events(0.0, 39.0) == []
    when = fr.parse_when("what happened today?", 20.0)
    assert when is not None
    assert engine.events(when.start, when.end) == expected(0.0, 86_400.0, lambda r: r.type == "Event")
    with pytest.raises(fr.errors.QueryError, match="'since' must be finite"):
        engine.events(float("nan"), 1.0)
