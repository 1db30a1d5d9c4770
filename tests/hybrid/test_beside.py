"""BM25 is searched while queries are encoded (A005, A053). The two meet at a barrier, as they could not in turn."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.hashing import Hashing

import fanrank as fr
from fanrank.engine.backends.choose import Backend
from fanrank.engine.hybrid import beside
from fanrank.engine.hybrid.strategy import NAMED

WAIT = 300.0
HYBRID = ("rrf", "fused", "agent_rrf", "softcentroid-fused", "recall")


class Meeting(Hashing):
    """An encoder that does something before it encodes queries."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(dimension=8)
        self.before = before

    def queries(self, texts: Sequence[str]) -> Any:
        self.before()
        return super().queries(texts)


def engine_of(encoder: Meeting) -> fr.Engine:
    words = ("tea", "river", "deploy", "invoice", "error")
    draw = np.random.default_rng(2)
    records = [
        fr.Record(f"r{n}", " ".join(draw.choice(words, 3)), time=n * 3600.0, type="Event" if n % 7 == 0 else None)
        for n in range(120)
    ]
    return fr.Engine.from_records(records, encoder=encoder, backend="numpy")


def queries() -> list[fr.Query]:
    return [fr.Query(text, now=5e5) for text in ("tea river", "deploy", "error yesterday", "tea river", "unknown")]


def before_words(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen before each search of words."""
    serve = Backend.serve

    def acting(self: Backend, *given: Any, **how: Any) -> Any:
        act()
        return serve(self, *given, **how)

    monkeypatch.setattr(Backend, "serve", acting)


@pytest.mark.parametrize("name", HYBRID)
def test_words_are_searched_while_queries_are_encoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(2)
    encoder = Meeting(lambda: meeting.wait(WAIT))
    engine = engine_of(encoder)
    served = 0

    def meet_once() -> None:
        nonlocal served
        served += 1
        if served == 1:
            meeting.wait(WAIT)

    before_words(monkeypatch, meet_once)
    engine.search(queries(), k=5, strategy=name)
    assert not meeting.broken
    assert served >= 1


@pytest.mark.parametrize("name", HYBRID)
def test_answers_are_those_of_one_after_the_other(name: str) -> None:
    encoder = Meeting()
    engine = engine_of(encoder)
    together = engine.search(queries(), k=5, strategy=name, timing=True)
    given = [replace(query, vector=encoder.queries([query.text])[0]) for query in queries()]
    apart = engine.search(given, k=5, strategy=name, timing=True)
    assert together.ids.tolist() == apart.ids.tolist()
    assert (together.scores == apart.scores).all()
    assert together.backend == apart.backend
    assert (together.timing or {}).keys() == (apart.timing or {}).keys() != set()
    for position in range(len(given)):
        for hit in together.ids[position]:
            if hit is not None:
                told, wanted = together.explain(position, hit), apart.explain(position, hit)
                assert replace(told, query=0) == replace(wanted, query=0)


class OwnError(Exception):
    pass


def fail(error: BaseException) -> Callable[[], object]:
    def raising() -> None:
        raise error

    return raising


@pytest.mark.parametrize("stop", [OwnError("encoder"), KeyboardInterrupt()])
def test_an_error_of_the_encoder_waits_for_the_words(stop: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, ended = threading.Event(), []
    encoder = Meeting()
    engine = engine_of(encoder)
    expected = engine.search(queries(), k=5, strategy="rrf").ids.tolist()

    def interrupt() -> None:
        encoding.set()
        raise stop

    before_words(monkeypatch, lambda: ended.append(encoding.wait(WAIT)))
    encoder.before = interrupt
    with pytest.raises(type(stop)):
        engine.search(queries(), k=5, strategy="rrf")
    assert ended == [True]
    assert not [thread for thread in threading.enumerate() if thread.name == "fanrank-beside"]
    encoder.before = lambda: None
    assert engine.search(queries(), k=5, strategy="rrf").ids.tolist() == expected


def test_an_error_of_the_words_is_raised_and_that_of_the_encoder_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Meeting()
    engine = engine_of(encoder)
    before_words(monkeypatch, fail(OwnError("words")))
    with pytest.raises(OwnError, match="words"):
        engine.search(queries(), k=5, strategy="fused")
    encoder.before = fail(OwnError("encoder"))
    for _ in range(5):
        with pytest.raises(OwnError, match="encoder"):
            engine.search(queries(), k=5, strategy="fused")


def test_a_deadline_passes_while_both_run(monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, encoder = threading.Event(), Meeting()
    engine = engine_of(encoder)
    encoder.before = lambda: going_on.wait(WAIT)
    before_words(monkeypatch, lambda: going_on.wait(WAIT))
    with pytest.raises(fr.errors.DeadlineError):
        asyncio.run(engine.asearch(queries(), k=5, strategy="rrf", deadline=0.05))
    going_on.set()
    assert engine.submit(queries(), k=5, strategy="rrf").result(WAIT).ids.shape == (5, 5)
    engine.close()


def test_no_thread_is_made_where_nothing_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Meeting()
    engine = engine_of(encoder)
    monkeypatch.setattr(beside.threading, "Thread", fail(AssertionError("a thread was made")))
    engine.search(queries(), k=5)
    engine.search(queries(), k=5, strategy="decay")
    vectors = [replace(query, vector=[1.0] + [0.0] * 7) for query in queries()]
    for name in HYBRID:
        engine.search(vectors, k=5, strategy=name)
    engine.search(queries(), k=5, strategy="dense")
    engine.search([fr.Query(terms=("tea",), now=5e5)], k=5, strategy="rrf")


def test_the_callers_context_holds_on_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    held: contextvars.ContextVar[str] = contextvars.ContextVar("held", default="nothing")
    seen: list[tuple[str, bool]] = []
    before_words(monkeypatch, lambda: seen.append((held.get(), threading.current_thread() is threading.main_thread())))
    held.set("the caller's")
    engine_of(Meeting()).search(queries(), k=5, strategy=NAMED["rrf"])
    assert seen == [("the caller's", False)]
