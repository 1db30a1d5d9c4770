"""The engine as a user holds it: one batch in, hits out, records that grow meanwhile."""

from __future__ import annotations

import doctest
import sys
from typing import Any

import pytest

import fanrank as fr


def tea(count: int, start: int = 0, **more: Any) -> list[fr.Record]:
    return [fr.Record(f"r{number}", "tea", **more) for number in range(start, start + count)]


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


def test_to() -> None:
    engine = fr.Engine.from_records(tea(2))
    before = list(engine.search(["tea"]))
    assert engine.to("cpu") is engine
    assert list(engine.search(["tea"])) == before
    with pytest.raises(fr.errors.ParameterError, match=r"device 'tpu'; did you mean 'cpu'. There are: cpu, cuda"):
        engine.to("tpu")


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
