"""Records whose text is there already (`add(twins=)`), against plain loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.borders import shrink
from support.threads import until

import fanrank as fr
from fanrank.engine.errors import DuplicateIdError, ParameterError, StorageError
from fanrank.engine.listing import matching
from fanrank.shards.engine import ShardedEngine

Made = Callable[[str], Any]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A memory of each kind, by its name."""
    with ExitStack() as opened:

        def make(kind: str) -> Any:
            if kind == "memory":
                return fr.Engine()
            if kind == "directory":
                return opened.enter_context(fr.Engine.open(tmp_path / kind))
            sharded = ShardedEngine.open(tmp_path / kind, shards=2, transport="local", split_at=6)
            return opened.enter_context(sharded)

        yield make


def expected(
    held: list[fr.Record], records: list[fr.Record], twins: str
) -> tuple[list[fr.Record], list[tuple[str, ...]]]:
    """The live records afterwards, in the order of their writes, and what is told."""
    held, told = [*held], []
    for record in records:
        same = [one for one in held if (one.namespace, one.text) == (record.namespace, record.text)]
        told.append(tuple(one.id for one in same))
        if same and twins == "skip":
            continue
        if twins == "replace":
            held = [one for one in held if one not in same]
        held.append(record)
    return held, told


@pytest.mark.parametrize("kind", ["memory", "directory", "sharded"])
def test_what_is_added_beside_twins_is_what_plain_loops_say(made: Made, kind: str) -> None:
    engine, random, held = made(kind), np.random.default_rng(7), list[fr.Record]()
    for step in range(24):
        twins = ("skip", "replace", "tell")[step % 3]
        batch = [
            fr.Record(f"{step}.{n}", f"w{random.integers(9)} x", namespace="ab"[random.integers(2)])
            for n in range(12 if 3 <= step <= 5 else random.integers(5))
        ]
        before = len(held)
        held, told = expected(held, batch, twins)
        answer = engine.add(batch, twins=twins)
        assert answer.twins == told
        fresh = {record.id for record in held} & {record.id for record in batch}
        assert (answer, type(answer).__name__) == (len(fresh), "Added"), before
        if step % 5 == 4 and held:
            gone = held.pop(int(random.integers(len(held))))
            engine.delete([gone.id], namespace=gone.namespace)
        if step == 12:
            engine.flush()
        for name in "ab":
            assert list(engine.ids(namespace=name)) == [one.id for one in held if one.namespace == name]


@pytest.mark.parametrize("kind", ["memory", "directory", "sharded"])
def test_a_record_that_expired_is_no_twin(made: Made, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made(kind)
    engine.add([fr.Record("old", "same", expires=4e9), fr.Record("kept", "other")])
    monkeypatch.setattr(matching, "time", SimpleNamespace(time=lambda: 5e9))
    answer = engine.add([fr.Record("new", "same"), fr.Record("newer", "other")], twins="skip")
    assert (answer, answer.twins) == (1, [(), ("kept",)])


def test_a_record_takes_the_place_of_its_twin_under_its_own_id_and_no_other_of_that_id(made: Made) -> None:
    engine = made("directory")
    engine.add([fr.Record("a", "one"), fr.Record("b", "two")])
    assert engine.add([fr.Record("a", "one", role="user")], twins="replace").twins == [("a",)]
    with pytest.raises(DuplicateIdError):
        engine.add([fr.Record("c", "one"), fr.Record("b", "three")], twins="replace")
    assert list(engine.ids(namespace="")) == ["b", "a"]
    assert engine.get("a").role == "user"


def test_of_writers_of_one_text_in_one_commit_one_writes_it(made: Made) -> None:
    engine, told = made("directory"), dict[str, Any]()
    memory = engine.index.memory

    def write(name: str) -> None:
        told[name] = engine.add([fr.Record(name, "one text")], twins="skip")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdef"]
    with memory._writing:
        for thread in threads:
            thread.start()
        until(lambda: len(memory._queue) == len(threads))
    for thread in threads:
        thread.join()
    assert memory.counters.commits == 1
    (winner,) = engine.ids(namespace="")
    assert told.pop(winner) == 1
    assert [(answer, answer.twins) for answer in told.values()] == [(0, [(winner,)])] * 5


def test_a_batch_of_many_chunks_is_decided_as_one(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, BUILD_CHUNK=4, READ=2)
    engine = made("directory")
    records = [fr.Record(str(n), f"text {n % 7}") for n in range(40)]
    answer = engine.add(iter(records), twins="skip")
    assert (answer, answer.twins[7], answer.twins[39]) == (7, ("0",), ("4",))
    assert engine.add([fr.Record("new", "text 3")], twins="tell").twins == [("3",)]


def test_awaited_adds_and_receipts_name_twins_too(made: Made) -> None:
    engine = made("directory")
    engine.add([fr.Record("a", "one")])
    answer = asyncio.run(engine.aadd([fr.Record("b", "one")], twins="skip"))
    assert (answer, answer.twins) == (0, [("a",)])
    whole = engine.add([fr.Record("b", "one"), fr.Record("c", "two")], twins="skip", receipts=True)
    assert (whole, whole.twins, [one["why"] for one in whole.receipts]) == (1, [("a",), ()], [{"id": "gone"}, {}])


def test_twins_are_one_of_four_words_and_need_texts() -> None:
    with pytest.raises(ParameterError, match="unknown twins 'drop'"):
        fr.Engine().add([], twins="drop")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="there are no texts"):
        fr.Engine(keep_texts=False).add([fr.Record("a", "one")], twins="skip")
