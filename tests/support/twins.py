"""A memory of any kind beside the model of tests/world.py: both take each write, and must read alike to the bit."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import world
from world import (
    COLUMNS,
    FILTERS,
    LATE_COLUMNS,
    LATE_FILTERS,
    NAMESPACES,
    OPTION_QUERIES,
    PLAIN_QUERIES,
    WORDS,
    Answer,
    Model,
    Write,
)

import fanrank as fr
from fanrank.engine.storage.row_codec import encode
from fanrank.engine.storage.storage import Storage

from . import borders, entity_cases, vector_cases
from .history import SIZES, statistics, unused_entries
from .memories import MEMORIES, Directory, Sharded
from .sharding import split_over_all

Path = Mapping[str, Any]
AWAITED = ("add", "update", "upsert", "insert", "delete", "rewrite")
"""Verbs of an engine that can be awaited."""


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, windows, tiles, blocks, merges, checkpoints and pages of a few documents."""
    borders.shrink_all(monkeypatch, SIZES)
    borders.shrink(monkeypatch, MAX_PARTS=3, REPLAY_CHUNK=3, MAX_ROWS=4, FETCH_CHUNK=5, FOLD_FRAMES=8, BATCH_RECORDS=7)
    borders.shrink(monkeypatch, PAGE=3, LEAST_ENTRIES=1, MOST_ENTRIES=2, PENDING_CHUNK=2, STREAM_ROWS=5)


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

    def grow(self, texts: Sequence[str]) -> list[fr.Record]:
        """Come to each border whatever the texts are: segments, merges, tombstones, unused terms, refusals, moves.

        Returns the records that were added first.
        """
        records = [
            fr.Record(
                f"r{n}",
                f"{text} {WORDS[n % 3]}",
                NAMESPACES[n % 4 if n % 2 else 0],
                session="st"[n % 2],
                time=float(n % 13),
                extra={"project": "xyz"[n % 3], "priority": n % 4},
                embedding=[1, n % 3] if n % 5 else None,
                weights={WORDS[n % 5]: 0.75},
                entities={"Ana": world.PEOPLE[n % 3]} if n % 4 == 0 else None,
                expires=world.EXPIRY if n % 6 == 5 else None,
            )
            for n, text in enumerate(texts)
        ]
        for start in range(0, len(records), 3):
            self.write(Write("add", tuple(records[start : start + 3])), awaited=start == 3)
            self.note()
        self.write(Write("add", tuple(records[:2])))
        self.write(Write("delete", ids=("r0", "r4", "r8"), namespace=""))
        self.note()  # Before a merge in the background leaves the deleted documents out.
        self.write(Write("patch", ids=("r20", "r2"), namespace=""))
        self.write(Write("update_where", filter="no session", namespace=None))
        self.write(Write("add", (fr.Record("gone", "words of a tenant that is dropped", "gone"),)))
        self.write(Write("drop", namespace="gone"))
        if isinstance(self.own, Sharded):
            self.split("")
        self.own.flush()
        self.check_renumbered()
        self.write(Write("rewrite", ids=("r10", "r11"), namespace=""))
        if isinstance(self.own, Directory):
            self.reopen(checkpoint=False)
        with pytest.MonkeyPatch.context() as patch:
            # No merge takes the tombstone away.
            patch.setattr(Storage, "wake", lambda memory: None)
            borders.shrink(patch, INLINE_DOCUMENTS=0)
            self.write(Write("delete", ids=("r6",), namespace=""))
            self.check()
        self.check_evidence()
        return records

    def reopen(self, checkpoint: bool) -> None:
        self.own.reopen(checkpoint)
        self.reached["reopened" if checkpoint else "replayed"] += 1

    def move(self) -> None:
        """Bring a namespace that lies whole in one shard to another one."""
        coordinator = self.memory.coordinator
        coordinator.page = 2
        (home,) = coordinator.placement.homes("n")
        coordinator.place("n", ((home + 1) % coordinator.placement.shards,))

    def split(self, namespace: str) -> None:
        """Split a namespace over all shards."""
        split_over_all(self.memory, namespace)
        self.reached["moves"] += 1

    def write(self, write: Write, *, awaited: bool = False) -> None:
        """Make the call. It must return what the model says, or be refused where the model says so."""
        if not self.own.local and write.verb == "rewrite":
            return
        if not self.own.local and write.namespace is None:
            write = replace(write, namespace="")
        refusal = self.model.refusal(write)
        if not self.own.local and write.verb == "drop" and not write.namespace:
            # No path is empty.
            refusal = (fr.errors.ServerError,)
        memory = Awaited(self.memory) if awaited and self.has_awaited(write.verb) else self.memory
        if refusal:
            with pytest.raises(refusal):
                write.run(memory)
            self.reached["refused"] += 1
        else:
            assert write.run(memory) == self.model.apply(write), write
            self.reached["awaited"] += memory is not self.memory

    def has_awaited(self, verb: str) -> bool:
        return verb in AWAITED and hasattr(self.memory, "aupdate")

    def change_columns(self, name: str) -> None:
        """Declare a column that is not declared yet, or drop it. Filters read it either way if a record has the key."""
        if name in self.model.columns:
            self.memory.drop_column(name)
            del self.model.columns[name]
            self.reached["dropped columns"] += 1
        else:
            self.memory.add_column(name, LATE_COLUMNS[name])
            self.model.columns[name] = LATE_COLUMNS[name]
        self.own.look_anew()
        self.check_columns()

    def check_columns(self) -> None:
        """The declared columns, and what filters over those read that come and go."""
        asked = self.own.asked
        assert asked.columns == self.model.columns
        for name, (given, passes) in LATE_FILTERS.items():
            for space in ("", "n"):
                query = fr.Query("a1 b2 c3", namespace=space, filter=given, k=60)
                if name not in asked.columns and not any(name in record.extra for record in self.model.all(None)):
                    # Keys of deleted records may be known for a while, and their columns are empty.
                    try:
                        asked.search([query])
                    except fr.errors.UnknownColumnError as error:
                        assert name in str(error)  # noqa: PT017
                        continue
                wanted = self.model.all(space, passes)
                assert asked.count(given, namespace=space) == len(wanted)
                assert list(asked.records(filter=given, namespace=space)) == wanted
                names = {record.id for record in wanted}
                ranked = self.model.search(replace(query, filter=None))
                assert answers_of(asked.search([query])) == [[hit for hit in ranked if hit[1] in names]]
            # The filter has declared it.
            if name in asked.columns and name not in self.model.columns:
                if asked is self.memory:
                    asked.drop_column(name)
                self.own.look_anew()
                asked = self.own.asked
        assert asked.columns == self.model.columns

    def kill(self, point: str, write: Write | Callable[[], object], count: int = 1) -> bool:
        """Kill the memory at a failpoint of a write, or of the flush after it; False where it was not reached.

        What comes back holds the write whole, or not at all.
        """
        before = self.model.copy()
        own = self.own
        assert isinstance(own, Directory)

        def act() -> None:
            if isinstance(write, Write):
                self.write(write)
            else:
                write()
            own.flush()
            for engine in own.engines:
                engine.index.memory.renumber(all_unused=True)

        if not own.kill(point, act, count):
            return False
        self.reached["kills"] += 1
        self.reached[point] += 1
        changes = any(before.all(name) != self.model.all(name) for name in NAMESPACES)
        if self.memory_holds(before):
            assert point not in AFTER or not changes, point
            self.model = before
            self.reached["lost writes"] += 1
        else:
            # Shards carry out what was intended.
            assert point not in BEFORE or isinstance(own, Sharded), point
        self.check()
        self.check_evidence()
        self.check_answers(PLAIN_QUERIES)
        return True

    def memory_holds(self, model: Model) -> bool:
        return all(list(self.memory.records(namespace=name)) == model.all(name) for name in NAMESPACES)

    def check(self) -> None:
        """Records, ids, counts and statistics of every namespace."""
        asked, model = self.own.asked, self.model
        assert len(asked) == len(model) if self.own.local else asked.stats()["documents"] == len(model)
        names = asked.namespaces() if callable(asked.namespaces) else asked.namespaces
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
        if self.own.local:
            del how["limit"], how["after"]
            known = [replace(record, text="", payload=None, extra=self.in_columns(record), **BARE) for record in wanted]
            listed = list(asked.records(**how, texts=False))
            if namespace is None and order == "written":
                listed.sort(key=lambda record: record.namespace, reverse=reverse)
            assert listed == known
        assert asked.count(given, namespace=namespace) == len(wanted)
        if self.own.local:
            for column in ("session", "time", "project", "priority"):
                found = asked.distinct(column, given, namespace=namespace)
                assert list(found.items()) == self.model.distinct(column, namespace, filter)

    def in_columns(self, record: fr.Record) -> dict[str, Any]:
        return {name: value for name, value in record.extra.items() if name in self.model.columns}

    def check_answers(self, batch: Sequence[fr.Query], k: int = 4, paths: Iterable[Path] = ({},)) -> None:
        """A batch is answered as the model says, by each path: keywords of the search, and ``backend``."""
        expected = [self.model.search(query, k) for query in batch]
        for path in paths:
            how = dict(path)
            if "backend" in how:
                self.own.serve_from(how.pop("backend"))
            hits: fr.Hits = self.own.asked.search(batch, k, **(how if self.own.local else {}))
            rows = answers_of(hits)
            wrong = [row for row, answer in enumerate(rows) if answer != expected[row]]
            assert not wrong, (path, batch[wrong[0]], rows[wrong[0]], expected[wrong[0]])
            if not isinstance(self.own, Sharded):
                self.check_numbers(hits)
            self.reached["hits"] += int(hits.counts.sum())

    def check_battery(self, paths: Iterable[Path] = ({},)) -> None:
        """A query of each kind, in one batch."""
        signed = self.model.method in ("robertson", "okapi")
        self.check_answers(PLAIN_QUERIES if signed else [*PLAIN_QUERIES, *OPTION_QUERIES], paths=paths)
        for row in self.own.asked.search(PLAIN_QUERIES, texts=True, payload=True):
            for hit in row:
                own = self.model.held[hit.namespace][hit.id]
                assert (hit.text, hit.payload) == (own.text, own.payload)
                if self.own.local:
                    assert (hit.record.time, hit.record.extra) == (own.time, own.extra)

    def check_numbers(self, hits: fr.Hits) -> None:
        """Documents are numbered in order of last write, and what follows the hits is padding."""
        place = {(r.namespace, r.id): n for n, r in enumerate(self.model.all(None))}
        for row, count in enumerate(hits.counts.tolist()):
            assert (hits.documents[row, count:] == -1).all()
            assert np.isneginf(hits.scores[row, count:]).all()
            assert all(name is None for name in hits.ids[row, count:])
            own = (hits.documents[row, :count], hits.namespaces[row, :count], hits.ids[row, :count])
            found = sorted(zip(*(part.tolist() for part in own), strict=True))
            assert len({number for number, _, _ in found}) == count
            # Over shards the numbers are those of writes, which ascend within a namespace.
            for group in {name for _, name, _ in found} if isinstance(self.own, Sharded) else [None]:
                places = [place[name, record] for _, name, record in found if group in (None, name)]
                assert places == sorted(places)

    def check_explanation(self, words: Sequence[str], record: fr.Record) -> None:
        query = fr.Query(terms=words, namespace=record.namespace)
        explained = self.own.asked.explain(query, record.id)
        score = self.model.score(query, record)
        assert (explained.matched, explained.quanta) == (score is not None, score or 0)
        assert sum(term.score for term in explained.terms) == explained.score

    def check_evidence(self) -> None:
        """Vectors, learned weights and statements of entities in the segments; no entry is left without a use."""
        if isinstance(self.own, Sharded):
            return
        self.own.settle()
        (engine,) = self.own.engines
        held = self.model.all(None)
        vector_cases.check(engine, {(record.namespace, record.id): record for record in held})
        entity_cases.check(engine, held)

    def check_renumbered(self) -> None:
        """A renumbering of all unused entries leaves none."""
        for engine in self.own.engines:
            engine.index.memory.renumber(all_unused=True)
            assert not unused_entries(engine)
        self.note()

    def check_export(self) -> None:
        """All records leave and enter another memory as they are."""
        file = self.own.root / "all.jsonl"
        assert self.own.asked.export(file) == len(self.model)
        with fr.Engine(analyzer="minimal", columns=COLUMNS, encoder=f"own:{world.DIMENSION}") as other:
            assert other.import_records(file).added == len(self.model)
            for name in NAMESPACES:
                found = other.records(namespace=name)
                assert [encode(record) for record in found] == [encode(record) for record in self.model.all(name)]
            # What is held as it is stays; what is written is written in the file's order.
            assert other.import_records(file, upsert=True).held == len(self.model)
        self.reached["exports"] += 1

    def check_copies(self) -> None:
        """A backup that is restored, a saved index and a copy by another analyzer hold the same records."""
        memory, root = self.memory, self.own.root
        if isinstance(self.own, Directory):
            backup, restored = root / "backup", root / "restored"
            memory.backup(backup)
            type(memory).restore(backup, restored)
            with self.own.open_at(restored) as other:
                assert all(list(other.records(namespace=name)) == self.model.all(name) for name in NAMESPACES)
        if not isinstance(self.own, Sharded):
            self.own.asked.save(root / "saved")
            batch = [query for query in PLAIN_QUERIES if query.namespaces is None]
            found = [[(name, score) for name, score in row] for row in fr.Engine.load(root / "saved").search(batch, 4)]
            assert found == [[(name, score) for _, name, score, *_ in self.model.search(query, 4)] for query in batch]
        for name in ("backup", "restored", "saved"):
            shutil.rmtree(root / name, ignore_errors=True)

    def note(self) -> None:
        """What the memory came to."""
        for engine in self.own.engines:
            stats = engine.stats()
            names = ("merges", "compacted_documents", "renumberings", "checkpoints", "deleted")
            self.reached.update({name: int(bool(stats.get(name))) for name in names})
            for snapshot in engine.index.memory.snapshots.values():
                self.reached["several segments"] += len(snapshot.segments) > 1
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


BARE = {"entities": None, "relations": None, "weights": None, "embedding": None}
"""What a record is without in a listing that is made from the index alone, beside its texts."""


def answers_of(hits: fr.Hits) -> list[Answer]:
    """The hits as the model's."""
    return [[(hit.namespace, hit.id, hit.score, hit.exchange, hit.copies) for hit in own] for own in hits]
