"""Fan-outs that are on their way at once: each has buffers of its own until its answer was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support import borders
from support.answers import TERMS, answer, build, oracle
from support.device_cases import FAST, serve

import fanrank as fr
from fanrank.kernels.download import Download

ONE, OTHER = [["a1", "b2"], ["c3"]], [["d4"], ["a1", "e5"]]


class Between:
    """Runs something else once, before or after a download's wait: as another thread would there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[], Any] | None = None
        self.after: Callable[[], Any] | None = None
        plain = Download.wait

        def wait(download: Download) -> Any:
            self._run("before")
            found = plain(download)
            self._run("after")
            return found

        monkeypatch.setattr(Download, "wait", wait)

    def _run(self, when: str) -> None:
        act: Callable[[], Any] | None = getattr(self, when)
        setattr(self, when, None)
        if act is not None:
            act()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    return Between(monkeypatch)


def corpus() -> list[list[str]]:
    rng = random.Random(21)
    return [rng.choices(TERMS, k=rng.randrange(6)) for _ in range(200)]


def expected_of(documents: list[list[str]], batch: list[list[str]], k: int) -> list[list[tuple[int, int]]]:
    plain = oracle(documents)
    return [plain.search(query, k) for query in batch]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("texts", [False, True], ids=["plans", "texts"])
@pytest.mark.parametrize("name", FAST)
def test_another_fan_out_while_one_is_read(name: str, texts: bool, when: str, between: Between) -> None:
    """Of the same shape: it must take other buffers while the first answer lies in its own, and leave a copy alone."""
    documents = corpus()
    engine = serve(build(documents), name, texts=texts)
    wanted = {k: (expected_of(documents, ONE, k), expected_of(documents, OTHER, k)) for k in (3, 4, 64)}
    # 4 and 64 hits fill the padded rows, so that all of them are the answer's own.
    for k, (first, second) in wanted.items():
        for _ in range(3):
            got: list[Any] = []
            setattr(between, when, lambda k=k, got=got: got.append(answer(engine.search(OTHER, k))))
            assert answer(engine.search(ONE, k)) == first
            assert got == [second]


@pytest.mark.parametrize("texts", [False, True], ids=["plans", "texts"])
@pytest.mark.parametrize("name", FAST)
def test_fan_outs_within_fan_outs(name: str, texts: bool, between: Between) -> None:
    """Four on their way at once, then four again."""
    documents = corpus()
    engine = serve(build(documents), name, texts=texts)
    batches = [ONE, OTHER, [["f6"], ["g7", "a1"]], [["b2"], ["b2", "e5"]]]
    wanted = [expected_of(documents, batch, 4) for batch in batches]
    for _ in range(3):
        got: list[Any] = [None] * len(batches)

        def ask(number: int, got: list[Any] = got) -> None:
            if number + 1 < len(batches):
                between.before = lambda: ask(number + 1)
            got[number] = answer(engine.search(batches[number], 4))

        ask(0)
        assert got == wanted


@pytest.mark.parametrize("texts", [False, True], ids=["plans", "texts"])
@pytest.mark.parametrize("name", FAST)
def test_padded_shapes_by_every_size(name: str, texts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, terms and hits below, at and above each padded size, in turn, so that a kept shape is met again."""
    borders.shrink(monkeypatch, {"fanout.QUERIES": (2, 4)}, TERMS=(4, 16), WIDTHS=(4, 64))
    documents = corpus()
    plain = oracle(documents)
    engine = serve(build(documents), name, texts=texts)
    rng = random.Random(22)
    for _ in range(2):
        for queries in (1, 2, 3, 4, 5):
            for k in (1, 4, 5, 64, 65):
                batch = [rng.choices([*TERMS, "unknown"], k=rng.choice([1, 2, 4])) for _ in range(queries)]
                expected = [plain.search(q, k) for q in batch]
                assert answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], k)) == expected
