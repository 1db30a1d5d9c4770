"""`fanrank search` without --strategy, and `fanrank eval --list-strategies`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import fanrank as fr
from fanrank.engine.cli.main import main
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


def test_the_list_of_strategies_names_all_of_them() -> None:
    assert run("eval", "--list-strategies").splitlines() == [
        str(one) for one in (*STRATEGIES.values(), *POLICIES.values())
    ]
    for order in (["--list-strategies", "--json"], ["--json", "--list-strategies"]):
        listed = json.loads(run("eval", *order))
        assert list(listed) == [*STRATEGIES, *POLICIES]
        assert all(strategy_of(one) == strategy_of(name) for name, one in listed.items())
