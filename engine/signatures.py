"""The keywords of the public verbs, typed once, so that an editor completes them and mypy refuses a misspelled one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypedDict

from .encoders.encoder import Encoder
from .encoders.sparse import TermEncoder
from .hybrid.strategy import BM25, PLAIN, AnyStrategy
from .moments import Span
from .plan.options import AUTO
from .rerank.reranker import DEPTH, CheckedReranker
from .route.by_namespace import AnyAnswerer, ByNamespace, answerer_of
from .route.policy import Policy
from .search.options import DEFAULT_THREADS, NO_OFFSET, SearchOptions
from .text.analyzers import Analyzer


class EngineOptions(TypedDict, total=False):
    """The keywords of `Engine`, all but ``backend``; its docstring says what each means."""

    analyzer: str | Analyzer
    profile: str | None
    method: str | None
    k1: float | None
    b: float | None
    delta: float | None
    query_tf: str
    fields: Mapping[str, float] | None
    columns: Mapping[str, str] | str | None
    window: Span
    epsilon: float
    max_windows: int | None
    recency_rate: float
    encoder: str | os.PathLike[str] | Encoder | None
    term_encoder: TermEncoder | None
    keep_texts: bool
    log_texts: bool


class BatchKeywords(TypedDict, total=False):
    """The keywords that every search of a batch takes; `Engine.search` says what each means."""

    strategy: AnyStrategy | Policy | ByNamespace
    reranker: CheckedReranker | None
    rerank_depth: int
    execution: str
    texts: bool
    payload: bool
    offset: int
    min_score: float | None
    distinct: str | None


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
    _check_names(keywords, BatchKeywords.__annotations__, LaunchKeywords.__annotations__, verb)


def check_engine_options(options: EngineOptions, verb: str) -> None:
    """Raise `TypeError` for a keyword that `Engine` does not take."""
    _check_names(options, EngineOptions.__annotations__, EngineOptions.__annotations__, verb)


def _check_names(given: Iterable[str], known: Iterable[str], shown: Iterable[str], verb: str) -> None:
    for name in given:
        if name not in known:
            from difflib import get_close_matches  # only a mistake needs it

            close = get_close_matches(name, shown, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}{hint}")


_DEFAULTS: dict[str, object] = {
    "strategy": BM25,
    "reranker": None,
    "rerank_depth": DEPTH,
    "threads": DEFAULT_THREADS,
    "execution": AUTO,
    "timing": False,
    "texts": False,
    "payload": False,
    "offset": NO_OFFSET,
    "min_score": None,
    "distinct": None,
}
_KEYWORDS = {*_DEFAULTS}
_UNTIMED = PLAIN, SearchOptions()
_TIMED = PLAIN, SearchOptions(timing=True)


def read_keywords(keywords: SearchKeywords | ThreadedKeywords) -> tuple[AnyAnswerer, SearchOptions]:
    """What answers a batch, and with which options. Raises `ParameterError` and `QueryError`."""
    rest = {**_DEFAULTS, **keywords}
    # Most calls leave all at its default, and share what was checked before. The values are compared by identity: 1.0
    # and True equal 1, and are refused. A value that is equal without being the same goes the longer way below.
    if (
        rest["strategy"] is BM25
        and rest["reranker"] is None
        and rest["rerank_depth"] is DEPTH
        and rest["threads"] is DEFAULT_THREADS
        and rest["execution"] is AUTO
        and rest["texts"] is False
        and rest["payload"] is False
        and rest["offset"] is NO_OFFSET
        and rest["min_score"] is None
        and rest["distinct"] is None
        and {*rest} == _KEYWORDS
    ):
        if rest["timing"] is False:
            return _UNTIMED
        if rest["timing"] is True:
            return _TIMED
    answerer = answerer_of(rest.pop("strategy"))
    return answerer, SearchOptions(**rest)  # type: ignore[arg-type]
