"""Pages, distinct hits and the newest records by every strategy and policy, and a strategy for each query or tenant.

The machine of memories holds pages of words, vectors and weights to the oracle.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from support.answers import TERMS, made, records
from support.few import each

import fanrank as fr
from fanrank.engine.hybrid.strategy import NAMED

pytestmark = pytest.mark.usefixtures("small_borders")

Pair = tuple[int, float]
Values = Sequence[Any]
MANY = 1000


def keep(ranking: list[Pair], shape: dict[str, Any], k: int, values: dict[str, Values]) -> list[Pair]:
    """The plain statement: hits below `min_score` left out, then those that repeat a better one, then a page."""
    least = shape.get("min_score")
    kept, seen = [], set()
    for number, score in ranking:
        if least is not None and score < least:
            continue
        if "collapse" in shape:
            value = values[shape["collapse"]][number]
            if value is not None:
                if value in seen:
                    continue
                seen.add(value)
        kept.append((number, score))
    offset = shape.get("offset", 0)
    return kept[offset : offset + shape.get("k", k)]


def numbered(hits: fr.Hits) -> list[list[Pair]]:
    """The hits by number of the record, after checking padding."""
    rows = []
    for row in range(len(hits)):
        count = int(hits.counts[row])
        assert (hits.documents[row, count:] == -1).all()
        assert (hits.scores[row, count:] == -np.inf).all()
        assert all(name is None for name in hits.ids[row, count:])
        assert (hits.documents[row, :count] >= 0).all()
        names = [int(name.removeprefix("r")) for name in hits.ids[row, :count]]
        rows.append(list(zip(names, hits.scores[row, :count].tolist(), strict=True)))
    return rows


@pytest.mark.parametrize("keywords", [{"offset": 1.5}, {"min_score": "x"}, {"collapse": ""}, {"half_life": "7d"}])
def test_a_batch_refuses_what_a_query_refuses(keywords: dict[str, Any]) -> None:
    with pytest.raises(fr.errors.QueryError, match=next(iter(keywords))):
        fr.Engine().search(["a1"], **keywords)


def test_one_query_is_a_batch_and_what_is_set_for_all_is_as_if_each_said_it() -> None:
    engine = made(records([["a1"], ["a1", "b2"], ["a1"]]), None)
    engine.add([fr.Record("t", "a1", role="user", namespace="t"), fr.Record("u", "a1", role="user")])
    for one in ("a1", fr.Query("a1"), {"text": "a1", "newest": None, "offset": None}):
        assert list(engine.search(one)) == list(engine.submit(one).result()) == list(engine.search(["a1"]))
    user, other = {"role": "user"}, fr.Query("a1", filter={"role": None}, namespace="t")
    expected = [fr.Query("a1", filter=user, under="t"), fr.Query(terms=["a1"], filter=user, under="t"), other]
    for ask in (engine.search, lambda *given, **how: engine.submit(*given, **how).result()):
        assert list(ask(["a1", ["a1"], other], 2, filter=user, under="t")) == list(engine.search(expected, 2))
    with pytest.raises(fr.errors.QueryError, match="query 0 names another namespace"):
        engine.namespace("").search("a1", namespace="t")
    with patch("fanrank.engine.search.batch.replace", side_effect=AssertionError("a query is made twice")):
        assert [hit.id for hit in engine.namespace("t").search(["a1", "b2"], 2, filter=user)[0]] == ["t"]
    assert engine.search([fr.Query(newest=True), "a1"], min_score=1e9).counts.tolist() == [4, 0]
    batches = [["a1", ["a1"]], [other]]
    streamed = [hits.to_dicts() for hits in engine.search_stream(batches, 2, filter=user, under="t")]
    assert streamed == [engine.search(batch, 2, filter=user, under="t").to_dicts() for batch in batches]
    with pytest.raises(TypeError, match=r"search_stream\(\) got .* 'filtr'; did you mean 'filter'\?"):
        engine.search_stream(batches, filtr=user)  # type: ignore[call-arg]


def rich_engine(path: Path | None, seed: int, count: int = 60) -> tuple[fr.Engine, dict[str, Values]]:
    """Records with everything that a strategy reads, in several segments of two namespaces, and their values."""
    rng = random.Random(seed)
    encoder = fr.OwnVectors(3)
    options: dict[str, Any] = {"analyzer": "minimal", "columns": {"project": "category"}, "encoder": encoder}
    engine = fr.Engine(**options) if path is None else fr.Engine.open(path, **options)
    names = [
        fr.Record(
            f"{n}",
            " ".join(rng.choices(TERMS[:4], k=rng.randrange(4))),
            time=rng.choice([None, float(rng.randrange(5))]),
            session=rng.choice(["s", "t", None]),
            importance=rng.choice([0.0, 0.5, None]),
            type=rng.choice(["Event", None]),
            embedding=rng.choice([None, [[rng.randint(1, 2), rng.randint(-2, 2), 1]]]),
            weights={rng.choice(TERMS): 1.0},
            extra={"project": rng.choice(["x", "y", None])},
            entities={"a1": "ana"} if n % 3 else None,
        )
        for n in range(count)
    ]
    own = names[:]
    for start in range(0, count, 13):
        piece = names[start : start + 13]
        for space in ("", "other"):
            engine.add([replace(record, id=f"{space}{record.id}", namespace=space) for record in piece])
    for space in ("", "other"):
        engine.delete([f"{space}{n}" for n in range(0, count, 9)], namespace=space)
        engine.update([replace(own[1], id=f"{space}1", namespace=space)])
    values: dict[str, Values] = {
        "text": [record.text for record in own],
        "session": [record.session for record in own],
        "importance": [record.importance for record in own],
        "project": [record.extra["project"] for record in own],
        "time": [record.time for record in own],
    }
    return engine, values


def rich_query(text: str, **fields: Any) -> fr.Query:
    base: dict[str, Any] = {"now": 5.0, "vector": [1.0, 1.0, 0.0], "weights": {"a1": 1.0}, "entities": ["ana"]}
    return fr.Query(text, **{**base, **fields})


EVERY = [name for name in NAMED if name != "dense-hnsw" and "first-sentence" not in name]
ROUTER = fr.Router({"fact": "bm25", "other": "rrf"}, "dense")
SOFT = fr.Router({"fact": "bm25", "other": "rrf"}, "sparse", classifier=None, soft=True)


@pytest.mark.parametrize("name", each([*EVERY, "cascade", "sure", "router", "soft"]))
def test_every_strategy_and_policy_keeps_the_same_of_its_ranking(name: str) -> None:
    engine, values = rich_engine(None, 3, 40)
    policies: dict[str, Any] = {
        "router": ROUTER,
        "soft": SOFT,
        "cascade": fr.Cascade(tau=0.2, escalate="rrf"),
        "sure": fr.Cascade(tau=0.0, escalate="rrf"),
    }
    strategy = policies.get(name, name)
    kinds = [None, "fact", "other"]
    shapes_of = [
        {},
        {"offset": 3},
        {"min_score": 0.02, "offset": 1},
        {"collapse": "text"},
        {"collapse": "project", "offset": 2},
        {"collapse": "time", "min_score": 0.001},
        {"collapse": "session", "k": 30},
        {"offset": 1000},
    ]
    texts = ["a1 b2", "when did a1 happen yesterday"]
    asked = [(text, kinds[n % 3], shape) for n, shape in enumerate(shapes_of) for text in texts]
    full = engine.search([rich_query(text, type=kind) for text, kind, _ in asked], MANY, strategy=strategy)
    batch = [rich_query(text, type=kind, **shape) for text, kind, shape in asked]
    hits = engine.search(batch, 4, strategy=strategy)
    plain = engine.search([rich_query(text, type=kind) for text, kind, _ in asked], 4, strategy=strategy)
    for row, (_, _, shape) in enumerate(asked):
        assert numbered(hits)[row] == keep(numbered(full)[row], shape, 4, values), shape
        if not shape:
            assert numbered(hits)[row] == numbered(plain)[row]
        if hits.counts[row]:
            found, score = hits[row][-1]
            assert hits.explain(row, found).score == score
            assert hits.explain(row, found).query == row
    if hits.decisions is not None:
        assert [d.strategy for d in hits.decisions] == [d.strategy for d in plain.decisions]


@pytest.mark.parametrize("strategy", ["rrf", "cascade"])
def test_a_reranker_orders_the_hits_of_a_page(strategy: str, tmp_path: Path) -> None:
    engine, values = rich_engine(tmp_path / "memory", 7)
    chosen: Any = fr.Cascade(tau=0.2, escalate="rrf") if strategy == "cascade" else strategy
    shape = {"offset": 3, "collapse": "text", "min_score": 0.001}
    batch = [rich_query("a1 b2", **shape), rich_query("a1 b2"), rich_query("c3", **shape)]
    before = engine.search(batch, 6, strategy=chosen)

    def lengths(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in pairs]

    hits = engine.search(
        batch, 6, strategy=chosen, reranker=fr.strategies.CheckedReranker(lengths, unchecked=True), rerank_depth=4
    )
    assert hits.reranked is not None
    for row in range(3):
        found, own = numbered(hits)[row], numbered(before)[row]
        head = sorted(own[:4], key=lambda pair: -len(values["text"][pair[0]]))
        assert found == [*head, *own[4:]]
    engine.close()


def test_a_text_is_read_once_whatever_becomes_of_its_segment(tmp_path: Path) -> None:
    engine = fr.Engine.open(tmp_path / "memory", analyzer="minimal")
    texts = ["a1 b2"] * 20 + [f"a1 w{n} filler words" for n in range(5)] + [f"c3 u{n}" for n in range(5)]
    engine.add(fr.Record(str(n), text) for n, text in enumerate(texts))
    read: list[str] = []
    store = engine.index.memory.store
    assert store is not None
    fetch = store.fetch
    with patch.object(store, "fetch", lambda namespace, ids, *rest: read.extend(ids) or fetch(namespace, ids)):
        asked = [fr.Query("a1", collapse="text"), fr.Query("c3", collapse="text", min_score=0.1), "a1"]
        hits = engine.search(asked, 3)
        engine.delete(["3"])
        engine.add([fr.Record("new", "c3 u1"), fr.Record("newer", "a1 b2")])
        assert len(engine.index.memory.snapshot("").segments) > 1
        (between,) = engine.search("a1", 30, collapse="text")
        assert [name for name, _ in between] == ["0", *map(str, range(20, 25))]
        assert between[0].copies is not None
        assert between[0].copies[-1] == "newer"
        engine.flush()
        engine.index.memory.renumber(all_unused=True)
        later = engine.search("a1", 3, collapse="text")
    assert [name for name, _ in hits[0]] == [name for name, _ in later[0]] == ["0", "20", "21"]
    assert [name for name, _ in hits[1]] == ["25", "26", "27"]
    assert hits[0][0].copies == tuple(map(str, range(1, 20)))
    assert later[0][0].copies == (*(name for name in hits[0][0].copies if name != "3"), "newer")
    assert [hit.copies for hit in hits[2]] == [None] * 3
    assert sorted(read) == sorted([*map(str, range(30)), "new", "newer"])
    engine.close()


@pytest.mark.parametrize("fields", [{"min_score": 1.0}, {"strategy": "rrf"}, {"half_life": 1.0, "now": 1.0}])
def test_a_query_for_the_newest_has_no_scores(fields: dict[str, Any]) -> None:
    with pytest.raises(fr.errors.QueryError, match="is not scored"):
        fr.Query(newest=True, **fields)


MIXED: list[Any] = [
    None,
    "bm25",
    "rrf",
    NAMED["decay"],
    NAMED["dense"].to_dict(),
    "recall",
    "cascade",
    {"kind": "router", "table": {}, "default": "sparse"},
    ROUTER,
]


@pytest.mark.parametrize("seed", range(2))
def test_a_row_has_the_answer_of_its_strategy_alone(seed: int) -> None:
    engine, _ = rich_engine(None, seed)
    rng = random.Random(seed)
    batch = [
        rich_query(
            rng.choice(["a1", "b2 c3", "", "unknown"]),
            strategy=rng.choice(MIXED),
            namespace=rng.choice(["", "other", "empty"]),
            k=rng.choice([None, 0, 2, 40]),
            offset=rng.choice([0, 2]),
            id=f"q{n}",
        )
        for n in range(40)
    ]
    for row in range(0, 40, 7):
        batch[row] = fr.Query(newest=True, namespace=rng.choice(["", "other", "empty"]), id=f"q{row}")
    hits = engine.search(batch, 5, timing=True)
    assert hits.timing is not None
    assert hits.scores.shape == (40, 40)
    assert hits.queries == tuple(batch)
    for row, own in enumerate(batch):
        alone = engine.search([own], 5)
        count = int(alone.counts[0])
        width = alone.scores.shape[1]
        assert hits.counts[row] == count
        assert hits.scores[row, :width].tobytes() == alone.scores[0].tobytes()
        assert hits.documents[row, :width].tolist() == alone.documents[0].tolist()
        assert (hits.documents[row, width:] == -1).all()
        assert hits[row] == alone[0]
        if count and not own.newest:
            found, _ = hits[row][0]
            assert hits.explain(row, found) == alone.explain(0, found).at(row)
            assert hits.explain(row, found).query == row
        assert hits.decisions is not None
        if alone.decisions is not None:
            assert hits.decisions[row].strategy == alone.decisions[0].strategy
        twins = [other for other in range(40) if hits.source[other] == hits.source[row]]
        assert all(hits[other] == hits[row] for other in twins)
    part = hits.slice(10, 30, 40, tuple(batch[10:30]))
    assert part.ids.tolist() == hits.ids[10:30].tolist()
    for row in range(20):
        if part.counts[row] and not batch[10 + row].newest:
            found, _ = part[row][0]
            assert part.explain(row, found) == hits.explain(10 + row, found).at(row)


def test_the_default_of_a_mapping() -> None:
    engine, _ = rich_engine(None, 2)
    asked = [
        rich_query("a1"),
        rich_query("a1", namespace="other"),
        rich_query("a1", namespace="other", strategy="dense"),
    ]
    rows = {
        name: [engine.search([replace(own, strategy=None)], strategy=name)[0] for own in asked]
        for name in ("bm25", "rrf", "dense")
    }
    by_namespace = fr.routing.ByNamespace
    assert [*engine.search(asked, strategy={"other": "rrf"})] == [rows["bm25"][0], rows["rrf"][1], rows["dense"][2]]
    assert [*engine.search(asked, strategy={"": "rrf"})] == [rows["rrf"][0], rows["rrf"][1], rows["dense"][2]]
    given = by_namespace({"": "rrf"}, default="dense")
    assert [*engine.search(asked, strategy=given)] == [rows["rrf"][0], rows["dense"][1], rows["dense"][2]]
    assert by_namespace.of(given.to_dict()) == given
    assert [*engine.search(asked, strategy=given.to_dict())] == [*engine.search(asked, strategy=given)]
    assert engine.search([], strategy=given).scores.shape == (0, 10)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({}, "empty"),
        ({"t": "nonsense"}, "namespace 't': unknown strategy 'nonsense'"),
        ({"t": 5}, "namespace 't': a strategy is a name"),
        ({"kind": "by-namespace"}, "has 'strategies' and 'default'"),
        ({5: "bm25"}, "a namespace's name must be a string"),
        # A wrong field is no tenant.
        ({"kind": "oracle"}, "^(?!.*ByNamespace)"),
        ({"kind": "cascade", "tau": -1}, "^(?!.*ByNamespace)"),
        ({"name": "x", "channels": 3}, "^(?!.*ByNamespace)"),
    ],
)
def test_a_mapping_that_is_none_is_refused(strategy: Any, message: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=message):
        fr.Engine().search(["a1"], strategy=strategy)


@pytest.mark.parametrize("name", ["name", "kind"])
def test_a_tenant_of_any_name_has_a_strategy(name: str) -> None:
    engine = made([fr.Record("r0", "a1", namespace=name), fr.Record("r1", "a1")], None, encoder=fr.OwnVectors(3))
    mappings: list[Any] = [{name: "recall", "": "bm25"}, {name: fr.Cascade()}, {name: "cascade", "t": "rrf"}]
    for plain in mappings:
        with pytest.raises(fr.errors.ParameterError, match=f"for a namespace called '{name}' pass fanrank.routing.By"):
            engine.search(["a1"], strategy=plain)
    strategies = fr.routing.ByNamespace({name: "recall"})
    batch = [fr.Query("a1", namespace=name, vector=[1.0, 0.0, 0.0]), "a1"]
    for mapping in (strategies, strategies.to_dict()):
        hits = engine.search(batch, strategy=mapping)
        assert [one.strategy for one in hits.decisions] == ["recall", "bm25"]


def test_errors_of_a_part_name_the_row_of_the_batch() -> None:
    engine = made(records([["a1"]]), None, encoder=fr.OwnVectors(3))
    wrong = fr.Query("a1", strategy="dense", vector=[1.0])
    with pytest.raises(fr.errors.QueryError, match="query 2: its vector has 1 dimensions"):
        engine.search(["a1", "a1", wrong])
    with pytest.raises(fr.errors.QueryError, match="query 1: unknown strategy 'nonsense'"):
        engine.search(["a1", fr.Query("a1", strategy="nonsense")])
    for newest in (False, True):
        with pytest.raises(fr.errors.QueryError, match="1: no column 'colour' to collapse by; there are: text, "):
            engine.search(["a1", fr.Query("a1", newest=newest, collapse="colour")])


def test_streams_and_candidates_refuse_what_they_do_not_answer() -> None:
    engine, values = rich_engine(None, 2)
    for own in (fr.Query("a1", strategy="rrf"), fr.Query(newest=True)):
        with pytest.raises(fr.errors.QueryError, match=r"query 1 .*search_stream answers by bm25 alone; use search"):
            next(engine.search_stream([["a1", own]]))
        with pytest.raises(fr.errors.QueryError, match="query 1: candidates"):
            engine.candidates(["a1", own], "bm25")
    with pytest.raises(fr.errors.QueryError, match="query 0: candidates"):
        engine.candidates([fr.Query("a1", offset=1)], "bm25")
    shape = {"offset": 1, "collapse": "session"}
    (hits,) = engine.search_stream([[fr.Query("a1", **shape)]], 3)
    assert numbered(hits)[0] == keep(numbered(engine.search(["a1"], MANY))[0], shape, 3, values)


def test_a_hit_with_the_least_score_stays() -> None:
    engine, _ = rich_engine(None, 8)
    for strategy in ("bm25", "rrf", "sparse"):
        (ranking,) = engine.search([rich_query("a1 b2")], MANY, strategy=strategy)
        for _, score in ranking[:: max(len(ranking) // 4, 1)]:
            (kept,) = engine.search([rich_query("a1 b2", min_score=score)], MANY, strategy=strategy)
            assert kept == [hit for hit in ranking if hit[1] >= score]


@pytest.mark.parametrize("strategy", ["bm25", "dense", "sparse"])
def test_a_row_is_searched_until_its_page_is_full(strategy: str) -> None:
    engine = fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(2))
    sessions = ["s"] * 150 + ["t"] * 40 + ["u", None, "v", "w"]
    engine.add(
        fr.Record(str(n), "a1 " * (200 - n), session=session, embedding=[[1000 - n, n]], weights={"a1": 1.5 - n / 200})
        for n, session in enumerate(sessions)
    )
    asked = fr.Query("a1", vector=[1.0, 0.0], weights={"a1": 1.0}, collapse="session")
    chosen = replace(NAMED[strategy], depth=1)
    (ranking,) = engine.search([replace(asked, collapse=None)], MANY, strategy=chosen)
    for k in (2, 3, 6, 9):
        hits = engine.search([asked, "a1" if strategy == "bm25" else asked], k, strategy=chosen)
        pairs = [(int(name), score) for name, score in ranking]
        expected = keep(pairs, {"collapse": "session"}, k, {"session": sessions})
        assert numbered(hits)[0] == expected
        assert len(expected) == min(k, 6)
        found, score = hits[0][-1]
        assert hits.explain(0, found).score == score


def test_a_filter_that_is_used_again_keeps_its_answer() -> None:
    # The records that score best do not pass, so a threshold of theirs would leave hits out.
    engine = fr.Engine(analyzer="minimal", columns={"kept": "category"})
    engine.add(
        fr.Record(
            str(n), "tea " + "x " * (20 + n % 7) if n % 3 else "tea " * 8, extra={"kept": "yes" if n % 3 else "no"}
        )
        for n in range(3000)
    )
    for gone in ([], [str(n) for n in range(3000) if n % 4 == 3]):
        engine.delete(gone)
        asked, kept = ["tea", "x tea"], fr.col("kept") == "yes"
        wanted = engine.search(asked, 3, filter=kept, execution="exhaustive")
        for _ in range(3):
            assert [*engine.search(asked, 3, filter=kept)] == [*wanted]


def test_the_newest_of_a_key_hides_what_it_corrects(tmp_path: Path) -> None:
    facts: list[tuple[str, Any, float | None, dict[str, Any]]] = [
        ("old", 1, 1.0, {}),
        ("new", 1.0, 2.0, {}),
        ("undated", True, None, {}),
        ("alone", None, 1.0, {}),
        ("future", 1, 9e9, {}),
        ("past", "1", 1.0, {"namespace": "n"}),
        ("same time", "1", 1.0, {"namespace": "n"}),
    ]
    engine = fr.Engine.open(tmp_path / "memory", columns={"key": "json"})
    for name, key, time, place in facts:
        engine.add([fr.Record(name, "tea", time=time, extra={} if key is None else {"key": key}, **place)])

    def ids(**keywords: Any) -> list[str]:
        return sorted(hit.id for hit in engine.search("tea", latest="key", **keywords)[0])

    assert ids() == ["alone", "new"]
    assert ids(now=1.5) == ["alone", "old"]
    assert ids(now=9e9) == ["alone", "future"]
    assert ids(until=1.5) == ["alone", "old"]
    assert ids(namespaces=["", "n"]) == ["alone", "new", "same time"]
    assert engine.search("tea", latest="key", newest=True).ids[0, 0] == "new"
    engine.delete(["new"])
    assert ids() == ["alone", "old"]
    engine.upsert([fr.Record("old", "coffee", time=3.0, extra={"key": 1})])
    hits = engine.search(["tea", fr.Query("tea", filter={"time": {">": 8e9}})], latest="key")
    assert [hit.id for hit in hits[0]] == ["alone"]
    assert hits.notes == (None, "no record that holds a word of the query passes its filter, scope and time range")
    engine.delete(["alone"])
    note = "a newer record hides each one that holds a word of the query (latest)"
    assert engine.search("tea", latest=["key"]).notes[0] == note
    for wrong in (["key", "role", "user"], 5):
        with pytest.raises(fr.errors.QueryError, match="the name of a column, or two, not"):
            engine.search("tea", latest=wrong)
    with pytest.raises(fr.errors.UnknownColumnError, match="no column 'subjct' to find the latest by"):
        engine.search("tea", latest="subjct")
    engine.close()


def test_a_query_about_a_day_without_records_says_so() -> None:
    engine = fr.Engine.from_records(
        [fr.Record("a", "tea", time="2024-03-11"), fr.Record("b", "tea", time="2024-03-13")]
    )
    none = "no record has a time in its time range"
    without, day = {"since": "2024-03-12", "until": "2024-03-12T23:59"}, {"since": "2024-03-13"}
    assert engine.search(["tea", "milk"], **without).notes == (none, none)
    assert engine.search([fr.Query("tea", **without), fr.Query(newest=True, **without)]).notes == (none, none)
    assert engine.search("tea", strategy="recall", **without).notes == (none,)
    assert engine.search(["tea", "milk"], **day).notes == (None, "no record holds a word of the query")
    assert engine.search(newest=True, queries=fr.Query(filter={"role": "user"}), **day).notes == (None,)
    engine.delete(["b"])
    assert engine.search("tea", **day).notes == engine.search("", newest=True, **day).notes == (none,)
    engine.delete(["a"])
    assert engine.search("", newest=True).notes == ("there are no records to search",)
