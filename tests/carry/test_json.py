"""Objects that are no JSON: refused where they cannot be kept, and named where they cannot be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fanrank as fr

NO_JSON: list[dict[Any, Any]] = [
    {"a": {1}},
    {"a": float("nan")},
    {1: 2},
    {"a": b"bytes"},
    {"a": (1, 2)},
    {"a": ["\ud800"]},
]


@pytest.mark.parametrize("value", NO_JSON, ids=repr)
def test_a_payload_is_json_wherever_it_is_kept(tmp_path: Path, value: dict[Any, Any]) -> None:
    messages = []
    stored = fr.Engine.open(tmp_path / "one", backend="numpy")
    for engine in (stored, fr.Engine(backend="numpy"), fr.Engine(backend="numpy", keep_texts=False)):
        with engine, pytest.raises(fr.errors.RecordError) as refused:
            engine.add([fr.Record("good", "tea"), fr.Record("odd", "tea", payload=value)])
        assert refused.value.record_id == "odd"
        assert len(engine) == 0
        messages.append(str(refused.value))
    assert len(set(messages)) == 1
    memory = fr.Engine.from_records([fr.Record("a", "tea", payload={"n": 1})], backend="numpy")
    with pytest.raises(fr.errors.RecordError):
        memory.patch("a", payload=value)
    found = memory.get("a")
    assert found.payload == {"n": 1}


@pytest.mark.parametrize("value", NO_JSON, ids=repr)
def test_an_export_names_the_record_that_no_file_can_hold(tmp_path: Path, value: dict[Any, Any]) -> None:
    engine = fr.Engine.from_records([fr.Record("good", "tea"), fr.Record("odd", "tea", extra=value)], backend="numpy")
    with pytest.raises(fr.errors.RecordError, match="'extra'") as refused:
        engine.export(tmp_path / "x.jsonl")
    assert refused.value.record_id == "odd"
    assert list(tmp_path.iterdir()) == []
