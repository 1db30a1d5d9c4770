"""Every strategy over shards: the answers of one engine, bit for bit, in one shard or in all."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from support import borders
from support.hashing import Hashing
from support.sharding import (
    DAY,
    NOW,
    RERANKER,
    assert_in_order,
    assert_same_answers,
    conversations,
    outcome,
    sharded,
    split_over_all,
)

import fanrank as fr
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.records.explanation import Explanation, FusedExplanation
from fanrank.engine.route.policy import POLICIES
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.search.routing import adds_up
from fanrank.strategies import RRF, Dense, Learned, Lexical, ZScore

SHARDS = (*(pytest.param(shards, marks=pytest.mark.extended) for shards in (1, 2)), 3)


@cache
def memories(shards: int) -> tuple[fr.Engine, ShardedEngine]:
    """One engine, and shards over which the namespace "big" is split, after the same writes.

    Each shard has several segments with deleted records, the rest of a namespace that was split late, and one that
    came from another shard.
    """
    options: dict[str, Any] = {"encoder": Hashing(dimension=8), "columns": {"kind": "category", "rank": "number"}}
    one, several = fr.Engine(**options), sharded(shards, **options)
    records = conversations(400)
    with borders.shrunken(MAX_SEGMENT_DOCUMENTS=40, INLINE_DOCUMENTS=8):
        for start in range(0, 400, 40):
            if start == 200:
                split_over_all(several, "big")
                home = several.coordinator.placement.home("team/a")
                several.coordinator.place("team/a", ((home + 1) % shards,))
            for engine in (one, several):
                engine.add(records[start : start + 40])
        for engine in (one, several):
            engine.update([fr.Record(r.id, r.text + " ant", namespace=r.namespace, time=r.time) for r in records[::9]])
            for record in records[5::11]:
                engine.delete([record.id], namespace=record.namespace)
    segments = [link.shard.engine.stats()["segments"] for link in several.coordinator.links]  # type: ignore[attr-defined]
    assert min(segments) > 3
    assert_in_order(several)
    return one, several


def queries(**how: Any) -> list[fr.Query]:
    weights = {"ant": 1.0, "bee": 0.5}
    texts = ("ant bee", "cat dog dog unknown", "who met the fox yesterday?", "unknown words", "", "ant bee")
    scopes: tuple[dict[str, Any], ...] = ({"namespace": "big"}, {"namespace": "team/a"})
    return [fr.Query(text, now=NOW, weights=weights, **scope, **how) for scope in scopes for text in texts]


@pytest.mark.parametrize("other", [{"windows": 1}, {"neighbours": {"window": 2}}, {"collapse": "kind"}], ids=str)
def test_queries_of_one_split_namespace_that_cannot_be_answered_in_the_same_way(other: dict[str, Any]) -> None:
    options: dict[str, Any] = {"columns": {"kind": "category"}}
    one, several = fr.Engine(**options), sharded(2, split=["big"], **options)
    # The newest window holds one record, so one shard has none of it.
    records = [
        fr.Record(f"r{n}", "ant bee", "big", time=n * 40 * DAY, session="s", extra={"kind": "x"}) for n in range(8)
    ]
    for engine in (one, several):
        engine.add(records)
    plain, apart = fr.Query("ant bee", namespace="big"), fr.Query("ant bee", namespace="big", **other)
    for batch in ([plain, apart, plain], [apart, plain, apart]):
        assert_same_answers(one, several, batch, k=20)


def test_why_a_query_has_no_hits_is_what_one_engine_says() -> None:
    one, several = fr.Engine(), sharded(2, split=["big"])
    words = ["ant", "bee", "cat", "dog", "emu", "fox", "gnu", "hen"]
    records = [fr.Record(f"r{n}", word, "big", time=n * DAY) for n, word in enumerate(words)]
    for engine in (one, several):
        engine.add(records)
    within = [*({"since": n * DAY, "until": n * DAY} for n in range(8)), {"since": 2.5 * DAY, "until": 2.9 * DAY}]
    batch = [
        fr.Query(text, namespace=space, newest=text == "", filter=None if text else {"role": "user"}, **range)
        for range in within
        for text in ("bee", "hen", "unknown", "")
        for space in ("big", "nothing")
    ]
    assert several.search(batch).notes == one.search(batch).notes
    assert len({*one.search(batch).notes}) == 5


@pytest.mark.parametrize("name", [*NAMED, *POLICIES])
@pytest.mark.parametrize("shards", SHARDS)
def test_every_strategy(shards: int, name: str) -> None:
    if name == "dense-hnsw":
        pytest.importorskip("faiss", reason="approximate search needs faiss")
    one, several = memories(shards)
    for k in (3, 500):
        assert_same_answers(one, several, queries(), k=k, strategy=name)


@pytest.mark.parametrize("name", ["bm25", "dense", "sparse", "rrf", "fused", "agent_rrf", "recall"])
@pytest.mark.parametrize("shards", SHARDS)
def test_several_namespaces_follow_each_other(shards: int, name: str) -> None:
    one, several = memories(shards)
    batch = [
        fr.Query("ant bee", namespaces=["team/b", "big", "team/a"], now=NOW, weights={"ant": 1.0}),
        fr.Query("ant bee", under="team", now=NOW, weights={"ant": 1.0}),
        fr.Query("cat", namespaces=["nothing", "team/a"], now=NOW, weights={"ant": 1.0}),
        fr.Query("cat", namespace="nothing", now=NOW, weights={"ant": 1.0}),
    ]
    assert_same_answers(one, several, batch, k=9, strategy=name)


@pytest.mark.parametrize(
    "how",
    [
        {"filter": {"kind": "x"}},
        {"filter": {"kind": "x"}, "statistics": "filtered"},
        {"since": NOW - 30 * DAY, "until": NOW},
        {"windows": 3},
        {"windows": "auto"},
        {"half_life": 5 * DAY},
        {"offset": 4},
        {"min_score": 0.7},
        {"offset": 2, "min_score": 0.2, "k": 0},
        {"collapse": "text"},
        {"collapse": "kind", "offset": 1},
        {"unit": "exchange"},
        {"neighbours": fr.Neighbours(1, 0.5)},
        {"newest": True},
        {"strategy": "fused"},
        {"scope": fr.SearchScope.session("s3")},
    ],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["bm25", "dense", "fused"])
@pytest.mark.parametrize("shards", SHARDS)
def test_every_setting_of_a_query(shards: int, strategy: str, how: dict[str, Any]) -> None:
    one, several = memories(shards)
    assert_same_answers(one, several, queries(**how), k=5, strategy=strategy)


def test_a_hit_of_just_the_least_score_is_one() -> None:
    one, several = memories(3)
    asked = fr.Query("ant bee", namespace="big", now=NOW)
    _, least = one.search([asked], 5)[0][-1]
    assert_same_answers(one, several, [replace(asked, min_score=least)], k=5)


@pytest.mark.parametrize("strategy", ["bm25", "fused", "recall", "cascade"])
@pytest.mark.parametrize("shards", SHARDS)
def test_texts_and_payloads(shards: int, strategy: str) -> None:
    one, several = memories(shards)
    assert_same_answers(one, several, queries(), k=5, strategy=strategy, texts=True, payload=True)
    assert all("fanrank_order" not in hit.record.extra for row in several.search(queries(), texts=True) for hit in row)


@pytest.mark.parametrize("shards", SHARDS)
def test_a_strategy_for_each_query_and_namespace(shards: int) -> None:
    one, several = memories(shards)
    mixed = [
        fr.Query("ant bee", namespace=space, now=NOW, strategy=strategy)
        for space in ("big", "team/a", "team/b")
        for strategy in ("bm25", "fused", "recall", None)
    ]
    assert_same_answers(one, several, mixed, k=5)
    assert_same_answers(one, several, queries(), k=5, strategy={"big": "recall", "": "dense"})
    assert_same_answers(one, several, queries(), k=5, strategy={"big": "bm25", "team/a": "cascade"})
    assert_same_answers(one, several, [*mixed, fr.Query("ant", namespace="big", newest=True)], k=5)
    assert_same_answers(one, several, [], k=5)


@pytest.mark.parametrize("shards", SHARDS)
def test_fusions_of_all_channels_that_add_up(shards: int) -> None:
    one, several = memories(shards)
    for fusion in (RRF(), ZScore()):
        for depth in (1, 4, None):
            strategy = fr.Strategy("all", (Lexical(), Dense(), Learned()), fusion, depth=depth)
            assert adds_up(strategy)
            assert_same_answers(one, several, queries(), k=3, strategy=strategy)
    whole = fr.Strategy("whole", (Lexical(), Dense()), ZScore(), depth=None, complete=True)
    assert_same_answers(one, several, queries(), k=3, strategy=whole)


@pytest.mark.parametrize("shards", SHARDS)
def test_bad_batches_are_refused_alike(shards: int) -> None:
    one, several = memories(shards)
    good = fr.Query("ant", namespace="big")
    for batch, how in (
        ([good, fr.Query("ant", namespace="big", filter={"nobody": 1})], {}),
        ([good, fr.Query("ant", namespace="team/a", collapse="nobody")], {}),
        ([good, fr.Query("ant", namespace="big", vector=[1.0, 2.0])], {"strategy": "dense"}),
        ([good, good], {"k": -1}),
        ([good, 7], {}),
        ("ant", {}),
        ([good], {"strategy": "nobody"}),
        ([good], {"strategy": "sparse"}),
        ([fr.Query("ant", namespace="team/a"), fr.Query("ant", namespace="big", strategy="sparse")], {}),
        ([good], {"threads": 0}),
    ):
        assert_same_answers(one, several, batch, refused=True, **how)


def test_more_whole_copies_in_one_batch_than_attempts() -> None:
    names = [f"space{number}" for number in range(9)]
    records = [fr.Record(str(number), "ant bee. cat dog.", name) for name in names for number in range(6)]
    encoder = Hashing(dimension=8)
    one, several = fr.Engine(encoder=encoder), sharded(3, split=names[:7], encoder=encoder)
    for engine in (one, several):
        engine.add(records)
    batch = [fr.Query("ant bee", namespace=name, now=NOW) for name in names]
    for name in ("rm3", "first-sentence", "recall"):
        assert_same_answers(one, several, batch, k=4, strategy=name)
    several.close()


@pytest.mark.parametrize("strategy", ["bm25", "fused"])
@pytest.mark.parametrize("shards", SHARDS)
def test_a_reranker_reads_the_texts_of_all_shards(shards: int, strategy: str) -> None:
    one, several = memories(shards)
    assert_same_answers(one, several, queries(), k=6, strategy=strategy, reranker=RERANKER, rerank_depth=4)


def unnumbered(explanation: Explanation | FusedExplanation) -> dict[str, Any]:
    """An explanation without the numbers of documents, which each engine gives for itself."""
    shown = explanation.to_dict()
    for part in (shown, shown.get("lexical") or {}):
        part.pop("document", None)
    return shown


@pytest.mark.parametrize("strategy", ["bm25", "fused", "recall"])
@pytest.mark.parametrize("shards", SHARDS)
def test_explanations(shards: int, strategy: str) -> None:
    one, several = memories(shards)
    expected, answer = (engine.search(queries(), k=3, strategy=strategy) for engine in (one, several))
    for row in range(len(answer)):
        for name in answer.ids[row].tolist()[:2]:
            if name is None:
                continue
            assert unnumbered(answer.explain(row, name)) == unnumbered(expected.explain(row, name))
    with pytest.raises(fr.errors.UnknownIdError, match="nobody"):
        several.explain(queries()[0], "nobody", strategy=strategy)
    with pytest.raises(fr.errors.QueryError, match="no query 99"):
        answer.explain(99, "r1")


def test_tenants_whose_whole_copies_have_no_room_together_are_answered_in_turn() -> None:
    settings = {"whole_at": 12}
    one, several = fr.Engine(), sharded(2, split=["ana", "bo"], settings=settings)
    for engine in (one, several):
        engine.add([fr.Record(f"r{n}", f"tea {n % 3}", name) for name in ("ana", "bo") for n in range(10)])
    both = [fr.Query("tea 1", namespace=name) for name in ("ana", "bo")]
    for query in (*both, *both):
        assert_same_answers(one, several, [query], strategy="rm3")
    # An error of queries that may be of several callers names nobody's namespace.
    with pytest.raises(fr.errors.SplitNamespaceError, match="the batch reads its records as one") as failure:
        several.search(both, strategy="rm3")
    assert "ana" not in str(failure.value)
    several.add([fr.Record(f"s{n}", "tea", "bo") for n in range(3)])
    with pytest.raises(fr.errors.SplitNamespaceError, match=r"'bo' lies in several shards and holds 13 records"):
        several.search([both[1]], strategy="rm3")
    assert_same_answers(one, several, [both[0]], strategy="rm3")


@pytest.mark.parametrize("name", [*NAMED])
@pytest.mark.parametrize("shards", SHARDS)
def test_candidates_of_every_strategy(shards: int, name: str) -> None:
    if name == "dense-hnsw":
        pytest.importorskip("faiss", reason="approximate search needs faiss")
    one, several = memories(shards)
    batch = [*queries(), fr.Query("ant bee", namespaces=["team/b", "big"], now=NOW, weights={"ant": 1.0})]
    known, name_known = one.candidates(batch, name)
    found, name_found = several.candidates(batch, name)
    assert name_found(found.documents).tolist() == name_known(known.documents).tolist()
    assert found.types == known.types
    for field in ("offsets", "now", "times", "importance"):
        np.testing.assert_array_equal(getattr(found, field), getattr(known, field))
    assert list(found.channels) == list(known.channels)
    for channel, own in known.channels.items():
        for field in ("scores", "scored", "listed", "offsets", "weights", "latest", "tied", "ranks"):
            np.testing.assert_array_equal(getattr(found.channels[channel], field), getattr(own, field))
    for row in range(len(batch)):
        assert (np.diff(found.documents[found.offsets[row] : found.offsets[row + 1]]) > 0).all()


def test_candidates_refuse_what_an_engine_refuses() -> None:
    one, several = memories(2)
    for asked in ([fr.Query("ant", newest=True)], [fr.Query("ant", offset=1)], 5):
        refused = outcome(one.candidates, asked, "rrf")
        assert refused == outcome(several.candidates, asked, "rrf")
        assert issubclass(refused[0], fr.FanrankError)
