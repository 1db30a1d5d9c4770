"""Statistics after deletions are the same, whether the deleted records or all postings of their segments were read."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.index import document_terms, tombstones
from fanrank.engine.index.document_terms import Counted, OwnWords, count_terms
from fanrank.engine.index.segment import Segment
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.storage.row_codec import RECORDS

WORDS = st.lists(st.sampled_from("abcde"), max_size=4).map(" ".join)
RECORD = st.tuples(
    WORDS,
    st.dictionaries(st.sampled_from(["title"]), WORDS),
    st.none() | st.dictionaries(st.sampled_from("xyz"), st.sampled_from([0.0, 0.5, 2.0])),
    st.none() | st.lists(st.sampled_from(["ana", "ben"]), unique=True),
)
SEGMENTS = st.lists(st.lists(RECORD, min_size=1, max_size=5), min_size=1, max_size=3)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> fr.Engine:
    """One whose deleted records are always read."""
    borders.shrink(monkeypatch, POSTINGS_PER_RECORD=0)
    return fr.Engine(fields={"text": 1.0, "title": 1.0}, analyzer="minimal")


def segments_of(engine: fr.Engine, parts: list[list[tuple[Any, ...]]]) -> tuple[list[fr.Record], list[Segment]]:
    """Records, and a segment of each part of them."""
    segments: list[Segment] = []
    records: list[fr.Record] = []
    for part in parts:
        made = [
            fr.Record(f"r{len(records) + n}", text, fields=fields, weights=weights, entities=entities)
            for n, (text, fields, weights, entities) in enumerate(part)
        ]
        segments.append(engine.index.memory.build(made))
        records += made
    return records, segments


def words_of(engine: fr.Engine, records: Sequence[fr.Record] | None) -> OwnWords:
    memory = engine.index.memory
    by_id = {record.id: record for record in records or ()}

    def read(ids: Sequence[str]) -> list[fr.Record] | None:
        return None if records is None else [by_id[record_id] for record_id in ids]

    nested = {"learned": memory.weight_terms, "entities": memory.entity_terms}
    return OwnWords(read, list(engine.bm25.fields), memory.indexer, nested)


def refuse_postings(segment: Segment, chosen: npt.NDArray[np.bool_]) -> Counted:
    assert not segment.postings, "all postings are read"
    return count_terms(segment, chosen)


def statistics(snapshot: Snapshot) -> list[Any]:
    """All that deletions change."""
    found: list[Any] = [snapshot.counts is None]
    for view in (snapshot, snapshot.learned, snapshot.entities):
        frequencies = view.all_document_frequencies()
        found += [view.statistics, frequencies.tolist()]
        found.append(view.document_frequencies(np.arange(len(frequencies), dtype=np.int32)).tolist())
        found += [(number, *gone.deleted, *gone.terms, *gone.lengths) for number, gone in view.tombstones.items()]
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=SEGMENTS, counted=st.booleans(), data=st.data())
def test_deleted_records_are_read_in_place_of_their_segments(
    engine: fr.Engine, parts: list[list[Any]], counted: bool, data: st.DataObject
) -> None:
    records, segments = segments_of(engine, parts)
    snapshot = Snapshot((), engine.bm25).extended(segments)
    if counted:
        snapshot = replace(snapshot, counts=snapshot.all_document_frequencies().astype(np.int32))
    ids = st.lists(st.sampled_from([record.id for record in records]), unique=True)
    steps = data.draw(ids), data.draw(ids)

    def delete(words: OwnWords | None) -> list[Any]:
        after = snapshot
        for step in steps:
            after = after.without(after.find_all(step).values(), words)
        return statistics(after)

    expected = delete(None)
    other = fr.Record("other", "a a b", weights={"x": 1.0}, entities=["ana"])
    others = [record if n % 2 else replace(other, id=record.id) for n, record in enumerate(records)]
    assert delete(words_of(engine, others)) == expected
    assert delete(words_of(engine, None)) == expected
    with pytest.MonkeyPatch.context() as patch:
        for module in (document_terms, tombstones):
            patch.setattr(module, "count_terms", refuse_postings)
        assert delete(words_of(engine, records)) == expected


@pytest.mark.parametrize("native", [True, False])
def test_a_record_that_was_altered_on_disk_can_be_deleted(
    native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, POSTINGS_PER_RECORD=0)
    if not native:
        monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    with fr.Engine.open(tmp_path / "own", analyzer="minimal") as engine:
        engine.add([fr.Record("r0", "a b"), fr.Record("r1", "b c"), fr.Record("r2", "c")])
        with sqlite3.connect(tmp_path / "own" / RECORDS) as other:
            other.execute("""UPDATE records SET data = '{"text":"c c"}' WHERE id = 'r1'""")
        engine.delete(["r1"])
        snapshot = engine.index.memory.snapshot("")
        assert snapshot.all_document_frequencies().tolist() == [1, 1, 1]
        assert engine.verify() == {"records": 2, "missing": 0, "extra": 0}
