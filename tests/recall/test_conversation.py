"""The conversation graph and its PageRank against plain loops (SPEC C030 to C032, X21)."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.recall import conversation
from fanrank.engine.recall.conversation import ConversationGraph, PageRank, conversation_graph, graph_of, rank, seeds_of
from fanrank.engine.text.keywords import TRIGGER_WORDS
from fanrank.strategies import Conversation

Turn = tuple[set[int], int, float]
"""Keywords, session (-1: none), time (NaN: none)."""
Edges = dict[tuple[int, int], list[float]]
"""Weights of the edges from one turn to another, by their numbers."""

NO_TIME = math.nan


def built(turns: list[Turn], parameters: PageRank) -> ConversationGraph:
    lists = [sorted(words) for words, _, _ in turns]
    return conversation_graph(
        [0, *itertools.accumulate(map(len, lists))],
        [word for words in lists for word in words],
        [session for _, session, _ in turns],
        [time for _, _, time in turns],
        parameters,
    )


def in_time(turns: list[Turn], window: int) -> list[int]:
    """The newest turns, oldest first."""
    return sorted(range(len(turns)), key=lambda n: (-math.inf if math.isnan(turns[n][2]) else turns[n][2], n))[-window:]


def plain_edges(turns: list[Turn], how: PageRank) -> Edges:
    line = in_time(turns, how.window)
    edges: Edges = {}
    for place, a in enumerate(line):
        later = [b for b in line[place + 1 :] if turns[b][1] == turns[a][1]]
        following = [b for b in line[place + 1 : place + 2] if b in later] if how.compat else later[:1]
        if following and turns[a][1] != -1:
            edges.setdefault((a, following[0]), []).append(1.0)
        for b in line[place + 1 :]:
            shared = len(turns[a][0] & turns[b][0])
            if shared >= how.overlap:
                weight = shared / max(len(turns[a][0]), len(turns[b][0]))
                edges.setdefault((a, b), []).append(weight)
                if not how.compat:
                    edges.setdefault((b, a), []).append(weight)
    return edges


def plain_ranks(turns: list[Turn], how: PageRank, asked: set[int]) -> dict[int, float]:
    line = in_time(turns, how.window)
    edges = plain_edges(turns, how)
    out = {a: sum(1.0 if how.compat else w for (s, _), own in edges.items() if s == a for w in own) for a in line}
    seeds = {a: 1.0 if turns[a][0] & asked else 0.0 for a in line}
    ranks = dict(seeds)
    for _ in range(how.iterations):
        received = dict.fromkeys(line, 0.0)
        for (a, b), weights in edges.items():
            for weight in weights:
                received[b] += ranks[a] * weight / out[a]
        ranks = {a: how.damping * received[a] + (1.0 - how.damping) * seeds[a] for a in line}
    return ranks


def ranked(graph: ConversationGraph, asked: set[int]) -> dict[int, float]:
    found = rank(graph, seeds_of(graph, [sorted(asked)]))
    return dict(zip(graph.documents.tolist(), found[0].tolist(), strict=True))


def edges_of(graph: ConversationGraph) -> list[tuple[int, int, float]]:
    numbers = graph.documents
    return list(
        zip(numbers[graph.sources].tolist(), numbers[graph.targets].tolist(), graph.shares.tolist(), strict=True)
    )


PARAMETERS = st.builds(
    PageRank,
    damping=st.sampled_from([0.0, 0.5, 0.85, 1.0]),
    iterations=st.integers(1, 6),
    window=st.integers(1, 12),
    overlap=st.integers(1, 3),
    compat=st.booleans(),
)
TURNS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 7), max_size=6), st.integers(-1, 2), st.sampled_from([0.0, 1.0, 2.0, -5.0, NO_TIME])
    ),
    max_size=14,
)


@settings(deadline=None)
@given(TURNS, PARAMETERS, st.lists(st.sets(st.integers(-1, 9), max_size=3), max_size=4))
def test_any_conversation(turns: list[Turn], how: PageRank, asked: list[set[int]]) -> None:
    graph = built(turns, how)
    assert graph.documents.tolist() == sorted(in_time(turns, how.window))
    edges = plain_edges(turns, how)
    out = {a: sum(1.0 if how.compat else w for (s, _), own in edges.items() if s == a for w in own) for a, _ in edges}
    expected = sorted((a, b, w / out[a]) for (a, b), weights in edges.items() for w in weights)
    found = sorted(edges_of(graph))
    assert [edge[:2] for edge in found] == [edge[:2] for edge in expected]
    assert [edge[2] for edge in found] == pytest.approx([edge[2] for edge in expected], rel=1e-14)
    seeds = seeds_of(graph, [sorted(words) for words in asked])
    ranks = rank(graph, seeds)
    assert (seeds.dtype, ranks.dtype, ranks.shape) == (np.bool_, np.float64, (len(asked), len(graph)))
    for row, words in enumerate(asked):
        assert seeds[row].tolist() == [bool(turns[n][0] & words) for n in graph.documents.tolist()]
        plain = plain_ranks(turns, how, words)
        assert ranks[row].tolist() == pytest.approx([plain[n] for n in graph.documents.tolist()], rel=1e-12)


def test_three_turns_by_hand() -> None:
    """SPEC C030, C031, X21, both forms.

    1 and 2 share two keywords of 2 and 4: weight 1/2. Literally 1 has two edges out, so 2 gets .85 * (1 + 1/2) / 2 of
    its rank and 1 nothing; by default all of it, and 1 gets back what 2 has.
    """
    turns: list[Turn] = [({1, 2}, 0, 0.0), ({1, 2, 3, 4}, 0, 1.0), ({9}, 1, 2.0)]
    literal = ranked(built(turns, PageRank(compat=True, iterations=1)), {1})
    assert literal == pytest.approx({0: 0.15, 1: 0.85 * 0.75 + 0.15, 2: 0.0})
    conserving = ranked(built(turns, PageRank(iterations=1)), {1})
    assert conserving == pytest.approx({0: 0.85 + 0.15, 1: 0.85 + 0.15, 2: 0.0})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("damping", [-0.1, 1.01, math.nan, True, "0.85"]),
        ("iterations", [0, 2.0]),
        ("window", [0, conversation.MAX_WINDOW + 1, True]),
        ("overlap", [0]),
        ("compat", [1]),
        ("roles", ["user", ("user", ""), (1,)]),
    ],
)
def test_parameters_out_of_range(name: str, values: list[Any]) -> None:
    for bad in values:
        with pytest.raises(fr.errors.ParameterError, match=name):
            PageRank(**{name: bad})


SAID = [
    ("Do you remember the billing migration?", "s1", 10.0),
    ("The billing migration failed on Tuesday, as mentioned previously", "s1", 20.0),
    ("Ana likes green tea", "s2", 30.0),
    ("Green tea again for Ana, please remember", "s2", 15.0),
    ("Migration of billing done at last, we could say", None, None),
    ("", "s1", 40.0),
]


def of_engine(engine: fr.Engine, how: PageRank) -> ConversationGraph:
    memory = engine.index.ready()
    snapshot = memory.snapshots[""]
    alive = [snapshot.alive(number) for number in range(len(snapshot.segments))]
    passing = [
        np.ones(segment.size, dtype=np.bool_) if own is None else own
        for own, segment in zip(alive, snapshot.segments, strict=True)
    ]
    codes = memory.state.values["role"].ids
    return graph_of(snapshot, memory.indexer.vocabulary.strings, memory.analyzer, passing, how, codes)


def plain_of(engine: fr.Engine, records: list[fr.Record]) -> list[Turn]:
    """The turns of these records; keywords by the id of their term."""
    memory = engine.index.ready()
    asking = TRIGGER_WORDS | {term for word in TRIGGER_WORDS for term in memory.analyzer(word)}
    sessions: dict[str, int] = {}
    return [
        (
            {
                memory.indexer.vocabulary.ids[term]
                for term in memory.analyzer(record.text)
                if len(term) > 3 and term not in asking
            },
            -1 if record.session is None else sessions.setdefault(record.session, len(sessions)),
            NO_TIME if record.time is None else record.time,
        )
        for record in records
    ]


def test_keywords_of_the_users_messages_alone() -> None:
    """SPEC C030: the assistant's words join nothing, and no query begins at them; its turns stay in the line.

    Of records that came in pieces, some of them gone.
    """
    said = [(text, session, time, "user" if n % 2 else "assistant") for n, (text, session, time) in enumerate(SAID * 3)]
    records = [
        fr.Record(str(n), text, session=session, time=time, role=role)
        for n, (text, session, time, role) in enumerate(said)
    ]
    engine = fr.Engine(backend="numpy")
    for start in range(0, len(records), 7):
        engine.add(records[start : start + 7])
    engine.delete(["1", "9"])
    left = [record for record in records if record.id not in ("1", "9")]
    memory = engine.index.ready()
    for roles in (("user",), ("assistant", "user"), ("nobody",)):
        how = PageRank(overlap=1, roles=roles)
        graph = of_engine(engine, how)
        silent = [record if record.role in roles else replace(record, text="") for record in left]
        turns = plain_of(engine, silent)
        for text in ("billing migration", "green tea for Ana"):
            terms = memory.indexer.encode_query(text)
            plain = plain_ranks(turns, how, set(terms))
            ranks = rank(graph, seeds_of(graph, [terms]))[0].tolist()
            assert ranks == pytest.approx([plain[n] for n in sorted(plain)], rel=1e-12)
            asked = fr.Strategy("c", (Conversation(how),))
            hits = engine.search([text], 30, strategy=asked)[0]
            wanted = {left[n].id: value for n, value in plain.items() if value > 0.0}
            assert dict(hits) == pytest.approx(wanted, rel=1e-12)
    assert fr.Strategy.of(asked.to_dict()) == asked


def test_words_that_ask_are_no_keywords() -> None:
    """SPEC C009: neither "remember" nor what the analyzer makes of it, nor words of 3 characters."""
    engine = fr.Engine.from_records(
        [fr.Record(str(n), text, session=session, time=time) for n, (text, session, time) in enumerate(SAID)]
    )
    graph = of_engine(engine, PageRank())
    strings = engine.index.ready().indexer.vocabulary.strings
    assert {"rememb", "tea", "ana"} <= set(strings)
    assert sorted(strings[n] for n in graph.keywords) == sorted(["bill", "migrat", "fail", "tuesday", "green", "done"])
    assert not seeds_of(graph, [engine.index.ready().indexer.encode_query("remember the tea?")]).any()
