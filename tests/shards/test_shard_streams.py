"""`ShardedEngine.search_stream` beside that of one engine."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import Any

import pytest
from support.sharding import assert_same_hits, outcome, sharded, split_over_all

import fanrank as fr
from fanrank.engine.serve import stream
from fanrank.shards.coordinator.coordinator import View
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.search.searcher import ShardedSearcher


def count_readers(memory: ShardedEngine, monkeypatch: pytest.MonkeyPatch) -> list[View]:
    """The views that searches read at present."""
    views: list[View] = []
    reading = memory.coordinator.reading

    @contextmanager
    def counted() -> Iterator[View]:
        with reading() as view:
            views.append(view)
            try:
                yield view
            finally:
                views.remove(view)

    def begin() -> AbstractContextManager[View]:
        # Kept, so that it ends where the stream ends it, and not because nobody refers to it.
        begun.append(counted())
        return begun[-1]

    begun: list[AbstractContextManager[View]] = []
    monkeypatch.setattr(memory.coordinator, "reading", begin)
    return views


def test_arguments_are_refused_at_once_as_by_one_engine() -> None:
    one, several = fr.Engine(), sharded(2)
    refusals: list[dict[str, Any]] = [{"k": -1}, {"ahead": 65}, {"threads": 0}, {"execution": "nowhere"}, {"filter": 5}]
    bad: list[tuple[Any, dict[str, Any]]] = [(5, {}), ("ant", {}), *(([["ant"]], how) for how in refusals)]
    for batches, how in bad:
        refused = outcome(one.search_stream, batches, **how)
        assert refused == outcome(several.search_stream, batches, **how)
        assert issubclass(refused[0], fr.FanrankError)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_batch_is_refused_when_its_turn_comes_as_by_one_engine(ahead: int) -> None:
    one, several = fr.Engine(), sharded(2)
    split_over_all(several, "")
    for engine in (one, several):
        engine.add([fr.Record(f"r{number}", "ant") for number in range(6)])
    bad: list[dict[str, Any]] = [{"strategy": "dense"}, {"newest": True}, {"filter": {"nobody": 1}}, {"vector": [1]}]
    for batch in [[7], *([fr.Query("ant", **fields)] for fields in bad)]:
        refused = []
        for engine in (one, several):
            answers = engine.search_stream([["ant"], batch, ["ant"]], ahead=ahead)
            assert next(answers).counts.tolist() == [6]
            with pytest.raises(fr.FanrankError) as error:
                next(answers)
            refused.append((error.type, str(error.value)))
            assert next(answers, None) is None
        assert refused[0] == refused[1]


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_a_batch_sees_no_write_after_it_was_read(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one, several = fr.Engine(), sharded(3)
    split_over_all(several, "")
    views, written = count_readers(several, monkeypatch), {f"ant {number}": Event() for number in range(8)}
    search = ShardedSearcher.search

    def search_late(self: ShardedSearcher, queries: Sequence[fr.Query], *rest: Any) -> fr.Hits:
        # With batches ahead, the next one is read, and so the write done, whether this one is answered or not.
        assert not ahead or written[queries[0].text].wait(60)
        return search(self, queries, *rest)

    monkeypatch.setattr(ShardedSearcher, "search", search_late)

    def batches(engine: fr.Engine | ShardedEngine) -> Iterator[list[str]]:
        for number, text in enumerate(written):
            yield [text]
            engine.add([fr.Record(f"r{number}.{part}", "ant") for part in range(4)])
            if engine is several:
                written[text].set()

    expected, answers = (list(engine.search_stream(batches(engine), 40, ahead=ahead)) for engine in (one, several))
    for number, (first, other) in enumerate(zip(expected, answers, strict=True)):
        assert_same_hits(first, other)
        assert other.counts.tolist() == [4 * number]
    assert not views


def test_records_come_with_the_hits_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    several = sharded(3)
    split_over_all(several, "")
    several.add([fr.Record(f"r{number}", "ant 0") for number in range(6)])
    views = count_readers(several, monkeypatch)

    def batches() -> Iterator[list[str]]:
        for number in range(1, 5):
            yield ["ant"]
            several.update([fr.Record(f"r{each}", f"ant {number}") for each in range(6)])

    for hits in several.search_stream(batches(), ahead=2, texts=True):
        (row,) = hits
        assert len({hit.text for hit in row}) == 1
        assert len(row) == 6
    assert not views


class FirstAlone(ThreadPoolExecutor):
    """Threads that are busy but for the first piece of work."""

    begun = False

    def submit(self, work: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.begun:
            self.begun = True
            future.set_result(work())
        return future


def test_a_stream_that_is_closed_lets_go_of_what_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    several = sharded(2)
    several.add([fr.Record("1", "ant")])
    views = count_readers(several, monkeypatch)
    monkeypatch.setattr(stream, "ThreadPoolExecutor", FirstAlone)
    answers = several.search_stream([["ant"]] * 9, ahead=4)
    assert next(answers).counts.tolist() == [1]
    assert len(views) == 4
    answers.close()
    assert not views
