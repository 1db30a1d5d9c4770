"""How many Python calls of fanrank's own functions a small search and a small write take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.calls import counted

import fanrank as fr

TEXTS = [f"alpha beta w{n % 7} gamma" for n in range(500)]


def own_calls(run: Callable[[], object]) -> int:
    with counted() as calls:
        run()
    return calls["own"]


def test_one_text_takes_18_calls() -> None:
    engine = fr.Engine.from_records([fr.Record(f"r{n}", text) for n, text in enumerate(TEXTS)])
    if engine.backend.name != "native":
        pytest.skip("the compiled loops are not there")
    engine.search(["alpha w3"])
    assert own_calls(lambda: engine.search(["alpha w3"])) <= 18


def test_a_durable_add_takes_at_most_250_calls(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([fr.Record(f"r{n}", text) for n, text in enumerate(TEXTS)])
        engine.add([fr.Record("first", "alpha new")])

        def add() -> None:
            for n in range(64):  # merges of small segments come with some of them
                engine.add([fr.Record(f"new{n}", "alpha new thing")])

        assert own_calls(add) <= 250 * 64
