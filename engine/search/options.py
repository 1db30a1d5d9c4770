"""How a batch is searched: the options of a call, made and checked once."""

from __future__ import annotations

from dataclasses import dataclass

from ..encoders.models import positive
from ..errors import ParameterError, choices
from ..plan.options import AUTO, EXECUTIONS
from ..rerank.reranker import DEPTH, CheckedReranker, check_reranker

DEFAULT_THREADS = 1


@dataclass(frozen=True)
class SearchOptions:
    """What a caller asks of a search beside the queries, k and the strategy.

    `threads`, `execution` and `timing` do not change the answer. Raises `ParameterError` for an unknown or invalid
    value.
    """

    threads: int = DEFAULT_THREADS
    """The most threads of a compiled search, 1 or more."""
    execution: str = AUTO
    """One of `EXECUTIONS`."""
    timing: bool = False
    """Whether the answer says how long each phase took."""
    reranker: CheckedReranker | None = None
    """What reorders the first `rerank_depth` hits of each query by their texts."""
    rerank_depth: int = DEPTH
    texts: bool = False
    """Whether the hits bring their texts, times and metadata."""
    payload: bool = False
    """Whether the hits bring their payloads."""

    def __post_init__(self) -> None:
        # The default is tested first, without a call: this runs for every search.
        if self.threads is not DEFAULT_THREADS:
            positive("threads", self.threads)
        if self.execution not in EXECUTIONS:
            raise ParameterError(f"unknown execution {self.execution!r}{choices(self.execution, EXECUTIONS)}")
        if self.reranker is not None:
            check_reranker(self.reranker)
            positive("rerank_depth", self.rerank_depth)
