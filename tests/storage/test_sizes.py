"""What an engine tells of itself: sizes as the allocator gave them, and counts in its log, never what records say."""

import gc
import logging
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fanrank as fr


def drawn(count: int) -> Iterator[fr.Record]:
    rng = random.Random(1)
    for number in range(count):
        yield fr.Record(
            f"r{number}",
            " ".join(f"w{rng.randrange(count)}" for _ in range(8)),
            session=f"session{number // 4}",
            time=float(number),
            embedding=[[rng.random() for _ in range(8)]],
            weights={f"t{rng.randrange(count // 4)}": 1.0},
            entities={"w1": f"entity{number // 8}"},
        )


def made() -> fr.Engine:
    return fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(8), backend="numpy", keep_texts=False)


def test_the_index_is_counted_within_some_percent() -> None:
    engine = made()
    engine.add(list(drawn(40)))  # what is imported and made once
    engine.delete([f"r{number}" for number in range(40)])
    engine.flush()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        engine.add(drawn(8_000))
        engine.delete([f"r{number}" for number in range(0, 2_000, 2)])
        engine.flush()
        gc.collect()
        traced = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    sizes = engine.stats()
    assert 0.93 * traced < sizes["index_bytes"] < 1.03 * traced
    counted = [name for name, size in sizes.items() if name.endswith("_bytes") and size and name != "cache_bytes"]
    assert {
        "index_bytes", "posting_bytes", "evidence_bytes", "vector_bytes", "id_bytes", "column_bytes", "deleted_bytes",
        "vocabulary_bytes",
    } == set(counted)  # fmt: skip


def test_what_searches_keep_is_counted_apart() -> None:
    engine = made()
    engine.add(list(drawn(6_000)))
    before = engine.stats()
    queries = [fr.Query(f"w{number} w{number + 1}", statistics=kind, filter={"session": f"session{number}"})
               for number in range(6) for kind in ("namespace", "filtered")]  # fmt: skip
    engine.search(queries)
    after = engine.stats()
    assert after["cache_bytes"] > before["cache_bytes"] + 6_000
    assert after["index_bytes"] == before["index_bytes"]


def test_what_unions_keep_is_counted() -> None:
    engine = made()
    engine.add([replace(record, namespace=name) for name in ("a", "b") for record in drawn(3_000)])
    engine.delete([f"r{number}" for number in range(0, 300, 2)], namespace="a")
    engine.flush()
    before = engine.stats()
    engine.search([fr.Query("w1 w2", weights={"t1": 1.0}, namespaces=["a", "b"])], strategy="sparse")
    after = engine.stats()
    ((_, union),) = engine.index.memory.state.unions.values()
    learned = union.learned.counts
    assert after["cache_bytes"] > before["cache_bytes"] + union.counts.nbytes + learned.nbytes
    assert after["index_bytes"] == before["index_bytes"]
    engine.drop("b")
    assert not engine.index.memory.state.unions


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
