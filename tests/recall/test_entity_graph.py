"""Walks over the entity graph against a plain oracle that tries them all, difference 0 (B020 to B026, X19)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.index.columns import Columns, Ids, Schema
from fanrank.engine.index.learned import IMPACTS, build_learned
from fanrank.engine.index.snapshot import Place, Snapshot
from fanrank.engine.recall import entity_graph
from fanrank.engine.recall.entity_graph import (
    EXPIRED,
    HOP_SCORES,
    TYPE_PRIOR,
    EntityGraph,
    edge_factor,
    entity_graph_of,
    live_postings,
)
from fanrank.engine.recall.resolution import COMMIT, CONTEXT, STRUCTURE, Mention, asks_many_hops, resolve, roots_of
from fanrank.engine.recall.statements import Statements
from fanrank.engine.records.entities import Relation, parse_term, terms_of, words_of
from fanrank.engine.text.vocabulary import Vocabulary

SCHEMA = Schema.of(None)
NAN = math.nan

Entities = Mapping[str, str]
Said = tuple[Entities, Sequence[Relation]]
Walks = dict[tuple[int, int], tuple[float, int]]


@dataclass
class Memory:
    """Records given as (names to ids, relations), in segments; `deleted` are numbers of those deleted."""

    parts: Sequence[Sequence[Said]]
    deleted: frozenset[int] = frozenset()
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    def __post_init__(self) -> None:
        self.records = [own for part in self.parts for own in part]
        values = {name: Vocabulary() for name in SCHEMA.categories}
        segments, start = [], 0
        for part in self.parts:
            records = [fr.Record(f"r{start + number}", "") for number in range(len(part))]
            weights = [dict.fromkeys(terms_of(*own), 1.0) for own in part]
            columns = Columns.of(records, SCHEMA, values)
            segments.append(build_learned(weights, self.vocabulary, Ids.of([own.id for own in records]), columns))
            start += len(part)
        snapshot = Snapshot((), IMPACTS).extended(segments)
        places = [snapshot.find(f"r{number}") for number in sorted(self.deleted)]
        self.snapshot = snapshot.without([place for place in places if isinstance(place, Place)])

    @property
    def graph(self) -> EntityGraph:
        return entity_graph_of(self.snapshot, [parse_term(term) for term in self.vocabulary.strings])

    @property
    def live(self) -> list[tuple[int, Said]]:
        return [(number, own) for number, own in enumerate(self.records) if number not in self.deleted]

    def walks(self, roots: Sequence[Mapping[str, float]], now: Sequence[float], hops: Sequence[int]) -> Walks:
        """(row, document) -> (score, hops), by every walk that there is."""
        relations = {own for _, (_, stated) in self.live for own in stated}
        found: Walks = {}
        for row, own in enumerate(roots):
            best: dict[str, tuple[float, int]] = {}
            walks = [(entity, weight, 0) for entity, weight in own.items()]
            while walks:
                entity, worth, length = walks.pop()
                score = HOP_SCORES[length] * worth
                if score > 0.0 and (score, -length) > (best.get(entity, (0.0, 0))[0], -best.get(entity, (0.0, 0))[1]):
                    best[entity] = score, length
                if length == hops[row]:
                    continue
                for edge in relations:
                    if edge.valid_from is not None and edge.valid_from > now[row]:
                        continue
                    factor = edge.confidence * TYPE_PRIOR[edge.reliance]
                    if edge.valid_to is not None and edge.valid_to < now[row]:
                        factor *= EXPIRED
                    for one, other in ((edge.source, edge.target), (edge.target, edge.source)):
                        if one == entity:
                            walks.append((other, worth * factor, length + 1))
            for number, (entities, stated) in self.live:
                mentioned = {*entities.values(), *(end for edge in stated for end in (edge.source, edge.target))}
                reached = [best[entity] for entity in mentioned if entity in best]
                if reached:
                    found[row, number] = max(reached, key=lambda pair: (pair[0], -pair[1]))
        return found


def expanded(
    graph: EntityGraph, roots: Sequence[Mapping[str, float]], now: Sequence[float], hops: Sequence[int]
) -> Walks:
    rows, documents, scores, lengths = graph.expand(roots, now, hops)
    pairs = list(zip(rows.tolist(), documents.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert (rows.dtype, documents.dtype, scores.dtype, lengths.dtype) == (np.int64, np.int64, np.float64, np.int8)
    return dict(zip(pairs, zip(scores.tolist(), lengths.tolist(), strict=True), strict=True))


def edge(source: str, target: str, confidence: float = 1.0, kind: str = "reports-to", **options: float) -> Relation:
    return Relation(source, target, kind, confidence, **options)  # type: ignore[arg-type]


def mentions(*names: str) -> Said:
    return {name: name for name in names}, ()


NODES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
TIMES = st.none() | st.sampled_from([0.0, 1.0, 2.0])


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    start, end = draw(TIMES), draw(TIMES)
    if start is not None and end is not None and start > end:
        start, end = end, start
    confidence = draw(st.sampled_from([0.0, 1.0, 0.5, 0.95]) | st.floats(0.0, 1.0))
    kind, category = (
        draw(st.sampled_from(["reports-to", "mentioned-with", "knows"])),
        draw(st.sampled_from([None, "lifecycle", "semantic", "structural"])),
    )
    return Relation(draw(NODES), draw(NODES), kind, confidence, start, end, category)


RECORDS = st.tuples(
    st.lists(NODES, max_size=3).map(lambda own: dict(zip(own, own, strict=True))), st.lists(relations(), max_size=2)
)
ROWS = st.lists(
    st.tuples(
        st.dictionaries(NODES | st.just("nobody"), st.sampled_from([0.0, 1.0, 0.25]) | st.floats(0.0, 1.0), max_size=2),
        st.sampled_from([NAN, 0.0, 0.5, 1.0, 1.5, 3.0]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=12)
@given(st.data())
@pytest.mark.parametrize("chunk", [1, 7, entity_graph.CHUNK])
@pytest.mark.parametrize("share", [0, 8])
def test_all_walks(chunk: int, share: int, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=3))
    deleted = data.draw(st.frozensets(st.integers(0, sum(map(len, parts)) - 1), max_size=3))
    memory = Memory(parts, deleted)
    roots, now, hops = (list(column) for column in zip(*data.draw(ROWS), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        borders.shrink(patch, {"entity_graph.CHUNK": chunk, "entity_graph.DENSE_SHARE": share})
        graph = memory.graph
        whole = expanded(graph, roots, now, hops)
        assert whole == memory.walks(roots, now, hops)
        for row in range(len(roots)):
            alone = expanded(graph, roots[row : row + 1], now[row : row + 1], hops[row : row + 1])
            assert {(row, document): value for (_, document), value in alone.items()} == {
                pair: value for pair, value in whole.items() if pair[0] == row
            }


def test_worked_numbers() -> None:
    """B023: .6 * .95 = .57; .35 * .95 * .3 * .3 = .030 takes two expired edges (X19)."""
    assert HOP_SCORES == (1.0, 0.6, 0.35, 0.15)
    assert (EXPIRED, dict(TYPE_PRIOR)) == (0.3, {"structural": 1.0, "semantic": 0.9, "lifecycle": 1.0})
    one, prior = np.array([0.95]), np.array([1.0])
    assert HOP_SCORES[1] * edge_factor(one, prior, 1.0)[0] == pytest.approx(0.57, abs=1e-15)
    assert HOP_SCORES[2] * edge_factor(one, prior, 0.3 * 0.3)[0] == pytest.approx(0.029925, abs=1e-15)
    memory = Memory(
        [
            [
                ({}, [edge("sarah", "ana", 0.95)]),
                ({}, [edge("sarah", "bob", 0.95, valid_to=10.0), edge("bob", "carl", valid_to=20.0)]),
                mentions("ana"),
                mentions("carl"),
            ]
        ]
    )
    graph = memory.graph
    found = expanded(graph, [{"sarah": 1.0}] * 4, [NAN, 15.0, 20.0, 20.5], [2] * 4)
    assert [found[row, 2] for row in range(4)] == [(0.6 * 0.95, 1)] * 4
    # `valid_to < now` is strict.
    assert [found[row, 3][0] for row in range(4)] == pytest.approx([0.3325, 0.09975, 0.09975, 0.029925], abs=1e-15)
    assert {found[row, 3][1] for row in range(4)} == {2}
    # The reading that X19 does not take, by configuration.
    terms = [parse_term(term) for term in memory.vocabulary.strings]
    lifecycle = entity_graph_of(memory.snapshot, terms, type_prior={**TYPE_PRIOR, "lifecycle": 0.3})
    assert expanded(lifecycle, [{"bob": 1.0}], [NAN], [1])[0, 3][0] == pytest.approx(0.6 * 0.3)


@pytest.mark.parametrize("prior", [-0.1, 1.1, NAN])
def test_prior_out_of_range(prior: float) -> None:
    with pytest.raises(fr.errors.ParameterError):
        EntityGraph.of(
            [], [], lambda terms: live_postings(Snapshot((), IMPACTS), terms), {**TYPE_PRIOR, "semantic": prior}
        )


def test_best_walk_not_the_shortest() -> None:
    """B024: two good edges, .35, beat one of confidence .5, .3; of equals the shorter is told."""
    memory = Memory([[({}, [edge("a", "b", 0.5), edge("a", "m"), edge("m", "b")]), mentions("b")]])
    assert expanded(memory.graph, [{"a": 1.0}], [NAN], [2])[0, 1] == (0.35, 2)
    assert expanded(memory.graph, [{"a": 1.0}], [NAN], [1])[0, 1] == (0.3, 1)
    # b at once, or as a's neighbour.
    near = Memory([[({}, [edge("a", "b")]), mentions("b")]])
    assert expanded(near.graph, [{"a": 1.0, "b": 0.6}], [NAN], [1])[0, 1] == (0.6, 0)
    even = Memory([[({}, [edge("a", "b", 0.7), edge("c", "d")]), mentions("b", "c"), mentions("c", "b")]])
    found = expanded(even.graph, [{"a": 1.0, "c": 0.6 * 0.7}], [NAN], [1])
    assert found[0, 1] == found[0, 2] == (0.6 * 0.7, 0)


def test_no_anchor_is_empty() -> None:
    """B026: absence, not noise."""
    graph = Memory([[mentions("a")]]).graph
    for roots in ([], [{}], [{"nobody": 1.0}], [{"a": 0.0}]):
        assert expanded(graph, roots, [NAN] * len(roots), [2] * len(roots)) == {}
    assert resolve(graph, ["nothing that is known", ""]) == [(), ()]
    nothing = EntityGraph.of([], [], lambda terms: live_postings(Snapshot((), IMPACTS), terms))
    assert (len(nothing), nothing.edges, resolve(nothing, ["a"], [["a"]])) == (0, 0, [()])
    assert expanded(nothing, [{"a": 1.0}], [NAN], [2]) == {}


@pytest.mark.parametrize(("roots", "hops"), [({"a": 1.0}, 4), ({"a": 1.0}, -1), ({"a": 1.5}, 2), ({"a": NAN}, 2)])
def test_out_of_range(roots: dict[str, float], hops: int) -> None:
    with pytest.raises(fr.errors.ParameterError):
        Memory([[mentions("a")]]).graph.expand([roots], [NAN], hops)


def test_statement_read_as_the_vocabulary_grows() -> None:
    """One reading for all namespaces and epochs; a graph sees what its own snapshot holds, and no more."""
    statements = Statements()
    first = Memory([[({"Ana": "ana"}, [edge("ana", "bob")])]])
    early = entity_graph_of(first.snapshot, statements, first.vocabulary.strings)
    before = expanded(early, [{"ana": 1.0}], [NAN], [2])
    second = Memory([[({"Ana": "other"}, [edge("ana", "carl")])]], vocabulary=first.vocabulary)
    late = entity_graph_of(second.snapshot, statements, first.vocabulary.strings)
    assert len(statements) == len(first.vocabulary)
    assert [early.number_of(name) is None for name in ("ana", "bob", "carl", "other")] == [False, False, True, True]
    assert [late.number_of(name) is None for name in ("ana", "bob", "carl", "other")] == [False, True, False, False]
    assert [mention.candidates for mention in resolve(early, ["Ana"])[0]] == [("ana",)]
    assert set(resolve(late, ["Ana"])[0][0].candidates) == {"ana", "other"}
    assert expanded(early, [{"ana": 1.0}], [NAN], [2]) == before == {(0, 0): (1.0, 0)}


def two_sarahs(chens: int = 1, lees: int = 1) -> Memory:
    """Sarah Chen leads Atlas in Berlin, Sarah Lee keeps the garden with Bob; so many records call each Sarah."""
    return Memory(
        [
            [
                ({"Atlas": "atlas", "Berlin office": "berlin"}, [edge("sarah-chen", "atlas", kind="works-on")]),
                ({}, [edge("sarah-chen", "berlin", kind="member-of"), edge("sarah-lee", "bob", kind="knows")]),
                ({}, [edge("sarah-lee", "garden", kind="works-on")]),
                *[({"Sarah": "sarah-chen"}, ())] * chens,
                *[({"Sarah": "sarah-lee"}, ())] * lees,
            ]
        ]
    )


def test_two_sarahs() -> None:
    """B025: below .7 both are roots, weighted by confidence; a signal for one commits to her."""
    graph = two_sarahs().graph
    (sarah,) = resolve(graph, ["What did SARAH say?"])[0]
    assert sarah == Mention("sarah", ("sarah-chen", "sarah-lee"), (0.5, 0.5))
    assert (sarah.committed, sarah.roots) == (None, {"sarah-chen": 0.5, "sarah-lee": 0.5})
    found = expanded(graph, [roots_of([sarah])], [NAN], [1])
    assert [found[0, 3], found[0, 4]] == [(0.5, 0), (0.5, 0)]

    signals = (1 + CONTEXT) / (2 + CONTEXT)
    by_context, by_structure, by_asker = (
        resolve(graph, ["What does Sarah do about the office?"])[0][0],
        resolve(graph, ["Does Sarah know Bob?"])[0][0],
        resolve(graph, ["What does Sarah do?"], askers=["garden"])[0][0],
    )
    assert by_context == Mention("sarah", ("sarah-chen", "sarah-lee"), (signals, pytest.approx(1 - signals)))
    assert signals >= COMMIT
    assert by_context.roots == {"sarah-chen": 1.0}
    assert CONTEXT == STRUCTURE
    assert by_structure.candidates[0] == by_asker.candidates[0] == "sarah-lee"
    assert by_structure.confidences == by_asker.confidences == (signals, pytest.approx(1 - signals))
    # A signal for either cancels out.
    assert resolve(graph, ["Sarah, Bob and Atlas"])[0][0].confidences == (0.5, 0.5)


def test_a_name_that_a_text_repeats_is_weighed_once() -> None:
    graph, asked = two_sarahs().graph, []

    def meant(name: str) -> dict[str, int]:
        asked.append(name)
        return {}

    mentions = resolve(graph, ["Sarah " * 500 + "and Bob"], meant=meant)[0]
    assert (len(mentions), asked) == (501, ["sarah"])
    assert mentions[0] == mentions[499] == resolve(graph, ["Sarah Sarah and Bob"])[0][0]


def test_past_queries_are_a_prior() -> None:
    """B025: of names that records share evenly, one past query makes 2/3, two make 3/4, which commits."""
    graph = two_sarahs().graph
    asked: list[str] = []

    def believed(**past: int) -> tuple[float, ...]:
        def meant(name: str) -> dict[str, int]:
            asked.append(name)
            return {name.replace("_", "-"): count for name, count in past.items()}

        (mention,) = resolve(graph, ["SARAH?"], meant=meant)[0]
        found = dict(zip(mention.candidates, mention.confidences, strict=True))
        return found["sarah-chen"], found["sarah-lee"]

    assert believed() == (0.5, 0.5)
    assert believed(sarah_lee=1) == (1 / 3, 2 / 3)
    assert believed(sarah_lee=2) == (0.25, 0.75)
    assert believed(sarah_lee=2, sarah_chen=2) == (0.5, 0.5)
    assert believed(somebody=9) == (0.5, 0.5)
    assert asked == ["sarah"] * 5
    # Records go on to count: 7 of 10 mean the one, and 3 past queries the other.
    (mention,) = resolve(two_sarahs(chens=7, lees=3).graph, ["Sarah"], meant=lambda _: {"sarah-lee": 3})[0]
    assert mention == Mention("sarah", ("sarah-lee", "sarah-chen"), (36 / 50, 14 / 50))


def test_priors_are_live_counts() -> None:
    memory = two_sarahs(chens=7, lees=3)
    assert resolve(memory.graph, ["Sarah"])[0][0].confidences == (0.7, 0.3)
    assert resolve(memory.graph, ["Sarah"])[0][0].roots == {"sarah-chen": 1.0}
    memory.snapshot = memory.snapshot.without([Place(0, 3)])
    assert resolve(memory.graph, ["Sarah"])[0][0].roots == pytest.approx({"sarah-chen": 2 / 3, "sarah-lee": 1 / 3})
    memory.snapshot = memory.snapshot.without([Place(0, number) for number in range(4, 10)])
    (alone,) = resolve(memory.graph, ["Sarah"])[0]
    assert alone == Mention("sarah", ("sarah-lee",), (1.0,))
    # Sarah Chen is still known by relations, and by the words of her id.
    assert resolve(memory.graph, ["sarah chen"])[0] == (Mention("sarah chen", ("sarah-chen",), (1.0,)),)


def test_longest_name_and_given_ids() -> None:
    memory = Memory(
        [
            [
                ({"New York": "nyc", "York City Hall": "hall", "York": "york"}, ()),
                ({"O'Neill": "neill", "Zoë": "zoe", "STRASSE": "road"}, ()),
            ]
        ]
    )
    graph = memory.graph

    def named(text: str) -> list[tuple[str, ...]]:
        return [(mention.name, *mention.candidates) for mention in resolve(graph, [text])[0]]

    assert named("new   york, then York") == [("new york", "nyc"), ("york", "york")]
    assert named("New York City Hall") == [("york city hall", "hall")]
    assert named("o'neill's ZOË in der Straße") == [("o neill", "neill"), ("zoë", "zoe"), ("strasse", "road")]
    assert named("yorkshire") == []
    given = resolve(graph, ["York", "York", "York"], [["zoe", "nobody", "nyc"], [], None])
    assert [[mention.roots for mention in own] for own in given] == [[{"zoe": 1.0}, {"nyc": 1.0}], [], [{"york": 1.0}]]
    both = [Mention("x", ("a", "b"), (0.6, 0.4)), Mention("y", ("b",), (1.0,))]
    assert roots_of(both) == roots_of(both[::-1]) == {"a": 0.6, "b": 1.0}


@settings(deadline=None, max_examples=30)
@given(
    st.lists(RECORDS, min_size=1, max_size=5),
    st.lists(st.sampled_from(["Sam", "b", "c", "e", "f", "of", "x"]), max_size=5),
    st.data(),
)
def test_resolution_by_loops(records: list[Said], words: list[str], data: st.DataObject) -> None:
    """Each mention's confidences, worked out by the formula from the live records, in any order of arrival."""
    called = data.draw(st.lists(NODES, min_size=1, max_size=4))
    records = [*records, *(({"Sam": own}, ()) for own in called)]
    asker = data.draw(st.none() | NODES)
    order = data.draw(st.permutations(range(len(records))))
    memory, shuffled = Memory([records]), Memory([[records[number]] for number in order])
    text = " ".join(words)
    found = resolve(memory.graph, [text], askers=[asker])[0]
    assert found == resolve(shuffled.graph, [text], askers=[asker])[0]

    names: dict[tuple[str, ...], dict[str, int]] = {}
    near: dict[str, set[str]] = {}
    for entities, stated in records:
        ends = {end for own in stated for end in (own.source, own.target)}
        for name, entity in {(words_of(n), e) for n, e in entities.items()} | {
            (words_of(entity), entity) for entity in {*ends, *entities.values()}
        }:
            held = names.setdefault(name, {})
            held[entity] = held.get(entity, 0) + 1
        for own in stated:
            if own.confidence > 0.0:
                near.setdefault(own.source, set()).add(own.target)
                near.setdefault(own.target, set()).add(own.source)
    spoken = words_of(text)
    spans = [(place, names[word,]) for place, word in enumerate(spoken) if (word,) in names]
    assert [mention.name for mention in found] == [spoken[place] for place, _ in spans]
    others = {word for word in spoken if (word,) not in names} - {"of"}
    for mention, (place, counts) in zip(found, spans, strict=True):
        around = {entity: near.get(entity, set()) - {entity} for entity in counts}
        heard = {
            entity: {
                word for word in others for other in own for name in names if word in name and other in names[name]
            }
            for entity, own in around.items()
        }
        anchors = [set(own) for first, own in spans if first != place]
        if asker is not None and any(asker in own for own in names.values()):
            anchors.append({asker})
        touched = {
            entity: {number for number, anchor in enumerate(anchors) if anchor & own} for entity, own in around.items()
        }
        beliefs = {
            entity: count
            * (1 + CONTEXT * len(heard[entity]) / max(len(set().union(*heard.values())), 1))
            * (1 + STRUCTURE * len(touched[entity]) / max(len(set().union(*touched.values())), 1))
            for entity, count in counts.items()
        }
        ranked = sorted(beliefs, key=lambda entity: (-beliefs[entity], entity))
        assert set(mention.candidates) == set(ranked)
        shares = [beliefs[entity] / sum(beliefs.values()) for entity in mention.candidates]
        assert list(mention.confidences) == pytest.approx(shares, abs=1e-12)
        assert list(mention.confidences) == sorted(mention.confidences, reverse=True)


MANY_HOPS = """Who does Ana work with who also knows Bob? | who does Ana work\nwith who knows Bob
| Who reports to Ana that also works on Atlas | people who work with Ana and also know Bob
| What do Ana and Bob have in common? | our mutual contacts | a friend of a friend of Ana
| Where does Ana's manager's team sit? | Ana’s old manager’s team"""
ONE_HOP = """Who does Ana work with? | Who is Ana and who is Bob? | Ana's manager | Did Ana also come? | a commonplace
| Was that Ana's or Bob's? | """


def test_which_questions_ask_many_hops() -> None:
    assert [text for text in MANY_HOPS.split("| ") if not asks_many_hops(text)] == []
    assert [text for text in ONE_HOP.split("| ") if asks_many_hops(text)] == []
