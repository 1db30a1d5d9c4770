"""Records that borrow from their neighbours: every way of asking equals sums in plain loops, with tolerance zero."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.answers import document, made, of, oracle, queries, records

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.check.oracle import VectorOracle, borrow
from fanrank.engine.index.bm25 import SCALE

pytestmark = pytest.mark.usefixtures("small_borders")

Ranking = list[tuple[int, float]]

sessions = st.sampled_from(["s", "t", "u", None])
lent = st.lists(st.sampled_from([1, 13, 16, 64]), min_size=1, max_size=3)
histories = st.none() | st.integers(0, 1 << 16)


def best(sums: list[int | None], k: int, passing: list[bool]) -> Ranking:
    found = [
        (number, total / (64 * SCALE)) for number, total in enumerate(sums) if total is not None and passing[number]
    ]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k]


def numbered(hits: fr.Hits) -> list[Ranking]:
    return [[(int(name.removeprefix("r")), score) for name, score in row] for row in hits]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(document, sessions), max_size=40), queries, st.integers(1, 45), lent, histories)
def test_a_neighbour_that_a_filter_leaves_out_lends_as_the_oracle_says(
    documents: list[tuple[list[str], str | None]],
    batch: list[list[str]],
    k: int,
    weights: list[int],
    history: int | None,
) -> None:
    texts, names = [t for t, _ in documents], [s for _, s in documents]
    passing = [number % 3 > 0 for number in range(len(names))]
    wanted = [
        replace(record, session=name, role="user" if passes else "tool")
        for record, name, passes in zip(records(texts), names, passing, strict=True)
    ]
    engine, plain = made(wanted, history), oracle(texts)
    sums = [borrow([plain.score(q, d) for d in range(len(texts))], names, weights) for q in batch]
    asked = [fr.Query(terms=tuple(q), neighbours=of(weights), filter={"role": "user"}) for q in batch]
    for name in (status.name for status in backends.statuses() if status.usable and not status.by_name):
        engine.backend = backends.choose(name)
        assert numbered(engine.search(asked, k)) == [best(own, k, passing) for own in sums], name


vector = st.lists(st.integers(-2, 2), min_size=3, max_size=3).filter(any)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, sessions, st.lists(vector, max_size=2)), max_size=30),
    st.lists(vector, min_size=1, max_size=3),
    st.integers(1, 20),
    lent,
    histories,
)
def test_borrowed_similarities_equal_the_oracle(
    documents: list[tuple[list[str], str | None, list[list[int]]]],
    asked: list[list[int]],
    k: int,
    weights: list[int],
    history: int | None,
) -> None:
    names = [s for _, s, _ in documents]
    wanted = [
        replace(r, session=s, embedding=rows or None)
        for r, (_, s, rows) in zip(records([t for t, _, _ in documents]), documents, strict=True)
    ]
    engine = made(wanted, history, encoder=fr.OwnVectors(3))
    batch = [fr.Query(vector=own, neighbours=of(weights)) for own in asked]
    rows = [[] if record.embedding is None else record.embedding.tolist() for record in wanted]
    for mode in ("exact", "int8"):
        plain = VectorOracle(rows, int8=mode == "int8")
        expected = []
        for query in batch:
            own = [plain.score(query.vector[0].tolist(), number) for number in range(len(rows))]
            sums = [near_sum(own, names, number, weights) for number in range(len(rows))]
            found = [(number, total) for number, total in enumerate(sums) if total is not None]
            expected.append(sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k])
        strategy = fr.Strategy("dense", (fr.strategies.Dense(mode=mode),))
        default = fr.Strategy("dense", (fr.strategies.Dense(mode=mode, neighbours=of(weights)),))
        for name in ("numpy", "native"):
            if next(status for status in backends.statuses() if status.name == name).usable:
                engine.backend = backends.choose(name)
                assert numbered(engine.search(batch, k, strategy=strategy)) == expected
                assert numbered(engine.search(batch, k, strategy=strategy.deep())) == expected
        unsaid = [replace(query, neighbours=None) for query in batch]
        assert numbered(engine.search(unsaid, k, strategy=default)) == expected
        none = [replace(query, neighbours=fr.Neighbours(0)) for query in batch]
        assert list(engine.search(none, k, strategy=default)) == list(engine.search(unsaid, k, strategy=strategy))


def near_sum(scores: list[float | None], names: list[str | None], document: int, weights: list[int]) -> float | None:
    """A document's similarity and what it borrows, the nearest first, in the order of operations that is promised."""
    total = scores[document]
    members = [n for n, name in enumerate(names) if name == names[document] and name is not None]
    if total is None or not members:
        return total
    place = members.index(document)
    for distance, weight in enumerate(weights, 1):
        both = [
            scores[members[at]] or 0.0 if 0 <= at < len(members) else 0.0 for at in (place - distance, place + distance)
        ]
        total = total + (both[0] + both[1]) * (weight / 64)
    return total + 0.0


def test_a_strategy_sets_a_default_and_a_query_goes_before_it() -> None:
    engine = fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(2))
    texts = ["b", "a", "c", "a a"]
    engine.add([fr.Record(f"r{n}", text, session="s", embedding=[1.0, n]) for n, text in enumerate(texts)])
    near = fr.Neighbours(1, 0.5)
    asked = [fr.Query("a", neighbours=near), fr.Query("a"), fr.Query("a", neighbours={"window": 0})]
    channel = fr.Strategy("near", (fr.strategies.Lexical(neighbours=near),))
    by_query, plain, _ = engine.search(asked, 9)
    assert by_query != plain
    assert list(engine.search(asked, 9, strategy=channel)) == [by_query, by_query, plain]
    assert fr.Strategy.of(json.loads(json.dumps(channel.to_dict()))) == channel
    assert "1 neighbours by 0.5" in str(channel)
    fused = replace(fr.strategies.STRATEGIES["fused"], channels=(channel.channels[0], fr.strategies.Dense()))
    found = engine.search([fr.Query("a", vector=[1, 1])], 9, strategy=fused).explain(0, "r1")
    assert found.lexical.score == dict(by_query)["r1"]
    assert {share.id for share in found.lexical.neighbours} == {"r0", "r2"}


@pytest.mark.parametrize("alone_first", [True, False])
def test_small_sums_together_beat_a_large_one(alone_first: bool) -> None:
    """A sum of its own that is below the k-th best, and would be no hit by itself, may still lend to the best hit."""
    alone = [fr.Record(f"alone{n}", "a a a", time=float(n)) for n in range(40)]
    talk = [fr.Record(f"r{n}", "a b c d", session="s") for n in range(5)]
    other = [fr.Record(f"other{n}", "b c") for n in range(200)]
    engine = fr.Engine(analyzer="minimal")
    engine.add([*alone, *other, *talk] if alone_first else [*talk, *other, *alone])
    plain = dict(engine.search(["a"], 300)[0])
    assert plain["r0"] < plain["alone0"] < 3 * plain["r0"]
    near = fr.Query("a", neighbours=fr.Neighbours(2, 1.0))
    for name in (status.name for status in backends.statuses() if status.usable and not status.by_name):
        engine.backend = backends.choose(name)
        assert engine.search([near], 1)[0] == [("r2", 5 * plain["r2"])], name
        assert [found for found, _ in engine.search([near], 6)[0]] == ["r2", "r1", "r3", "r0", "r4", "alone0"], name


def test_compiled_loops_find_the_best_of_many_equal_and_unequal_sums() -> None:
    """Most blocks of places are passed over by a bound that documents of the shortest lists give, each counted once."""
    if not next(status for status in backends.statuses() if status.name == "native").usable:
        pytest.skip("no compiled loops")
    draw = Random(5)
    turns = [session for session in range(80) for _ in range(draw.randint(2, 5))]
    draw.shuffle(turns)
    last = {session: number for number, session in enumerate(turns)}
    # Sessions end in another order than they begin, and each ends alike: those sums are equal.
    texts = [
        "c d" if last[session] == number else " ".join(draw.choices("efghijklm", range(1, 10), k=4))
        for number, session in enumerate(turns)
    ]
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record(f"r{n}", text, session=f"s{turns[n]}") for n, text in enumerate(texts)])
    words = ["c", "c d", "c e", "f g", "e f g h", "m", "l m", "e i", "d m"]
    asked = [fr.Query(text, neighbours=fr.Neighbours(window, 0.25)) for text in words for window in (1, 2)]
    for k in (1, 2, 3, 5, 9, 30):
        found = []
        for name in ("numpy", "native"):
            engine.backend = backends.choose(name)
            found.append([*engine.search(asked, k)])
        assert found[0] == found[1], k


@pytest.mark.parametrize("words", ["c d", "c d e", "c d e f"])
def test_a_document_of_several_short_lists_is_one_of_the_k_that_bound_the_others(words: str) -> None:
    """The best document is in each list of the query. Those that borrow from it alone have far smaller sums."""
    if not next(status for status in backends.statuses() if status.name == "native").usable:
        pytest.skip("no compiled loops")
    texts = ["x", words, "x", "x x", "x y"]
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record(f"r{n}", text, session="s") for n, text in enumerate(texts)])
    for window, others in ((1, ["r0", "r2"]), (2, ["r0", "r2", "r3"])):
        asked = [fr.Query(words, neighbours=fr.Neighbours(window, 0.25))]
        for k in range(1, 6):
            found = {}
            for name in ("numpy", "native"):
                engine.backend = backends.choose(name)
                found[name] = [*engine.search(asked, k)]
                assert [hit.id for hit in found[name][0]] == ["r1", *others][:k], (name, window, k)
            assert found["numpy"] == found["native"], (window, k)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (fr.published.PUBLISHED["rm3"], "rm3 does not let records borrow from their neighbours"),
        (fr.published.PUBLISHED["decay"], "this strategy fades what a record scores by itself"),
    ],
)
def test_what_takes_no_neighbours_says_so(strategy: fr.Strategy, said: str) -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record(f"r{n}", "a", session="s", time=float(n)) for n in range(3)])
    asked = fr.Query("a", now=9.0, neighbours=fr.Neighbours())
    with pytest.raises(fr.errors.QueryError, match=said):
        engine.search([fr.Query("a", now=9.0), asked], 3, strategy=strategy)
    # Neighbours that lend nothing are none.
    none = replace(asked, neighbours=fr.Neighbours(0))
    assert (
        engine.search([none], 3, strategy=strategy)[0]
        == engine.search([fr.Query("a", now=9.0)], 3, strategy=strategy)[0]
    )


def test_what_has_expired_stands_between_nobody() -> None:
    engine = fr.Engine(analyzer="minimal")
    # They expire in a far year, so no sweep deletes them.
    engine.add([fr.Record(f"r{n}", "bac"[n], session="s", expires=[None, 4e9, None][n]) for n in range(3)])
    near = fr.Query("a", neighbours=fr.Neighbours(1, 0.5))
    assert [name for name, _ in engine.search([replace(near, now=50.0)], 5)[0]] == ["r1", "r0", "r2"]
    assert engine.search([replace(near, now=5e9)], 5)[0] == []


@pytest.mark.parametrize("channel", [fr.strategies.Lexical(), fr.strategies.ContextWords(of([64]))])
def test_sessions_are_of_one_namespace_where_statistics_are_filtered(channel: fr.strategies.AnyChannel) -> None:
    engine = fr.Engine(analyzer="minimal")
    for space, texts in (("w", ["b"]), ("x", ["a", "c"]), ("y", ["c", "a"])):
        engine.add(
            [fr.Record(f"{space}{n}", text, namespace=space, session="s", role="u") for n, text in enumerate(texts)]
        )
    engine.add([fr.Record("v0", "a", namespace="v", session="s", role="t")])
    near = fr.Query(
        "a",
        namespaces=["v", "w", "x", "y"],
        neighbours=fr.Neighbours(1, 1),
        filter={"role": "u"},
        statistics="filtered",
    )
    lexical = fr.strategies.Lexical()
    channels = (lexical,) if channel == lexical else (lexical, channel)
    fusion = fr.strategies.Linear({channel.name: 1.0}, ())
    found = engine.search([near], 10, strategy=fr.Strategy("near", channels, fusion))[0]
    # w0 stands before x0, and x1 before y0, in sessions of one name.
    assert sorted(name for name, _ in found) == ["x0", "x1", "y0", "y1"]
    assert len({score for _, score in found}) == 1


def test_an_explanation_shows_what_each_neighbour_lends() -> None:
    engine = fr.Engine(analyzer="minimal")
    for n, text in enumerate(["a b", "a", "c", "b b a", "d"]):
        engine.add([fr.Record(f"r{n}", text, session="s"), fr.Record(f"other{n}", "a", session="t")])
    hits = engine.search([fr.Query("a b", neighbours=fr.Neighbours(2, [0.25, 0.125]))], 20)
    for name, score in hits[0]:
        found = hits.explain(0, name)
        assert sum(term.score for term in found.terms) + sum(share.score for share in found.neighbours) == score
        assert found.score == score
    shares = hits.explain(0, "r2").neighbours
    assert [(share.id, share.distance, share.weight) for share in shares] == [
        ("r1", -1, 0.25),
        ("r3", 1, 0.25),
        ("r0", -2, 0.125),
        ("r4", 2, 0.125),
    ]
    assert "lent by r3, at +1: 0.25 of" in str(hits.explain(0, "r2"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"window": -1}, "the window must lie in"),
        ({"window": 9}, "the window must lie in"),
        ({"window": 1.5}, "the window must be an integer"),
        ({"window": True}, "the window must be an integer"),
        ({"weight": 0}, "a weight must lie in"),
        ({"weight": 1.1}, "a weight must lie in"),
        ({"weight": float("nan")}, "a weight must lie in"),
        ({"weight": "much"}, "a weight must be a number"),
        ({"window": 2, "weight": [0.5]}, "1 weights for a window of 2"),
        ({"windw": 2}, "have no 'windw'; did you mean 'window'"),
        (3, "a mapping with 'window' and 'weight'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(fr.errors.QueryError, match=said):
        fr.Query("a", neighbours=given)


def test_what_lends_nothing_is_refused_where_it_is_made() -> None:
    rm3 = fr.published.PUBLISHED["rm3"].channels[0].rm3
    for make, said in (
        (lambda: fr.strategies.Lexical(rm3=rm3, neighbours=fr.Neighbours()), "rm3 or neighbours, not both"),
        (lambda: fr.strategies.Lexical(neighbours=2), "must be a Neighbours, not 2"),  # type: ignore[arg-type]
        (lambda: fr.strategies.Dense(mode="hnsw", neighbours=fr.Neighbours()), "'hnsw'"),
    ):
        with pytest.raises(fr.errors.ParameterError, match=said):
            make()


def test_weights_are_whole_steps() -> None:
    assert fr.Neighbours(2, 0.2).steps == (13, 13)
    assert fr.Neighbours(2, 0.2) == fr.Neighbours(2, 13 / 64) == fr.Neighbours.of({"window": 2, "weight": 0.2})
    assert fr.Neighbours(2, [0.5, 0.25]).steps == (32, 16)


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_deleted_records_stand_between_nobody(backend: str) -> None:
    engine = fr.Engine(analyzer="minimal", backend=backend)
    texts = ["b", "c", "c", "a", "c", "c", "d", *["e"] * 56, *"aeea", *["e"] * 27]
    made = [fr.Record(f"r{n}", text, session="s") for n, text in enumerate(texts)]
    engine.add(made[:64])
    engine.add(made[64:])
    # In both segments so few are deleted that they are not written anew: on both sides of r3, and from the end of
    # the first segment into the second.
    engine.delete(["r1", "r2", "r4", "r5", "r62", "r63", "r64", "r65"])
    near = fr.Query("a", neighbours=fr.Neighbours(1, 0.5))
    assert [name for name, _ in engine.search([near], 9)[0]] == ["r3", "r66", "r0", "r6", "r61", "r67"]


def test_sessions_are_of_one_namespace_and_records_without_one_borrow_nothing() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("x0", "a", namespace="x", session="s"), fr.Record("y0", "b", namespace="y", session="s")])
    engine.add([fr.Record("y1", "c", namespace="y", session="s"), fr.Record("y2", "a", namespace="y")])
    near = fr.Query("a", namespaces=["x", "y"], neighbours=fr.Neighbours(2, 1))
    assert [name for name, _ in engine.search([near], 9)[0]] == ["x0", "y2"]
