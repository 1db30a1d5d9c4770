"""The keywords of the public verbs, typed once, so that an editor completes them and mypy refuses a misspelled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast, get_args

from .encoders.encoder import Encoder
from .encoders.sparse import TermEncoder
from .errors import ParameterError, check_names, choices
from .hybrid.strategy import BM25, AnyStrategy
from .moments import Span
from .plan.options import AUTO
from .records.checks import About
from .records.query import DEFAULTS, QueryDefaults
from .rerank.reranker import DEPTH, CheckedReranker
from .route.by_namespace import AnyAnswerer, ByNamespace, answerer_of
from .route.policy import Policy
from .search.options import DEFAULT_THREADS, SearchOptions
from .text.analyzers import Analyzer

F = TypeVar("F", bound=Callable[..., Any])


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


class BatchKeywords(QueryDefaults, total=False):
    """The keywords that every search of a batch takes; `Engine.search` says what each means."""

    strategy: AnyStrategy | Policy | ByNamespace
    reranker: CheckedReranker | None
    rerank_depth: int
    execution: str
    texts: bool
    payload: bool


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


class AwaitedKeywords(LaunchKeywords, total=False):
    """The keywords of `Coalescer.asearch`."""

    tenant: str | None


class CandidateKeywords(TypedDict, total=False):
    """The keywords of `Engine.candidates` beside the strategy."""

    threads: int
    execution: str


Twins = Literal["keep", "skip", "replace", "tell"]
KEEP: Twins = "keep"
ABOUT_TWINS = (
    "Of a record whose text its namespace holds already: keep writes it, tell writes it and names the others, skip "
    "leaves it out, replace takes the others away."
)
TwinsField = Annotated[Twins, About(ABOUT_TWINS)]


def check_twins(twins: str) -> None:
    if twins not in get_args(Twins):
        raise ParameterError(f"unknown twins {twins!r}{choices(twins, get_args(Twins))}")


def check_keywords(keywords: BatchKeywords, verb: str) -> None:
    """Raise `TypeError` for a keyword that a shared launch does not take."""
    check_names(keywords, BatchKeywords.__annotations__, (*LaunchKeywords.__annotations__, "k"), verb)


def hinting(*others: str) -> Callable[[F], F]:
    """Makes a constructor or a method name the keyword that may be meant by an unknown one.

    It takes its own keywords, and `others` by ``**options``.
    """

    def decorate(function: F) -> F:
        code, verb = function.__code__, function.__qualname__.removesuffix(".__init__")
        known = (*code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount], *others)

        @wraps(function)
        def checked(*given: Any, **keywords: Any) -> Any:
            check_names(keywords, known, known, verb)
            return function(*given, **keywords)

        return cast(F, checked)

    return decorate


_DEFAULTS: dict[str, object] = {
    "strategy": BM25,
    "reranker": None,
    "rerank_depth": DEPTH,
    "threads": DEFAULT_THREADS,
    "execution": AUTO,
    "timing": False,
    "texts": False,
    "payload": False,
}
_KEYWORDS = {*_DEFAULTS}
_SHOWN = (*SearchKeywords.__annotations__, "k")
_NONE: Mapping[str, Any] = {}


@lru_cache(maxsize=64)
def _named(strategy: str, timing: bool) -> tuple[AnyAnswerer, SearchOptions]:
    """What answers, and how, where all but these are at their defaults."""
    return answerer_of(strategy), SearchOptions(timing=timing)


def read_keywords(
    keywords: SearchKeywords | ThreadedKeywords,
) -> tuple[AnyAnswerer, SearchOptions, Mapping[str, Any]]:
    """What answers a batch, with which options, and the fields of its queries that are set for all of them.

    Raises `ParameterError`, and `TypeError` for a keyword that no search has.
    """
    rest, defaults = {**_DEFAULTS, **keywords}, _NONE
    if {*rest} != _KEYWORDS:
        defaults, rest = split_defaults(rest)
        if {*rest} != _KEYWORDS:
            check_names(rest, _KEYWORDS, _SHOWN, "search")
    # Most calls leave all at its default, and share what was checked before. The values are compared by identity: 1.0
    # and True equal 1, and are refused. A value that is equal without being the same goes the longer way below.
    strategy = rest["strategy"]
    if (
        type(strategy) is str
        and rest["reranker"] is None
        and rest["rerank_depth"] is DEPTH
        and rest["threads"] is DEFAULT_THREADS
        and rest["execution"] is AUTO
        and rest["texts"] is False
        and rest["payload"] is False
        and (rest["timing"] is False or rest["timing"] is True)
    ):
        return *_named(strategy, rest["timing"]), defaults
    answerer = answerer_of(rest.pop("strategy"))
    return answerer, SearchOptions(**rest), defaults  # type: ignore[arg-type]


def split_defaults(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keywords that are fields of queries, and the others."""
    rest = dict(keywords)
    return {name: rest.pop(name) for name in DEFAULTS & rest.keys()}, rest
