"""The adapters' own suites run over an engine and over two shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.memories import KINDS, make_memory

from fanrank.integrations import shared

SUITES = (
    *("haystack", "langchain_conformance", "langchain_retriever", "langchain_store"),
    *("langgraph", "llama_index", "mem0", "pyterrier", "anthropic", "google_adk", "crewai"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition("test_")[2] in SUITES:
        metafunc.parametrize("opened", KINDS, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def opened(request: pytest.FixtureRequest) -> Iterator[str]:
    """What an adapter opens without files, where it is given no memory, is of this kind."""
    kind, plain = getattr(request, "param", "engine"), shared.open_memory

    def made(target: Any = None, **options: Any) -> Any:
        return make_memory(kind, **options) if target is None else plain(target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "open_memory", made)
        yield kind
