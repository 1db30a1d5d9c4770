"""The client changes records as the engine does, says what it cannot send, and serves many threads."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.serving import served
from support.threads import in_threads

import fanrank as fr

SPACES = ("", "users/ana", "a b/?#%")
THREADS, ASKED = 8, 12


def make_engine() -> fr.Engine:
    engine = fr.Engine(columns={"project": "category"}, encoder=fr.OwnVectors(2))
    engine.add(
        [
            fr.Record(
                str(number),
                f"tea number {number} of {number % 7}",
                namespace=SPACES[number % 3],
                role=("user", "tool")[number % 2],
                extra={"project": f"p{number % 2}"},
                embedding=[1.0, number],
            )
            for number in range(60)
        ]
    )
    return engine


def everything(engine: fr.Engine) -> list[tuple[Any, ...]]:
    """All live records in the order of their last write, vectors as bytes."""
    return [
        (repr(record), None if record.embedding is None else np.asarray(record.embedding).tobytes())
        for space in SPACES
        for record in engine.records(namespace=space)
    ]


CHANGES: list[Callable[[Any], Any]] = [
    lambda memory: memory.patch(["0", "9", "0"], {"project": None}, role="tool", payload={"n": [1, {"a": None}]}),
    lambda memory: memory.patch(["6", "nobody"], time=dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), missing_ok=True),
    lambda memory: memory.patch("12", {"embedding": np.array([3.0, 4.0], dtype=np.float32)}),
    lambda memory: memory.patch("12", expires=dt.date(2126, 1, 2), embedding=[1, 2], payload={"x": [1]}),
    lambda memory: memory.upsert([{"id": "a", "text": "x", "namespace": name} for name in ("..", "a/../b")]),
    lambda memory: memory.drop("a/../b"),
    lambda memory: memory.patch("15", relations=[fr.Relation("a", "knows", "b")], weights={"tea": 0.1}),
    lambda memory: memory.patch("18", text="coffee", embedding=[1, 1], entities={"Ana": "e1"}),
    lambda memory: memory.update_where({"project": "p1"}, {"project": "p9"}, importance=1.0),
    lambda memory: memory.namespace("users/ana").delete_where(fr.col("role") == "tool"),
    lambda memory: memory.namespace("users/ana").drop(),
    lambda memory: memory.patch("nobody", role="x"),
    lambda memory: memory.patch("3"),
    lambda memory: memory.patch("3", {"role": "x"}, role="y"),
    lambda memory: memory.patch("3", {"nope": 1}),
    lambda memory: memory.patch("3", importance="much"),
    lambda memory: memory.update_where({}, role="x"),
    lambda memory: memory.update_where({"nope": 1}, role="x"),
    lambda memory: memory.delete_where(None),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_change_is_the_engines_own_awaited_or_not(change: Callable[[Any], Any]) -> None:
    def outcome(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except fr.FanrankError as error:
            return type(error), str(error)

    async def ask(url: str) -> Any:
        async with fr.AsyncClient(url) as client:
            return await change(client)

    plain, blocking, awaited = make_engine(), make_engine(), make_engine()
    expected = outcome(lambda: change(plain))
    with served(blocking) as url, fr.Client(url) as client:
        assert outcome(lambda: change(client)) == expected
    with served(awaited) as url:
        assert outcome(lambda: asyncio.run(ask(url))) == expected
    assert everything(blocking) == everything(awaited) == everything(plain)


@pytest.mark.parametrize("name", ["reranker", "rerank_depth", "threads", "execution"])
def test_a_keyword_that_cannot_be_sent_is_named(name: str) -> None:
    with fr.Client("http://127.0.0.1:9") as client:
        with pytest.raises(fr.errors.ParameterError, match=f"{name} cannot be sent"):
            client.search(["tea"], **{name: 2})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unexpected"):
            client.search(["tea"], nope=1)  # type: ignore[call-arg]
        with pytest.raises(fr.errors.ParameterError, match="a function cannot be sent"):
            client.update_where({"role": "x"}, lambda record: record)  # type: ignore[arg-type]


def test_threads_share_a_client() -> None:
    engine = make_engine()
    meeting = threading.Barrier(THREADS)
    with served(engine) as url, fr.Client(url) as client:

        def ask(number: int) -> None:
            meeting.wait(300)
            own = client.namespace(f"threads/{number}")
            for step in range(ASKED):
                batch = [f"tea number {number}", f"of {step}", fr.Query(f"number {step}", k=1 + number % 3)]
                hits, expected = client.search(batch, 5), engine.search(batch, 5)
                assert hits.ids.tolist() == expected.ids.tolist()
                assert hits.scores.tobytes() == expected.scores.tobytes()
                assert own.upsert([fr.Record(f"{step}", f"tea of {number}", embedding=[1.0, step])]) == 1
                assert own.search([f"tea of {number}"], ASKED)[0][0].namespace == f"threads/{number}"
            assert own.count() == ASKED

        in_threads(*(partial(ask, number) for number in range(THREADS)))
