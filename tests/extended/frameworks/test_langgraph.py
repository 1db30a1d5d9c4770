"""`FanrankStore` answers as InMemoryStore does, keeps what it acknowledged, and keeps a batch whole."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("langgraph.store.base", reason="langgraph-checkpoint is not installed")

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

import fanrank as fr
from fanrank.integrations.langgraph import AsyncFanrankStore, FanrankStore

LETTERS = "abcd"
START = 2_000_000_000.0


def embed(texts: Any) -> list[list[float]]:
    """Components of 1 and -1, so that all cosines are multiples of a quarter, exactly."""
    return [[1.0 if letter in text else -1.0 for letter in LETTERS] for text in texts]


async def aembed(texts: Any) -> list[list[float]]:
    return embed(texts)


INDEX: Any = {"embed": embed, "dims": len(LETTERS), "fields": ["x", "y"]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What `time.time` gives, as a test sets it."""
    clock = SimpleNamespace(now=START)
    monkeypatch.setattr("time.time", lambda: clock.now)
    return clock


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


# A model: InMemoryStore made anew for each read, so that what it keeps of old items beyond their end (vectors of a
# value that was replaced, namespaces that were emptied or only asked for) is in no answer.


@dataclass
class Kept:
    op: PutOp
    created: float
    updated: float
    number: int


@dataclass
class Model:
    index: Any = None
    ranked: bool = True
    kept: dict[tuple[tuple[str, ...], str], Kept] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def batch(self, ops: list[Op], now: float) -> list[Any]:
        store = InMemoryStore(index=self.index)
        for kept in self.kept.values():
            store.batch([kept.op])
        results: list[Any] = [None] * len(ops)
        # A get brings a namespace into its lists, so gets come last.
        for n in sorted(range(len(ops)), key=lambda n: isinstance(ops[n], GetOp)):
            results[n] = None if isinstance(ops[n], PutOp) else self.read(store, ops[n])
        puts = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        for place, op in puts.items():
            old = self.kept.pop(place, None)
            if op.value is not None:
                self.kept[place] = Kept(op, now if old is None else old.created, now, next(self.numbers))
        return results

    def read(self, store: InMemoryStore, op: Any) -> Any:
        if not isinstance(op, SearchOp):
            (answer,) = store.batch([op])
            return self.shown(answer) if isinstance(answer, Item) else answer
        (found,) = store.batch([op._replace(limit=10**6, offset=0)])
        assert isinstance(found, list)
        scored = [item for item in found if isinstance(item, SearchItem) and item.score is not None]
        rest = [item for item in found if isinstance(item, SearchItem) and item.score is None]
        scored.sort(key=lambda item: (-(item.score or 0.0), *self.age(item)))
        rest.sort(key=lambda item: (self.kept[item.namespace, item.key].updated, *self.age(item)), reverse=True)
        return [self.shown(item) for item in (scored + rest)[op.offset : op.offset + op.limit]]

    def age(self, item: Item) -> tuple[str, int]:
        """Of equal scores, the namespace whose name sorts first comes first, then the item that was put first."""
        path = "/".join(label.replace("%", "%0025").replace("/", "%002F") for label in item.namespace)
        return path, self.kept[item.namespace, item.key].number

    def shown(self, item: Item) -> dict[str, Any]:
        kept = self.kept[item.namespace, item.key]
        times = {"created_at": moment(kept.created), "updated_at": moment(kept.updated)}
        return {**shown(item), **times}


def shown(item: Any) -> dict[str, Any]:
    names = ("namespace", "key", "value", "created_at", "updated_at", "score")
    return {name: getattr(item, name) for name in names if hasattr(item, name)}


def plain(results: list[Any]) -> list[Any]:
    """Results as values that compare."""

    def one(result: Any) -> Any:
        if isinstance(result, list):
            return [shown(item) if isinstance(item, Item) else item for item in result]
        return shown(result) if isinstance(result, Item) else result

    return [one(result) for result in results]


SPACES = [("u",), ("u", "a"), ("u", "b"), ("v",), ("v", "a/b"), ("v", "a%002Fb"), ("v", "a", "b")]
KEYS = ["k", "l", "", "%", "é/ü", "%0025"]
TEXTS = ["", "a", "ab", "abc", "cd", "zz"]
values = st.fixed_dictionaries(
    {"x": st.sampled_from(TEXTS), "n": st.integers(0, 3), "tag": st.sampled_from(["red", "blue"])},
    optional={"y": st.sampled_from(["bcd!", "ad!"]), "deep": st.just({"list": [1, {"a": None}]})},
)
# Most operations meet the same few items.
spaces, keys = st.sampled_from([("u",), ("u", "a")] * 4 + SPACES), st.sampled_from(["k"] * 8 + KEYS)
puts = st.builds(PutOp, spaces, keys, values, st.sampled_from([None, False, ["x"], ["y", "x"], ["none"]]), st.none())
deletes = st.builds(PutOp, spaces, keys, st.none(), st.none(), st.none())
gets = st.builds(GetOp, spaces, keys)
searches = st.builds(
    SearchOp,
    st.sampled_from([(), ("w",), ("v", "a"), *SPACES]),
    st.sampled_from([None, {}, {"tag": "red"}, {"n": {"$gte": 2}, "tag": {"$ne": "red"}}, {"none": 1}]),
    st.integers(0, 6),
    st.integers(0, 3),
    st.sampled_from([None, "", "a", "bd", "abcd", "zzz"]),
)
paths = st.sampled_from([("u",), ("*",), ("u", "*"), ("a",), ("b",), ("*", "b"), ("v", "a/b"), ("w", "w", "w", "w")])
conditions = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), paths)
lists = st.builds(
    ListNamespacesOp,
    st.one_of(st.none(), st.lists(conditions, max_size=2).map(tuple)),
    st.sampled_from([None, 1, 2, 3]),
    st.integers(0, 5),
    st.integers(0, 2),
)
batches = st.lists(
    st.lists(st.one_of(puts, puts, puts, deletes, gets, searches, searches, lists), max_size=8), max_size=6
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("strategy", ["dense", "unranked"])
@given(batches=batches)
@quick
def test_batches_are_answered_as_by_the_store_of_the_framework(
    strategy: str, batches: list[list[Op]], clock: SimpleNamespace
) -> None:
    ranked = strategy == "dense"
    store = FanrankStore(index=INDEX if ranked else None, strategy=strategy)
    awaited = FanrankStore(index={**INDEX, "embed": aembed} if ranked else None, strategy=strategy)
    single = FanrankStore(index=INDEX if ranked else None, strategy=strategy)
    model = Model(INDEX if ranked else None)
    for batch in batches:
        clock.now += 1
        expected = model.batch(batch, clock.now)
        assert plain(store.batch(batch)) == expected
        assert plain(asyncio.run(awaited.abatch(batch))) == expected
        reads = [op for op in batch if not isinstance(op, PutOp)]
        alone = [single.batch([op])[0] for op in reads]
        assert plain(alone) == [one for op, one in zip(batch, expected, strict=True) if not isinstance(op, PutOp)]
        single.batch([op for op in batch if isinstance(op, PutOp)])
    for one in (store, awaited, single):
        one.close()


def test_the_whole_value_is_searched_where_no_fields_are_named() -> None:
    store = FanrankStore()
    store.put(("a",), "1", {"food preference": "I like\npizza", "nested": [{"city": "Kraków"}, 4711]})
    store.put(("a",), "2", {"other": None})
    for text in ("pizza", "preference", "Kraków", "4711"):
        assert [item.key for item in store.search(("a",), query=text)] == ["1"], text
    assert store.search(("a",), query="npizza null") == []
    store.put(("a",), "1", {"text": "tea", "more": "coffee"}, index=["more"])
    assert [len(store.search(("a",), query=text)) for text in ("tea", "coffee", "pizza")] == [0, 1, 0]
    store.put(("a",), "1", {"text": "tea"}, index=False)
    assert store.search(("a",), query="tea") == []
    assert len(store.search(("a",))) == 2


def test_the_best_field_counts_and_each_text_is_embedded_once() -> None:
    asked: list[list[str]] = []

    def counting(texts: Any) -> list[list[float]]:
        asked.append([*texts])
        return embed(texts)

    store = FanrankStore(index={**INDEX, "embed": counting, "fields": ["x", "parts[*].y"]}, strategy="dense")
    value = {"x": "ab", "parts": [{"y": "cd"}, {"y": "abd"}, {"y": "ab"}]}
    store.batch([PutOp(("a",), "1", value), PutOp(("b",), "1", {"x": "ab"})])
    found = store.batch(
        [SearchOp((), None, 10, 0, "abd"), SearchOp(("b",), None, 10, 0, "abd"), SearchOp((), query="ab")]
    )
    assert asked == [["ab", "cd", "abd"], ["abd", "ab"]]
    assert [[(item.namespace, item.score) for item in row] for row in found] == [  # type: ignore[union-attr]
        [(("a",), 1.0), (("b",), 0.5)],
        [(("b",), 0.5)],
        [(("a",), 1.0), (("b",), 1.0)],
    ]


def test_a_batch_is_one_durable_write(tmp_path: Path) -> None:
    with FanrankStore(tmp_path / "m") as store:
        store.put(("a",), "old", {"n": 1})
        before = store.engine.stats()["writes"]
        ops = [PutOp((f"n{n}",), "k", {"n": n}) for n in range(9)]
        store.batch([*ops, PutOp(("a",), "old", None), GetOp(("n1",), "k"), PutOp(("n1",), "k", {"n": "last"})])
        assert store.engine.stats()["writes"] == before + 1
        assert store.get(("a",), "old") is None
        item = store.get(("n1",), "k")
        assert item is not None
        assert item.value == {"n": "last"}
        store.batch([GetOp(("n1",), "k"), SearchOp(()), ListNamespacesOp()])
        assert store.engine.stats()["writes"] == before + 1


def test_odd_names_come_back(tmp_path: Path) -> None:
    odd = ["/", "%", "a/b", "%002F", "\ud800", "\ud83d\ude00", " ", "\n", "é", "x" * 3000, "langgraph", "*"]
    names = [("r", label) for label in odd]
    places = [(name, key) for name in names for key in ("", *odd, "a.b", "\x00")]
    with FanrankStore(tmp_path / "m") as store:
        store.batch([PutOp(name, key, {"n": n}) for n, (name, key) in enumerate(places)])
    with FanrankStore(tmp_path / "m") as store:
        assert store.list_namespaces(limit=1000) == sorted(names)
        found = {item.value["n"]: (item.namespace, item.key) for item in store.search((), limit=10**6)}
        assert [found[n] for n in range(len(places))] == places
        items = [store.get(name, key) for name, key in places]
        assert [item and item.value["n"] for item in items] == [*range(len(places))]
        assert store.search(("r", "a")) == []


def test_items_expire_and_reads_refresh(clock: SimpleNamespace, tmp_path: Path) -> None:
    ttl: Any = {"default_ttl": 10, "refresh_on_read": True}
    with FanrankStore(tmp_path / "m", ttl=ttl) as store:
        assert store.supports_ttl
        store.put(("a",), "default", {"x": "tea"})
        store.put(("a",), "short", {"x": "tea"}, ttl=1)
        store.put(("a",), "never", {"x": "tea"}, ttl=None)
        before = store.get(("a",), "default", refresh_ttl=False)
        clock.now += 61
        assert store.get(("a",), "short") is None
        assert {item.key for item in store.search(("a",), query="tea", refresh_ttl=False)} == {"default", "never"}
        clock.now += 500  # 561 of 600 seconds
        assert {item.key for item in store.search(("a",))} == {"default", "never"}  # begins anew
        clock.now += 599
        assert store.get(("a",), "default") == before  # begins anew; times and value stay
        clock.now += 599
        assert store.get(("a",), "default", refresh_ttl=False) is not None
        clock.now += 1
        assert store.get(("a",), "default") is None
        assert store.list_namespaces() == [("a",)]
        store.put(("a",), "default", {"x": "new"})
        item = store.get(("a",), "default")
        assert item is not None
        assert item.created_at == moment(clock.now)
    clock.now += 1000
    with FanrankStore(tmp_path / "m") as store:
        assert [item.key for item in store.search(())] == ["never"]


def test_a_refresh_is_part_of_the_batch_s_write(clock: SimpleNamespace) -> None:
    store = FanrankStore()
    store.batch([PutOp(("a",), f"k{n}", {"n": n}, None, 1.0) for n in range(4)])
    clock.now += 30
    before = store.engine.stats()["writes"]
    store.batch([SearchOp(("a",), {"n": {"$lte": 2}}), PutOp(("a",), "k1", {"n": 1}), PutOp(("a",), "k2", None)])
    assert store.engine.stats()["writes"] == before + 1
    clock.now += 59  # 89 seconds: k3 was not read; k1 has no time to live any more; k2 is gone
    assert {item.key for item in store.search(("a",), refresh_ttl=False)} == {"k0", "k1"}
    clock.now += 1
    assert {item.key for item in store.search(("a",), refresh_ttl=False)} == {"k1"}


def test_a_refresh_does_not_bring_back_what_was_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FanrankStore()
    store.put(("a",), "k", {"n": 1}, ttl=5)
    rewrite = store.engine.rewrite

    def deleted_first(*arguments: Any) -> int:
        monkeypatch.setattr(store.engine, "rewrite", rewrite)
        store.delete(("a",), "k")
        return rewrite(*arguments)

    monkeypatch.setattr(store.engine, "rewrite", deleted_first)
    assert store.get(("a",), "k") is not None
    assert store.get(("a",), "k") is None


def test_expired_items_are_swept(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FanrankStore()
    store.put(("a",), "k", {"n": 1}, ttl=1)
    assert store.sweep_ttl() == 0
    clock.now += 60
    assert store.sweep_ttl() == 1
    swept = threading.Event()
    monkeypatch.setattr(store, "sweep_ttl", swept.set)
    future = store.start_ttl_sweeper(1e-6)
    assert store.start_ttl_sweeper() is future
    assert swept.wait(60)
    assert store.stop_ttl_sweeper(60)
    assert future.done()
    assert store.stop_ttl_sweeper()


def test_tasks_of_one_tick_are_one_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run() -> None:
        store = AsyncFanrankStore(tmp_path / "m", index=INDEX, strategy="dense")
        launched: list[int] = []
        search = store.store.engine.asearch

        async def counted(queries: Any, *rest: Any, **keywords: Any) -> Any:
            launched.append(len(queries))
            return await search(queries, *rest, **keywords)

        monkeypatch.setattr(store.store.engine, "asearch", counted)
        await asyncio.gather(*(store.aput((f"n{n % 10}",), f"k{n}", {"x": TEXTS[n % 6], "n": n}) for n in range(200)))
        assert store.store.engine.stats()["writes"] == 1
        found = await asyncio.gather(
            *(store.asearch((f"n{n % 10}",), query=TEXTS[1 + n % 5], limit=1 + n) for n in range(200))
        )
        assert [launched[0], len(launched)] == [200, 2]  # short lists go on with the items without a vector
        sync = store.store
        for n, items in enumerate(found):
            assert plain(items) == plain(sync.search((f"n{n % 10}",), query=TEXTS[1 + n % 5], limit=1 + n))
        assert (await store.aget(("n1",), "k1")) == sync.get(("n1",), "k1")
        assert store.supports_ttl
        await store.adelete(("n1",), "k1")
        assert await store.aget(("n1",), "k1") is None
        assert len(await store.alist_namespaces()) == 10
        sync.close()

    asyncio.run(run())


BAD: list[tuple[Any, type[Exception], str]] = [
    (PutOp((), "k", {}), InvalidNamespaceError, "empty namespace"),
    (PutOp(("langgraph", "a"), "k", {}), InvalidNamespaceError, "reserved"),
    (PutOp(("a", ""), "k", {}), InvalidNamespaceError, "is empty"),
    (PutOp(("a.b",), "k", {}), InvalidNamespaceError, "period"),
    (PutOp(("a\0",), "k", {}), InvalidNamespaceError, "NUL"),
    (PutOp((1,), "k", {}), InvalidNamespaceError, "must be a string, not int"),  # type: ignore[arg-type]
    (PutOp("ab", "k", {}), InvalidNamespaceError, "must be a tuple"),  # type: ignore[arg-type]
    (GetOp(("a.b",), "k"), InvalidNamespaceError, "period"),
    (SearchOp(("",)), InvalidNamespaceError, "is empty"),
    (ListNamespacesOp((MatchCondition("prefix", ("a.b",)),)), InvalidNamespaceError, "period"),
    (ListNamespacesOp((MatchCondition("infix", ("a",)),)), ValueError, "'infix'"),  # type: ignore[arg-type]
    (PutOp(("a",), 1, {}), ValueError, "a key must be a string, not 1"),  # type: ignore[arg-type]
    (PutOp(("a",), "k", [1]), ValueError, "must be a mapping, not list"),  # type: ignore[arg-type]
    (PutOp(("a",), "k", {1: 2}), ValueError, "must have strings as keys, not 1"),  # type: ignore[dict-item]
    (PutOp(("a",), "k", {"when": datetime.now}), ValueError, "'k'"),
    (PutOp(("a",), "k", {}, "x"), ValueError, "a list of paths"),  # type: ignore[arg-type]
    (PutOp(("a",), "k", {}, None, -1), ValueError, "ttl must be minutes"),
    (SearchOp(("a",), {"n": {"$in": [1]}}), ValueError, r"\$in"),
    (SearchOp(("a",), limit=-1), ValueError, "-1"),
    (SearchOp(("a",), offset=-1), ValueError, "-1"),
    ("get", ValueError, "unknown operation"),
]


@pytest.mark.parametrize(("op", "kind", "words"), BAD, ids=range(len(BAD)))
def test_a_bad_operation_is_named_and_its_batch_does_nothing(op: Any, kind: type[Exception], words: str) -> None:
    store = FanrankStore()
    store.put(("a",), "old", {"n": 0}, ttl=9)
    writes = store.engine.stats()["writes"]
    good = PutOp(("a",), "new", {"n": 1}), GetOp(("a",), "old")
    for run in (store.batch, lambda ops: asyncio.run(store.abatch(ops))):
        with pytest.raises(kind, match=words) as caught:
            run([*good, op])
        assert isinstance(caught.value, fr.FanrankError)
        assert store.get(("a",), "new") is None
        assert store.engine.stats()["writes"] == writes
    store.engine.close()


def test_bad_stores_are_named(tmp_path: Path) -> None:
    bad: Any
    for bad, words in (
        ({"engine": fr.Engine().namespace("a")}, "give the engine"),
        ({"root": ""}, "root must be"),
        ({"root": "/a"}, "root must be"),
        ({"index": {"embed": embed}}, "needs 'dims'"),
        ({"engine": fr.Engine(), "index": INDEX}, "takes no vectors"),
        ({"engine": fr.Engine(encoder="own:5"), "index": INDEX}, "5 dimensions"),
        ({"engine": 5}, "must be a Memory"),
    ):
        with pytest.raises(fr.errors.ParameterError, match=words):
            FanrankStore(**bad)


def test_a_foreign_record_below_the_root_is_named() -> None:
    store = FanrankStore()
    store.engine.add([fr.Record("r", "tea", "langgraph/a"), fr.Record("s", "tea", "elsewhere/a")])
    with pytest.raises(fr.errors.StorageError, match="'r' in namespace 'langgraph/a' was not put"):
        store.search((), query="tea")
    assert FanrankStore(store.engine, root="other").search((), query="tea") == []
    store.put(("a",), "r", {"x": "coffee"})  # in its place
    assert [item.value for item in store.search((), query="coffee")] == [{"x": "coffee"}]


def test_a_filter_reads_the_value_alone_and_narrows_what_is_ranked() -> None:
    """Also where a key has the name of a column. Operators are compared in test_filters_of_frameworks.py."""
    rows: list[dict[str, Any]] = [
        {"x": "tea", "type": "note", "role": "user", "created_at": 5, "x.y": 7},
        {"x": "tea tea", "type": "fact", "c": {"d": [1, 2], "e": None}},
        {"x": "tea tea tea", "a": 1.5},
    ]
    store, model = FanrankStore(index={"fields": ["x"]}), InMemoryStore()  # type: ignore[typeddict-item]
    for target in (store, model):
        target.batch([PutOp((str(n),), str(n), value) for n, value in enumerate(rows)])
    for condition in (
        *({"type": "note"}, {"role": "user", "created_at": 5}, {"created_at": 5}, {"x.y": 7}, {"a": None}),
        *({"c": {"d": [1, 2]}}, {"c": {"e": None}}, {"type": {"$ne": "note"}}, {"nowhere": {"$eq": None}}),
    ):
        wanted = {item.key for n in range(3) for item in model.search((str(n),), filter=condition)}
        assert {item.key for item in store.search((), filter=condition)} == wanted, condition
        assert {item.key for item in store.search((), query="tea", filter=condition)} == wanted, condition
