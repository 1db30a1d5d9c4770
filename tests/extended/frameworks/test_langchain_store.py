"""LangChain's vector store: searches of a batch are one search, vectors are made as LangChain says, and writes last."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from support.evaluations import count_searches
from support.langchain_cases import Letters, metadatas, texts

import fanrank as fr
from fanrank.engine.vectors.vectors import unit_rows
from fanrank.integrations.langchain import FanrankVectorStore, LangChainEncoder

COUNT = 120
ASKED = [*texts(12, seed=3), "tea", "tea", "granite"]


def make(**options: Any) -> FanrankVectorStore:
    ids = [f"m{n}" for n in range(COUNT)]
    return FanrankVectorStore.from_texts(texts(COUNT), Letters(), metadatas(COUNT), ids=ids, **options)


@pytest.fixture(scope="module")
def store() -> FanrankVectorStore:
    return make()


SEARCHES: list[tuple[str, dict[str, Any]]] = [
    ("similarity", {}),
    ("similarity", {"k": 7, "strategy": "auto", "score_key": "score"}),
    ("similarity", {"strategy": "bm25", "filter": {"type": "a"}}),
    ("similarity_score_threshold", {"k": 20, "score_threshold": 0.6}),
    ("mmr", {"k": 5, "fetch_k": 30, "lambda_mult": 0.3}),
    ("mmr", {"strategy": "rrf"}),
]


@pytest.mark.parametrize(("kind", "options"), SEARCHES, ids=str)
def test_a_batch_is_one_search_and_gives_what_a_loop_gives(
    store: FanrankVectorStore, kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = store.as_retriever(search_type=kind, search_kwargs=options)
    loop = [store.search(text, kind, **options) for text in ASKED]
    sizes = count_searches(monkeypatch)
    assert retriever.batch(ASKED) == loop
    assert sizes == [len(ASKED)]
    assert asyncio.run(retriever.abatch(ASKED)) == loop
    assert [retriever.invoke(text) for text in ASKED] == loop
    assert [asyncio.run(store.asearch(text, kind, **options)) for text in ASKED] == loop
    assert any(loop)


def test_each_method_has_its_awaited_form(store: FanrankVectorStore) -> None:
    vector = Letters().embed_query("late fee")
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("similarity_search", ("late fee", 3)),
        ("similarity_search_with_score", ("late fee", 3)),
        ("similarity_search_with_relevance_scores", ("late fee", 3)),
        ("similarity_search_by_vector", (vector, 3)),
        ("max_marginal_relevance_search", ("late fee", 3, 9)),
        ("max_marginal_relevance_search_by_vector", (vector, 3, 9)),
        ("similarity_search_batch", (ASKED, 3)),
        ("similarity_search_with_score_batch", (ASKED, 3)),
        ("max_marginal_relevance_search_batch", (ASKED, 3)),
        ("get_by_ids", (["m3", "m1", "none"],)),
    ]
    for name, arguments in calls:
        made: Callable[..., Awaitable[Any]] = getattr(store, f"a{name}")

        async def ask(made: Callable[..., Awaitable[Any]] = made, arguments: tuple[Any, ...] = arguments) -> Any:
            return await made(*arguments)

        found = getattr(store, name)(*arguments)
        assert asyncio.run(ask()) == found, name
        assert found, name
    assert store.similarity_search_by_vector(vector, 3) == store.similarity_search("late fee", 3)


@pytest.mark.parametrize("lambda_mult", [0.0, 0.4, 1.0])
def test_diversity_is_that_of_langchain(lambda_mult: float) -> None:
    store = FanrankVectorStore.from_texts([*dict.fromkeys(texts(60))], Letters(), strategy="dense")
    for text in dict.fromkeys(ASKED):
        candidates = store.similarity_search(text, 20)
        rows = unit_rows(Letters().embed_documents([one.page_content for one in candidates])).astype(np.float64)
        query = unit_rows(Letters().embed_query(text)).astype(np.float64)
        chosen = maximal_marginal_relevance(query, list(rows), lambda_mult=lambda_mult, k=6)
        assert store.max_marginal_relevance_search(text, 6, 20, lambda_mult) == [candidates[place] for place in chosen]


def test_documents_and_queries_are_embedded_as_langchain_says() -> None:
    letters = Letters()
    store = FanrankVectorStore(LangChainEncoder(letters, dimension=26))
    store.add_texts(["one", "two", "three"], batch_size=2)
    assert (letters.documents, letters.queries) == ([["one", "two"], ["three"]], [])
    asyncio.run(store.aadd_texts(["four"]))
    assert letters.documents[2:] == [["four"]]
    store.similarity_search_batch(["one", "two", "one"])
    assert sorted(letters.queries) == ["one", "two"]
    store.similarity_search_batch(["one", "two"], strategy="bm25")
    store.as_retriever(search_kwargs={"strategy": "bm25"}).invoke("one")
    assert sorted(letters.queries) == ["one", "two"]
    assert len(letters.documents) == 3


class Together(Letters):
    """Gives a query's vector when all `parties` queries have been asked for."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.parties = parties
        self.barrier = threading.Barrier(parties, timeout=30)
        self.asked = 0
        self.all_asked: asyncio.Event | None = None

    def embed_query(self, text: str) -> list[float]:
        self.barrier.wait()
        return super().embed_query(text)

    async def aembed_query(self, text: str) -> list[float]:
        self.all_asked = self.all_asked or asyncio.Event()
        self.asked += 1
        if self.asked == self.parties:
            self.all_asked.set()
        await asyncio.wait_for(self.all_asked.wait(), 30)
        return self.count(text)


def test_queries_of_a_batch_are_embedded_at_the_same_time() -> None:
    store = FanrankVectorStore.from_texts(["tea"], LangChainEncoder(Together(5), dimension=26))
    assert len(store.similarity_search_batch(list("abcde"))) == 5
    store = FanrankVectorStore.from_texts(["tea"], LangChainEncoder(Together(5), dimension=26))
    assert len(asyncio.run(store.asimilarity_search_batch(list("abcde")))) == 5


class Several(Letters):
    """Embeds queries by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(texts)
        return [self.embed_query(text) for text in texts]


def test_a_method_for_several_queries_is_used() -> None:
    letters = Several()
    store = FanrankVectorStore.from_texts(texts(COUNT), LangChainEncoder(letters, dimension=26))
    found = store.similarity_search_batch(["tea", "job"])
    assert asyncio.run(store.asimilarity_search_batch(["tea", "job"])) == found
    assert letters.batches == [["tea", "job"]] * 2


def test_writes_replace_and_delete() -> None:
    store = make()
    assert store.add_texts([]) == []
    assert store.add_texts(["granite"], ids=["m0"]) == ["m0"]
    assert store.get_by_ids(["m0"]) == [Document(page_content="granite", id="m0")]
    ids = store.add_documents([Document(page_content="a"), Document(page_content="b", id="own")])
    assert ids[1] == "own"
    assert len(store.get_by_ids(ids)) == 2
    assert store.delete(["m0", "none"])
    assert store.get_by_ids(["m0"]) == []
    with pytest.raises(fr.errors.RecordError, match="pass a list of ids"):
        store.get_by_ids("m0")
    assert store.delete([])
    assert store.engine.count() == COUNT + 1
    assert store.delete(filter={"n": {">=": 5}})
    left = {f"m{n}" for n, own in enumerate(metadatas(COUNT)) if n and own.get("n", 0) < 5}
    assert set(store.engine.ids()) == {*left, *ids}
    assert asyncio.run(store.adelete(filter={"n": {"<": 5}}))
    assert asyncio.run(store.adelete(["own"]))
    assert store.delete()
    assert store.engine.count() == 0
    assert store.similarity_search("tea") == []
    assert asyncio.run(store.aadd_texts(["tea"], [{"n": 1}], ids=["1"])) == ["1"]
    assert asyncio.run(store.asimilarity_search("tea")) == [Document(page_content="tea", id="1", metadata={"n": 1})]
    assert asyncio.run(store.adelete())
    assert store.engine.count() == 0


def test_all_of_a_tenant_is_deleted_and_no_more() -> None:
    engine = fr.Engine(encoder=fr.OwnVectors(26))
    ana, bo = (FanrankVectorStore(Letters(), engine=engine.namespace(name)) for name in ("ana", "bo"))
    ana.add_texts(["tea"], ids=["1"])
    bo.add_texts(["tea"], ids=["1"])
    ana.delete()
    assert (ana.engine.count(), bo.engine.count()) == (0, 1)
    assert bo.max_marginal_relevance_search("tea")[0].id == "1"


def test_relevance_is_the_cosine(store: FanrankVectorStore) -> None:
    scored = store.similarity_search_with_score("tea", COUNT)
    relevant = store.similarity_search_with_relevance_scores("tea", COUNT)
    assert relevant == [(document, min(max(score, 0.0), 1.0)) for document, score in scored]
    best = store.similarity_search_with_relevance_scores("tea", COUNT, score_threshold=0.5)
    assert best == [pair for pair in relevant if pair[1] >= 0.5]
    assert 0 < len(best) < COUNT
    with pytest.raises(fr.errors.QueryError, match="relevance_score_fn"):
        store.similarity_search_with_relevance_scores("tea", strategy="auto")
    own = make(strategy="bm25", relevance_score_fn=lambda score: score / 10)
    (pair,) = own.similarity_search_with_relevance_scores("tea", 1)
    assert pair[1] == own.similarity_search_with_score("tea", 1)[0][1] / 10
    wild = make(relevance_score_fn=lambda score: 2 * score)
    with pytest.warns(UserWarning, match="relevances must lie"):
        wild.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5}).invoke(
            "tea"
        )


class Opposite(Letters):
    """Queries point away from documents of the same text."""

    def embed_query(self, text: str) -> list[float]:
        return [-value for value in super().embed_query(text)]


def test_a_negative_cosine_is_no_relevance() -> None:
    store = FanrankVectorStore.from_texts(["tea"], Opposite())
    ((document, score),) = store.similarity_search_with_score("tea")
    assert score < 0.0
    assert store.similarity_search_with_relevance_scores("tea") == [(document, 0.0)]


def test_vectors_need_no_embeddings() -> None:
    store = FanrankVectorStore(None, engine=fr.Engine(encoder=fr.OwnVectors(2)))
    store.engine.add([fr.Record("1", "tea", embedding=[1, 0]), fr.Record("2", "job", embedding=[-1, 0])])
    assert [one.id for one in store.similarity_search_by_vector([1.0, 0.0])] == ["1", "2"]
    with pytest.raises(fr.errors.QueryError, match="no embeddings"):
        store.max_marginal_relevance_search("tea")
    assert [one.id for one in store.max_marginal_relevance_search_by_vector([1.0, 0.0], 2)] == ["1", "2"]


def test_an_engine_with_an_encoder_of_its_own() -> None:
    letters = Letters()
    engine = fr.Engine(encoder=LangChainEncoder(letters))
    store = FanrankVectorStore(engine=engine)
    store.add_texts(texts(COUNT))
    assert [[one.page_content for one in found] for found in store.similarity_search_batch(ASKED)] == [
        [one.page_content for one in found] for found in make().similarity_search_batch(ASKED)
    ]
    assert len(store.max_marginal_relevance_search("tea")) == 4
    same = FanrankVectorStore(letters, engine=engine)
    assert same.similarity_search("tea") == store.similarity_search("tea")
    assert same.embeddings is letters


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (lambda: FanrankVectorStore(len), fr.errors.ParameterError, "LangChain Embeddings"),
        (
            lambda: FanrankVectorStore(Letters(), engine=fr.Engine()),
            fr.errors.ParameterError,
            "without such an encoder",
        ),
        (
            lambda: FanrankVectorStore(Letters(), engine=fr.Engine(encoder=fr.OwnVectors(3))),
            fr.errors.ParameterError,
            "3 dimensions",
        ),
        (
            lambda: FanrankVectorStore(Letters(), engine=fr.Engine(encoder=LangChainEncoder(Letters("other")))),
            fr.errors.ModelMismatchError,
            "other",
        ),
        (lambda: FanrankVectorStore(LangChainEncoder(Letters(), dimension=3)).add_texts(["x"]), ValueError, "shape"),
        (lambda: make().similarity_search("x", filter=len), fr.errors.QueryError, "not a function"),
        (lambda: make().similarity_search("x", fetch=3), fr.errors.ParameterError, "'fetch'"),
        (lambda: make().similarity_search_batch("xy"), fr.errors.QueryError, "list of texts"),
        (lambda: make().add_texts(["x"], [{}, {}]), fr.errors.RecordError, "2 metadatas"),
        (lambda: make().add_texts(["x"], timeout=3), fr.errors.ParameterError, "timeout"),
        (lambda: make().add_texts(["x"], batch_size=0), fr.errors.ParameterError, "batch_size"),
        (lambda: make().delete(["1"], filter={"n": 1}), fr.errors.ParameterError, "not both"),
        (lambda: make().delete(where={"n": 1}), fr.errors.ParameterError, "where"),
        (lambda: make().delete(filter={}), fr.errors.ParameterError, "says nothing"),
        (lambda: make().search_batch(["x"], "other"), fr.errors.ParameterError, "'other'"),
    ],
)
def test_errors_are_named(what: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        what()
