"""Times and spans as callers have them: seconds, datetimes, ISO 8601 text, timedeltas."""

import asyncio
import datetime as dt
import math
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.moments import MAX_TIME, to_seconds, to_span
from fanrank.engine.records import jsonl
from fanrank.engine.records.query_json import parse_query

UTC = timezone.utc
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECONDS = 1772366400.0
FORMS: list[Any] = [
    SECONDS,
    int(SECONDS),
    np.float64(SECONDS),
    np.int64(SECONDS),
    NOON,
    NOON.replace(tzinfo=None),
    datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1))),
    "2026-03-01T12:00:00Z",
    "2026-03-01t12:00z",
    "2026-03-01 12:00",
    "2026-03-01T12:00:00.000",
    "2026-03-01T07:30:00-04:30",
    "2026-03-01T07:30:00-0430",
]
WRONG: list[Any] = [
    math.nan,
    math.inf,
    True,
    10**400,
    "",
    "now",
    "2026",
    "20260301",
    "2026-W09",
    "2026-02-30",
    "2026-03-01T25:00",
    "2026-03-01T12:00+99:00",
    "1772366400",
    b"2026-03-01",
    timedelta(1),
    dt.time(12),
    [SECONDS],
]
aware = st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")]))


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_every_form_is_the_same_second(form: Any) -> None:
    record = fr.Record("1", "tea", time=form, expires=form)
    relation = fr.Relation("a", "b", "knows", valid_from=form, valid_to=form)
    query = fr.Query("tea", now=form, since=form, until=form, last_session_end=form)
    held = [record.time, record.expires, relation.valid_from, relation.valid_to]
    held += [query.now, query.since, query.until, query.last_session_end]
    assert held == [SECONDS] * 8
    assert {type(value) for value in held} == {float}
    assert fr.Record.from_dict({"id": "1", "text": "tea", "time": form, "expires": form}) == record
    when = fr.parse_when("yesterday", form)
    assert when is not None
    assert when == fr.parse_when("yesterday", SECONDS)
    assert (fr.col("time") >= form) == (fr.col("time") >= SECONDS)
    assert fr.scopes.parse_filter({"time": {"<": form}}) == (fr.col("time") < SECONDS)


@pytest.mark.parametrize("form", WRONG, ids=lambda value: repr(value)[:20])
def test_what_is_no_moment_is_refused_with_its_name(form: Any) -> None:
    for name in ("time", "expires"):
        with pytest.raises(fr.errors.RecordError, match=f"id 'm1': '{name}' must be finite seconds .* ISO 8601"):
            fr.Record("m1", "tea", **{name: form})
    for name in ("now", "since", "until", "last_session_end"):
        with pytest.raises(fr.errors.QueryError, match=f"a query's '{name}' must be finite seconds .* ISO 8601"):
            fr.Query("tea", **{name: form})
    with pytest.raises(fr.errors.RecordError, match=r"'valid_to' must be finite seconds .* ISO 8601"):
        fr.Record("m1", "tea", relations=[{"source": "a", "target": "b", "kind": "knows", "valid_to": form}])
    with pytest.raises(fr.errors.ParameterError, match=r"now must be finite seconds .* ISO 8601"):
        fr.parse_when("yesterday", form)


@given(aware)
def test_a_datetime_and_its_text_are_its_timestamp(moment: datetime) -> None:
    assert to_seconds(moment) == moment.timestamp()
    if moment.utcoffset() == timedelta(seconds=moment.utcoffset().total_seconds() // 60 * 60):  # type: ignore[union-attr]
        assert to_seconds(moment.isoformat()) == moment.timestamp()
        assert to_seconds(moment.isoformat(" ").replace(".", ",")) == moment.timestamp()


@given(st.text(alphabet="0123456789-:TZ+. wW", max_size=26))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = to_seconds(text)
    except ValueError:
        return
    # What is read begins with a whole date.
    assert to_seconds(datetime.fromisoformat(text[:10]).date()) - seconds <= 86400
    assert math.isfinite(seconds)


def test_a_date_is_its_first_moment_and_digits_beyond_microseconds_are_dropped() -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    assert fr.Record("1", "tea", time=dt.date(2026, 3, 1)).time == to_seconds("2026-03-01") == day
    assert to_seconds("2026-03-01T12:00:00.123456789Z") == to_seconds("2026-03-01T12:00:00.123456Z")


def test_what_names_no_zone_is_in_the_query_s() -> None:
    naive = datetime(2026, 7, 1, 9, 30)
    berlin = naive.replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    for form in (naive, "2026-07-01T09:30"):
        query = fr.Query("tea", now=form, since=form, until="2026-07-01T09:30Z", timezone="Europe/Berlin")
        assert (query.now, query.since, query.until) == (berlin, berlin, berlin + 7200)
        assert fr.Query("tea", now=form).now == berlin + 7200
    with pytest.raises(fr.errors.QueryError, match="unknown time zone 'Mars'"):
        fr.Query("tea", now=naive, timezone="Mars")


def test_parse_when_reads_zones_by_name_and_naive_times_in_them() -> None:
    zone = ZoneInfo("Europe/Berlin")
    whole = fr.parse_when("yesterday", datetime(2026, 7, 1, 0, 30, tzinfo=zone).timestamp(), timezone=zone)
    assert whole is not None
    assert fr.parse_when("yesterday", "2026-07-01T00:30", timezone="Europe/Berlin") == whole
    assert fr.parse_when("yesterday", "2026-07-01T00:30") != whole
    since = fr.parse_when("since last time", NOON, last_session_end="2026-02-28T10:00", timezone="Europe/Berlin")
    assert since.start == datetime(2026, 2, 28, 10, tzinfo=zone).timestamp()
    with pytest.raises(fr.errors.ParameterError, match="unknown time zone 'Mars'"):
        fr.parse_when("yesterday", NOON, timezone="Mars")
    with pytest.raises(fr.errors.ParameterError, match="last_session_end must be finite seconds"):
        fr.parse_when("yesterday", NOON, last_session_end="soon")


@pytest.mark.parametrize("span", [604800.0, 604800, np.float32(604800), timedelta(7), "7d", "1w", "168h", "604800s"])
def test_every_form_of_a_span_is_the_same_length(span: Any) -> None:
    assert to_span(span) == 604800.0
    assert fr.Query("tea", now=NOON, half_life=span).half_life == 604800.0
    assert fr.Engine(window=span, backend="numpy").window == 604800.0


@pytest.mark.parametrize("span", [math.nan, math.inf, "7 days", "d", "", True, b"7d", timedelta.max * 0 + timedelta(0)])
def test_what_is_no_span_is_refused(span: Any) -> None:
    with pytest.raises(fr.errors.QueryError, match="'half_life' must be"):
        fr.Query("tea", now=0.0, half_life=span)
    with pytest.raises(fr.errors.ParameterError, match="window must"):
        fr.Engine(window=span, backend="numpy")


def test_a_line_of_a_query_file_says_times_and_spans_as_text() -> None:
    data = {"text": "tea", "now": "2026-07-01T09:30", "half_life": "12h", "timezone": "Europe/Berlin"}
    query = parse_query(data)
    assert query == fr.Query(
        "tea", now=datetime(2026, 7, 1, 7, 30, tzinfo=UTC), half_life=43200, timezone=data["timezone"]
    )


def test_events_and_observe_take_moments() -> None:
    records = [fr.Record(str(day), "tea", type="Event", time=dt.date(2026, 3, day)) for day in range(1, 6)]
    engine = fr.Engine.from_records(records, window=timedelta(1), backend="numpy")
    first, last = datetime(2026, 3, 2, tzinfo=UTC), "2026-03-04"
    found = [name for name, _ in engine.events(first, last)]
    assert found == [name for name, _ in engine.namespace("").events(first.timestamp(), "2026-03-04T00:00Z")]
    assert found == ["4", "3", "2"]
    with pytest.raises(fr.errors.QueryError, match="'since' must be finite seconds"):
        engine.events("then", last)
    with pytest.raises(fr.errors.QueryError, match="'since' and 'until'"):
        engine.events(None, last)  # type: ignore[arg-type]
    engine.observe(["4", "5"], now="2026-03-05T12:00")
    other = fr.Engine.from_records(records, window=86400.0, backend="numpy")
    other.namespace("").observe(["4", "5"], now=datetime(2026, 3, 5, 12, tzinfo=UTC).timestamp())
    assert engine.recency().to_dict() == other.recency().to_dict()


def test_a_time_to_live_is_counted_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "time", SimpleNamespace(time=lambda: SECONDS))
    records = [fr.Record("1", "tea"), fr.Record("2", "tea", expires=5.0), fr.Record("3", "tea", namespace="ana")]
    given = list(jsonl.expiring(iter(records), timedelta(hours=1)))
    assert [record.expires for record in given] == [SECONDS + 3600, 5.0, SECONDS + 3600]
    assert given[0] == fr.Record("1", "tea", expires=SECONDS + 3600)
    assert records[0].expires is None
    assert list(jsonl.expiring(iter(records), None)) == records
    assert next(jsonl.expiring(iter(records), MAX_TIME)).expires == MAX_TIME
    for wrong in (-1, math.inf, "soon", True):
        with pytest.raises(fr.errors.ParameterError, match="ttl must"):
            jsonl.expiring(iter(records), wrong)


def test_add_and_update_store_when_records_expire(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "time", SimpleNamespace(time=lambda: 4e9))
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as engine:
        engine.add([{"id": "1", "text": "tea"}, {"id": "2", "text": "tea", "expires": "2200-01-01"}], ttl="7d")
        engine.namespace("ana").add([fr.Record("1", "tea")], ttl=10)
        first, second = engine.fetch(["1", "2"])
        assert (first.expires, second.expires) == (4e9 + 604800, to_seconds("2200-01-01"))
        engine.update([fr.Record("1", "coffee")], ttl=timedelta(1))
        (first,) = engine.fetch(["1"])
        (third,) = engine.namespace("ana").fetch(["1"])
        assert (first.expires, third.expires) == (4e9 + 86400, 4e9 + 10)
        engine.namespace("").upsert([fr.Record("u", "tea")], ttl="1h")
        asyncio.run(engine.namespace("").aadd([fr.Record("a", "tea")], ttl="1h"))
        asyncio.run(engine.namespace("").aupdate([fr.Record("2", "tea")], ttl="1h"))
        asyncio.run(engine.namespace("").aupsert([fr.Record("b", "tea")], ttl="1h"))
        assert {record and record.expires for record in engine.fetch(["u", "a", "2", "b"])} == {4e9 + 3600}
        engine.patch("u", time=NOON, expires="2200-01-01")
        patched = engine.get("u")
        assert (patched.time, patched.expires) == (SECONDS, to_seconds("2200-01-01"))
        with pytest.raises(fr.errors.ParameterError, match="ttl must"):
            engine.add([fr.Record("9", "tea")], ttl=-1)
        assert engine.fetch(["9"]) == [None]
