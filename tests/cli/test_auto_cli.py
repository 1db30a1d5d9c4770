"""`fanrank search` without --strategy, and `fanrank eval --list-strategies` with its prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import fanrank as fr
from fanrank.engine.cli.main import main
from fanrank.engine.evaluate import prices as prices_of
from fanrank.engine.hybrid.strategy import STRATEGIES
from fanrank.engine.route.policy import POLICIES, strategy_of


def run(*arguments: str) -> str:
    found = CliRunner().invoke(main, list(arguments))
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_search_is_auto_where_a_query_brings_a_vector(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory", encoder=fr.OwnVectors(2)) as engine:
        engine.add([fr.Record("1", "tea", embedding=[1, 0]), fr.Record("2", "tea cup", embedding=[0, 1])])
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"text": "tea", "vector": [0, 1]}\n{"text": "cup"}\n')
    found = json.loads(run("search", str(tmp_path / "memory"), "--queries", str(queries), "--json"))
    assert found["strategy"] == POLICIES["auto"].to_dict()
    assert [row["decision"]["strategy"] for row in found["queries"]] == ["recall", "bm25"]
    assert found["queries"][0]["hits"][0]["id"] == "1"
    plain = json.loads(run("search", str(tmp_path / "memory"), "tea", "--json"))
    assert plain["strategy"]["name"] == "bm25"
    assert "decision" not in plain["queries"][0]


def test_the_list_of_strategies_shows_their_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {
        "rrf": {
            "chats": {"hit@1": [-0.05, -0.07, -0.03], "hit@5": [-0.031, -0.05, -0.011], "ndcg@10": [0.0, -0.1, 0.1]}
        },
        "auto": {"chats": {"hit@1": [0.01, -0.01, 0.03], "hit@5": [0.02, 0.01, 0.03], "ndcg@10": [0.0, -0.1, 0.1]}},
    }
    monkeypatch.setattr(prices_of, "prices", lambda: measured)
    lines = run("eval", "--list-strategies").splitlines()
    assert lines[lines.index(str(STRATEGIES["rrf"])) + 1].strip() == (
        "beware: Hit@5 to bm25 in points: chats -3.1 [-5.0, -1.1]"
    )
    assert lines[lines.index(str(POLICIES["auto"])) + 1].strip() == "Hit@5 to bm25 in points: chats +2.0 [+1.0, +3.0]"
    for order in (["--list-strategies", "--json"], ["--json", "--list-strategies"]):
        listed = json.loads(run("eval", *order))
        assert list(listed) == [*STRATEGIES, *POLICIES]
        assert listed["rrf"]["beware"]
        assert listed["rrf"]["to_bm25"] == measured["rrf"]
        assert not listed["auto"]["beware"]
        assert listed["dense"]["to_bm25"] == {}
        kinds = {name: {k: v for k, v in one.items() if k not in ("to_bm25", "beware")} for name, one in listed.items()}
        assert all(strategy_of(one) == strategy_of(name) for name, one in kinds.items())


def test_the_prices_in_the_package_name_strategies_that_are_there() -> None:
    for name, sets in prices_of.prices().items():
        assert name in STRATEGIES or name in POLICIES
        for metrics in sets.values():
            assert set(metrics) == {"hit@1", "hit@5", "ndcg@10"}
            assert all(low <= difference <= high for difference, low, high in metrics.values())
