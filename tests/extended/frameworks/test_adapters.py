"""What all adapters promise alike: a batch is one launch, callers share one, tenants are apart, answers are copies."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.evaluations import count_searches
from support.langchain_cases import texts
from support.memories import KINDS, make_memory
from support.threads import in_threads

import fanrank as fr

TEXTS = {f"m{number}": text for number, text in enumerate(texts(80))}
ASKED = [*texts(12, seed=3), "", "nothing of it", "tea", "tea"]
K = 5


@dataclass
class Face:
    """One adapter over a memory: how it writes, asks and answers."""

    write: Callable[[Mapping[str, str], dict[str, Any]], Any]
    """Writes these texts by id, each with this metadata."""
    batch: Callable[[list[str]], list[list[Any]]]
    one: Callable[[str], list[Any]]
    awaited: Callable[[str], Any] | None
    read: Callable[[Any], tuple[str, float | None]]
    """The id and the score of a hit."""
    metadata: Callable[[Any], dict[str, Any]]
    close: Callable[[], Any] = lambda: None


def within(memory: Any, tenant: str) -> Any:
    """The memory, or the tenant's handle on it."""
    return memory.namespace(tenant) if tenant else memory


def langchain_retriever(memory: Any, tenant: str = "") -> Face:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from fanrank.integrations.langchain import FanrankRetriever

    made = FanrankRetriever(within(memory, tenant), k=K, strategy="bm25")
    return Face(
        lambda given, meta: made.add_documents(Document(text, id=id, metadata=meta) for id, text in given.items()),
        made.batch,
        made.invoke,
        made.ainvoke,
        lambda hit: (hit.id, hit.metadata["score"]),
        lambda hit: hit.metadata,
        getattr(made.engine, "close", lambda: None),
    )


def langchain_store(memory: Any, tenant: str = "") -> Face:
    pytest.importorskip("langchain_core")
    from fanrank.integrations.langchain import FanrankVectorStore

    made = FanrankVectorStore(None, engine=within(memory, tenant))
    return Face(
        lambda given, meta: made.add_texts([*given.values()], [meta] * len(given), ids=[*given]),
        lambda asked: made.similarity_search_with_score_batch(asked, K),
        lambda text: made.similarity_search_with_score(text, K),
        lambda text: made.asimilarity_search_with_score(text, K),
        lambda hit: (hit[0].id, hit[1]),
        lambda hit: hit[0].metadata,
        getattr(made.engine, "close", lambda: None),
    )


def llama_index(memory: Any, tenant: str = "") -> Face:
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import TextNode

    from fanrank.integrations.llama_index import FanrankRetriever

    made = FanrankRetriever(within(memory, tenant), nodes=[], similarity_top_k=K)

    def write(given: Mapping[str, str], meta: dict[str, Any]) -> None:
        hidden = {"excluded_embed_metadata_keys": [*meta]}
        made.add_nodes([TextNode(id_=id, text=text, metadata=meta, **hidden) for id, text in given.items()])

    return Face(
        write,
        made.retrieve_batch,
        made.retrieve,
        made.aretrieve,
        lambda hit: (hit.node.node_id, hit.score),
        lambda hit: hit.node.metadata,
        lambda: made.engine and made.engine.close(),
    )


def haystack(memory: Any, tenant: str = "") -> Face:
    pytest.importorskip("haystack")
    from haystack import Document

    from fanrank.integrations.haystack import FanrankDocumentStore, FanrankMultiQueryRetriever, FanrankRetriever

    store = FanrankDocumentStore(within(memory, tenant))
    one, many = FanrankRetriever(store, top_k=K), FanrankMultiQueryRetriever(store, top_k=K)

    async def awaited(text: str) -> list[Any]:
        return list((await one.run_async(text))["documents"])

    return Face(
        lambda given, meta: store.write_documents([Document(id, text, meta=meta) for id, text in given.items()]),
        lambda asked: many.run(asked)["document_lists"],
        lambda text: one.run(text)["documents"],
        awaited,
        lambda hit: (hit.id, hit.score),
        lambda hit: hit.meta,
        store.close,
    )


def langgraph(memory: Any, tenant: str = "all") -> Face:
    pytest.importorskip("langgraph.store.base")
    from langgraph.store.base import PutOp, SearchOp

    from fanrank.integrations.langgraph import FanrankStore

    labels = (tenant,)
    made = FanrankStore(memory, index={"fields": ["text"]}, strategy="bm25")  # type: ignore[typeddict-item]

    def operation(text: str) -> SearchOp:
        return SearchOp(labels, None, K, 0, text)

    async def awaited(text: str) -> list[Any]:
        return list(await made.asearch(labels, query=text, limit=K))

    return Face(
        lambda given, meta: made.batch([PutOp(labels, id, {"text": text, **meta}) for id, text in given.items()]),
        lambda asked: made.batch([operation(text) for text in asked]),  # type: ignore[return-value]
        lambda text: made.search(labels, query=text, limit=K),
        awaited,
        lambda hit: (hit.key, hit.score),
        lambda hit: hit.value,
        made.close,
    )


def mem0(memory: Any, tenant: str = "all") -> Face:
    pytest.importorskip("mem0")
    from fanrank.integrations.mem0 import FanrankVectorStore

    where = {"path" if isinstance(memory, Path) else "engine": memory}
    made = FanrankVectorStore(tenant, embedding_model_dims=2, keyword_scale=1.0, **where)
    return Face(
        lambda given, meta: made.insert(
            [[1, 0]] * len(given), [{"data": text, **meta} for text in given.values()], [*given]
        ),
        lambda asked: made.keyword_search_batch(asked, K),
        lambda text: made.keyword_search(text, K),
        None,
        lambda hit: (hit.id, hit.score),
        lambda hit: hit.payload,
        made.close,
    )


FACES = [langchain_retriever, langchain_store, llama_index, haystack, langgraph, mem0]


@pytest.fixture(params=FACES, ids=lambda face: face.__name__)
def make(request: pytest.FixtureRequest) -> Callable[..., Face]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=KINDS)
def engine(make: Any, request: pytest.FixtureRequest) -> Iterator[fr.Memory]:
    with make_memory(request.param, columns="auto", encoder="own:2" if make is mem0 else None) as memory:
        yield memory


def read(face: Face, rows: list[list[Any]]) -> list[list[Any]]:
    return [[face.read(hit) for hit in row] for row in rows]


def test_a_batch_is_one_launch_and_what_a_loop_and_the_engine_give(
    make: Callable[..., Face], engine: fr.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = make(engine)
    face.write(TEXTS, {})
    asked = [text for text in ASKED if text or make is not langgraph]  # LangGraph lists where there is no text
    loop = [face.one(text) for text in asked]
    launches = count_searches(monkeypatch)
    assert face.batch(asked) == loop
    assert face.batch([]) == []
    assert [size for size in launches if size] == [len(asked)]
    plain = fr.Engine()
    plain.add(fr.Record(id, text) for id, text in TEXTS.items())
    assert read(face, loop) == [[tuple(hit) for hit in row] for row in plain.search(asked, K)]


def test_callers_that_wait_at_the_same_time_share_launches(make: Callable[..., Face], engine: fr.Memory) -> None:
    face = make(engine)
    if face.awaited is None:
        pytest.skip("mem0 asks its stores in threads")
    face.write(TEXTS, {})
    asked = texts(100)

    async def ask() -> list[Any]:
        return await asyncio.gather(*map(face.awaited, asked))  # type: ignore[arg-type]

    answers = asyncio.run(ask())
    assert answers == [face.one(text) for text in asked]
    stats = engine.coalescer.stats()
    assert stats["callers"] == 100
    assert stats["launches"] < 50


def test_what_a_caller_changes_is_in_no_other_answer(make: Callable[..., Face], engine: fr.Memory) -> None:
    face, given = make(engine), {"list": [1]}
    face.write(TEXTS, given)
    given["list"].append(2)
    first, second = face.batch(["tea", "tea"])
    for hit in (*first, *face.one("tea")):
        assert face.metadata(hit)["list"] == [1]
        face.metadata(hit)["list"] = ["changed"]
        face.metadata(hit)["more"] = 1
    assert all(face.metadata(hit)["list"] == [1] and "more" not in face.metadata(hit) for hit in second)
    assert face.one("tea") == second != []


def test_tenants_are_apart(make: Callable[..., Face], engine: fr.Memory) -> None:
    ana, bo = (make(engine, name) for name in ("ana", "bo"))
    ana.write(TEXTS, {"of": "ana"})
    bo.write({"m0": "tea of bo"}, {"of": "bo"})
    assert {ana.metadata(hit)["of"] for hit in ana.one("tea")} == {"ana"}
    assert [(bo.read(hit)[0], bo.metadata(hit)["of"]) for hit in bo.one("tea")] == [("m0", "bo")]
    bo.write({"m1": "more tea"}, {"of": "bo"})
    assert len(ana.one("tea")) == K


def test_a_directory_is_opened_again(make: Callable[..., Face], tmp_path: Path) -> None:
    first = make(tmp_path / "memory")
    first.write(TEXTS, {"n": 1})
    answers = first.batch(ASKED)
    first.close()
    second = make(tmp_path / "memory")
    assert second.batch(ASKED) == answers
    assert any(answers)
    second.close()


def test_threads_write_and_search_at_once(make: Callable[..., Face], engine: fr.Memory) -> None:
    face, meeting = make(engine), threading.Barrier(6)

    def work(number: int) -> None:
        meeting.wait(300)
        for turn in range(8):
            word = f"word{number}x{turn}"
            face.write({word: word}, {})
            assert [face.read(hit)[0] for hit in face.one(word)] == [word]

    in_threads(*(partial(work, number) for number in range(6)))
    assert sum(engine.count(namespace=name) for name in engine.namespaces) == 48


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("beir", "beir.retrieval.search", "beir"),
        ("haystack", "haystack", "haystack"),
        ("langchain", "langchain_core.documents", "langchain"),
        ("langgraph", "langgraph.store.base", "langgraph"),
        ("llama_index", "llama_index.core.base.embeddings.base", "llama-index"),
        ("mem0", "mem0.vector_stores.base", "mem0"),
        ("mteb", "mteb.models.model_meta", "mteb"),
        ("pyterrier", "pyterrier", "pyterrier"),
        ("sentence_transformers", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_package_is_named(module: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(f"fanrank.integrations.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(fr.errors.MissingExtraError, match=rf"fanrank\[{extra}\]"):
        importlib.import_module(f"fanrank.integrations.{module}")
