"""What an engine tells the logger "fanrank" of its memory: counts, and never what records say."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import fanrank as fr


def test_writes_merges_checkpoints_and_openings_are_logged_with_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "memory"
    with caplog.at_level(logging.DEBUG, "fanrank"):
        with fr.Engine.open(path, backend="numpy") as engine:
            for first in range(0, 40, 10):
                engine.add([fr.Record(f"secret-id-{n}", "secret text") for n in range(first, first + 10)])
                engine.flush()
            engine.namespace("secret tenant").add([fr.Record("secret", "secret", payload={"secret": "secret"})])
            engine.delete(["secret-id-3", "secret-id-4"])
        fr.Engine.open(path, backend="numpy", read_only=True).close()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "fanrank"]
    messages = [message for _, message in lines]
    assert messages[0] == f"opened {path}: 0 records, index built"
    assert messages[-1] == f"opened {path}: 39 records, index loaded"
    written = [message for message in messages if message.startswith("batch written")]
    assert written[0] == "batch written: 10 records, change 10"
    assert [int(message.split()[2]) for message in written] == [10, 10, 10, 10, 1, 2]
    assert ("INFO", "checkpoint: 40 records, up to change 40") in lines
    assert [message for message in messages if message.startswith("checkpoint")][-1].startswith(
        "checkpoint: 39 records"
    )
    assert "secret" not in " ".join(messages)
