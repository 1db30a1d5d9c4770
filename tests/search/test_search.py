"""The engine as a user holds it: one batch in, hits out, records that grow meanwhile."""

from __future__ import annotations

import doctest
import math
import sys
from typing import Any

import pytest
from support import borders

import fanrank as fr
from fanrank.engine.backends import choose as backend


def tea(count: int, start: int = 0, **more: Any) -> list[fr.Record]:
    return [fr.Record(f"r{number}", "tea", **more) for number in range(start, start + count)]


def test_a_small_example_by_hand() -> None:
    engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
    # error, 4711, fix: each idf ln 2, tf 1, length 4 at a mean of 2.5
    quanta = 3 * round(math.log(2) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 4 / 2.5)) * 2**18)
    assert engine.search(["fix for error 4711"], k=1)[0] == [("1", quanta / 2**18)]


def test_the_facades_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # It shows what its reader gets.
    monkeypatch.delenv("FANRANK_PROFILE", raising=False)
    failed, tried = doctest.testmod(fr)
    assert (failed, tried) == (0, 3)


def test_all_forms_of_a_query_are_one() -> None:
    engine = fr.Engine.from_records(
        [fr.Record("1", "two cats running"), fr.Record("2", "a cat"), fr.Record("3", "dogs")]
    )
    batch = ["the Cats run", fr.Query("cats run"), ["cat", "run"], ("run", "cat"), fr.Query(terms=["cat", "run"])]
    rows = list(engine.search(batch, 5))
    assert rows == [rows[0]] * 5
    assert [name for name, _ in rows[0]] == ["1", "2"]
    # Pre-analysed terms are used as they stand.
    assert engine.search([["cats", "running"]], 5).counts.tolist() == [0]


def test_stats() -> None:
    engine = fr.Engine(analyzer="minimal")
    assert (engine.stats()["documents"], engine.stats()["bytes_per_posting"]) == (0, 0.0)
    engine.add([fr.Record("1", "a b b"), fr.Record("2", "b c"), fr.Record("3", "b", namespace="n")])
    stats = engine.stats()
    assert (stats["documents"], stats["namespaces"], stats["segments"]) == (3, 2, 2)
    assert (stats["vocabulary"], stats["postings"], stats["backend"]) == (3, 5, backend.choose().name)
    # 4 terms, 4 + 2 offsets, 5 postings of 4 + 2 bytes, 3 + 1 kinds of 4 + 4, 3 lengths
    assert stats["posting_bytes"] == 4 * 4 + 6 * 8 + 5 * 6 + 4 * 8 + 3 * 4
    assert stats["bytes_per_posting"] == stats["posting_bytes"] / 5
    parts = ("posting", "evidence", "vector", "id", "column", "deleted", "vocabulary")
    assert stats["index_bytes"] == sum(stats[f"{part}_bytes"] for part in parts)


def test_to() -> None:
    engine = fr.Engine.from_records(tea(2))
    before = list(engine.search(["tea"]))
    assert engine.to("cpu") is engine
    assert list(engine.search(["tea"])) == before
    with pytest.raises(fr.errors.ParameterError, match="unknown device 'tpu'; there are: cpu, cuda"):
        engine.to("tpu")


def test_records_are_read_as_they_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=10)
    alive: list[int] = []
    held = 0

    class Counted(fr.Record):
        def __del__(self) -> None:
            alive[0] -= 1

    def source() -> Any:
        nonlocal held
        alive.append(0)
        for number in range(200):
            alive[0] += 1
            held = max(held, alive[0])
            yield Counted(f"r{number}", "tea")

    fr.Engine.from_records(source(), keep_texts=False)
    assert held <= 22  # a chunk, the one before it, and the record on its way


def test_a_progress_bar_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fr.Engine.from_records(tea(3), progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fr.Engine.from_records(tea(3), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    fr.Engine.from_records(tea(3))
    assert capsys.readouterr() == ("", "")


def test_hits_of_an_older_epoch_stay_what_they_were() -> None:
    engine = fr.Engine.from_records([fr.Record("1", "tea milk"), fr.Record("2", "tea")], analyzer="minimal")
    hits = engine.search(["tea milk"])
    rows, scores = list(hits), hits.scores.copy()
    before = {name: hits.explain(0, name) for name in "12"}
    engine.add(tea(500))
    assert engine.search(["tea milk"])[0][0][1] != scores[0, 0]
    assert {name: hits.explain(0, name) for name in "12"} == before
    assert list(hits) == rows
    with pytest.raises(fr.errors.UnknownIdError):
        hits.explain(0, "r3")
