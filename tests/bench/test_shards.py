"""bench/shards.py on some hundred documents, with all shards in this process: its rows, and wrong answers are seen."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fanrank as fr

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench import scale, shards
    from bench.harness import cases, corpora
finally:
    sys.path.remove(str(ROOT))

TINY = cases.Corpus("tiny", "synthetic", queries=40, documents=500)
GIVEN = ["--documents", "500", "--shards", "1,2", "--service", "100,300", "--fan-outs", "12", "--agents", "3"]


@pytest.fixture
def forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[fr.ShardedEngine]]:
    """A corpus of some words, and no Ray. Collects the memories of a run by the transport that they would have."""
    monkeypatch.setattr(corpora, "CACHE", tmp_path)
    monkeypatch.setattr(cases, "CORPORA", {"sgd": TINY})
    fake = SimpleNamespace(init=lambda *_, **__: None, shutdown=lambda: None, __version__="none")
    monkeypatch.setitem(sys.modules, "ray", fake)
    made: dict[str, list[fr.ShardedEngine]] = {"ray": [], "local": []}
    open_shards = shards.open_shards

    def opened(corpus: shards.Corpus, count: int, folder: Path, transport: str) -> fr.ShardedEngine:
        engine = open_shards(corpus, count, folder, "local")
        made[transport].append(engine)
        return engine

    monkeypatch.setattr(shards, "open_shards", opened)
    return made


def run(results: Path) -> tuple[int, list[dict[str, Any]]]:
    """(what the command returns, the rows that it keeps)."""
    code = shards.main([*GIVEN, "--seconds", "0.1", "--results", str(results)])
    return code, [json.loads(line) for line in results.read_text().splitlines()]


def test_a_run_verifies_times_and_keeps_its_rows(
    tmp_path: Path, forms: dict[str, list[fr.ShardedEngine]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = run(tmp_path / "shards.jsonl")
    assert code == 0
    assert [len(made) for made in forms.values()] == [2, 2]
    kinds = [(row["phase"], row["case"], row["shards"]) for row in rows]
    layouts = shards.LAYOUTS
    assert kinds[:3] == [("agents", layout, 0) for layout in layouts]
    for place, count in ((3, 1), (24, 2)):
        assert kinds[place : place + 21] == [
            each
            for layout in layouts
            for each in (*(("fan-out", layout, 0), ("fan-out", layout, count)) * 3, ("agents", layout, count))
        ]
    assert [row["fan_out"] for row in rows[3:9]] == [1, 1, 5, 5, 20, 20]
    assert kinds[45:] == [("service", "split", 1)] * 5
    # The largest shard is asked at several depths.
    assert [(row["records"], row["k"]) for row in rows[45:]] == [
        (100, 10),
        *((300, k) for k in shards.DEPTHS),
    ]
    assert all(row["machine"] and row["commit"] and row["run"] == rows[0]["run"] for row in rows)
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in rows)
    # The last fan-outs of a layout are those of 20 queries.
    cells = {(row["phase"], row["case"], row["shards"]): row for row in rows}
    for count in (1, 2):
        for layout in layouts:
            found = cells["fan-out", layout, count]
            assert found["verified"] is True
            # All queries of a tenant go to its shard, and all shards hold a part of what is split.
            least, most = {"tenant": (1, 1), "tenants": (1, count), "split": (count, count)}[layout]
            assert least <= found["messages"] <= most
            assert len(found["quantiles_us"]) == shards.POINTS
            assert found["quantiles_us"] == sorted(found["quantiles_us"])
            assert min(found["sent_bytes"], found["received_bytes"], found["alone_p50_us"]) > 0
            agents = cells["agents", layout, count]
            assert agents["verified"] is True
            assert agents["messages_per_launch"] <= count
    shown = capsys.readouterr().out
    assert "| split, 20 | 2 | 500 |" in shown
    assert "| split, 20 | engine | 500 |" in shown
    # What it writes is what the model of a platform reads.
    found = scale.Measured.of(rows, [{"figures": {"peak_bytes_per_record": 400}, "date": "1"}])
    assert found.queries_per_s == cells["agents", "tenant", 1]["queries_per_s"]
    assert found.service(100).max() == max(rows[45]["quantiles_us"])


def test_a_wrong_answer_is_seen(
    tmp_path: Path, forms: dict[str, list[fr.ShardedEngine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = shards.open_shards

    def incomplete(corpus: shards.Corpus, count: int, folder: Path, transport: str) -> fr.ShardedEngine:
        engine = opened(corpus, count, folder, transport)
        if transport == "ray":
            engine.delete([f"r{number}" for number in range(0, 500, 3)], namespace=shards.SPLIT)
        return engine

    monkeypatch.setattr(shards, "open_shards", incomplete)
    code, rows = run(tmp_path / "shards.jsonl")
    assert code == 1
    wrong = {(row["phase"], row["case"]) for row in rows if row["verified"] is False}
    assert wrong == {("fan-out", "split"), ("agents", "split")}


def test_bad_settings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shards.main(["--agents", "0"])
    assert "1 or more" in capsys.readouterr().err


def test_fan_outs_are_the_same_from_one_seed(forms: dict[str, list[fr.ShardedEngine]]) -> None:
    corpus = shards.Corpus(500)
    assert [len(corpus.tenants), corpus.documents] == [2, 500]
    for layout in shards.LAYOUTS:
        (first, second) = (corpus.fan_outs(layout, 3, seed=seed) for seed in (0, 1))
        assert corpus.fan_outs(layout, 3) == first != second
        spaces = [{query.namespace for query in queries} for queries in first]
        assert all(len(names) == 1 for names in spaces) == (layout != "tenants")
    assert spaces == [{shards.SPLIT}] * 3
