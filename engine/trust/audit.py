"""Asks for every record by its own words, its own vector and its id, and says which does not find itself, and why.

The stored records are the truth here, and the index is what is asked. So the words and their counts are worked out from
the stored texts, by a vocabulary of this module's own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..callers import WANTED
from ..carry.export import Source
from ..carry.progress import counted
from ..index.build import texts_of
from ..records.filters import Filter
from ..records.hits import Hits
from ..records.query import Query
from ..records.record import Record
from ..storage.record_stream import in_groups
from ..text.analyzers import Analyzer
from ..text.vocabulary import TermIndexer, Vocabulary

# Records that are read, analysed and asked for together.
ASKED_TOGETHER = 4_096
# Queries of one search. Between two of them an audit that nobody waits for ends.
ASKED_AT_ONCE = 256
# Records that a report names; it counts the others.
MOST_LISTED = 100
# Records that a report names as standing before one that is missing.
SHOWN_BEFORE = 3
WORDS, VECTOR, ID = "words", "vector", "id"
"""What a record is asked for by."""
NOTHING, TWIN, SHARED, HIDDEN, UNEXPLAINED = "nothing", "twin", "shared", "filtered", "unexplained"
"""Why a record is not among its own k best: the analyzer leaves nothing of it; k others say the same, word for word or
number for number; k others hold all words that were asked, or are as near to its vector as itself; it does not pass the
filter; none of these."""


class Asked(Protocol):
    """What is asked of a memory."""

    def search(self, queries: Sequence[Query], k: int, *, strategy: Any = ...) -> Hits: ...

    def fetch(self, ids: Sequence[str], *, namespace: str = ...) -> list[Record | None]: ...

    def ids(self, filter: Any = ..., *, namespace: str = ...) -> Iterator[str]: ...


@dataclass
class Finding:
    """A record, and the rank at which each question finds it; None: not among the k best."""

    record: Record
    terms: list[int]
    """All of its words in order, by their numbers."""
    ranks: dict[str, int | None] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.record.id, "namespace": self.record.namespace, "ranks": self.ranks, "why": self.why}


@dataclass
class Lost:
    """A record that a question did not find, by which words (None: by its vector), and whom it found."""

    finding: Finding
    by: str
    words: list[int] | None
    ids: list[str]


class Audit:
    """Asks a memory for its own records, with one filter in every question."""

    def __init__(
        self,
        memory: Asked,
        analyzer: Analyzer,
        fields: Iterable[str],
        k: int,
        words: int | None,
        filter: Filter | None = None,
    ) -> None:
        self._memory, self._fields, self.k, self._words, self._filter = memory, [*fields], k, words, filter
        self._indexer = TermIndexer(analyzer, Vocabulary())
        self._counts = np.zeros(0, dtype=np.int64)  # [terms] the records that hold each
        self._indexed: dict[str, set[str]] = {}
        self._passing: dict[str, set[str]] = {}

    def count(self, records: Sequence[Record]) -> None:
        """Count the words of these records. Counts tell which words of a record are rare."""
        held = [term for terms in self._analyse(records) for term in {*terms}]
        counts = np.bincount(np.array(held, dtype=np.int64), minlength=len(self._indexer.vocabulary))
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def ask(self, records: Sequence[Record]) -> list[Finding]:
        """Ask for each of these live records. Those that were written since `count` count as rare."""
        found = [Finding(*pair) for pair in zip(records, self._analyse(records), strict=True)]
        new = len(self._indexer.vocabulary) - len(self._counts)
        self._counts = np.concatenate([self._counts, np.zeros(new, dtype=np.int64)])
        self._ask_ids(found)
        lost = self._search(WORDS, found, self._rarest, "bm25")
        # Another may say the rarest words oftener, or little beside them. All of its words tell it better.
        lost = self._search(WORDS, [one.finding for one in lost], lambda one: one.terms, "bm25")
        lost += self._search(VECTOR, [one for one in found if one.record.embedding is not None], None, "dense")
        self._explain(lost)
        return found

    def changed(self, record: Record) -> bool:
        """Whether a record was written anew or deleted since it was read."""
        name = record.namespace
        (now,) = self._memory.fetch([record.id], namespace=name)
        return now != record and (now is not None or record.id not in {*self._memory.ids(namespace=name)})

    def _analyse(self, records: Sequence[Record]) -> list[list[int]]:
        """The words of each record, by their numbers, in order."""
        words: list[list[int]] = [[] for _ in records]
        for name in self._fields:
            terms, documents = self._indexer.encode_documents(texts_of(records, name))
            for term, document in zip(terms.tolist(), documents.tolist(), strict=True):
                words[document].append(term)
        return words

    def _rarest(self, one: Finding) -> list[int]:
        return sorted({*one.terms}, key=lambda term: (self._counts[term], term))[: self._words]

    def _query(self, one: Finding, terms: list[int] | None) -> Query:
        about: dict[str, Any] = {"namespace": one.record.namespace, "filter": self._filter}
        if terms is None:
            return Query(vector=one.record.embedding[0], **about)
        return Query(terms=[self._indexer.vocabulary.strings[term] for term in terms], **about)

    def _search(
        self, by: str, asked: list[Finding], terms: Callable[[Finding], list[int]] | None, strategy: str
    ) -> list[Lost]:
        """Ask one batch, and keep the rank of each record. Returns those without one."""
        if not asked:
            return []
        asked_words = [None if terms is None else terms(one) for one in asked]
        lost = []
        for one, words, ids in zip(asked, asked_words, self._answers(asked, asked_words, strategy), strict=True):
            one.ranks[by] = ids.index(one.record.id) + 1 if one.record.id in ids else None
            if one.ranks[by] is None:
                lost.append(Lost(one, by, words, ids))
        return lost

    def _answers(self, asked: list[Finding], words: Sequence[list[int] | None], strategy: str) -> Iterator[list[str]]:
        """The ids of the hits of each."""
        queries = [*map(self._query, asked, words)]
        for first in range(0, len(queries), ASKED_AT_ONCE):
            WANTED.get()()
            hits = self._memory.search(queries[first : first + ASKED_AT_ONCE], self.k, strategy=strategy)
            yield from (row[:count] for row, count in zip(hits.ids.tolist(), hits.counts.tolist(), strict=True))

    def _explain(self, lost: list[Lost]) -> None:
        wanted: dict[str, dict[str, None]] = {}
        for each in lost:
            wanted.setdefault(each.finding.record.namespace, {}).update(dict.fromkeys(each.ids))
        others: dict[tuple[str, str], Finding] = {}
        for name, ids in wanted.items():
            records = [record for record in self._memory.fetch([*ids], namespace=name) if record is not None]
            others.update(
                ((name, record.id), Finding(record, terms))
                for record, terms in zip(records, self._analyse(records), strict=True)
            )
        for each in lost:
            one = each.finding
            ahead = [other for i in each.ids if (other := others.get((one.record.namespace, i))) is not None]
            one.why[each.by] = self._reason(one, each.words, ahead)
            one.before[each.by] = each.ids[:SHOWN_BEFORE]

    def _reason(self, one: Finding, words: list[int] | None, ahead: list[Finding]) -> str:
        """`words` are those that were asked; None: it was asked by its vector."""
        record = one.record
        if words == []:
            return NOTHING
        if not self._passes(record):
            return HIDDEN
        if len(ahead) < self.k:
            return UNEXPLAINED
        if words is None:
            rows = [np.asarray(other.record.embedding, dtype=np.float64) for other in ahead]
            own = np.asarray(record.embedding[0], dtype=np.float64)
            if all((own == row).all(axis=1).any() for row in rows):
                return TWIN
            return SHARED if all((row @ own).max() >= own @ own for row in rows) else UNEXPLAINED
        if all(sorted(other.terms) == sorted(one.terms) for other in ahead):
            return TWIN
        return SHARED if all({*words} <= {*other.terms} for other in ahead) else UNEXPLAINED

    def _passes(self, record: Record) -> bool:
        if self._filter is None:
            return True
        name = record.namespace
        if name not in self._passing:
            self._passing[name] = {*self._memory.ids(self._filter, namespace=name)}
        return record.id in self._passing[name]

    def _ask_ids(self, found: list[Finding]) -> None:
        """By their ids the store must give the very records, and the index must hold them."""
        for name in dict.fromkeys(one.record.namespace for one in found):
            own = [one for one in found if one.record.namespace == name]
            if name not in self._indexed:
                self._indexed[name] = {*self._memory.ids(namespace=name)}
            fetched = self._memory.fetch([one.record.id for one in own], namespace=name)
            for one, record in zip(own, fetched, strict=True):
                there = one.record.id in self._indexed[name] and record == one.record
                one.ranks[ID] = 1 if there else None
                if not there:
                    one.why[ID] = UNEXPLAINED


def audit(audit: Audit, source: Source, namespace: str | None, progress: bool) -> dict[str, Any]:
    """The report on all records of a source, as `Memory.audit`."""
    read, size = source
    clock = time.time()
    expired = 0

    def groups(what: str) -> Iterator[list[Record]]:
        nonlocal expired
        expired = 0
        with read() as records:
            for group in in_groups(counted(records, what, size(), progress), ASKED_TOGETHER):
                WANTED.get()()
                own = [record for record in group if namespace in (None, record.namespace)]
                live = [record for record in own if not record.expired(clock)]
                expired += len(own) - len(live)
                yield live

    for records in groups("counting words"):
        audit.count(records)
    asked, found, reasons = Counter[str](), Counter[str](), Counter[str]()
    names, missing = set[str](), list[dict[str, Any]]()
    for records in groups("asking"):
        names.update(record.namespace for record in records)
        for one in audit.ask(records):
            asked.update(one.ranks.keys())
            found.update(by for by, rank in one.ranks.items() if rank is not None)
            if UNEXPLAINED in one.why.values() and audit.changed(one.record):
                continue
            reasons.update(one.why.values())
            for by, why in one.why.items():
                if why == UNEXPLAINED or len(missing) < MOST_LISTED:
                    place = {"id": one.record.id, "namespace": one.record.namespace}
                    missing.append({**place, "by": by, "why": why, "before": one.before.get(by, [])})
    missing.sort(key=lambda one: one["why"] != UNEXPLAINED)
    return {
        "records": asked[ID],
        "namespaces": len(names),
        "expired": expired,
        "k": audit.k,
        "asked": {by: asked[by] for by in (WORDS, VECTOR, ID)},
        "found": {by: found[by] for by in (WORDS, VECTOR, ID)},
        "reasons": dict(reasons.most_common()),
        "unexplained": reasons[UNEXPLAINED],
        "passed": not reasons[UNEXPLAINED],
        "missing": missing[:MOST_LISTED],
    }
