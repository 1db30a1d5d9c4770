"""Whole copies of namespaces that lie in several shards, and what else a query over several shards may ask for."""

import threading
from typing import Any

import pytest
from support import borders
from support.sharding import assert_in_order, assert_same_answers, sharded

import fanrank as fr
from fanrank.engine.backends.choose import choose, statuses
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.storage import Storage
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.processes.links import Done
from fanrank.shards.protocol.messages import Gone
from fanrank.shards.replicas.whole_copies import WHOLE
from fanrank.shards.search.launches import Launch


class Restarted:
    """The way to a shard in memory whose process ended and was started anew: it is empty, and has no state."""

    def __init__(self, link: Any) -> None:
        self.number = link.number

    def send(self, verb: str, *arguments: Any, **keywords: Any) -> Done:
        return Done(None if verb == "newest" else Gone(None))

    def close(self) -> None:
        pass


SPACES = tuple(f"space{number}" for number in range(8))
RECORDS = [fr.Record(f"r{number}", "ant bee"[: number % 8], space) for space in SPACES for number in range(6)]


def both(split: tuple[str, ...], records: list[fr.Record], **how: Any) -> tuple[fr.Engine, ShardedEngine]:
    one, several = fr.Engine(), sharded(3, split=split, **how)
    for engine in (one, several):
        engine.add(records)
    return one, several


def test_a_copy_gives_way_to_the_next_where_both_would_be_too_large() -> None:
    one, several = both(SPACES, RECORDS, settings={"whole_at": 10})
    for space in (*SPACES[:3], SPACES[0]):
        assert_same_answers(one, several, [fr.Query("ant", namespace=space)], strategy="recall")
    with pytest.raises(fr.errors.ShardError, match="12 records"):
        several.search([fr.Query("ant", namespaces=SPACES[:2])], strategy="recall")


@pytest.mark.parametrize("split", [(), ("path/old", "path/new")])
def test_a_copy_holds_what_had_not_expired_at_the_time_of_the_query(
    split: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What has expired is deleted in the background, sooner or later.
    monkeypatch.setattr(Storage, "_sweep_due", lambda memory: False)
    old = [fr.Record(f"o{number}", "ant", "path/old", expires=1e9) for number in range(4)]
    new = [fr.Record(f"n{number}", "ant bee", space) for space in ("path/new", "path/newer") for number in range(4)]
    one, several = both(split, [*old, *new])
    for now in (9e8, None):
        assert_same_answers(one, several, [fr.Query("ant", under="path", now=now)], k=20, strategy="recall")
        assert_same_answers(one, several, [fr.Query("ant", under="path", now=now)], k=20)


@pytest.mark.parametrize("backend", ["numpy", "native", "cuda-host"])
def test_a_batch_may_ask_for_terms_that_no_batch_before_it_named(backend: str) -> None:
    """A device keeps what it made of the document frequencies of the terms that were asked for first."""
    if not any(status.name == backend and status.usable for status in statuses()):
        pytest.skip(f"{backend} does not run here")
    one, several = both(SPACES[:1], [fr.Record(f"r{n}", "ant bee cat"[: 3 + n % 9], SPACES[0]) for n in range(12)])
    for link in several.coordinator.links:
        link.shard.engine.backend = choose(backend)  # type: ignore[attr-defined]
    for text in ("ant", "bee", "cat ant", "bee cat"):
        assert_same_answers(one, several, [fr.Query(text, namespace=SPACES[0])], k=20)


def change_while_copied(engine: fr.Engine | ShardedEngine, step: int, drop: bool = False) -> None:
    """What others write to a namespace between two pages of its whole copy."""
    if drop:
        engine.drop(SPACES[0])
    engine.upsert([fr.Record(f"r{number}", "bee ant", SPACES[0]) for number in range(step, step + 3)])
    engine.delete([f"r{step + 5}", f"r{step}"], namespace=SPACES[0], missing_ok=True)
    engine.add([fr.Record(f"n{step}", "ant", SPACES[0]), fr.Record(f"n{step}", "ant", SPACES[1])])


@pytest.mark.parametrize("drop", [False, True])
def test_a_whole_copy_is_made_while_others_write(drop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"whole_copies.PAGE": 3})
    one, several = both(SPACES[:2], [fr.Record(f"r{n}", "ant bee cat"[: 3 + n % 9], SPACES[0]) for n in range(20)])
    queries = [fr.Query("ant bee", namespace=space) for space in SPACES[:2]]
    steps = iter(range(12))

    def between() -> None:
        if (step := next(steps, None)) is not None:
            failpoints.arm("whole.page", action=between)
            assert not several.coordinator._held()
            assert not several.coordinator._copying.locked()
            for engine in (one, several):
                change_while_copied(engine, step, drop and step == 3)
            assert_same_answers(one, several, queries, k=40)
            if step == 7:
                # Another caller wants the copy of the other namespace too, and makes both.
                failpoints.disarm()
                assert_same_answers(one, several, queries[1:], k=40, strategy="recall")

    failpoints.arm("whole.page", action=between)
    several.search(queries[:1], strategy="recall")
    failpoints.disarm()
    assert next(steps) == 8
    for step in (8, 9, 10):
        assert_same_answers(one, several, queries, k=40, strategy="recall", texts=True)
        assert_in_order(several)
        for engine in (one, several):
            change_while_copied(engine, step)


def test_copies_that_are_made_together_have_the_order_of_all_writes() -> None:
    one, several = both(SPACES[:2], [fr.Record(f"r{number}", "ant", SPACES[1]) for number in range(20)])
    for engine in (one, several):
        engine.add([fr.Record(f"r{number}", "ant", SPACES[0]) for number in range(20)])
    assert_same_answers(one, several, [fr.Query("ant", namespaces=SPACES[:2])], k=3, strategy="recall")
    assert_in_order(several)


def test_a_whole_copy_shows_no_write_before_its_shards_do(monkeypatch: pytest.MonkeyPatch) -> None:
    several = sharded(3)
    coordinator, query = several.coordinator, fr.Query("ant", namespace=SPACES[0])
    coordinator.place(SPACES[0], (0, 1))
    several.add([fr.Record(f"r{number}", "ant", SPACES[0]) for number in range(6)])
    assert several.search([query], strategy="recall").counts[0] == 6
    other = next(name for name in map(str, range(99)) if coordinator.placement.home(name) == 2)
    publish, seen = coordinator._publish, list[int]()

    def publish_late(acknowledged: Any) -> None:
        if 2 not in acknowledged:
            # Another writer's view is published while this write is in the copy, and not in the view of its shard.
            writing = threading.Thread(target=several.add, args=([fr.Record("x", "ant", other)],))
            writing.start()
            writing.join()
            seen.extend(int(several.search([query], strategy=name).counts[0]) for name in ("recall", "bm25"))
        publish(acknowledged)

    monkeypatch.setattr(coordinator, "_publish", publish_late)
    several.add([fr.Record("new", "ant", SPACES[0])])
    seen.extend(int(several.search([query], strategy=name).counts[0]) for name in ("recall", "bm25"))
    assert seen == [6, 6, 7, 7]


def test_a_whole_copy_that_fails_on_its_way_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"whole_copies.PAGE": 3})
    one, several = both(SPACES[:2], RECORDS)
    query = fr.Query("ant", namespace=SPACES[1])
    assert_same_answers(one, several, [fr.Query("ant", namespace=SPACES[0])], strategy="recall")
    whole = several.coordinator.wholes[WHOLE]
    failpoints.arm("whole.page", action=lambda: setattr(whole, "link", Restarted(whole.link)))
    assert_same_answers(one, several, [query], strategy="recall")
    assert whole.names == {SPACES[1]}
    assert whole.copying is None


def test_an_offset_beyond_all_records_finds_nothing() -> None:
    one, several = both(SPACES[:1], RECORDS)
    queries = [fr.Query("ant", namespace=SPACES[0], offset=offset) for offset in (0, 2, 3, 10**9, 2**62)]
    assert_same_answers(one, several, queries, k=4)
    assert_same_answers(one, several, [fr.Query("ant", under="space0", offset=10**9)], k=4, texts=True)


def test_no_filter_reads_the_numbers_of_the_writes() -> None:
    several = sharded(2, split=SPACES[:1], columns="auto")
    several.add(RECORDS)
    query = fr.Query("ant", namespace=SPACES[0], filter={"fanrank_order": 1})
    for _ in range(2):
        with pytest.raises(fr.errors.UnknownColumnError, match="fanrank_order"):
            several.search([query])
        with pytest.raises(fr.errors.UnknownColumnError, match="fanrank_order"):
            several.count({"fanrank_order": 1}, namespace=SPACES[0])
    assert several.add_shards(1) == 3


NAMED = ("a", "b", "c", "d", "e", "f")
"""Namespaces of three shards."""


def asked(spaces: str, *, bad: bool = False, **how: Any) -> fr.Query:
    """A query with a vector of two numbers; a bad one has three."""
    return fr.Query("ant", namespaces=list(spaces), vector=[1.0, 0.5, 1.0] if bad else [1.0, 0.5], **how)


@pytest.mark.parametrize(
    "batch",
    [
        [*map(asked, "abcdef"), asked("c", bad=True), asked("a", bad=True)],
        [asked("a"), asked("a"), asked("b", bad=True), asked("a", bad=True)],
        [asked("b"), asked("a"), asked("c", model="x"), asked("b", model="y")],
        [asked("ab"), asked("cd"), asked("ef", bad=True), asked("ab", bad=True)],
        [asked("ab"), asked("cf", bad=True)],
        [asked("b", strategy="bm25"), asked("ab", bad=True), asked("c", bad=True, strategy="bm25"), fr.Query("x")],
        [asked("a"), asked("b", strategy="rrf", bad=True), asked("c", bad=True), asked("ab", strategy="rrf", bad=True)],
    ],
)
@pytest.mark.parametrize("shards", [3, 7])
def test_of_several_failures_the_one_is_raised_that_one_engine_finds(batch: list[fr.Query], shards: int) -> None:
    records = [
        fr.Record(f"r{number}", "ant", namespace=space, embedding=[1.0, number])
        for space in NAMED
        for number in range(3)
    ]
    one = fr.Engine(encoder=fr.OwnVectors(2, "model", "1"))
    several = sharded(shards, encoder=fr.OwnVectors(2, "model", "1"))
    for engine in (one, several):
        engine.add(records)
    assert_same_answers(one, several, batch, refused=True, strategy="dense")


def test_states_that_no_search_reads_are_let_go_of_by_the_next_search() -> None:
    several = sharded(2, split=SPACES[:1])
    links: Any = several.coordinator.links

    def kept() -> list[int]:
        return [len(link.shard._states) for link in links]

    several.add(RECORDS)
    with several.coordinator.reading():
        for _ in range(5):
            several.update(RECORDS)
        several.search([fr.Query("ant", namespace=SPACES[0])])
        assert kept() == [6, 6]
    several.search([fr.Query("ant", namespace=SPACES[0])])
    assert kept() == [1, 1]


def test_a_search_that_began_before_a_copy_was_shown_does_not_read_it_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, several = both(SPACES[:2], RECORDS)
    first, second = ([fr.Query("ant", namespace=space)] for space in SPACES[:2])
    assert_same_answers(one, several, first, strategy="recall")
    sizes = Launch.sizes

    def sizes_late(launch: Launch, **how: Any) -> dict[str, int]:
        monkeypatch.undo()
        several.search(second, strategy="recall")  # another caller, who makes the copy meanwhile
        return sizes(launch, **how)

    monkeypatch.setattr(Launch, "sizes", sizes_late)
    assert_same_answers(one, several, second, strategy="recall")


def test_a_copy_that_another_caller_made_knows_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"whole_copies.PAGE": 3})
    records = [fr.Record(f"r{n}", "ant Ana", SPACES[0], entities={"Ana": f"ana{n % 3}"}) for n in range(9)]
    one, several = both(SPACES[:1], records)
    query, whole = [fr.Query("who is Ana", namespace=SPACES[0])], several.coordinator.wholes[WHOLE]
    for engine in (one, several):
        engine.resolved("Ana", "ana2", namespace=SPACES[0], times=30)
    compared = list[bool]()

    def between() -> None:
        if whole.holds(SPACES[:1]):
            assert_same_answers(one, several, query, strategy="recall")
            compared.append(True)
        else:
            failpoints.arm("whole.page", action=between)

    failpoints.arm("whole.page", action=between)
    assert_same_answers(one, several, query, strategy="recall")
    assert compared


def test_below_a_path_without_records_there_is_nothing_to_read() -> None:
    one, several = both(SPACES[:1], RECORDS)
    for strategy in ("recall", "auto"):
        assert_same_answers(one, several, [fr.Query("ant", under="nobody")], strategy=strategy)
