"""LlamaIndex over fanrank: the retriever beside BM25Retriever's cases, the vector store beside SimpleVectorStore."""

import asyncio
import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed: pip install 'fanrank[llama-index]'")

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import (
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from support.evaluations import count_searches

import fanrank as fr
from fanrank.integrations.llama_index import EmbeddingEncoder, FanrankRetriever, FanrankVectorStore

DIMENSION = 32
TEXTS = [
    "Ana prefers tea and meetings after ten",
    "Bo drinks coffee in the morning",
    "the billing job failed: error 4711, key expired",
    "error 4711 was fixed by rotating the key",
    "tea and coffee are served at ten",
    "lunch is at noon",
]


def vector_of(text: str) -> list[float]:
    vector = [0.02] * DIMENSION
    for word in text.lower().split():
        vector[zlib.crc32(word.encode()) % DIMENSION] += 1.0
    return vector


class Words(BaseEmbedding):
    """Each word adds one to a place of the vector, which its checksum chooses."""

    model_name: str = "words"

    def _get_query_embedding(self, query: str) -> list[float]:
        return vector_of(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return vector_of(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return vector_of(text)


def nodes_of(texts: Sequence[str] = TEXTS, *, embedded: bool = True) -> list[TextNode]:
    return [
        TextNode(
            id_=f"n{number}",
            text=text,
            metadata={"number": number, "kind": "even" if number % 2 == 0 else "odd"},
            excluded_embed_metadata_keys=["number", "kind"],
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"d{number // 2}")},
            embedding=vector_of(text) if embedded else None,
        )
        for number, text in enumerate(texts)
    ]


def ids_of(found: Sequence[Any]) -> list[str]:
    return [one.node.node_id for one in found]


def where(*filters: tuple[str, str, Any], condition: str = "and") -> MetadataFilters:
    made = [MetadataFilter(key=key, value=value, operator=FilterOperator(operator)) for key, operator, value in filters]
    return MetadataFilters(filters=made, condition=FilterCondition(condition))


@pytest.fixture
def store() -> FanrankVectorStore:
    made = FanrankVectorStore(embed_dim=DIMENSION)
    made.add(nodes_of())
    return made


def ask(text: str, mode: str = "default", **options: Any) -> VectorStoreQuery:
    options = {"similarity_top_k": 3, **options}
    return VectorStoreQuery(query_embedding=vector_of(text), query_str=text, mode=VectorStoreQueryMode(mode), **options)


def test_nodes_of_every_kind_come_back_whole() -> None:
    related = {
        NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d1", metadata={"a": [1, {"b": None}]}, hash="h"),
        NodeRelationship.CHILD: [RelatedNodeInfo(node_id="c1"), RelatedNodeInfo(node_id="c2")],
    }
    nodes = [
        TextNode(
            id_="t",
            text="tea",
            metadata={"nested": {"x": [1, 2.5, None]}, "ref_doc_id": "mine", "text": "also mine", "ü": "ß"},
            relationships=related,
            start_char_idx=3,
            end_char_idx=6,
            excluded_llm_metadata_keys=["nested"],
            text_template="{content}",
        ),
        IndexNode(id_="i", text="tea", index_id="x", obj=TextNode(id_="o", text="inner")),
        ImageNode(id_="p", text="tea", image_url="http://example.invalid/x.png"),
        Node(id_="m", text_resource=MediaResource(text="tea"), image_resource=MediaResource(data=b"aGVsbG8=")),
        Document(id_="d", text="tea", metadata={"title": "T"}),
    ]
    store = FanrankVectorStore()
    store.add(nodes)
    for node, back in zip(nodes, store.get_nodes(), strict=True):
        assert type(back) is type(node)
        assert back.to_dict() == node.to_dict()
    assert ids_of(FanrankRetriever(store.client, similarity_top_k=9).retrieve("tea")) != []


def test_what_is_searched_is_the_embedded_text() -> None:
    node = TextNode(id_="a", text="tea", metadata={"title": "kitchen", "secret": "vault"})
    node.excluded_embed_metadata_keys = ["secret"]
    found = FanrankRetriever(nodes=[node])
    assert ids_of(found.retrieve("kitchen")) == ["a"]
    assert ids_of(found.retrieve("vault")) == []
    assert ids_of(FanrankRetriever(nodes=[node], metadata_mode=MetadataMode.NONE).retrieve("kitchen")) == []


def test_an_awaited_batch_and_its_options_are_those_of_a_loop() -> None:
    retriever = FanrankRetriever.from_defaults(nodes=nodes_of(), similarity_top_k=4)
    asked = ["tea", "coffee at ten", "error key", "nowhere", ""]
    loop = [retriever.retrieve(text) for text in asked]
    assert retriever.retrieve_batch([QueryBundle(text) for text in asked]) == loop
    assert asyncio.run(retriever.aretrieve_batch(asked)) == loop
    assert [len(row) for row in retriever.retrieve_batch(asked, similarity_top_k=1)] == [1, 1, 1, 0, 0]
    assert retriever.retrieve_batch([]) == asyncio.run(retriever.aretrieve_batch([])) == []


def test_nodes_come_from_an_index_or_a_document_store() -> None:
    nodes = nodes_of(embedded=False)
    docstore = SimpleDocumentStore()
    docstore.add_documents(nodes)
    index = VectorStoreIndex(nodes, embed_model=Words())
    one = FanrankRetriever.from_defaults(nodes=nodes)
    for other in (FanrankRetriever.from_defaults(docstore=docstore), FanrankRetriever.from_defaults(index)):
        assert ids_of(other.retrieve("tea at ten")) == ids_of(one.retrieve("tea at ten"))
    for given in ({}, {"nodes": nodes, "docstore": docstore}):
        with pytest.raises(ValueError, match="exactly one"):
            FanrankRetriever.from_defaults(**given)
    assert FanrankRetriever.from_defaults(nodes=[]).retrieve("tea") == []


def test_filters_hold_at_the_time_of_a_query() -> None:
    retriever = FanrankRetriever(nodes=nodes_of(), similarity_top_k=5)
    assert ids_of(retriever.retrieve("tea coffee")) == ["n4", "n1", "n0"]
    odd = retriever.filtered(where(("kind", "==", "odd")))
    assert ids_of(odd.retrieve("tea coffee")) == ["n1"]
    assert ids_of(retriever.retrieve("tea coffee")) == ["n4", "n1", "n0"]
    assert [ids_of(row) for row in retriever.retrieve_batch(["tea", "key"], filters=where(("kind", "==", "odd")))] == [
        [],
        ["n3"],
    ]
    # A filtered node takes no place, and none that is filtered comes back with a score of 0.
    retriever.similarity_top_k = 2
    retriever.filters = where(("number", "<", 2))
    assert ids_of(retriever.retrieve("tea coffee")) == ["n1", "n0"]
    retriever.filters = where(("number", ">", 100))
    assert retriever.retrieve("tea coffee") == []


def test_nodes_are_added_replaced_and_deleted_while_it_serves() -> None:
    retriever = FanrankRetriever(nodes=nodes_of(), similarity_top_k=5)
    assert retriever.add_nodes([TextNode(id_="n9", text="green tea"), TextNode(id_="n0", text="water")]) == ["n9", "n0"]
    assert ids_of(retriever.retrieve("tea")) == ["n9", "n4"]
    assert retriever.add_nodes([TextNode(id_="x", text="old tea"), TextNode(id_="x", text="new tea")]) == ["x", "x"]
    assert [one.node.text for one in retriever.retrieve("new")] == ["new tea"]
    retriever.delete_nodes(["x", "nobody"])
    assert ids_of(retriever.retrieve("new")) == []
    with pytest.raises(ValueError, match="node_ids or filters"):
        retriever.delete_nodes()
    assert retriever.add_nodes([]) == []


def test_vectors_take_part_with_an_embedding_model() -> None:
    retriever = FanrankRetriever(nodes=nodes_of(embedded=False), embed_model=Words(), similarity_top_k=3)
    assert retriever.strategy == "auto"
    dense = FanrankRetriever(nodes=nodes_of(), embed_model=Words(), strategy="dense", similarity_top_k=3)
    other = FanrankRetriever(nodes=nodes_of(embedded=False), embed_model=Words(), strategy="dense", similarity_top_k=3)
    assert dense.retrieve("tea at ten") == other.retrieve("tea at ten"), "brought and made vectors are the same"
    by_vector = dense.retrieve(QueryBundle("other words", embedding=vector_of("tea at ten")))
    by_strings = dense.retrieve(QueryBundle("other words", custom_embedding_strs=["tea at ten"]))
    assert by_vector == by_strings == dense.retrieve("tea at ten")
    encoder = EmbeddingEncoder(Words())
    assert (encoder.name, encoder.dimension) == ("words", DIMENSION)
    assert encoder.queries([]).shape == (0, DIMENSION)


def test_a_node_that_refers_to_a_retriever_is_followed() -> None:
    inner = FanrankRetriever(nodes=nodes_of(), similarity_top_k=1)
    reference = IndexNode(id_="i", text="about the billing", index_id="billing")
    outer = FanrankRetriever(nodes=[reference], object_map={"billing": inner})
    assert ids_of(outer.retrieve("billing")) == ["n2"]
    assert [ids_of(row) for row in outer.retrieve_batch(["billing", "lunch"])] == [["n2"], []]
    assert [ids_of(row) for row in asyncio.run(outer.aretrieve_batch(["billing"]))] == [["n2"]]


def test_a_retriever_is_persisted_and_read_again(tmp_path: Path, opened: str) -> None:
    retriever = FanrankRetriever(nodes=nodes_of(), similarity_top_k=3)
    if opened == "shards":
        with pytest.raises(fr.errors.NotSupportedError, match="has no copy_to"):
            retriever.persist(tmp_path / "nodes")
        return
    answers = retriever.retrieve_batch(["tea at ten", "error"])
    retriever.persist(tmp_path / "nodes")
    again = FanrankRetriever.from_persist_dir(tmp_path / "nodes", similarity_top_k=3)
    assert again.retrieve_batch(["tea at ten", "error"]) == answers
    assert ids_of(again.filtered(where(("kind", "==", "odd"))).retrieve("error")) == ["n3"]
    again.add_nodes([TextNode(id_="new", text="tea")])
    again.persist(tmp_path / "nodes")
    assert again.engine is not None
    again.engine.close()
    third = FanrankRetriever.from_persist_dir(tmp_path / "nodes", similarity_top_k=9)
    assert "new" in ids_of(third.retrieve("tea"))
    assert third.engine is not None
    third.engine.close()
    with pytest.raises(fr.errors.ForeignIndexError):
        retriever.persist(tmp_path / "nodes")
    with pytest.raises(ValueError, match="no such directory"):
        FanrankRetriever.from_persist_dir(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="handle"):
        FanrankRetriever(fr.Engine().namespace("a")).persist(tmp_path / "x")


def test_a_record_that_was_not_written_as_a_node_is_named() -> None:
    engine = fr.Engine(columns="auto")
    engine.add([fr.Record("plain", "tea", namespace="b")])
    with pytest.raises(ValueError, match="not written as a node"):
        FanrankRetriever(engine.namespace("b")).retrieve("tea")
    with pytest.raises(ValueError, match="handle"):
        FanrankRetriever(engine.namespace("b"), namespace="c")


def test_the_nearest_nodes_are_those_of_the_frameworks_own_store(store: FanrankVectorStore) -> None:
    simple = SimpleVectorStore()
    simple.add(nodes_of())
    for text in ("tea at ten", "key rotating", "lunch"):
        ours, theirs = store.query(ask(text)), simple.query(ask(text))
        assert ours.ids == theirs.ids
        assert ours.similarities == pytest.approx(theirs.similarities, abs=1e-3)
        assert [node.node_id for node in ours.nodes or ()] == ours.ids


def test_hybrid_is_the_sum_of_both_scaled_scores(store: FanrankVectorStore) -> None:
    words = dict(zip(*_pairs(store.query(ask("tea at ten", "sparse", similarity_top_k=6))), strict=True))
    dense = dict(zip(*_pairs(store.query(ask("tea at ten", similarity_top_k=6))), strict=True))
    for alpha in (None, 0.0, 0.3, 1.0):
        share = 0.5 if alpha is None else alpha
        low, high = min(dense.values()), max(dense.values())
        scaled = {name: (score - low) / (high - low) for name, score in dense.items()}
        best = max(words.values())
        expected = {name: share * scaled[name] + (1 - share) * words.get(name, 0.0) / best for name in dense}
        found = store.query(ask("tea at ten", "hybrid", alpha=alpha, similarity_top_k=6))
        assert dict(zip(*_pairs(found), strict=True)) == pytest.approx(expected)
        assert found.similarities == sorted(found.similarities or (), reverse=True)
    assert len(store.query(ask("tea at ten", "hybrid", hybrid_top_k=2)).ids or ()) == 2
    with pytest.raises(ValueError, match="alpha"):
        store.query(ask("tea", "hybrid", alpha=1.5))
    own = FanrankVectorStore(embed_dim=DIMENSION, hybrid_strategy="rrf")
    own.add(nodes_of())
    expected_rrf = own.client.search([fr.Query("tea at ten", vector=vector_of("tea at ten"))], 3, strategy="rrf")
    assert own.query(ask("tea at ten", "hybrid")).similarities == [hit.score for hit in expected_rrf[0]]
    with pytest.raises(ValueError, match="alpha"):
        own.query(ask("tea", "hybrid", alpha=0.5))


def _pairs(found: Any) -> tuple[list[str], list[float]]:
    return found.ids, found.similarities


def test_mmr_chooses_as_the_frameworks_own_store(store: FanrankVectorStore) -> None:
    simple = SimpleVectorStore()
    simple.add(nodes_of())
    for threshold in (0.2, 0.5, 1.0):
        ours = store.query(ask("tea at ten", "mmr"), mmr_threshold=threshold)
        theirs = simple.query(ask("tea at ten", "mmr"), mmr_threshold=threshold)
        assert ours.ids == theirs.ids
        assert ours.similarities == pytest.approx(theirs.similarities, abs=1e-3)
        assert [node.node_id for node in ours.nodes or ()] == ours.ids
        assert store.query(ask("tea at ten", "mmr", mmr_threshold=threshold)).ids == ours.ids
    nearest = store.query(ask("tea at ten", similarity_top_k=2)).ids
    assert set(store.query(ask("tea at ten", "mmr", similarity_top_k=2), mmr_prefetch_factor=1).ids or ()) == {
        *(nearest or ())
    }


def test_a_batch_of_queries_of_any_mode_is_one_launch(
    store: FanrankVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [
        ask(text, mode, filters=filters)
        for text, mode, filters in itertools.product(
            ("tea at ten", "error key"), ("default", "sparse", "hybrid", "mmr"), (None, where(("kind", "==", "even")))
        )
    ]
    loop = [store.query(query) for query in queries]
    launches = count_searches(monkeypatch)
    assert store.query_batch(queries) == loop
    assert launches == [len(queries)]
    assert store.query_batch([]) == []

    async def run() -> list[Any]:
        return await asyncio.gather(*(store.aquery(query) for query in queries))

    assert asyncio.run(run()) == loop


def test_nodes_and_documents_narrow_a_query(store: FanrankVectorStore) -> None:
    for mode in ("default", "sparse", "hybrid"):
        assert {*(store.query(ask("tea at ten", mode, node_ids=["n4", "n1"])).ids or ())} <= {"n4", "n1"}
        assert {*(store.query(ask("tea at ten", mode, doc_ids=["d0"])).ids or ())} <= {"n0", "n1"}
    assert store.query(ask("tea at ten", node_ids=["n1"], doc_ids=["d0"])).ids == ["n1"]
    assert store.query(ask("tea at ten", node_ids=[], doc_ids=[])) == store.query(ask("tea at ten"))
    assert store.get_nodes([]) == []
    even = where(("kind", "==", "even"))
    assert store.query(ask("tea at ten", doc_ids=["d0"], filters=even)).ids == ["n0"]


def test_nodes_are_read_and_deleted_by_ids_documents_and_filters(store: FanrankVectorStore) -> None:
    assert [node.node_id for node in store.get_nodes(["n3", "nobody", "n1"])] == ["n3", "n1"]
    assert [node.node_id for node in store.get_nodes(["n3", "n1", "n2"], where(("kind", "==", "odd")))] == ["n3", "n1"]
    store.delete("d0")
    store.delete("nobody")
    assert [node.node_id for node in store.get_nodes()] == ["n2", "n3", "n4", "n5"]
    store.delete_nodes(["n2", "n3"], where(("kind", "==", "odd")))
    assert [node.node_id for node in store.get_nodes()] == ["n2", "n4", "n5"]
    store.delete_nodes(filters=where(("number", ">", 4)))
    asyncio.run(store.adelete_nodes(["n2"]))
    assert [node.node_id for node in store.get_nodes()] == ["n4"]
    with pytest.raises(ValueError, match="clear"):
        store.delete_nodes()
    store.clear()
    assert store.get_nodes() == []
    assert asyncio.run(store.async_add(nodes_of()[:2])) == ["n0", "n1"]
    assert len(store.get_nodes()) == 2


def test_an_index_of_the_framework_works_over_it(tmp_path: Path) -> None:
    store = FanrankVectorStore(tmp_path / "nodes", embed_dim=DIMENSION)
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes_of(embedded=False), storage_context=context, embed_model=Words())
    index.insert(Document(id_="doc", text="green tea for Ana"))
    answers = {}
    for mode in ("default", "sparse", "hybrid"):
        retriever = index.as_retriever(similarity_top_k=3, vector_store_query_mode=mode, embed_model=Words())
        answers[mode] = retriever.retrieve("green tea")
        assert asyncio.run(retriever.aretrieve("green tea")) == answers[mode]
        assert answers[mode][0].node.ref_doc_id == "doc"
        assert answers[mode][0].node.relationships[NodeRelationship.SOURCE].node_id == "doc"
    index.delete_ref_doc("doc")
    assert index.as_retriever(similarity_top_k=1).retrieve("green tea")[0].node.ref_doc_id != "doc"
    index.insert(Document(id_="doc", text="green tea for Ana"))
    index.storage_context.persist(str(tmp_path / "other"))
    store.client._memory.close()  # type: ignore[attr-defined]
    again = VectorStoreIndex.from_vector_store(FanrankVectorStore(tmp_path / "nodes"), embed_model=Words())
    for mode, expected in answers.items():
        found = again.as_retriever(similarity_top_k=3, vector_store_query_mode=mode).retrieve("green tea")
        assert [(one.node.text, one.score) for one in found] == [(one.node.text, one.score) for one in expected]
    again.vector_store.client._memory.close()  # type: ignore[attr-defined]


def test_errors_say_what_is_wrong(store: FanrankVectorStore) -> None:
    with pytest.raises(ValueError, match="svm"):
        store.query(ask("tea", "svm"))
    with pytest.raises(ValueError, match="query_embedding"):
        store.query(VectorStoreQuery(query_str="tea"))
    with pytest.raises(ValueError, match="query_str"):
        store.query(VectorStoreQuery(mode=VectorStoreQueryMode.SPARSE))
    with pytest.raises(ValueError, match="memory"):
        store.persist("x")
    with pytest.raises(ValueError, match="encoder"):
        FanrankVectorStore().add(nodes_of())
    assert FanrankVectorStore().class_name() == "FanrankVectorStore"
    assert store.stores_text
