"""LangChain's own tests of retrievers and vector stores, whole, sync and async, in memory and over a directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanrank as fr

pytest.importorskip("langchain_core")
suites = pytest.importorskip("langchain_tests.integration_tests")
pytest.importorskip("pytest_asyncio")

from langchain_core.vectorstores import VectorStore  # noqa: E402

from fanrank.integrations.langchain import (  # noqa: E402
    FanrankRetriever,
    FanrankVectorStore,
)

TEXTS = ["Ana prefers tea", "tea at four", "the tea is cold", "Bo drinks coffee and tea", "the billing job failed"]


class TestRetriever(suites.RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[FanrankRetriever]:
        return FanrankRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"engine": fr.Engine.from_records([fr.Record(f"m{n}", text) for n, text in enumerate(TEXTS)]), "k": 2}

    @property
    def retriever_query_example(self) -> str:
        return "who likes tea"


class TestVectorStore(suites.VectorStoreIntegrationTests):
    @pytest.fixture(params=["memory", "tenant", "directory"])
    def vectorstore(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorStore]:
        engine: Any = None if request.param == "memory" else tmp_path / "memory"
        if request.param == "tenant":
            shared = fr.Engine(encoder=fr.OwnVectors(len(self.get_embeddings().embed_query(""))))
            shared.add([fr.Record("1", "of another tenant", namespace="bo", embedding=[1.0] * 6)])
            engine = shared.namespace("ana")
        store = FanrankVectorStore(self.get_embeddings(), engine=engine)
        yield store
        if request.param == "directory":
            store.engine.close()
