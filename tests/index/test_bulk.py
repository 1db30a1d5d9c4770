"""A batch of many chunks: the segments of one built at once, whatever the threads, the chunks and the loops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.engine.settings import ENVIRONMENT_VARIABLE
from fanrank.engine.storage.writes import chunks_of
from fanrank.engine.text.vocabulary import TermIndexer

WORDS = [f"{letter}{number}" for number in range(9) for letter in "zyx"]


def records(count: int, start: int = 0, *, rich: bool = False) -> Iterator[fr.Record]:
    rng = np.random.default_rng(start + 7)
    for n in range(start, start + count):
        words = [WORDS[int(place)] for place in rng.random(int(rng.integers(0, 9))) ** 2 * len(WORDS)]
        more: dict[str, Any] = {}
        if rich:
            more = {
                "namespace": "bob" if n % 3 == 0 else "",
                "session": f"s{n // 4}" if n % 5 else None,
                "time": float(n) if n % 4 else None,
                "fields": {"predicate": " ".join(words[:2])},
                "weights": {words[0]: 1.5} if words and n % 6 == 1 else None,
                "entities": {"x": f"e{n % 3}"} if n % 7 == 2 else None,
                "embedding": [1.0, n + 1.0] if n % 4 == 1 else None,
            }
        yield fr.Record(f"r{n}", " ".join(words), **more)


def contents(engine: fr.Engine, folder: Path) -> dict[str, bytes]:
    """The arrays of the saved index; their files have names of their own in each save."""
    engine.save(folder)
    return {file.name.split(".")[0]: file.read_bytes() for file in folder.glob("*.npy")}


def built(count: int, threads: int | None, rich: bool) -> fr.Engine:
    options: dict[str, Any] = {"analyzer": "minimal"}
    if rich:
        options |= {"encoder": fr.OwnVectors(2), "fields": {"text": 1.0, "predicate": 2.0}}
    return fr.Engine.from_records(records(count, rich=rich), threads=threads, **options)


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("chunk", [1, 7])
def test_threads_and_loops_change_nothing(
    monkeypatch: pytest.MonkeyPatch, chunk: int, rich: bool, tmp_path: Path
) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=chunk, MAX_SEGMENT_DOCUMENTS=32, WINDOW_DOCUMENTS=8)
    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, "numpy")
        plain = built(90, 1, rich)
    assert len(plain.index.memory.snapshot("").segments) > 1
    wanted = contents(plain, tmp_path / "plain")
    assert len(wanted) > 10
    for threads in (1, 2, 3, None):
        assert contents(built(90, threads, rich), tmp_path / str(threads)) == wanted


def test_characters_bound_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHARACTERS=10, READ=2)
    texts = ["12345", "12345", "1", "1", "1", "12345678901", "1"]
    made = (fr.Record(str(n), text) for n, text in enumerate(texts))
    assert [[own.id for own in chunk] for chunk in chunks_of(made)] == [["0", "1"], ["2", "3", "4", "5"], ["6"]]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_fails_first_is_raised(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """An analysis that fails behind the caller is of an earlier chunk than a record that is refused meanwhile."""
    borders.shrink(monkeypatch, BUILD_CHUNK=2)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("first", "tea")])
    refused = threading.Event()
    real = TermIndexer.encode_documents

    def broken(self: TermIndexer, texts: list[str], threads: int = 1) -> Any:
        if "break" in texts:
            refused.wait(0.5 if threads > 1 else 0)
            raise MemoryError("no room")
        return real(self, texts, threads)

    monkeypatch.setattr(TermIndexer, "encode_documents", broken)

    def source() -> Iterator[Any]:
        yield from (fr.Record(f"r{n}", "new words") for n in range(2))
        yield from (fr.Record(f"r{n}", "break") for n in range(2, 4))
        yield fr.Record("r0", "again")
        refused.set()

    with pytest.raises(MemoryError, match="no room"):
        engine.add(source(), threads=threads)
    assert len(engine) == 1
    assert engine.index.memory.indexer.vocabulary.strings == ["tea"]
    monkeypatch.undo()
    assert engine.add(records(5), threads=threads) == 5
