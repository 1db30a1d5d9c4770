"""The adapters of `fanrank.integrations` and the stores that their frameworks bring, each with the same two verbs.

`System.ask` answers a batch of questions in the way that the framework has for a batch, and `System.wait` is that way
awaited. An adapter of ours also has `Adapter.plain`, the search of the engine that gives the same records, and says by
`Adapter.pairs` what it found. A system that cannot be made here, as its framework is missing, raises `ImportError`.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr

Pairs = list[list[tuple[str, float]]]
"""For each question the ids and scores of what was found, best first."""
Found = list[list[tuple[str, float, Any]]]
"""The same, each with its record or its payload."""


@dataclass(frozen=True)
class Work:
    """What all systems hold and are asked."""

    ids: Sequence[str]
    texts: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    vectors: npt.NDArray[np.float32]
    """[records, dimension] unit vectors."""
    questions: Sequence[str]
    question_vectors: npt.NDArray[np.float32]
    """[questions, dimension]"""
    k: int

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    def vector_of(self, question: int) -> list[float]:
        return list(map(float, self.question_vectors[question]))

    def embedder(self) -> Any:
        """A function from texts to the vectors that were made for them: an embedding model that costs nothing."""
        texts = (*zip(self.texts, self.vectors, strict=True), *zip(self.questions, self.question_vectors, strict=True))
        known = {text: list(map(float, row)) for text, row in texts}
        return lambda asked: [known[text] for text in asked]

    def records(self, **fields: Any) -> list[fr.Record]:
        return [
            fr.Record(id, text, payload=dict(values), **fields)
            for id, text, values in zip(self.ids, self.texts, self.metadata, strict=True)
        ]


class System:
    """Something that answers batches of questions, which are numbers of `Work.questions`."""

    name: str
    of: str = ""
    """What it is compared with: the name of the adapter for the same framework."""
    package: str = ""
    """The distribution whose version is recorded."""
    kind: str = "words"
    """What is compared: words, or vectors."""
    awaited: str = ""
    """How many callers ask it at once: by ``asyncio`` or by ``threads``; empty: not at all."""
    note: str = ""

    def __init__(self, work: Work) -> None:
        self.work = work

    def ask(self, questions: Sequence[int]) -> Any:
        raise NotImplementedError

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        """As `ask`, awaited. What has no such form runs in a thread, as its framework does it."""
        return asyncio.to_thread(self.ask, questions)

    def close(self) -> None:
        """Let go of what outlives the object."""

    def texts_of(self, questions: Sequence[int]) -> list[str]:
        return [self.work.questions[number] for number in questions]

    def version(self) -> str | None:
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


class Adapter(System):
    """A system over an engine of ours."""

    engine: Any
    """An `Engine`, or the `Namespace` that the adapter keeps its records in."""
    strategy: str = "bm25"
    brings: str | None = "record"
    """What the adapter reads of each hit: its ``record`` with text and payload, its ``payload`` alone, or nothing."""

    def queries(self, questions: Sequence[int]) -> list[fr.Query]:
        """The questions as the adapter asks them."""
        return [fr.Query(text) for text in self.texts_of(questions)]

    def plain(self, questions: Sequence[int]) -> Found:
        """What the engine gives without the adapter: ids, scores, and what `brings` names of each hit."""
        return self._found(
            self.engine.search(self.queries(questions), self.work.k, strategy=self.strategy, **self._brought())
        )

    async def plain_wait(self, questions: Sequence[int]) -> Found:
        """As `plain`, awaited."""
        return self._found(
            await self.engine.asearch(self.queries(questions), self.work.k, strategy=self.strategy, **self._brought())
        )

    def _brought(self) -> dict[str, Any]:
        return {"texts": self.brings == "record", "payload": self.brings is not None}

    def _found(self, hits: fr.Hits) -> Found:
        if self.brings is None:
            return [[(hit.id, hit.score, None) for hit in row] for row in hits]
        if self.brings == "payload":
            return [[(hit.id, hit.score, hit.payload) for hit in row] for row in hits]
        return [[(hit.id, hit.score, hit.record) for hit in row] for row in hits]

    def pairs(self, answer: Any) -> Pairs:
        """The ids and scores of an answer."""
        raise NotImplementedError

    def right(self, questions: Sequence[int], answer: Any) -> bool:
        """Whether an answer is that of the plain engine, bit for bit."""
        return self.pairs(answer) == [[(id, score) for id, score, _ in row] for row in self.plain(questions)]


def adapter_module(name: str) -> Any:
    """A module of `fanrank.integrations`. Raises `ImportError` where it or its framework is missing."""
    return import_module(f"fanrank.integrations.{name}")


class PlainEngine(Adapter):
    """The engine itself."""

    name, package, awaited = "engine", "fanrank", "asyncio"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.engine = fr.Engine.from_records(work.records())

    def ask(self, questions: Sequence[int]) -> Any:
        return self.plain(questions)

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        return self.plain_wait(questions)

    def pairs(self, answer: Any) -> Pairs:
        return [[(id, score) for id, score, _ in row] for row in answer]


class LangChain(Adapter):
    """`FanrankRetriever.batch` and `abatch`."""

    name, package, awaited = "langchain", "langchain-core", "asyncio"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        retriever = adapter_module("langchain").FanrankRetriever
        self.engine = fr.Engine.from_records(work.records())
        self.retriever = retriever(engine=self.engine, k=work.k)

    def ask(self, questions: Sequence[int]) -> Any:
        return self.retriever.batch(self.texts_of(questions))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = self.retriever.abatch(self.texts_of(questions))
        return found

    def pairs(self, answer: Any) -> Pairs:
        return [[(document.id, document.metadata["score"]) for document in row] for row in answer]


class LlamaIndex(Adapter):
    """`FanrankRetriever.retrieve_batch` and `aretrieve_batch`."""

    name, package, awaited = "llama-index", "llama-index-core", "asyncio"
    brings = "payload"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        module = adapter_module("llama_index")
        self.retriever = module.FanrankRetriever(nodes=llama_nodes(work), similarity_top_k=work.k)
        self.engine = self.retriever.handle

    def ask(self, questions: Sequence[int]) -> Any:
        return self.retriever.retrieve_batch(self.texts_of(questions))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = self.retriever.aretrieve_batch(self.texts_of(questions))
        return found

    def pairs(self, answer: Any) -> Pairs:
        return [[(hit.node.node_id, hit.score) for hit in row] for row in answer]


class LangGraph(Adapter):
    """`FanrankStore.batch` and `abatch` of searches."""

    name, package, awaited = "langgraph", "langgraph-checkpoint", "asyncio"
    place = ("memories",)

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.store = self.made(work)
        self.engine = self.store.engine
        put_items(self.store, work, self.place)

    def made(self, work: Work) -> Any:
        return adapter_module("langgraph").FanrankStore(index={"fields": ["text"]})

    def queries(self, questions: Sequence[int]) -> list[fr.Query]:
        path = "/".join((self.store.root, *self.place))
        return [fr.Query(text, under=path) for text in self.texts_of(questions)]

    def ask(self, questions: Sequence[int]) -> Any:
        return self.store.batch(search_operations(self, questions, self.place))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = self.store.abatch(search_operations(self, questions, self.place))
        return found

    def pairs(self, answer: Any) -> Pairs:
        return [[(item.key, item.score) for item in row] for row in answer]


class LangGraphVectors(LangGraph):
    """The same with an embedding function, by cosine."""

    name, kind, strategy = "langgraph-dense", "vectors", "dense"

    def made(self, work: Work) -> Any:
        index = {"dims": work.dimension, "embed": work.embedder(), "fields": ["text"]}
        return adapter_module("langgraph").FanrankStore(index=index, strategy="dense")

    def queries(self, questions: Sequence[int]) -> list[fr.Query]:
        path = "/".join((self.store.root, *self.place))
        return [
            fr.Query(self.work.questions[each], under=path, vector=self.work.question_vectors[each])
            for each in questions
        ]


class Haystack(Adapter):
    """`FanrankMultiQueryRetriever.run` and `run_async`."""

    name, package, awaited = "haystack", "haystack-ai", "asyncio"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        module = adapter_module("haystack")
        self.engine = fr.Engine()
        store = module.FanrankDocumentStore(self.engine)
        store.write_documents(haystack_documents(work))
        self.retriever = module.FanrankMultiQueryRetriever(store, top_k=work.k)

    def ask(self, questions: Sequence[int]) -> Any:
        return self.retriever.run(queries=self.texts_of(questions))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = self.retriever.run_async(queries=self.texts_of(questions))
        return found

    def pairs(self, answer: Any) -> Pairs:
        return [[(document.id, document.score) for document in row] for row in answer["document_lists"]]


class Mem0(Adapter):
    """`FanrankVectorStore.keyword_search_batch`; awaited in a thread, as mem0's `AsyncMemory` does."""

    name, package, awaited = "mem0", "mem0ai", "threads"
    brings = "payload"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        module = adapter_module("mem0")
        self.store = module.FanrankVectorStore("bench", embedding_model_dims=work.dimension)
        self.engine = self.store.engine.namespace("bench")
        fill_mem0(self.store, work, [*work.ids])

    def ask(self, questions: Sequence[int]) -> Any:
        return self.store.keyword_search_batch(self.texts_of(questions), top_k=self.work.k)

    def pairs(self, answer: Any) -> Pairs:
        scale = self.store.keyword_scale
        return [[(memo.id, memo.score / scale) for memo in row] for row in answer]

    def right(self, questions: Sequence[int], answer: Any) -> bool:
        # The store multiplies each score by its scale, once.
        scale = self.store.keyword_scale
        expected = [[(id, score * scale) for id, score, _ in row] for row in self.plain(questions)]
        return [[(memo.id, memo.score) for memo in row] for row in answer] == expected


class Mem0Vectors(Mem0):
    """`FanrankVectorStore.search_batch`, by cosine."""

    name, kind, strategy = "mem0-dense", "vectors", "dense"

    def queries(self, questions: Sequence[int]) -> list[fr.Query]:
        return [fr.Query(self.work.questions[each], vector=self.work.question_vectors[each]) for each in questions]

    def ask(self, questions: Sequence[int]) -> Any:
        vectors = [self.work.vector_of(each) for each in questions]
        return self.store.search_batch(self.texts_of(questions), vectors, top_k=self.work.k)

    def right(self, questions: Sequence[int], answer: Any) -> bool:
        # The store keeps cosines within [0, 1].
        expected = [[(id, min(max(score, 0.0), 1.0)) for id, score, _ in row] for row in self.plain(questions)]
        return [[(memo.id, memo.score) for memo in row] for row in answer] == expected


class SentenceTransformers(Adapter):
    """`semantic_search_fanrank` with an index that an earlier call made."""

    name, package, kind, strategy = "sentence-transformers", "sentence-transformers", "vectors", "dense"
    brings = None
    note = "scores candidates again in float64, and gives no texts"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.search = adapter_module("sentence_transformers").semantic_search_fanrank
        *_, self.index = self.search(work.question_vectors[:1], work.vectors, top_k=1, output_index=True)
        self.engine = self.index.engine

    def queries(self, questions: Sequence[int]) -> list[fr.Query]:
        return [fr.Query("", vector=self.work.question_vectors[each]) for each in questions]

    def ask(self, questions: Sequence[int]) -> Any:
        return self.search(self.work.question_vectors[[*questions]], corpus_index=self.index, top_k=self.work.k)[0]

    def right(self, questions: Sequence[int], answer: Any) -> bool:
        """Whether the rows found are the nearest ones in float64."""
        rows, asked = (each.astype(np.float64) for each in (self.work.vectors, self.work.question_vectors))
        lengths = np.linalg.norm(rows, axis=1)
        for number, row in zip(questions, answer, strict=True):
            cosines = rows @ asked[number] / (lengths * np.linalg.norm(asked[number]))
            best = np.argsort(-cosines, kind="stable")[: self.work.k]
            found = [hit["corpus_id"] for hit in row]
            close = np.allclose([hit["score"] for hit in row], cosines[best], rtol=0, atol=1e-12)
            if len(found) != len(best) or not close or not np.allclose(cosines[found], cosines[best], atol=1e-12):
                return False
        return True


class Tools(Adapter):
    """`MemoryTools.call` of ``recall``: JSON in, JSON out."""

    name, package, awaited = "tools", "fanrank", "asyncio"
    note = "reads JSON and writes JSON"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        module = adapter_module("tools")
        self.engine = fr.Engine.from_records(work.records())
        limits = module.ToolLimits(k=max(20, work.k), tokens=100_000)
        self.tools = module.memory_tools(self.engine, k=work.k, limits=limits)

    def arguments(self, questions: Sequence[int]) -> str:
        return json.dumps({"queries": self.texts_of(questions), "k": self.work.k, "since": None, "until": None})

    def ask(self, questions: Sequence[int]) -> Any:
        return self.tools.call("recall", self.arguments(questions))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = self.tools.acall("recall", self.arguments(questions))
        return found

    def right(self, questions: Sequence[int], answer: Any) -> bool:
        """Whether ids and texts are those of the plain engine; the tools show no scores."""
        value = json.loads(answer)
        expected = self.plain(questions)
        texts = {each["id"]: each["text"] for each in value["memories"]}
        return [row["ids"] for row in value["answers"]] == [[id for id, _, _ in row] for row in expected] and texts == {
            id: record.text for row in expected for id, _, record in row
        }


def llama_nodes(work: Work) -> list[Any]:
    """The records as LlamaIndex's nodes, their metadata kept out of the text."""
    from llama_index.core.schema import TextNode

    return [
        TextNode(id_=id, text=text, metadata=dict(values), excluded_embed_metadata_keys=[*values])
        for id, text, values in zip(work.ids, work.texts, work.metadata, strict=True)
    ]


def haystack_documents(work: Work) -> list[Any]:
    """The records as Haystack's documents."""
    from haystack import Document

    return [
        Document(id=id, content=text, meta=dict(values))
        for id, text, values in zip(work.ids, work.texts, work.metadata, strict=True)
    ]


def put_items(store: Any, work: Work, place: tuple[str, ...]) -> None:
    """Write the records into a store of LangGraph, in batches.

    No batch holds a text twice, as `InMemoryStore` refuses to embed such a batch.
    """
    from langgraph.store.base import PutOp

    batches: list[list[Any]] = []
    seen: Counter[str] = Counter()
    for id, text, values in zip(work.ids, work.texts, work.metadata, strict=True):
        if seen[text] == len(batches):
            batches.append([])
        batches[seen[text]].append(PutOp(place, id, {"text": text, **values}))
        seen[text] += 1
    for batch in batches:
        store.batch(batch)


def search_operations(system: System, questions: Sequence[int], place: tuple[str, ...]) -> list[Any]:
    """The questions as LangGraph asks them."""
    from langgraph.store.base import SearchOp

    return [SearchOp(place, query=text, limit=system.work.k) for text in system.texts_of(questions)]


def fill_mem0(store: Any, work: Work, ids: Sequence[Any], size: int = 5_000) -> None:
    """Write the records into a store of mem0, in batches. `ids` are what the store takes as ids."""
    for start in range(0, len(work.ids), size):
        part = slice(start, start + size)
        payloads = [
            {"data": text, **values} for text, values in zip(work.texts[part], work.metadata[part], strict=True)
        ]
        store.insert(work.vectors[part].tolist(), payloads, [*ids[part]])


class LangChainBM25(System):
    """`BM25Retriever` of langchain-community (rank_bm25). Its batch is a pool of threads."""

    name, of, package, awaited = "langchain BM25Retriever", "langchain", "langchain-community", "asyncio"
    note = "words as it splits them by default: at blanks"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the package's own end
            from langchain_community.retrievers import BM25Retriever

        self.retriever = BM25Retriever.from_texts([*work.texts], metadatas=[*map(dict, work.metadata)], ids=[*work.ids])
        self.retriever.k = work.k

    def ask(self, questions: Sequence[int]) -> Any:
        return self.retriever.batch(self.texts_of(questions))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = self.retriever.abatch(self.texts_of(questions))
        return found


class LlamaBM25(System):
    """`BM25Retriever` of llama-index-retrievers-bm25 (bm25s). It has no batch."""

    name, of, package = "llama-index BM25Retriever", "llama-index", "llama-index-retrievers-bm25"
    awaited = "asyncio"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        from llama_index.retrievers.bm25 import BM25Retriever

        self.retriever = BM25Retriever.from_defaults(nodes=llama_nodes(work), similarity_top_k=work.k)

    def ask(self, questions: Sequence[int]) -> Any:
        return [self.retriever.retrieve(text) for text in self.texts_of(questions)]

    async def wait(self, questions: Sequence[int]) -> Any:
        return [await self.retriever.aretrieve(text) for text in self.texts_of(questions)]


class LangGraphMemory(System):
    """`InMemoryStore` with an embedding function."""

    name, of, package = "langgraph InMemoryStore", "langgraph-dense", "langgraph-checkpoint"
    kind, awaited, place = "vectors", "asyncio", ("memories",)

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        from langgraph.store.memory import InMemoryStore

        index: Any = {"dims": work.dimension, "embed": work.embedder(), "fields": ["text"]}
        self.store = InMemoryStore(index=index)
        put_items(self.store, work, self.place)

    def ask(self, questions: Sequence[int]) -> Any:
        return self.store.batch(search_operations(self, questions, self.place))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        return self.store.abatch(search_operations(self, questions, self.place))


class HaystackBM25(System):
    """`InMemoryBM25Retriever` behind Haystack's own `MultiQueryTextRetriever`, a pool of three threads."""

    name, of, package, awaited = "haystack InMemoryBM25Retriever", "haystack", "haystack-ai", "asyncio"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        from haystack.components.retrievers import InMemoryBM25Retriever, MultiQueryTextRetriever
        from haystack.document_stores.in_memory import InMemoryDocumentStore

        store = InMemoryDocumentStore()
        store.write_documents(haystack_documents(work))
        self.retriever = MultiQueryTextRetriever(retriever=InMemoryBM25Retriever(store, top_k=work.k))
        self.retriever.warm_up()

    def ask(self, questions: Sequence[int]) -> Any:
        return self.retriever.run(queries=self.texts_of(questions))

    def wait(self, questions: Sequence[int]) -> Coroutine[Any, Any, Any]:
        return self.retriever.run_async(queries=self.texts_of(questions))


class Mem0Qdrant(System):
    """mem0's default store: Qdrant in this process."""

    name, of, package = "mem0 local Qdrant", "mem0-dense", "qdrant-client"
    kind, awaited = "vectors", "threads"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        from mem0.vector_stores.qdrant import Qdrant
        from qdrant_client import QdrantClient

        self.store = Qdrant("bench", work.dimension, client=QdrantClient(":memory:"))
        fill_mem0(self.store, work, range(len(work.ids)))

    def ask(self, questions: Sequence[int]) -> Any:
        vectors = [self.work.vector_of(each) for each in questions]
        return self.store.search_batch(self.texts_of(questions), vectors, top_k=self.work.k)

    def close(self) -> None:
        self.store.client.close()


class SemanticSearch(System):
    """`util.semantic_search` of sentence-transformers, in torch."""

    name, of, package = "sentence-transformers semantic_search", "sentence-transformers", "sentence-transformers"
    kind = "vectors"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        import torch
        from sentence_transformers import util

        self.search, self.torch = util.semantic_search, torch
        self.rows = torch.from_numpy(np.asarray(work.vectors))

    def ask(self, questions: Sequence[int]) -> Any:
        asked = self.torch.from_numpy(self.work.question_vectors[[*questions]])
        return self.search(asked, self.rows, top_k=self.work.k)


ADAPTERS: tuple[type[Adapter], ...] = (
    PlainEngine,
    LangChain,
    LlamaIndex,
    LangGraph,
    Haystack,
    Mem0,
    Tools,
    LangGraphVectors,
    Mem0Vectors,
    SentenceTransformers,
)
"""Ours, the engine first."""
PEERS: tuple[type[System], ...] = (
    LangChainBM25,
    LlamaBM25,
    HaystackBM25,
    LangGraphMemory,
    Mem0Qdrant,
    SemanticSearch,
)
