"""The document store and the retrievers of Haystack: its own conformance tests, and what they do not ask."""

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.evaluations import Letters

import fanrank as fr

pytest.importorskip("haystack")
pytest.importorskip("pytest_asyncio")

from haystack import Document, Pipeline
from haystack.components.retrievers import MultiQueryTextRetriever
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as async_suite
from haystack.utils import expit

from fanrank.engine.errors import FanrankError
from fanrank.integrations.haystack import (
    FanrankDocumentStore,
    FanrankEmbeddingRetriever,
    FanrankHybridRetriever,
    FanrankMultiQueryRetriever,
    FanrankRetriever,
)

WORDS = ["tea", "coffee", "water", "cup", "kettle", "leaf", "bean", "milk", "sugar", "spoon"]


def documents(count: int = 60, seed: int = 0, dimension: int = 8) -> list[Document]:
    made = random.Random(seed)
    return [
        Document(
            id=f"d{number}",
            content=" ".join(made.choices(WORDS, k=made.randint(2, 9))),
            meta={"number": made.randint(0, 5), "kind": made.choice(["a", "b", None]), "deep": {"er": [number % 3]}},
            embedding=[made.uniform(-1, 1) for _ in range(dimension)] if number % 7 else None,
        )
        for number in range(count)
    ]


def store_of(count: int = 60, **options: Any) -> FanrankDocumentStore:
    store = FanrankDocumentStore(embedding_dimension=8, **options)
    store.write_documents(documents(count))
    return store


def pairs(found: list[Document]) -> list[tuple[str, float | None]]:
    return [(one.id, one.score) for one in found]


class TestConformance(
    suite.DocumentStoreBaseExtendedTests,
    suite.CountDocumentsByFilterTest,
    suite.CountUniqueMetadataByFilterTest,
    suite.GetMetadataFieldsInfoTest,
    suite.GetMetadataFieldMinMaxTest,
    suite.GetMetadataFieldUniqueValuesTest,
    async_suite.CountDocumentsAsyncTest,
    async_suite.CountDocumentsByFilterAsyncTest,
    async_suite.CountUniqueMetadataByFilterAsyncTest,
    async_suite.DeleteAllAsyncTest,
    async_suite.DeleteByFilterAsyncTest,
    async_suite.DeleteDocumentsAsyncTest,
    async_suite.FilterDocumentsAsyncTest,
    async_suite.GetMetadataFieldMinMaxAsyncTest,
    async_suite.GetMetadataFieldsInfoAsyncTest,
    async_suite.GetMetadataFieldUniqueValuesAsyncTest,
    async_suite.UpdateByFilterAsyncTest,
    async_suite.WriteDocumentsAsyncTest,
):
    """Haystack's own tests. Left out are two of each of `DeleteAllTest`, which are for stores that can make their index
    anew, and skip themselves.
    """

    @pytest.fixture(params=["memory", "disk"])
    def document_store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FanrankDocumentStore]:
        store = FanrankDocumentStore(tmp_path / "memory" if request.param == "disk" else None)
        yield store
        store.close()

    def test_write_documents(self, document_store: FanrankDocumentStore) -> None:
        batch = documents(3, dimension=768)
        assert document_store.write_documents(batch) == 3
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents(batch)

    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store: FanrankDocumentStore) -> None:
        batch = documents(3, dimension=768)
        assert await document_store.write_documents_async(batch) == 3
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async(batch)

    test_delete_all_documents_without_recreate_index = None
    test_delete_all_documents_with_recreate_index = None
    test_delete_all_documents_without_recreate_index_async = None
    test_delete_all_documents_with_recreate_index_async = None


def test_the_suite_of_haystack_is_here_as_a_whole() -> None:
    for module in (suite, async_suite):
        classes = {value for value in vars(module).values() if isinstance(value, type)}
        tests = {name for one in classes for name in vars(one) if name.startswith("test_")}
        assert tests <= set(dir(TestConformance))


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_documents_come_back_whole(where: str, tmp_path: Path) -> None:
    batch = [
        Document(id="1", content="tea", meta={"a": {"b": [1, None, 2.5]}}, score=0.25, embedding=[0.1, 0.2, 1e-9]),
        Document(id="2", content=None, blob=ByteStream(b"\x00\xff", {"m": 1}, "application/pdf")),
        Document(id="3", content="", sparse_embedding=SparseEmbedding([1, 5], [0.5, 0.25])),
        Document(id="4", content="x", embedding=[1, 0, 0], meta={"id": "other", "content": "meta", "score": 1}),
        Document(id="5", content="x", embedding=[0.5, 0.25, 3e5]),
    ]
    store = FanrankDocumentStore(tmp_path / "m" if where == "disk" else None, embedding_dimension=3)
    store.write_documents(batch)
    assert store.filter_documents() == batch
    store.close()  # what lies on the disk is opened again
    assert store.filter_documents() == batch
    assert [one.embedding for one in store.filter_documents()] == [one.embedding for one in batch]
    store.return_embedding = False
    assert [one.embedding for one in store.filter_documents()] == [None] * 5
    found = FanrankRetriever(store).run("x", top_k=1)["documents"][0]
    assert (found.id, found.meta, found.embedding) == ("4", batch[3].meta, None)
    store.close()


def test_every_duplicate_policy_within_a_batch_and_against_the_store() -> None:
    store = FanrankDocumentStore()
    first, second, third = (Document(id="1", content=text) for text in ("one", "two", "three"))
    for policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
        with pytest.raises(DuplicateDocumentError):
            store.write_documents([Document(id="0", content="x"), first, second], policy=policy)
        assert store.count_documents() == 0, "all or nothing"
    assert store.write_documents([first, second], policy=DuplicatePolicy.SKIP) == 1
    assert store.filter_documents() == [first]
    assert store.write_documents([third, Document(id="0", content="x")], policy=DuplicatePolicy.SKIP) == 1
    assert [one.content for one in store.filter_documents()] == ["one", "x"]
    assert store.write_documents([second, third], policy=DuplicatePolicy.OVERWRITE) == 2
    assert [one.content for one in store.filter_documents()] == ["x", "three"]
    assert store.write_documents([], policy=DuplicatePolicy.SKIP) == 0


def test_two_writers_that_skip_write_each_document_once() -> None:
    store = FanrankDocumentStore()
    batch = [Document(id=str(number), content="tea") for number in range(300)]
    start = threading.Barrier(4)

    def write(seed: int) -> int:
        mine = random.Random(seed).sample(batch, len(batch))
        start.wait()
        parts = [mine[place : place + 30] for place in range(0, len(mine), 30)]
        return sum(store.write_documents(part, policy=DuplicatePolicy.SKIP) for part in parts)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == store.count_documents() == 300


@pytest.mark.parametrize(
    "given",
    [
        {"field": "meta.number", "operator": "=", "value": 1},
        {"field": "meta.number", "operator": "==", "wrong": 1},
        {"operator": "XOR", "conditions": []},
        {"field": "content", "operator": "==", "value": "tea"},
        {"field": "id", "operator": "in", "value": ["d1"]},
        {"field": "meta.number", "operator": "in", "value": 5},
        {"conditions": []},
    ],
)
def test_a_filter_that_cannot_be_read_is_haystacks_error_and_ours(given: dict[str, Any]) -> None:
    store = store_of(2)
    for call in (store.filter_documents, store.delete_by_filter, store.count_documents_by_filter):
        with pytest.raises(FilterError) as caught:
            call(given)
        assert isinstance(caught.value, fr.errors.QueryError)
    with pytest.raises(FilterError):
        FanrankRetriever(store).run("tea", filters=given)
    with pytest.raises(FilterError, match="delete_all_documents"):
        store.delete_by_filter({})


def test_dense_answers_are_those_of_cosines() -> None:
    store = store_of()
    theirs = InMemoryDocumentStore(embedding_similarity_function="cosine")
    theirs.write_documents(documents())
    for scaled in (False, True):
        mine = FanrankEmbeddingRetriever(store, scale_score=scaled).run(VECTOR)["documents"]
        others = theirs.embedding_retrieval(VECTOR, top_k=60, scale_score=scaled)
        # Scores are those of vectors in half precision, which may swap what lies closer than that.
        assert [one.score for one in mine] == pytest.approx([one.score for one in others[:10]], abs=2**-10)
        scores = {one.id: one.score for one in others}
        assert all(one.score == pytest.approx(scores[one.id], abs=2**-10) for one in mine)
    whole = FanrankEmbeddingRetriever(store).run(VECTOR, return_embedding=True)["documents"]
    assert {one.id: one.embedding for one in documents()}[whole[0].id] == whole[0].embedding


def test_words_are_answered_as_by_haystacks_own_components() -> None:
    store, queries = store_of(), ["tea cup", "milk", "nothing that is there", "sugar spoon leaf", "tea cup", ""]
    given = {"field": "meta.number", "operator": "<", "value": 5}
    one = FanrankRetriever(store, top_k=7)
    many = FanrankMultiQueryRetriever(store, top_k=7).run(queries, filters=given)
    alone = [one.run(query, filters=given)["documents"] for query in queries]
    assert [pairs(found) for found in many["document_lists"]] == [pairs(found) for found in alone]
    theirs = MultiQueryTextRetriever(retriever=one).run(queries, retriever_kwargs={"filters": given})["documents"]
    assert many["documents"] == theirs
    scaled = one.run("tea", scale_score=True)["documents"]
    plain = one.run("tea")["documents"]
    assert pairs(scaled) == [(hit.id, pytest.approx(expit((hit.score or 0) / 8))) for hit in plain]
    assert one.run("tea", top_k=0) == {"documents": []}
    # Records that another program wrote are documents too.
    store.memory.add([fr.Record("other", "zebra", payload={"from": "chat"})])
    assert [(found.content, found.meta) for found in one.run("zebra")["documents"]] == [("zebra", {"from": "chat"})]


def test_a_hybrid_search_reads_words_and_vectors() -> None:
    store = FanrankDocumentStore(embedding_dimension=2)
    store.write_documents(
        [
            Document(id="words", content="tea", embedding=[0.0, 1.0]),
            Document(id="vector", content="milk", embedding=[1.0, 0.0]),
            Document(id="none", content="milk", embedding=[-1.0, 0.1]),
        ]
    )
    found = FanrankHybridRetriever(store, strategy="rrf").run("tea", [1.0, 0.0])["documents"]
    assert {one.id for one in found[:2]} == {"words", "vector"}
    lists = FanrankMultiQueryRetriever(store, strategy="rrf").run(["tea", "milk"], query_embeddings=[[1.0, 0.0]] * 2)
    assert lists["document_lists"][0] == found
    with pytest.raises(fr.errors.ParameterError, match="2 queries and 1"):
        FanrankMultiQueryRetriever(store).run(["tea", "milk"], query_embeddings=[[1.0, 0.0]])


def test_filters_of_a_run_replace_or_join_those_of_the_component() -> None:
    store = store_of()
    own = {"field": "meta.number", "operator": "<", "value": 3}
    given = {"field": "meta.kind", "operator": "==", "value": "a"}
    for policy, expected in (
        (FilterPolicy.REPLACE, given),
        (FilterPolicy.MERGE, {"operator": "AND", "conditions": [own, given]}),
    ):
        retriever = FanrankRetriever(store, filters=own, filter_policy=policy, top_k=60)
        wanted = FanrankRetriever(store, top_k=60).run("tea", filters=expected)
        assert retriever.run("tea", filters=given) == wanted
        assert retriever.run("tea") == FanrankRetriever(store, filters=own, top_k=60).run("tea")
        assert {one.meta["kind"] for one in retriever.run("tea", filters=given)["documents"]} == {"a"}
    assert [one.id for one in store.filter_documents({"field": "id", "operator": "==", "value": "d7"})] == ["d7"]


def pipeline(store: FanrankDocumentStore) -> Pipeline:
    made = Pipeline()
    own = {"field": "meta.number", "operator": "<", "value": 5}
    made.add_component("text", FanrankRetriever(store, filters=own, top_k=3, filter_policy=FilterPolicy.MERGE))
    made.add_component("dense", FanrankEmbeddingRetriever(store, scale_score=True))
    made.add_component("hybrid", FanrankHybridRetriever(store, strategy=fr.Strategy.of("rrf").to_dict()))
    made.add_component("many", FanrankMultiQueryRetriever(store, strategy="bm25"))
    return made


VECTOR = [0.3, -0.2, 0.9, 0.1, 0.0, -0.5, 0.4, 0.2]
INPUTS = {
    "text": {"query": "tea cup", "filters": {"field": "meta.kind", "operator": "!=", "value": "b"}},
    "dense": {"query_embedding": VECTOR},
    "hybrid": {"query": "milk", "query_embedding": VECTOR},
    "many": {"queries": ["tea", "sugar spoon"]},
}


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_pipeline_runs_and_comes_back_from_its_file(where: str, tmp_path: Path) -> None:
    store = FanrankDocumentStore(
        str(tmp_path / "memory") if where == "disk" else None, embedding_dimension=8, namespace="users/ana"
    )
    writer = Pipeline()
    writer.add_component("writer", DocumentWriter(store, policy=DuplicatePolicy.SKIP))
    assert writer.run({"writer": {"documents": documents()}})["writer"]["documents_written"] == 60
    first = pipeline(store)
    expected = first.run(INPUTS)
    assert all(answer["documents"] for answer in expected.values())
    # In this process the copy shares the engine; a directory may be opened once only.
    again = Pipeline.loads(first.dumps(), allowed_modules=["fanrank.*"])
    assert again.run(INPUTS) == expected
    assert again.dumps() == first.dumps()
    assert asyncio.run(again.run_async(INPUTS)) == expected
    copy = Pipeline.loads(writer.dumps(), allowed_modules=["fanrank.*"])
    assert copy.run({"writer": {"documents": documents(61)}})["writer"]["documents_written"] == 1
    assert store.count_documents() == 61
    if where == "disk":
        for one in (first, again):
            one.close()
        for one in (writer, copy):
            one.get_component("writer").document_store.close()
        with fr.Engine.open(tmp_path / "memory", columns="auto") as engine:
            assert engine.namespace("users/ana").count() == 61
        assert again.run(INPUTS).keys() == expected.keys()
        again.close()


def test_stores_of_one_process_share_a_directory_until_the_last_is_closed(tmp_path: Path) -> None:
    first, second = (FanrankDocumentStore(tmp_path / "memory", embedding_dimension=8) for _ in range(2))
    first.write_documents(documents(5))
    assert second.filter_documents() == documents(5)
    first.close()
    assert second.count_documents() == 5
    third = FanrankDocumentStore(tmp_path / "memory", engine_options={"analyzer": "minimal"})
    with pytest.raises(fr.errors.ParameterError, match="another store"):
        third.count_documents()
    second.close()
    fr.Engine.open(tmp_path / "memory", columns="auto").close()
    assert first.count_documents() == 5, "the next use opens it again"
    first.close()
    first.close()


def test_an_engine_or_a_namespace_serves_as_it_is(tmp_path: Path) -> None:
    engine = fr.Engine(encoder="own:8", columns="auto")
    store = FanrankDocumentStore(engine.namespace("ana"))
    store.write_documents(documents(4))
    assert engine.namespaces == ("ana",)
    assert FanrankDocumentStore(engine).count_documents() == 0
    assert FanrankDocumentStore(engine, namespace="ana").filter_documents() == documents(4)
    store.delete_all_documents()
    assert engine.namespaces == ()
    for one in (store, FanrankDocumentStore(engine)):
        with pytest.raises(fr.errors.ParameterError, match="cannot name this engine"):
            one.to_dict()
    with fr.Engine.open(tmp_path / "memory", columns="auto", encoder="own:8") as durable:
        mine = FanrankDocumentStore(durable)
        mine.write_documents(documents(3))
        copy = FanrankDocumentStore.from_dict(mine.to_dict())
        assert copy.filter_documents() == documents(3)
        copy.close()
        mine.close()
        assert mine.write_documents([Document(id="later")]) == 1, "an engine that was given stays open"


def test_an_encoder_of_the_store_embeds_documents_and_queries() -> None:
    store = FanrankDocumentStore(engine_options={"encoder": Letters()})
    batch = [Document(id=text, content=text) for text in ("listen", "granite", "tea")]
    store.write_documents(batch)
    assert FanrankRetriever(store, strategy="dense").run("silent")["documents"][0].id == "listen"
    assert store.filter_documents() == batch, "an embedding that the engine made is no part of the document"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda store: FanrankRetriever(InMemoryDocumentStore()), "FanrankDocumentStore, not InMemory"),
        (lambda store: FanrankRetriever(store, top_k=0), "top_k"),
        (lambda store: FanrankRetriever(store).run("tea", top_k=-1), "top_k"),
        (lambda store: FanrankRetriever(store, strategy="rrf", scale_score=True), "scale_score"),
        (lambda store: FanrankMultiQueryRetriever(store).run("tea"), "list of strings"),
        (lambda store: FanrankDocumentStore(fr.Engine(), embedding_dimension=3), "one is given"),
        (lambda store: FanrankDocumentStore("path", index="name"), "index"),
        (lambda store: FanrankDocumentStore(fr.Engine().namespace("a"), namespace="b"), "namespace"),
        (lambda store: store.write_documents([Document(content="x", embedding=[1.0])]), "dimension"),
        (lambda store: store.write_documents([Document(content="x", embedding=["a"] * 8)]), "numbers"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call(store_of(2))
    assert isinstance(caught.value, FanrankError)
