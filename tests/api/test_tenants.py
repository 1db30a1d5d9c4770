"""Tenants: whatever one of them can observe is the same, to the bit, whether or not others share the engine."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import borders, history
from support.history import WORDS

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.storage.storage import Storage

NOW = 1_700_000_000.0
DAY = 86_400.0
A, B, C = "tenant-a", "tenant-b", "tenant-c"
SECRET = "secret-of-another"


def said(rng: random.Random, name: str, namespace: str, **more: Any) -> fr.Record:
    return fr.Record(
        name,
        " ".join(rng.choices(WORDS, k=rng.randrange(1, 7))),
        namespace,
        session=rng.choice(["s", "t", None]),
        user=rng.choice(["u", None]),
        time=rng.choice([None, NOW - DAY * rng.randrange(60)]),
        importance=rng.choice([None, rng.random()]),
        **more,
    )


def life(rng: random.Random) -> Iterator[tuple[str, list[Any]]]:
    """The same life of tenant A, write by write."""
    live: list[str] = []
    for number in range(30):
        batch = [said(rng, f"r{number}-{row}", A) for row in range(rng.randrange(1, 5))]
        live += [record.id for record in batch]
        yield "add", batch
        if number % 3 == 2:
            yield "update", [said(rng, name, A) for name in rng.sample(live, 3)]
        if number % 4 == 3:
            gone = rng.sample(live, 4)
            live = [name for name in live if name not in gone]
            yield "delete", gone


def write(engine: fr.Engine, verb: str, batch: list[Any], beside: list[fr.Record]) -> None:
    if verb == "delete":
        engine.delete(batch, namespace=A)
    else:
        getattr(engine, verb)([*beside, *batch])


def of_others(rng: random.Random, number: int) -> Iterator[Callable[[fr.Engine], object]]:
    """What tenants B and C do meanwhile: A's ids, A's words and metadata, and words and values of their own."""
    for namespace in (B, C):
        batch = [said(rng, f"r{number}-{row}", namespace) for row in range(3)]
        batch.append(
            fr.Record(
                f"{SECRET}{number}", f"{SECRET} a1", namespace, session=SECRET, time=NOW, extra={"project": SECRET}
            )
        )
        yield lambda engine, batch=batch: engine.upsert(batch)  # type: ignore[misc]
        if number % 3 == 1:
            ids = [f"r{number}-0", f"{SECRET}{number}"]
            yield lambda engine, ids=ids, namespace=namespace: engine.delete(ids, namespace=namespace)  # type: ignore[misc]
        if number == 20 and namespace == C:
            yield lambda engine: engine.drop(C)
    yield lambda engine: engine.search([fr.Query("a1", namespace=B), fr.Query("a1", namespace=C)])


@pytest.fixture(params=["memory", "directory"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fr.Engine]]:
    """Tenant A alone, and the same tenant among others, in batches of its own and in shared ones."""
    history.shrink(monkeypatch)
    borders.shrink(monkeypatch, BUILD_CHUNK=64)
    # How far the background has come is no secret, and would show in sizes.
    monkeypatch.setattr(Storage, "wake", lambda self: None)
    options: dict[str, Any] = {"analyzer": "minimal", "columns": {"project": "category"}}
    engines = [
        fr.Engine(**options) if request.param == "memory" else fr.Engine.open(tmp_path / name, **options)
        for name in ("alone", "among")
    ]
    alone, among = engines
    rng = random.Random(4)
    for number, (verb, batch) in enumerate(life(random.Random(3))):
        for other in of_others(rng, number):
            other(among)
        write(alone, verb, batch, [])
        write(among, verb, batch, [said(rng, f"beside{number}", C)] if verb == "add" else [])
    for engine in engines:
        engine.flush()
    assert len(among) > 2 * len(alone)
    yield engines
    for engine in engines:
        engine.close()


def questions() -> list[fr.Query]:
    rng = random.Random(8)
    more: list[dict[str, Any]] = [
        {},
        {"filter": {"session": "s"}},
        {"filter": {"session": SECRET}},
        {"filter": {"project": SECRET}},
        {"filter": fr.col("session") != SECRET},
        {"filter": {"session": "t"}, "statistics": "filtered"},
        {"filter": {"session": SECRET}, "statistics": "filtered"},
        {"half_life": DAY, "now": NOW},
        {"since": NOW - 30 * DAY, "until": NOW},
        {"windows": 2},
        {"windows": 1, "now": NOW},
        {"windows": "auto"},
        {"scope": fr.SearchScope.user("u")},
        {"scope": fr.SearchScope.session(SECRET)},
        {"k": 0},
        {"k": 99},
    ]
    return [fr.Query(terms=[*rng.sample(WORDS, 3), SECRET], **own) for own in more]


def searched(engine: fr.Engine) -> object:
    tenant = engine.namespace(A)
    found = []
    for execution in history.EXECUTIONS:
        hits = tenant.search(questions(), 6, execution=execution, timing=True)
        explained = [hits.explain(row, name) for row in range(len(hits)) for name, _ in hits[row]]
        found.append([hits.scores.tobytes(), hits.documents.tobytes(), hits.counts.tolist(), hits.ids.tolist()])
        found.append([explained, [str(one) for one in explained], list(hits.timing), hits.postings])
    return found


def listed(engine: fr.Engine) -> list[object]:
    """What the tenant lists and counts, page by page."""
    tenant, seen = engine.namespace(A), []
    for filter in (None, {"session": "s"}, {"session": SECRET}, {"project": SECRET}):
        seen += [tenant.count(filter), list(tenant.ids(filter))]
        seen += [list(tenant.distinct(column, filter).items()) for column in ("session", "user", "time", "project")]
        for order in ("written", "time", "id"):
            cursor: str | None = None
            while True:
                page = tenant.records(filter=filter, order=order, texts=False, limit=5, after=cursor)
                seen.append(list(page))
                if (cursor := page.cursor) is None:
                    break
    return seen


def errors(engine: fr.Engine) -> list[str]:
    """What the tenant is told of ids that others have, that it has, and that nobody has."""
    tenant = engine.namespace(A)
    taken = next(name for name, _ in tenant.search([[*WORDS]], 1)[0])
    failing: list[Callable[[], object]] = [
        lambda: tenant.add([fr.Record(taken, "a1")]),
        lambda: tenant.add([fr.Record("new", "a1"), fr.Record("new", "a1")]),
        lambda: tenant.delete([f"{SECRET}2"]),
        lambda: tenant.delete([taken, "nobody"]),
        lambda: tenant.update([fr.Record(f"{SECRET}2", "a1")]),
        lambda: tenant.patch(f"{SECRET}2", text="a1"),
        lambda: tenant.distinct("unknown"),
        lambda: tenant.explain("a1", f"{SECRET}2"),
        lambda: tenant.search([fr.Query("a1", namespace=B)]),
        lambda: tenant.search([fr.Query("a1"), fr.Query("a1", namespace=B)]),
        lambda: tenant.add([fr.Record("new", "a1", B)]),
        lambda: tenant.upsert([fr.Record("new", "a1", B)]),
        lambda: tenant.search([fr.Query("a1", filter={"unknown": 1})]),
        lambda: tenant.search(["a1"], -1),
    ]
    told = []
    for fail in failing:
        with pytest.raises(fr.FanrankError) as raised:
            fail()
        told.append(f"{type(raised.value).__name__}: {raised.value}")
    return told


def test_a_tenant_observes_nothing_of_others(pair: list[fr.Engine]) -> None:
    def same(look: Callable[[fr.Engine], object]) -> Any:
        seen = [look(engine) for engine in pair]
        assert seen[0] == seen[1]
        return seen[0]

    def tenant(engine: fr.Engine) -> fr.scopes.Namespace:
        return engine.namespace(A)

    for name in history.backends():
        for engine in pair:
            engine.backend = backend.choose(name)
        assert same(searched)
    live = same(lambda engine: len(tenant(engine)))
    assert live > 20
    assert same(lambda engine: history.statistics(engine, A))[0] == live
    words = same(lambda engine: [len(engine.encode([fr.Query(t, namespace=A)])[0]) for t in ("a1 a1 b2", SECRET, "zz")])
    assert words == [3, 0, 0]

    assert len(same(listed)) > 40
    same(lambda engine: tenant(engine).stats())
    assert set(same(lambda engine: list(tenant(engine).stats()))) == {
        "documents", "deleted", "segments", "postings", "index_bytes", "recency",
        "vectors", "vector_bytes", "weights", "entities",
        "posting_bytes", "evidence_bytes", "id_bytes", "column_bytes", "deleted_bytes",
    }  # fmt: skip
    for message in same(errors):
        assert SECRET not in message or f"{SECRET}2" in message
        assert B not in message
        assert C not in message
    same(lambda engine: engine.namespace(A).drift())
    same(lambda engine: engine.namespace(A).drift())
    for engine in pair:
        engine.observe(["r1-0", f"{SECRET}2", "r2-0"], namespace=A, now=NOW)
        engine.observe([f"{SECRET}{number}" for number in range(9)], namespace=B, now=NOW)
    same(lambda engine: engine.recency(A).to_dict())

    def health(engine: fr.Engine) -> object:
        report = tenant(engine).health()
        return (
            report.query_count, report.batch_count, report.results, report.fallback_count, report.failure_count,
            report.backends,
        )  # fmt: skip

    assert same(health)[0] > 90


def test_a_handle_is_a_namespace() -> None:
    engine = fr.Engine(analyzer="minimal")
    tenant = engine.namespace(A)
    assert tenant.add([fr.Record("1", "a1"), {"id": "2", "text": "a1 b2"}, fr.Record("3", "b2", A)]) == 3
    assert (len(tenant), len(engine), engine.namespaces, repr(tenant)) == (3, 3, (A,), f"Namespace({A!r})")
    assert [name for name, _ in tenant.search(["a1"])[0]] == ["1", "2"]
    assert list(tenant.search(["a1", fr.Query("a1", namespace=A), ["a1"]])) == [tenant.search(["a1"])[0]] * 3
    assert tenant.search(["a1"])[0] == engine.search([fr.Query("a1", namespace=A)])[0]
    assert engine.search(["a1"]).counts.tolist() == [0]
    assert tenant.explain("a1", "1").score == dict(tenant.search(["a1"])[0])["1"]
    assert tenant.update([fr.Record("1", "c3")]) == tenant.delete(["2"]) == 1
    assert tenant.search(["a1", "c3"]).counts.tolist() == [0, 1]
    # A batch that names another namespace is refused whole.
    for failing in (tenant.add, tenant.update):
        with pytest.raises(fr.errors.RecordError, match="another namespace"):
            failing([fr.Record("new", "a1"), fr.Record("new", "a1", B)])
    for ask in (tenant.search, tenant.submit):
        with pytest.raises(fr.errors.QueryError, match="query 1 names another namespace"):
            ask(["a1", fr.Query("a1", namespace=B)])
    with pytest.raises(fr.errors.QueryError, match="namespace's name"):
        engine.namespace(3)  # type: ignore[arg-type]
    assert len(tenant) == 2
    tenant.drop()
    assert (len(tenant), len(engine), bool(tenant), bool(engine)) == (0, 0, True, True)
    assert tenant.health().query_count == 0
    tenant.add([fr.Record("1", "a1")])
    assert tenant.search(["a1"]).documents[0, 0] == 0
