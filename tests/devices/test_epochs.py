"""Searches between writes, and fan-outs that are on their way at once: each epoch and answer has its own buffers."""

import builtins
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
from support import borders
from support.answers import TERMS, answer, build, oracle, records
from support.device_cases import FAST, assert_same_bits, serve, serve_numpy, tensors_of

import fanrank as fr
from fanrank.engine.index.snapshot import Snapshot
from fanrank.kernels import device
from fanrank.kernels.download import Download


@pytest.mark.parametrize("name", FAST)
def test_grown_while_searched(name: str) -> None:
    rng = random.Random(2)
    documents = [rng.choices(TERMS, k=rng.randrange(6)) for _ in range(200)]
    batch = [rng.choices(TERMS, k=3) for _ in range(3)]
    engine = serve(build([]), name)
    for start in range(0, 200, 13):
        engine.add(records(documents[start : start + 13], start))
        expected = [oracle(documents[: start + 13]).search(q, 7) for q in batch]
        for _ in range(3):
            assert answer(engine.search(batch, 7)) == expected


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("texts", [False, True], ids=["plans", "texts"])
def test_an_older_epoch_is_answered_again(name: str, texts: bool) -> None:
    """Two epochs in turn, as a reader beside a writer asks them, each by the oracle; every shape is asked twice."""
    documents = [["a1"], ["a1", "b2"], ["b2", "c3"]] * 30
    engine = serve(build(documents), name, texts=texts)
    more = [["a1"]] * 30 + [["c3", "d4"]] * 60
    old = dict(engine.index.memory.snapshots)
    batches = [[["a1", "c3"]], [["b2"], ["c3", "d4"]]]
    before = [[oracle(documents).search(q, 9) for q in batch] for batch in batches]
    after = [[oracle(documents + more).search(q, 9) for q in batch] for batch in batches]
    ask = lambda: [answer(engine.search(batch, 9)) for batch in batches]  # noqa: E731
    assert [ask(), ask()] == [before, before]
    engine.add(records(more, 90))
    new = dict(engine.index.memory.snapshots)
    for snapshots, expected in ((new, after), (old, before), (new, after), (old, before)):
        engine.index.memory.snapshots = snapshots
        assert [ask(), ask(), ask()] == [expected] * 3


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("texts", [False, True], ids=["plans", "texts"])
def test_a_new_epoch_at_the_address_of_an_old_one(name: str, texts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is kept for a snapshot outlives it, as the next one may have its `id`."""
    address = lambda kept: 1 if isinstance(kept, Snapshot) else builtins.id(kept)  # noqa: E731
    monkeypatch.setattr(device, "id", address, raising=False)
    documents = [["a1"], ["a1", "b2"], ["b2", "c3"]] * 30
    engine = serve(build(documents), name, texts=texts)
    batch = [["a1", "c3"], ["b2"]]
    # What others left is looked at once: a pass over it takes .4 s.
    gc.collect()
    gc.freeze()
    for number in range(90, 240, 30):
        expected = [oracle(documents).search(q, 9) for q in batch]
        for _ in range(3):
            assert answer(engine.search(batch, 9)) == expected
        documents = documents + [["a1"], ["c3"]] * 15
        engine.add(records(documents[number:], number))
        gc.collect()


@pytest.mark.parametrize("name", FAST)
def test_deletes_and_updates_between_fan_outs(name: str) -> None:
    """The segments stay; what they hold of live documents, and the statistics, do not."""
    engine = serve(build([["a1"], ["a1", "b2"], ["b2", "c3"]] * 40), name)
    batch = [["a1", "c3"], ["b2"]]
    for number in range(0, 120, 11):
        engine.delete([f"r{number}"])
        engine.update([fr.Record(f"r{number + 1}", "c3 c3 a1")])
        device_backend = engine.backend
        expected = serve_numpy(engine).search(batch, 9)
        engine.backend = device_backend
        for _ in range(3):
            assert_same_bits(engine.search(batch, 9), expected)
        terms, offsets = tensors_of(engine, batch)
        found = engine.search_tensors(terms, offsets, k=9)
        assert found.documents.cpu().numpy().tobytes() == expected.documents.tobytes()
        assert found.scores.cpu().numpy().tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("name", FAST)
def test_epochs_on_both_sides_of_int64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment keeps the contributions of both widths apart, so that no table points at what was let go."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=700, INLINE_DOCUMENTS=700, BUILD_CHUNK=700)
    options = {"k1": 1000.0, "b": 0.0}
    engine = serve(build([["a1"], ["b2"], ["c3", "c3"]] * 560, **options), name)
    old = dict(engine.index.memory.snapshots)
    ask = lambda: answer(engine.search([["a1", "c3"], ["b2"]], 5))  # noqa: E731
    narrow = ask()
    engine.add(records([["d4"]] * 200, 1680))  # ln(2 N + 2) 1001 2**18 passes 2**31 at 1,791
    assert engine.index.memory.snapshots[""].long
    assert not old[""].long
    wide = ask()
    new, engine.index.memory.snapshots = engine.index.memory.snapshots, old
    assert [ask(), ask()] == [narrow, narrow]
    engine.index.memory.snapshots = new
    assert [ask(), ask()] == [wide, wide]
    serve_numpy(engine)
    assert ask() == wide


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
