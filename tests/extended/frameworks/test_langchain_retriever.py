"""LangChain's retriever: a batch is one search, and gives what LangChain's own loop gives, callbacks included."""

import asyncio
import copy
import pickle
import uuid
from typing import Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.runnables import ConfigurableField, Runnable, RunnableConfig, RunnableLambda
from support.evaluations import count_searches
from support.langchain_cases import Letters, Seen, metadatas, texts

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

    async def ask() -> list[Any]:
        completed = [pair async for pair in one.abatch_as_completed(ASKED, **options)]
        return [await one.abatch(ASKED, **options), [answer for _, answer in completed]]

    assert asyncio.run(ask()) == [loop] * 2


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


def test_documents_are_copied_pickled_and_serialised(retriever: FanrankRetriever) -> None:
    for document in retriever.invoke("tea"):
        assert document == pickle.loads(pickle.dumps(document)) == copy.deepcopy(document)
        assert dumpd(document) == dumpd(Document(**document.model_dump()))
        assert Document.model_validate(document.model_dump()) == document
        assert repr(document) == repr(Document(**document.model_dump()))


@pytest.mark.parametrize(
    ("spec", "dialect", "passes"),
    [
        ({"type": "a"}, None, lambda own: own.get("type") == "a"),
        ({"or": [{"type": "b"}, {"n": {"<": 2}}]}, None, lambda own: own.get("type") == "b" or own.get("n", 9) < 2),
        (fr.col("n") >= 5, None, lambda own: own.get("n", -1) >= 5),
        (fr.col("payload.type") == "a", "langgraph", lambda own: own.get("type") == "a"),
        ({"type": {"$eq": "b"}}, "langgraph", lambda own: own.get("type") == "b"),
    ],
)
def test_a_filter_reads_the_metadata(spec: Any, dialect: str | None, passes: Any) -> None:
    one, asked = make(k=COUNT), ["tea", "job"]
    narrowed = one.batch(asked, filter=spec, dialect=dialect)
    assert make(k=COUNT, filter=spec, dialect=dialect).batch(asked) == narrowed
    for found, every in zip(narrowed, one.batch(asked), strict=True):
        assert found == [document for document in every if passes(document.metadata)]
        assert 0 < len(found) < len(every)


def test_a_search_reads_several_namespaces_and_documents_are_added_awaited() -> None:
    engine = fr.Engine()
    ana, bo = (FanrankRetriever(engine.namespace(name)) for name in ("ana", "bo"))
    (given,) = ana.add_documents([Document(page_content="tea of ana", id="a")])
    (made,) = asyncio.run(bo.aadd_documents([Document(page_content="tea of bo")]))
    every = FanrankRetriever(engine, search_options={"namespaces": ["ana", "bo"]})
    assert [document.id for document in every.invoke("tea")] == [given, made]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (lambda: FanrankRetriever(engine=3), fr.errors.ParameterError, "engine must be"),
        (lambda: FanrankRetriever(search_options={"halflife": 3}), fr.errors.ParameterError, "'halflife'"),
        (lambda: FanrankRetriever(filter=len), fr.errors.QueryError, "not a function"),
        (lambda: FanrankRetriever().invoke("x", top_k=1), fr.errors.ParameterError, "'top_k'"),
        (lambda: FanrankRetriever().invoke(["x", "y"]), fr.errors.QueryError, "must be a text"),
        (lambda: FanrankRetriever(score_key=3), ValueError, "score_key"),
        (lambda: FanrankRetriever.from_texts(["x"], [{}, {}]), fr.errors.RecordError, "2 metadatas"),
        (lambda: FanrankRetriever.from_texts(["x", "y"], ids=["1"]), fr.errors.RecordError, "1 ids"),
        (lambda: FanrankRetriever.from_texts("xy"), fr.errors.RecordError, "list of texts"),
        (lambda: FanrankRetriever.from_texts(["x"], [{"when": object()}]), fr.errors.RecordError, "payload"),
    ],
)
def test_errors_are_named(what: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        what()
