"""What records say of entities by loops over the records, and as an engine's segments hold it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.records.entities import Relation, Said, parse_term
from fanrank.engine.records.record import Record

Held = dict[str, dict[Said, list[str]]]
"""Namespace -> statement -> ids of the live records that make it, sorted."""

ids = st.sampled_from(["ana", "sarah-chen", "Ben", "zoë", "project atlas", "?!"])
names = st.sampled_from(["Ana", "ANA", "Sarah Chen", "the project", "...", "ÉCLAIR ß"])
seconds = st.none() | st.integers(0, 3).map(float)


@st.composite
def _edges(draw: st.DrawFn) -> Relation:
    start, end = draw(seconds), draw(seconds)
    if start is not None and end is not None and start > end:
        start, end = end, start
    return Relation(
        draw(ids),
        draw(ids),
        draw(st.sampled_from(["reports-to", "mentioned-with"])),
        draw(st.sampled_from([0.0, 0.25, 1.0])),
        start,
        end,
        draw(st.none() | st.just("semantic")),
    )


edges = _edges()


@st.composite
def record_parts(draw: st.DrawFn) -> dict[str, Any]:
    """`entities` and `relations` of a record, in all forms that they may have."""
    given = st.none() | st.dictionaries(names, ids, max_size=3) | st.lists(ids, max_size=3)
    stated = st.none() | st.lists(edges | edges.map(Relation.to_dict), max_size=2)
    return {"entities": draw(given), "relations": draw(stated)}


def plain_words(text: str) -> tuple[str, ...]:
    kept = "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text.casefold())
    return tuple(kept.split())


def plain_statements(record: Record) -> set[Said]:
    found: set[Said] = set()
    mentioned: list[tuple[str, str]] = []
    for name, entity in dict(record.entities or {}).items():
        mentioned += [(name, entity), (entity, entity)]
    for edge in record.relations or ():
        assert isinstance(edge, Relation)
        found.add(("relation", edge))
        mentioned += [(edge.source, edge.source), (edge.target, edge.target)]
    for name, entity in mentioned:
        found.add(("entity", entity))
        if plain_words(name):
            found.add(("name", plain_words(name), entity))
    return found


def plain(records: Iterable[Record]) -> Held:
    """By the records that remain."""
    held: Held = {}
    for record in records:
        own = held.setdefault(record.namespace, {})
        for statement in plain_statements(record):
            own.setdefault(statement, []).append(record.id)
    return {name: {what: sorted(by) for what, by in own.items()} for name, own in held.items()}


def stated(engine: fr.Engine) -> Held:
    """As the segments hold it, after checking that counts and posting lists say the same and lie as they should."""
    terms = engine.index.memory.entity_terms.strings
    assert len(set(terms)) == len(terms)
    held: Held = {}
    for namespace, snapshot in engine.index.memory.snapshots.items():
        nested = snapshot.entities
        assert nested is snapshot.entities
        assert (nested.firsts, nested.numbers, nested.size) == (snapshot.firsts, snapshot.numbers, snapshot.size)
        lists: dict[Said, list[str]] = {parse_term(term): [] for term in terms}
        for number, (part, inner) in enumerate(zip(snapshot.segments, nested.segments, strict=True)):
            assert inner is part.nested("entities")
            assert inner.ids is part.ids
            assert inner.columns is part.columns
            assert part.entities is None or part.entities.postings
            assert not inner.lengths.any()
            assert (inner.frequencies() == 1).all()
            assert (np.diff(inner.terms) > 0).all()
            alive = snapshot.alive(number)
            np.testing.assert_array_equal(alive, nested.alive(number))
            theirs = part.ids.strings.tolist()
            for place, term in enumerate(inner.terms.tolist()):
                documents = inner.documents[slice(*inner.offsets[place : place + 2].tolist())].tolist()
                assert documents == sorted(set(documents))
                assert documents
                lists[parse_term(terms[term])] += [theirs[d] for d in documents if alive is None or alive[d]]
        counts = nested.document_frequencies(np.arange(len(terms), dtype=np.int32)).tolist()
        assert counts == [len(lists[parse_term(term)]) for term in terms]
        every = nested.all_document_frequencies().tolist()
        assert every == counts[: len(every)]
        assert not any(counts[len(every) :])
        if snapshot.size:
            held[namespace] = {what: sorted(by) for what, by in lists.items() if by}
    return held


def check(engine: fr.Engine, records: Iterable[Record]) -> None:
    wanted = plain(records)
    assert stated(engine) == wanted
    parts = {name: snapshot.segments for name, snapshot in engine.index.memory.snapshots.items()}
    postings = {name: sum(part.nested("entities").postings for part in own) for name, own in parts.items()}
    assert engine.stats()["entities"] == sum(postings.values())
    assert sum(postings.values()) >= sum(len(by) for own in wanted.values() for by in own.values())
    for name in parts:
        assert engine.namespace(name).stats()["entities"] == postings[name]
