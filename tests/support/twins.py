"""A memory of any kind beside the model of tests/world.py: both take each write, and must read alike to the bit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import world
from world import COLUMNS, FILTERS, NAMESPACES, Answer, Model, Write

import fanrank as fr
from fanrank.engine.storage.row_codec import encode

from . import borders
from .history import SIZES
from .memories import MEMORIES, Directory, Sharded

AWAITED = ("add", "update", "upsert", "delete", "rewrite")
"""Verbs of an engine that can be awaited."""


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, windows, tiles, blocks, merges, checkpoints and pages of a few documents."""
    borders.shrink_all(monkeypatch, SIZES)
    borders.shrink(monkeypatch, MAX_PARTS=3, REPLAY_CHUNK=3, MAX_ROWS=4, FETCH_CHUNK=5, FOLD_FRAMES=8, BATCH_RECORDS=7)


class Twins:
    """A memory and its model."""

    def __init__(self, kind: str, *, method: str = "lucene", **options: Any) -> None:
        given: dict[str, Any] = {"analyzer": "minimal", "columns": COLUMNS, "window": world.WINDOW}
        self.own = MEMORIES[kind](method=method, encoder=f"own:{world.DIMENSION}", **given, **options)
        self.model = Model(method)
        self.reached: Counter[str] = Counter()

    @property
    def memory(self) -> Any:
        return self.own.memory

    # Writes.

    def write(self, write: Write, *, awaited: bool = False) -> None:
        """Make the call. It must return what the model says, or be refused where the model says so."""
        if not self.own.local and write.verb == "rewrite":
            return
        if not self.own.local and write.namespace is None:
            write = replace(write, namespace="")
        refusal = self.model.refusal(write)
        memory = Awaited(self.memory) if awaited and self.has_awaited(write.verb) else self.memory
        if refusal:
            with pytest.raises(refusal):
                write.run(memory)
            self.reached["refused"] += 1
        else:
            assert write.run(memory) == self.model.apply(write), write
            self.reached["awaited"] += memory is not self.memory

    def has_awaited(self, verb: str) -> bool:
        return verb in AWAITED and hasattr(self.memory, f"a{verb}")

    def kill(self, point: str, write: Write, count: int = 1) -> bool:
        """Kill the memory at a failpoint of this write, or of the flush after it; False where it was not reached.

        What comes back holds the write whole, or not at all.
        """
        before = self.model.copy()
        own = self.own
        assert isinstance(own, Directory)

        def act() -> None:
            self.write(write)
            own.flush()

        if not own.kill(point, act, count):
            return False
        self.reached["kills"] += 1
        self.reached[point] += 1
        if self.memory_holds(before):
            assert point not in AFTER, point
            self.model = before
            self.reached["kills that lost the write"] += 1
        else:
            # Shards carry out what was intended.
            assert point not in BEFORE or before.held == self.model.held or isinstance(own, Sharded), point
        self.check()
        return True

    def memory_holds(self, model: Model) -> bool:
        return all(list(self.memory.records(namespace=name)) == model.all(name) for name in NAMESPACES)

    # What must be alike.

    def check(self) -> None:
        """Records, ids, counts and statistics of every namespace."""
        asked, model = self.own.asked, self.model
        assert len(asked) == len(model) if self.own.local else asked.stats()["documents"] == len(model)
        names = asked.namespaces() if not self.own.local else asked.namespaces
        assert sorted(names) == model.namespaces
        for name in NAMESPACES:
            wanted = model.all(name)
            assert list(asked.records(namespace=name)) == wanted
            assert asked.count(namespace=name) == len(wanted)
            if self.own.local:
                assert list(asked.ids(namespace=name)) == [record.id for record in wanted]
            if not isinstance(self.own, Sharded):
                assert statistics(self.own.engines[0], name) == model.statistics(name)
        self.note()

    def check_fetch(self, namespace: str, ids: Sequence[str]) -> None:
        held = self.model.held.get(namespace, {})
        fetched = self.own.asked.fetch(ids, namespace=namespace)
        assert [record and encode(record) for record in fetched] == [
            encode(held[name]) if name in held else None for name in ids
        ]

    def check_listing(self, namespace: str | None, filter: str, order: str, reverse: bool, limit: int) -> None:
        """A listing read in pages, the count and the distinct values of the same records."""
        if not self.own.local and namespace is None:
            namespace = ""
        given, asked = FILTERS[filter][0], self.own.asked
        wanted = self.model.listed(namespace, filter, order, reverse)
        how: dict[str, Any] = {"filter": given, "namespace": namespace, "order": order, "reverse": reverse}
        listed: list[fr.Record] = []
        after = None
        while True:
            how |= {"after": after, "limit": limit}
            page = asked.records(**how) if self.own.local else asked.page(**how)
            listed += page if self.own.local else page.records
            after = page.cursor if self.own.local else page.after
            if after is None:
                break
        if namespace is None and order == "written":
            # All that is promised over several namespaces is the order within each.
            listed.sort(key=lambda record: record.namespace, reverse=reverse)
        assert listed == wanted
        assert asked.count(given, namespace=namespace) == len(wanted)
        if self.own.local:
            for column in ("session", "time", "project", "priority"):
                found = asked.distinct(column, given, namespace=namespace)
                assert list(found.items()) == self.model.distinct(column, namespace, filter)

    def check_answers(self, batch: Sequence[fr.Query], k: int = 4, **how: Any) -> fr.Hits:
        """A batch is answered as the model says."""
        expected = [self.model.search(query, k) for query in batch]
        hits: fr.Hits = self.own.asked.search(batch, k, **(how if self.own.local else {}))
        assert answers_of(hits) == expected, [
            (query, found, wanted)
            for query, found, wanted in zip(batch, answers_of(hits), expected, strict=True)
            if found != wanted
        ][:1]
        for row, query in enumerate(batch):
            self.check_numbers(hits, row, query)
        self.reached["hits"] += int(hits.counts.sum())
        return hits

    def check_numbers(self, hits: fr.Hits, row: int, query: fr.Query) -> None:
        """Documents are numbered in order of last write, and what follows the hits is padding."""
        count = int(hits.counts[row])
        assert (hits.documents[row, count:] == -1).all()
        assert np.isneginf(hits.scores[row, count:]).all()
        assert all(name is None for name in hits.ids[row, count:])
        place = {(r.namespace, r.id): n for n, r in enumerate(self.model.all(None))}
        found = zip(hits.documents[row, :count], hits.namespaces[row, :count], hits.ids[row, :count], strict=True)
        places = [place[name, record] for _, name, record in sorted(found)]
        assert places == sorted(places)
        assert len({*hits.documents[row, :count].tolist()}) == count

    def check_explanation(self, words: Sequence[str], record: fr.Record) -> None:
        query = fr.Query(terms=words, namespace=record.namespace)
        explained = self.own.asked.explain(query, record.id)
        score = self.model.score(query, record)
        assert (explained.matched, explained.quanta) == (score is not None, score or 0)
        assert sum(term.score for term in explained.terms) == explained.score

    def check_export(self) -> None:
        """All records leave and enter another memory as they are."""
        file = self.own.root / "all.jsonl"
        assert self.own.asked.export(file) == len(self.model)
        with fr.Engine(analyzer="minimal", columns=COLUMNS, encoder=f"own:{world.DIMENSION}") as other:
            assert other.import_records(file).added == len(self.model)
            for name in NAMESPACES:
                found = other.records(namespace=name)
                assert [encode(record) for record in found] == [encode(record) for record in self.model.all(name)]
        self.reached["exports"] += 1

    def note(self) -> None:
        """What the memory came to."""
        for engine in self.own.engines:
            stats = engine.stats()
            names = ("merges", "compacted_documents", "renumberings", "checkpoints", "deleted")
            self.reached.update({name: int(bool(stats.get(name))) for name in names})
            for snapshot in engine.index.memory.snapshots.values():
                self.reached["several segments"] += len(snapshot.segments) > 2
                self.reached["counted"] += snapshot.counts is not None
        if isinstance(self.own, Sharded):
            placement = self.memory.coordinator.placement
            self.reached["split"] += any(len(placement.homes(name)) > 1 for name in NAMESPACES)


class Awaited:
    """The verbs of a memory as blocking calls of their awaited twins."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __getattr__(self, verb: str) -> Any:
        return lambda *given, **how: asyncio.run(getattr(self._memory, f"a{verb}")(*given, **how))


BEFORE = ("write.begin", "write.records", "write.commit")
"""Failpoints at which a write of one engine is not durable yet."""
AFTER = ("write.committed", "write.published")
"""Failpoints at which it is."""


def answers_of(hits: fr.Hits) -> list[Answer]:
    """The hits as the model's."""
    rows = enumerate(hits)
    return [[(hits.namespaces[row, n], name, score) for n, (name, score) in enumerate(own)] for row, own in rows]


def statistics(engine: fr.Engine, namespace: str) -> tuple[int, int, dict[str, int]]:
    """(N, total length, document frequencies) as the engine counts them."""
    held = engine.index.memory.snapshot(namespace)
    words = engine.index.memory.indexer.vocabulary.strings
    counts = held.document_frequencies(np.arange(len(words), dtype=np.int32)).tolist()
    every = held.all_document_frequencies().tolist()
    assert every == counts[: len(every)]
    assert not any(counts[len(every) :])
    found = {word: count for word, count in zip(words, counts, strict=True) if count}
    return held.statistics.documents, held.statistics.total_lengths[0], found
