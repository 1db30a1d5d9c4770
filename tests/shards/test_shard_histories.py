"""Whatever is written, and however it is cut into shards: the answers are those of one engine, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sharding import assert_same_answers, assert_same_records, outcome, sharded, split_over_all, write

import fanrank as fr

# Few words and few ids, so that ties, empty texts, unknown words and words in all records are frequent.
WORDS = ("ant", "bee", "cat", "dog")
SPACES = ("", "big", "team/a", "team/b")
SHARDS = (1, 2, 3, 7)

texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
ids = st.integers(0, 12).map(str)
# Far ahead of any clock, so that queries alone decide what has expired.
EXPIRY = 4e9
records = st.builds(
    fr.Record,
    ids,
    texts,
    namespace=st.sampled_from(SPACES),
    time=st.none() | st.integers(0, 9).map(float),
    type=st.sampled_from([None, "Fact", "Event"]),
    expires=st.sampled_from([None, None, None, EXPIRY]),
)
batches = st.lists(records, max_size=8)
writes = st.one_of(
    st.tuples(st.just("add"), batches),
    st.tuples(st.just("update"), batches),
    st.tuples(st.just("upsert"), batches),
    st.tuples(st.just("delete"), st.tuples(st.lists(ids, max_size=4), st.sampled_from(SPACES), st.booleans())),
    st.tuples(st.just("drop"), st.sampled_from(SPACES)),
    st.tuples(st.just("split"), st.sampled_from(SPACES)),
    st.tuples(st.just("search"), st.none()),
)
query_texts = st.lists(st.sampled_from((*WORDS, "elk")), max_size=4).map(" ".join)
scopes = st.one_of(
    st.fixed_dictionaries({"namespace": st.sampled_from(SPACES)}),
    st.fixed_dictionaries({"namespaces": st.lists(st.sampled_from(SPACES), min_size=1, max_size=3, unique=True)}),
    st.just({"under": "team"}),
)


@st.composite
def queries(draw: st.DrawFn) -> list[fr.Query]:
    made = []
    for _ in range(draw(st.integers(1, 4))):
        how: dict[str, Any] = dict(draw(scopes))
        how |= draw(st.fixed_dictionaries({}, optional={"k": st.integers(0, 20), "offset": st.integers(0, 5)}))
        how |= draw(st.fixed_dictionaries({}, optional={"min_score": st.sampled_from([0.0, 0.3, 1.0])}))
        if draw(st.booleans()):
            how["since"] = draw(st.sampled_from([0.0, 4.0]))
        if draw(st.booleans()):
            how |= {"now": 10.0, "half_life": 3.0}
        else:
            how |= draw(st.fixed_dictionaries({}, optional={"now": st.sampled_from([EXPIRY - 1, EXPIRY + 1])}))
        if draw(st.booleans()):
            how["filter"] = {"type": draw(st.sampled_from(["Fact", "Event", "Rumour"]))}
            how["statistics"] = draw(st.sampled_from(["namespace", "filtered"]))
        made.append(fr.Query(draw(query_texts), **how))
    return made


@pytest.mark.parametrize("method", ["lucene", "robertson", "bm25l", "okapi"])
@pytest.mark.parametrize("shards", SHARDS)
@given(history=st.lists(writes, max_size=8), data=st.data())
@settings(max_examples=12)
def test_any_history_gives_the_answers_of_one_engine(
    shards: int, method: str, history: list[tuple[str, Any]], data: st.DataObject
) -> None:
    one = fr.Engine(method=method)
    several = sharded(shards, split=["big"], method=method)
    for verb, what in [*history, ("search", None)]:
        if verb == "split":
            if len(several.coordinator.placement.homes(what)) == 1:
                split_over_all(several, what)
        elif verb == "search":
            batch = data.draw(queries())
            if method in ("robertson", "okapi"):
                batch = [fr.Query(q.text, namespace=q.namespace, namespaces=q.namespaces, under=q.under) for q in batch]
            assert_same_answers(one, several, batch, k=data.draw(st.integers(1, 6)))
        else:
            assert outcome(write, one, verb, what) == outcome(write, several, verb, what)
        assert_same_records(one, several, SPACES)
        # Over all namespaces too, a batch is numbered as one engine numbers it.
        assert list(several.records(namespace=None)) == list(one.records(namespace=None))
        assert [r.id for r in several.records(order="time", namespace=None, reverse=True, texts=False)] == [
            r.id for r in one.records(order="time", namespace=None, reverse=True, texts=False)
        ]
    assert len(several) == len(one)
    several.close()
