"""Sharded memories for tests, and comparisons with one engine that holds all records."""

import dataclasses
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.index.columns import ORDER
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.opening.opening import Begin, Opened, Settings, coordinate, placed, shard_options, start_local
from fanrank.shards.processes.links import Done, LocalLink, UnavailableError
from fanrank.shards.protocol.owner import OwnerFile
from fanrank.shards.protocol.placement import Placement
from fanrank.shards.shard.shard import Setup

WORDS = ("ant", "bee", "cat", "dog")
ANIMALS = (*WORDS, "elk", "fox", "gnu", "hen", "ibis", "jay")
DAY = 86_400.0
NOW = 100 * DAY
FOLDER = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
"""Where the files of memories lie. Shards sync after each write, which a disk takes milliseconds for. The end of a
process loses no written page, be there a disk below or not."""


class Crash(BaseException):
    """Stands for the end of the process: nothing of the coordinator runs after it."""


def crash() -> None:
    """What a failpoint does where the process is to end. A fixture of all tests of shards disarms it afterwards."""
    raise Crash


class FailingLink(LocalLink):
    """A shard that loses one batch of writes: before it carries it out, or after."""

    def __init__(self, link: LocalLink, at: int = 1, *, after: bool, error: fr.FanrankError | None = None) -> None:
        super().__init__(link.shard)
        self.at, self.after = at, after
        self.error = error or UnavailableError("shard ended")

    def send(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        if verb == "apply":
            self.at -= 1
        if verb != "apply" or self.at:
            return super().send(verb, *arguments, **keywords)
        if self.after:
            super().send(verb, *arguments, **keywords)
        return Done(error=self.error)


class ShortestFirst:
    """A reranker that prefers short texts."""

    name = "short"

    def __call__(self, pairs: list[tuple[str, str]]) -> list[float]:
        return [-len(text) for _, text in pairs]


RERANKER = fr.strategies.CheckedReranker(ShortestFirst(), unchecked=True)


def turns(first: int, count: int, word: str = "ant") -> list[fr.Record]:
    """Records of the namespace "big": so many, numbered from `first`."""
    return [fr.Record(f"r{number}", f"{word} {WORDS[number % 4]}", "big") for number in range(first, first + count)]


def conversations(count: int) -> list[fr.Record]:
    """Turns of conversations and events, in three namespaces, two of which are small."""
    draw = random.Random(0)
    made = []
    for number in range(count):
        text = " ".join(draw.choices(ANIMALS, k=draw.randint(0, 6)))
        made.append(
            fr.Record(
                f"r{number}",
                text + draw.choice(["", "?", ". Yes."]),
                namespace=draw.choice(["big"] * 8 + ["team/a", "team/b"]),
                role=draw.choice(["user", "assistant"]),
                session=f"s{number // 8}",
                type=draw.choice([None, "Event", "Fact"]),
                time=draw.choice([None, NOW - draw.randint(0, 90) * DAY]),
                importance=draw.choice([None, 0.2, 0.9]),
                weights={word: draw.choice([0.5, 1.0, 1.5]) for word in draw.sample(ANIMALS, 2)},
                entities=draw.sample(ANIMALS, draw.randint(0, 2)),
                extra={"kind": draw.choice(["x", "y"]), "rank": draw.randint(0, 3)},
                payload={"n": number},
            )
        )
    return made


def opened(folder: Path, **options: Any) -> ShardedEngine:
    """A sharded memory in this process, with its files in a folder."""
    return ShardedEngine.open(folder / "memory", transport="local", **options)


def sharded(
    shards: int,
    *,
    split: Sequence[str] = (),
    settings: Settings | None = None,
    replicas: int = 1,
    background: bool = False,
    **options: Any,
) -> ShardedEngine:
    """A sharded memory in this process, without files; the namespaces of `split` are split over all shards.

    Without `background`, followers do nothing before a test says so.
    """
    template, own = fr.Engine(**options), shard_options(options, new=True)
    models = template.searcher.models
    setups = [Setup(number, None, own, models.pin, models.term_pin) for number in range(shards)]
    owner = OwnerFile(None, placed(Placement(shards), settings or {}), {})
    begin = Begin(start_local, None, own, template, None)
    coordinator, more = coordinate(owner, [*map(start_local, setups)], begin, 30.0, replicas, background)
    coordinator.start(0)
    engine = ShardedEngine(Opened(coordinator, template, lambda: None, (None,) * shards, more), "refuse")
    for namespace in split:
        split_over_all(engine, namespace)
    return engine


def split_over_all(engine: ShardedEngine, namespace: str) -> None:
    """Split a namespace over all shards of a memory."""
    coordinator = engine.coordinator
    coordinator.place(namespace, coordinator.parts_of(namespace, coordinator.placement.shards))


def assert_in_order(engine: ShardedEngine) -> None:
    """In every shard, and in every whole copy, the records of a namespace stand in the order of all writes."""
    coordinator = engine.coordinator
    for link in [*coordinator.links, *(whole.link for whole in coordinator.wholes.values())]:
        if isinstance(link, LocalLink):
            for name, snapshot in link.shard.engine.index.ready().state.snapshots.items():
                live = [np.zeros(0)]
                for place, segment in enumerate(snapshot.segments):
                    numbers, alive = segment.columns.numbers[ORDER], snapshot.alive(place)
                    # Moves enter a segment by bisection, so what was deleted stands in order too.
                    assert (np.diff(numbers) > 0).all(), (link.number, name)
                    live.append(numbers if alive is None else numbers[alive])
                assert (np.diff(np.concatenate(live)) > 0).all(), (link.number, name)


def assert_same_records(one: fr.Engine, several: ShardedEngine, namespaces: Sequence[str]) -> None:
    """Both memories hold the same records of these namespaces, in the same order."""
    for namespace in namespaces:
        names = list(one.ids(namespace=namespace))
        assert list(several.ids(namespace=namespace)) == names
        assert several.fetch(names, namespace=namespace) == one.fetch(names, namespace=namespace)


def assert_same_hits(one: fr.Hits, several: fr.Hits) -> None:
    """Both answers have the same ids, namespaces, scores (all bits), order, counts, notes and records."""
    assert one.ids.tolist() == several.ids.tolist()
    assert one.namespaces.tolist() == several.namespaces.tolist()
    np.testing.assert_array_equal(one.scores.view(np.int64), several.scores.view(np.int64))
    np.testing.assert_array_equal(one.counts, several.counts)
    assert one.notes == several.notes
    if one.records is not None:
        assert several.records is not None
        assert one.records.tolist() == several.records.tolist()
    if one.reranked is not None:
        assert several.reranked is not None
        np.testing.assert_array_equal(one.reranked, several.reranked)
    assert _timeless(one) == _timeless(several)
    assert several.missing_shards == ()


def write(engine: fr.Engine | ShardedEngine, verb: str, what: Any) -> Any:
    """Carry out a write that a history names: a verb with its records, its namespace, or what is to be deleted."""
    if verb == "delete":
        some, namespace, missing_ok = what
        return engine.delete(some, namespace=namespace, missing_ok=missing_ok)
    return getattr(engine, verb)(what)


def outcome(call: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
    """What a call returns, or the class and the message of the error by which it fails."""
    try:
        return call(*arguments, **how)
    except fr.FanrankError as error:
        return type(error), str(error)


def _timeless(hits: fr.Hits) -> list[str]:
    """The decisions of an answer without the time that they took. NaN is equal to NaN in this form."""
    return [repr(dataclasses.replace(each, milliseconds=0.0)) for each in hits.decisions or ()]


def assert_same_answers(
    one: fr.Engine, several: ShardedEngine, queries: Sequence[Any], *, refused: bool = False, **how: Any
) -> None:
    """Both memories answer a batch alike, or (only where it may be `refused`) refuse it by the same error."""
    expected, error = _answer(one, queries, how)
    answer, other = _answer(several, queries, how)
    assert (type(other), str(other)) == (type(error), str(error))
    if error is not None and not refused:
        raise error
    if expected is not None and answer is not None:
        assert_same_hits(expected, answer)


def _answer(
    engine: fr.Engine | ShardedEngine, queries: Sequence[Any], how: dict[str, Any]
) -> tuple[fr.Hits | None, fr.FanrankError | None]:
    """The hits of a batch, or the error by which it is refused."""
    try:
        return engine.search(queries, **how), None
    except fr.FanrankError as error:
        return None, error
