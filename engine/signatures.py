"""The keywords of the public verbs, typed once, so that an editor completes them and mypy refuses a misspelled one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypedDict

from .encoders.encoder import Encoder
from .encoders.sparse import TermEncoder
from .hybrid.strategy import AnyStrategy
from .rerank.reranker import CheckedReranker
from .route.policy import Answerer, Policy, strategy_of
from .search.options import SearchOptions
from .text.analyzers import Analyzer


class EngineOptions(TypedDict, total=False):
    """The keywords of `Engine`, all but ``backend``; its docstring says what each means."""

    analyzer: str | Analyzer
    method: str
    k1: float
    b: float
    delta: float | None
    query_tf: str
    fields: Mapping[str, float] | None
    columns: Mapping[str, str] | None
    window: float
    epsilon: float
    max_windows: int | None
    recency_rate: float
    encoder: str | os.PathLike[str] | Encoder | None
    term_encoder: TermEncoder | None


class BatchKeywords(TypedDict, total=False):
    """The keywords that every search of a batch takes; `Engine.search` says what each means."""

    strategy: AnyStrategy | Policy
    reranker: CheckedReranker | None
    rerank_depth: int
    execution: str


class ThreadedKeywords(BatchKeywords, total=False):
    """Those of a batch that is searched by a given number of threads."""

    threads: int


class SearchKeywords(ThreadedKeywords, total=False):
    """The keywords of `Engine.search`."""

    timing: bool


class LaunchKeywords(BatchKeywords, total=False):
    """The keywords of `Coalescer.search`, `Coalescer.asearch` and `Coalescer.submit`."""

    threads: int | None
    deadline: float | None
    wait: bool


class CandidateKeywords(TypedDict, total=False):
    """The keywords of `Engine.candidates` beside the strategy."""

    threads: int
    execution: str


def check_keywords(keywords: BatchKeywords, verb: str) -> None:
    """Raise `TypeError` for a keyword that a shared launch does not take."""
    for name in keywords:
        if name not in BatchKeywords.__annotations__:
            raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}")


def read_keywords(keywords: SearchKeywords | ThreadedKeywords) -> tuple[Answerer, SearchOptions]:
    """What answers a batch, and with which options. Raises `ParameterError`."""
    rest = dict(keywords)
    answerer = strategy_of(rest.pop("strategy", "bm25"))  # type: ignore[arg-type]
    return answerer, SearchOptions(**rest)  # type: ignore[arg-type]
