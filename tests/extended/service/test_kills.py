"""A server that is killed in the middle of writes has all that it acknowledged, and nothing by half."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import serve_kills
from support.serve_kills import Broken, Writer
from support.serving import served

import fanrank as fr


def test_no_acknowledged_write_is_lost_and_none_is_there_by_half() -> None:
    done = serve_kills.run_round(seed=7, number=0, lives=2)
    assert done.kills == 2
    assert done.acknowledged > 0


@pytest.mark.parametrize("kept", [["a"], ["a", "b"], ["a", "b", "c", "x"]])
def test_a_lost_write_and_half_a_write_are_seen(kept: list[str]) -> None:
    engine = fr.Engine()
    engine.add([fr.Record(name, "t", "tenant") for name in kept])
    two = {"a": "t", "b": "t"}
    writer = Writer("tenant", "", acknowledged=two, in_flight={**two, "c": "t", "d": "t"})
    with served(engine) as url:
        if kept == ["a", "b"]:
            writer.check(url)
        else:
            with pytest.raises(Broken):
                writer.check(url)


def test_a_server_that_hangs_is_told_from_one_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_kills, "PATIENCE", 0.1)
    monkeypatch.setattr(serve_kills, "SERVER", "import time; time.sleep(600)")
    with pytest.raises(Broken, match=r"killed after 0\.1 s"):
        serve_kills.Server(tmp_path)
    monkeypatch.setattr(serve_kills, "PATIENCE", 300.0)
    monkeypatch.setattr(serve_kills, "SERVER", "raise SystemExit(3)")
    with pytest.raises(Broken, match="ended with 3"):
        serve_kills.Server(tmp_path)
