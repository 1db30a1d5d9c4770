"""The bench of the server: its figures, its check of answers, and its section of the report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("mcp")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import serve
    from bench.harness import ways
    from bench.harness.asking import FAN_OUT, body_of
    from bench.harness.paths import data_folder
    from bench.report import serve as report_serve
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))

needs_sgd = pytest.mark.skipif(
    not (data_folder() / "sgd" / "train.turns.jsonl.gz").is_file(), reason="needs sgd in FANRANK_DATA"
)


@needs_sgd
def test_a_run_in_small_is_recorded_and_a_wrong_answer_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = ways.Columns.read

    def swapped(self: ways.Columns, answer: Any) -> Any:
        return [row[::-1] for row in read(self, answer)]

    monkeypatch.setattr(ways.Columns, "read", swapped)
    # Vectors are read by their own class, whose answers stay right.
    monkeypatch.setattr(ways.Vectors, "read", read)
    code = serve.main(["--small", "--record", "--out", str(tmp_path), "--ways", "hits,columns,client,mcp,vectors"])
    rows = [json.loads(line) for line in (tmp_path / "serve.jsonl").read_text().splitlines()]
    names = ("plain", "hits", "columns", "client", "mcp", "vectors")
    assert [(row["way"], row["clients"]) for row in rows] == [(name, count) for count in (1, 3) for name in names]
    assert {row["way"]: row["verified"] for row in rows} == {**dict.fromkeys(names, True), "columns": False}
    assert code == 1
    assert all(row["machine"] and row["commit"] and row["records"] == 300 for row in rows)
    assert all(row["p50_ms"] <= row["p99_ms"] for row in rows)
    assert capsys.readouterr().out.count("WRONG") == 2
    text = "\n".join(report_serve.serve(Recorded([], {"serve": rows})))
    assert "Answers differed from the plain engine's: columns." in text
    assert "By vectors" in text
    assert "| **mcp** (with texts) |" in text


def test_figures_are_medians_beside_the_plain_engine_of_the_same_turn() -> None:
    plain = [[1.0] * 100, [4.0] * 10, [2.0] * 50]
    found = serve.figures([[2.0] * 50, [5.0] * 10, [2.5] * 20], plain, 2.0)
    assert found["queries_per_s"] == FAN_OUT * 20 / 2.0
    assert (found["queries_per_s_low"], found["queries_per_s_high"]) == (FAN_OUT * 10 / 2.0, FAN_OUT * 50 / 2.0)
    assert (found["share"], found["overhead_ms"]) == (0.5, 1.0)
    assert (found["p50_ms"], found["p99_ms"], found["fan_outs"]) == (2.0, 5.0, 80)
    assert "share" not in serve.figures(plain, None, 2.0)
    assert serve.figures([[]], [[1.0]], 2.0)["queries_per_s"] == 0.0


def test_no_rows_name_the_command() -> None:
    assert report_serve.serve(Recorded([], {})) == ["No row yet: `make serve ARGS=--record`."]


def test_an_answer_is_found_whole_in_parts_and_as_an_event() -> None:
    whole = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}'
    parts = b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n'
    event = b'event: message\r\ndata: {"a":1}\r\n\r\n'
    sent = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    )
    assert [body_of(answer) for answer in (whole, parts, sent % (len(event), event))] == [{"a": 1}] * 3


def test_an_unknown_way_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve.main(["--ways", "smoke"])
    assert "there are: hits, columns, client, mcp, vectors, chroma, bm25s" in capsys.readouterr().err
