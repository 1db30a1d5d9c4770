"""LangChain's retriever: a batch is one search, and gives what LangChain's own loop gives, callbacks included."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.runnables import ConfigurableField, Runnable, RunnableConfig, RunnableLambda
from support.langchain_cases import Letters, Seen, count_searches, metadatas, texts

import fanrank as fr
from fanrank.integrations.langchain import FanrankRetriever, LangChainEncoder

COUNT = 200
ASKED = [*texts(20, seed=3), "", "nothing of it", "tea", "tea"]


def make(k: int = 5, **fields: Any) -> FanrankRetriever:
    ids = [f"m{n}" for n in range(COUNT)]
    return FanrankRetriever.from_texts(texts(COUNT), metadatas(COUNT), ids, k=k, **fields)


@pytest.fixture(scope="module")
def retriever() -> FanrankRetriever:
    return make()


@pytest.fixture(scope="module")
def hybrid() -> FanrankRetriever:
    return make(engine=fr.Engine(encoder=LangChainEncoder(Letters())))


@pytest.mark.parametrize("options", [{}, {"k": 3}, {"score_key": None}, {"offset": 2, "min_score": 0.5}], ids=str)
@pytest.mark.parametrize("which", ["retriever", "hybrid"])
def test_a_batch_is_one_search_and_gives_what_a_loop_gives(
    which: str, options: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: FanrankRetriever = request.getfixturevalue(which)
    loop = [one.invoke(text, **options) for text in ASKED]
    sizes = count_searches(monkeypatch)
    assert one.batch(ASKED, **options) == loop
    assert sizes == [len(ASKED)]
    assert list(one.batch_as_completed(ASKED, **options)) == list(enumerate(loop))
    assert sizes == [len(ASKED)] * 2
    assert Runnable.batch(one, ASKED, **options) == loop, "LangChain's own batch"
    assert any(loop)


@pytest.mark.parametrize("which", ["retriever", "hybrid"])
def test_awaited_answers_are_the_same(which: str, request: pytest.FixtureRequest) -> None:
    one: FanrankRetriever = request.getfixturevalue(which)

    async def ask() -> list[Any]:
        completed = [pair async for pair in one.abatch_as_completed(ASKED)]
        alone = await asyncio.gather(*map(one.ainvoke, ASKED))
        return [await one.abatch(ASKED), alone, [answer for _, answer in completed]]

    loop = [one.invoke(text) for text in ASKED]
    assert asyncio.run(ask()) == [loop] * 3


def test_concurrent_callers_share_a_launch() -> None:
    one = make(k=3)

    async def ask() -> list[list[Document]]:
        return await asyncio.gather(*(one.ainvoke(text) for text in texts(100)))

    answers = asyncio.run(ask())
    assert answers == [one.invoke(text) for text in texts(100)]
    stats = one.engine.coalescer.stats()
    assert stats["callers"] == 100
    assert stats["launches"] <= 3  # one, unless a loop with other tasks delays some


def test_documents_are_those_of_the_engine(retriever: FanrankRetriever) -> None:
    hits = retriever.engine.search(ASKED, 5, texts=True, payload=True)
    for documents, found in zip(retriever.batch(ASKED), hits, strict=True):
        expected = [
            Document(page_content=hit.text, id=hit.id, metadata={**(hit.payload or {}), "score": hit.score})
            for hit in found
        ]
        assert documents == expected
        assert [one.model_dump() for one in documents] == [one.model_dump() for one in expected]


def test_a_document_belongs_to_its_caller(retriever: FanrankRetriever) -> None:
    """What a caller changes is in no other answer, and not in the engine."""
    first, second = retriever.batch(["tea", "tea"], k=3)
    before = [one.model_copy(deep=True) for one in second]
    for one in first:
        one.metadata["tags"] = ["changed"]
        one.metadata.setdefault("more", []).append(1)
    assert second == before == retriever.invoke("tea", k=3)


CONFIGS: list[RunnableConfig | list[RunnableConfig] | None] = [
    None,
    {"tags": ["all"], "metadata": {"agent": "a"}, "run_name": "recall", "max_concurrency": 2},
    [{"tags": [str(n)], "metadata": {"n": n}, "run_name": f"ask {n}"} for n in range(len(ASKED))],
]


def watched(config: RunnableConfig | list[RunnableConfig] | None, seen: Seen) -> Any:
    if isinstance(config, list):
        return [{**one, "callbacks": [seen]} for one in config]
    return {**(config or {}), "callbacks": [seen]}


@pytest.mark.parametrize("config", CONFIGS, ids=["none", "one", "each"])
def test_callbacks_see_what_a_loop_shows_them(config: Any) -> None:
    one = make(tags=["own"], metadata={"of": "the retriever"})
    loop, batch, awaited, chained, chained_loop = (Seen() for _ in range(5))
    Runnable.batch(one, ASKED, watched(config, loop))
    one.batch(ASKED, watched(config, batch))
    asyncio.run(one.abatch(ASKED, watched(config, awaited)))
    assert len(loop.runs()) == len(ASKED)
    assert batch.runs() == awaited.runs() == loop.runs()
    chain = one | RunnableLambda(len)
    chain.batch(ASKED, watched(config, chained))
    for text, own in zip(ASKED, config if isinstance(config, list) else [config] * len(ASKED), strict=True):
        chain.invoke(text, watched(own, chained_loop))
    assert chained.runs() == chained_loop.runs()
    assert all(parent for _, _, _, _, parent, _, _ in chained.runs())


def test_a_handler_with_a_config_of_one_input_sees_that_input_alone(retriever: FanrankRetriever) -> None:
    seen = Seen()
    retriever.batch(["tea", "coffee", "job"], [{}, {"callbacks": [seen]}, {}])
    assert [run[0] for run in seen.runs()] == ["coffee"]


class Strict(BaseCallbackHandler):
    raise_error = True

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
        raise RuntimeError("the handler")


def test_what_a_handler_raises_is_raised(retriever: FanrankRetriever) -> None:
    with pytest.raises(RuntimeError, match="the handler"):
        retriever.batch(["tea"], {"callbacks": [Strict()]})


def test_a_run_id_is_that_of_the_first_run(retriever: FanrankRetriever) -> None:
    seen, given = Seen(), uuid.uuid4()
    retriever.batch(["tea", "coffee"], {"callbacks": [seen]}, run_id=given)
    assert len(seen.started) == 2
    assert seen.started[given]["query"] == "tea"


class Moody(Letters):
    """Embeds no text with the word "poison"."""

    def embed_query(self, text: str) -> list[float]:
        if "poison" in text:
            raise RuntimeError(f"no vector of {text!r}")
        return super().embed_query(text)


@pytest.mark.parametrize("awaited", [False, True])
def test_an_input_that_fails_fails_alone_where_asked(awaited: bool) -> None:
    one, asked = make(engine=fr.Engine(encoder=LangChainEncoder(Moody()))), ["tea", "poison", "coffee", "poison 2"]

    def ask(inputs: list[Any], **how: Any) -> list[Any]:
        return asyncio.run(one.abatch(inputs, **how)) if awaited else one.batch(inputs, **how)

    seen = Seen()
    answers = ask(asked, return_exceptions=True, config={"callbacks": [seen]})
    assert [str(answer) for answer in answers[1::2]] == ["no vector of 'poison'", "no vector of 'poison 2'"]
    assert answers[::2] == [one.invoke("tea"), one.invoke("coffee")]
    assert sorted(run[0] for run in seen.runs() if run[5]) == ["poison", "poison 2"]
    assert len(seen.ended) == 2
    seen = Seen()
    with pytest.raises(RuntimeError, match="no vector of 'poison"):
        ask(asked, config={"callbacks": [seen]})
    assert len(seen.failed) == len(asked)
    assert not seen.ended
    (answer,) = ask(["poison"], return_exceptions=True)
    assert isinstance(answer, RuntimeError)
    (bad, good) = ask([["a", "list"], "tea"], return_exceptions=True)
    assert isinstance(bad, fr.errors.QueryError)
    assert good == one.invoke("tea")


def test_an_empty_batch_is_no_search(retriever: FanrankRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_searches(monkeypatch)
    assert retriever.batch([]) == asyncio.run(retriever.abatch([])) == []
    assert sizes == []


def test_as_many_configs_as_inputs(retriever: FanrankRetriever) -> None:
    with pytest.raises(ValueError, match="same length"):
        retriever.batch(["tea", "job"], [{}])


def test_a_chain_keeps_the_batch_whole(retriever: FanrankRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = retriever | (lambda documents: [one.id for one in documents])
    loop = [chain.invoke(text) for text in ASKED]
    sizes = count_searches(monkeypatch)
    assert chain.batch(ASKED) == loop
    assert retriever.with_config(tags=["x"]).batch(ASKED) == retriever.bind().batch(ASKED)
    assert sizes == [len(ASKED)] * 3
    assert asyncio.run(chain.abatch(ASKED)) == loop


def test_options_of_a_call_go_before_those_of_the_retriever(retriever: FanrankRetriever) -> None:
    assert [len(found) for found in retriever.bind(k=2).batch(["tea", "job"])] == [2, 2]
    configurable = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert len(configurable.invoke("tea", {"configurable": {"k": 1}})) == 1
    assert [len(found) for found in configurable.batch(["tea", "job"], {"configurable": {"k": 1}})] == [1, 1]
    assert [len(found) for found in configurable.batch(["tea", "job"])] == [5, 5]
    narrow = FanrankRetriever.from_engine(retriever.engine, search_options={"offset": 1}, score_key="bm25")
    assert narrow.invoke("tea", k=2)[0].id == retriever.invoke("tea")[1].id
    assert narrow.invoke("tea", offset=0)[0].metadata["bm25"] == retriever.invoke("tea")[0].metadata["score"]
    now = fr.Engine.from_records([fr.Record("old", "tea", time=0.0), fr.Record("new", "tea", time=1e6)])
    assert [one.id for one in FanrankRetriever(now).invoke("tea", half_life="1d", now=1e6)] == ["new", "old"]


def test_two_of_them_are_an_ensemble(retriever: FanrankRetriever, hybrid: FanrankRetriever) -> None:
    ensembles = pytest.importorskip("langchain_classic.retrievers")
    ensemble = ensembles.EnsembleRetriever(retrievers=[retriever, hybrid], weights=[0.5, 0.5])
    found = ensemble.invoke("late invoice fee")
    assert {one.id for one in found} <= {
        one.id for two in (retriever, hybrid) for one in two.invoke("late invoice fee")
    }
    assert asyncio.run(ensemble.ainvoke("late invoice fee")) == found
    assert found


def test_documents_are_copied_pickled_and_serialised(retriever: FanrankRetriever) -> None:
    for document in retriever.invoke("tea"):
        assert document == pickle.loads(pickle.dumps(document)) == copy.deepcopy(document)
        assert dumpd(document) == dumpd(Document(**document.model_dump()))
        assert Document.model_validate(document.model_dump()) == document
        assert repr(document) == repr(Document(**document.model_dump()))


def test_it_says_that_it_cannot_be_serialised(retriever: FanrankRetriever) -> None:
    assert dumpd(retriever)["type"] == "not_implemented"
    assert retriever.model_copy(update={"k": 1}).batch(["tea"]) == retriever.batch(["tea"], k=1)


OPERATORS: list[tuple[Any, str | None, Any]] = [
    ({"type": "a"}, None, lambda own: own.get("type") == "a"),
    ({"n": {">=": 5}}, None, lambda own: own.get("n", -1) >= 5),
    ({"n": [1, 2, 3]}, None, lambda own: own.get("n") in (1, 2, 3)),
    ({"not": {"type": "a"}}, None, lambda own: own.get("type") != "a"),
    ({"or": [{"type": "b"}, {"n": {"<": 2}}]}, None, lambda own: own.get("type") == "b" or own.get("n", 9) < 2),
    ({"n": {"!=": 5, "<=": 7}}, None, lambda own: own.get("n", 9) <= 7 and own.get("n") != 5),
    ({"n": {"not in": [1, 2], ">": 0}}, None, lambda own: own.get("n", 0) > 0 and own["n"] not in (1, 2)),
    ({"n": [None, 3]}, None, lambda own: own.get("n", 3) == 3),
    ({"and": [{"type": None}, {"not": {"or": [{"n": 1}]}}]}, None, lambda own: "type" not in own and own.get("n") != 1),
    (fr.col("n") >= 5, None, lambda own: own.get("n", -1) >= 5),
    (fr.col("payload.type") == "a", "langgraph", lambda own: own.get("type") == "a"),
    (
        {"AND": [{"n": {"in": [1, 2, 3]}}, {"type": "a"}]},
        "mem0",
        lambda own: own.get("n") in (1, 2, 3) and own.get("type") == "a",
    ),
    ({"type": "eq", "key": "type", "value": "b"}, "openai", lambda own: own.get("type") == "b"),
    ({"n": {"$gte": 5}}, "langgraph", lambda own: own.get("n", -1) >= 5),
    ({"type": {"$eq": "b"}}, "langgraph", lambda own: own.get("type") == "b"),
    ("n > 3 AND n <= 7", "sql", lambda own: 3 < own.get("n", -1) <= 7),
]


@pytest.mark.parametrize(("spec", "dialect", "passes"), OPERATORS, ids=lambda value: str(value)[:24])
def test_a_filter_reads_the_metadata(spec: Any, dialect: str | None, passes: Any) -> None:
    one = make(k=COUNT)
    for found, every in zip(
        one.batch(["tea", "job"], filter=spec, dialect=dialect), one.batch(["tea", "job"]), strict=True
    ):
        assert found == [document for document in every if passes(document.metadata)]
        assert 0 < len(found) < len(every)


def test_a_filter_of_the_retriever_holds_for_each_call() -> None:
    one = make(filter={"type": "a"})
    assert {document.metadata["type"] for document in one.invoke("tea", k=50)} == {"a"}
    assert {document.metadata["type"] for document in one.invoke("tea", k=50, filter={"type": "b"})} == {"b"}


def test_a_directory_is_opened_again(tmp_path: Path) -> None:
    documents = [Document(page_content=text, id=f"d{n}", metadata={"n": n}) for n, text in enumerate(texts(40))]
    first = FanrankRetriever.from_documents(documents, engine=tmp_path / "memory")
    found = first.batch(ASKED)
    first.engine.close()
    second = FanrankRetriever(tmp_path / "memory")
    assert second.batch(ASKED) == found
    assert second.add_documents([Document(page_content="the newest tea", id="new")]) == ["new"]
    (made,) = asyncio.run(second.aadd_documents([Document(page_content="granite")]))
    assert second.invoke("newest")[0].id == "new"
    assert second.invoke("granite")[0].id == made
    second.engine.close()


def test_a_tenant_sees_its_own_documents() -> None:
    engine = fr.Engine()
    ana, bo = (FanrankRetriever.from_texts([f"tea of {name}"], engine=engine.namespace(name)) for name in ("ana", "bo"))
    assert [document.page_content for document in ana.invoke("tea")] == ["tea of ana"]
    assert [document.page_content for document in bo.batch(["tea"])[0]] == ["tea of bo"]
    every = FanrankRetriever(engine, search_options={"namespaces": ["ana", "bo"]})
    assert [document.page_content for document in every.invoke("tea")] == ["tea of ana", "tea of bo"]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (lambda: FanrankRetriever(engine=3), fr.errors.ParameterError, "engine must be"),
        (lambda: FanrankRetriever(search_options={"halflife": 3}), fr.errors.ParameterError, "'halflife'"),
        (lambda: FanrankRetriever(strategy="nothing"), fr.errors.ParameterError, "unknown strategy"),
        (lambda: FanrankRetriever(filter=len), fr.errors.QueryError, "not a function"),
        (lambda: FanrankRetriever().invoke("x", k=-1), fr.errors.QueryError, "k"),
        (lambda: FanrankRetriever().invoke("x", top_k=1), fr.errors.ParameterError, "'top_k'"),
        (lambda: FanrankRetriever().invoke(["x", "y"]), fr.errors.QueryError, "must be a text"),
        (lambda: FanrankRetriever(score_key=3), ValueError, "score_key"),
        (lambda: FanrankRetriever.from_texts(["x"], [{}, {}]), fr.errors.RecordError, "2 metadatas"),
        (lambda: FanrankRetriever.from_texts(["x", "y"], ids=["1"]), fr.errors.RecordError, "1 ids"),
        (lambda: FanrankRetriever.from_texts("xy"), fr.errors.RecordError, "list of texts"),
        (lambda: FanrankRetriever.from_texts(["x", "y"], ids=["1", "1"]), fr.errors.DuplicateIdError, "'1'"),
        (lambda: FanrankRetriever.from_texts(["x"], [{"when": object()}]), fr.errors.RecordError, "payload"),
    ],
)
def test_errors_are_named(what: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        what()


def test_threads_search_while_documents_arrive() -> None:
    """Each answer holds whole batches alone."""
    one, chance = make(k=1000), random.Random(1)

    async def ask() -> list[Any]:
        writes = [
            one.aadd_documents([Document(page_content="granite", id=f"{batch}-{n}") for n in range(5)])
            for batch in range(10)
        ]
        reads = [one.abatch(["granite", chance.choice(["tea", "job"])]) for _ in range(20)]
        return (await asyncio.gather(*writes, *reads))[10:]

    done = [{document.id or "" for document in granite} for granite, _ in asyncio.run(ask())]
    assert len(done) == 20
    for ids in done:
        assert all(len([name for name in ids if name.startswith(f"{batch}-")]) in (0, 5) for batch in range(10))
    assert len(one.invoke("granite")) == 50
