"""Orders of time against plain loops: ties at the end of a list, deleted documents, filters, several segments."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.engine.index.masks import EVERYTHING, compile_filter
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.index.time_order import documents_between, newest_between, types_of
from fanrank.engine.records.filters import parse_filter


def make_memory(chance: random.Random) -> tuple[fr.Engine, list[fr.Record]]:
    """An engine of several segments with few times, and its records by document number, deleted ones included."""
    engine, records = fr.Engine(analyzer="minimal"), []
    for size in (64, 30, 14, 6, 2, 1):
        part = [
            fr.Record(
                f"r{len(records) + number}",
                "tea",
                type=chance.choice(["Event", "Event", "Fact", None]),
                time=chance.choice([None, 1.0, 2.0, 2.0, 3.0, 4.5, 9.0, -7.0]),
                session=chance.choice(["s1", "s2"]),
            )
            for number in range(size)
        ]
        engine.add(part)
        records += part
    return engine, records


def snapshot_of(engine: fr.Engine) -> Snapshot:
    return engine.index.ready().state.snapshot("")


@pytest.mark.parametrize("seed", range(6))
def test_the_latest_in_each_interval_are_those_of_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    if seed % 2:
        borders.shrink(monkeypatch, {"BLOCK_SHARE": 1, "CELLS": 8})
    engine, records = make_memory(chance)
    gone = {record.id for record in records if chance.random() < (0.2 if seed % 3 else 0.0)}
    engine.delete(sorted(gone))
    state, snapshot = engine.index.ready().state, snapshot_of(engine)
    assert len(snapshot.segments) > 2
    numbers = {name: n for n, name in enumerate(snapshot.ids_of(np.arange(snapshot.numbers)).tolist())}
    live = [(numbers[record.id], record) for record in records if record.id not in gone]
    bounds = [-math.inf, -7.0, 0.0, 1.0, 2.0, math.nextafter(2.0, math.inf), 3.0, 4.0, 9.0, math.inf]
    intervals = [(chance.choice(bounds), chance.choice(bounds)) for _ in range(20)] + [(-math.inf, math.inf)]
    since, until = (np.array([interval[side] for interval in intervals]) for side in (0, 1))
    for session in (None, "s1"):
        chosen = None if session is None else parse_filter({"session": session})
        accepted = EVERYTHING if chosen is None else compile_filter(chosen, state.schema, state.values)
        for kind in ("Event", None):
            code = None if kind is None else state.values["type"].ids[kind]
            inside = [
                [
                    (number, float(record.time))
                    for number, record in live
                    if record.time is not None
                    and first <= record.time <= last
                    and kind in (None, record.type)
                    and session in (None, record.session)
                ]
                for first, last in intervals
            ]
            for count in (1, 3, 17, 500):
                documents, times = newest_between(snapshot, code, accepted, since, until, count)
                for row, held in enumerate(inside):
                    want = sorted(held, key=lambda one: (-one[1], one[0]))[:count]
                    found = documents[row] >= 0
                    assert list(zip(documents[row][found].tolist(), times[row][found].tolist(), strict=True)) == want
                    assert not found[len(want) :].any()
            for held, (first, last) in zip(inside, intervals, strict=True):
                documents, times = documents_between(snapshot, code, accepted, first, last)
                want = sorted(held, key=lambda one: (-one[1], -one[0]))
                assert list(zip(documents.tolist(), times.tolist(), strict=True)) == want
    types = types_of(snapshot, np.array([number for number, _ in live]))
    codes = state.values["type"].ids
    assert types.tolist() == [-1 if record.type is None else codes[record.type] for _, record in live]


def test_a_tie_goes_to_the_lower_number_where_the_small_segments_come_first() -> None:
    engine, _ = make_memory(random.Random(2))
    code, grown = engine.index.ready().state.values["type"].ids["Event"], snapshot_of(engine)
    snapshot = Snapshot((), grown.bm25).extended(grown.segments[::-1])
    events = [
        (first + position, float(time))
        for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True)
        if segment.times is not None
        for position, time in enumerate(segment.times.tolist())
        if segment.columns.categories["type"][position] == code and time == time
    ]
    want = sorted(events, key=lambda one: (-one[1], one[0]))
    for count in range(1, len(want) + 1):
        documents, _ = newest_between(snapshot, code, EVERYTHING, np.array([-math.inf]), np.array([math.inf]), count)
        assert documents[0].tolist() == [number for number, _ in want[:count]]
