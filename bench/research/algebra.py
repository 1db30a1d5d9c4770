"""The algebra of programs that move a query's vector (SPEC E001): expressions, and their values over a corpus.

============================= ==========================================================================================
`Query`                       ENC(query), one encoder pass
`Sentence` (hits)             ENC(first sentence of the first hit), one encoder pass
`Retr` (vector, k)            RETR: the k nearest documents, by cosine, then by document number
`Aggr` (hits, op, tau)        AGGR: their mean, softmax-weighted mean, or the largest of each component
`Intp` (first, second, alpha) INTP: ``norm((1 - alpha) first + alpha second)``
`Rerank` (vector)             RERANK: all documents by cosine with it. A program is one of these.
============================= ==========================================================================================

Expressions are frozen and compare by value, so what two programs share is computed once. A vector is rounded to half
precision before anything is done with it, as the engine rounds every query: cosines are exact, and a program gives the
same bits as the method of `fanrank.engine.feedback` that it spells out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from fanrank.engine.arrays import Floats, Integers
from fanrank.engine.feedback.centroid import softmax
from fanrank.engine.feedback.pool import interpolate, lengths, round_moved, weighted_mean

OPS = ("mean", "softmax", "max")
GRID: Mapping[str, tuple[Any, ...]] = {
    "k": (1, 2, 3, 5, 10),
    "op": OPS,
    "tau": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    "alpha": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
}
"""What proposals choose from."""


@dataclass(frozen=True)
class Query:
    def __str__(self) -> str:
        return "ENC(query)"


@dataclass(frozen=True)
class Retr:
    vector: Vector
    k: int

    def __str__(self) -> str:
        return f"RETR({self.vector}, {self.k})"


@dataclass(frozen=True)
class Sentence:
    hits: Retr

    def __post_init__(self) -> None:
        object.__setattr__(self, "hits", replace(self.hits, k=1))

    def __str__(self) -> str:
        return f"ENC(first sentence of {self.hits})"


@dataclass(frozen=True)
class Aggr:
    """`tau` is 0 but for softmax, so that equal programs are equal."""

    hits: Retr
    op: str = "softmax"
    tau: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", (self.tau or 0.05) if self.op == "softmax" else 0.0)

    def __str__(self) -> str:
        return f"AGGR({self.hits}, {self.op}{f' {self.tau:g}' if self.tau else ''})"


@dataclass(frozen=True)
class Intp:
    first: Vector
    second: Vector
    alpha: float

    def __str__(self) -> str:
        return f"INTP({self.first}, {self.second}, {self.alpha:g})"


@dataclass(frozen=True)
class Rerank:
    vector: Vector

    def __str__(self) -> str:
        return f"RERANK({self.vector})"


Vector = Union[Query, Sentence, Aggr, Intp]  # noqa: UP007  (the classes above are not yet defined where they name it)
Node = Union[Vector, Retr, Rerank]  # noqa: UP007
KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Query, Retr, Sentence, Aggr, Intp, Rerank)}


def rocchio(k: int, beta: float, start: Vector = Query()) -> Intp:
    """E003. Its sum has the direction of INTP with ``alpha = beta / (1 + beta)``."""
    return Intp(start, Aggr(Retr(start, k), "mean"), beta / (1.0 + beta))


def soft_centroid(k: int = 3, alpha: float = 0.5, tau: float = 0.05, start: Vector = Query()) -> Intp:
    """SoftCentroid (E004); from another start than the query, one more round of it (E010)."""
    return Intp(start, Aggr(Retr(start, k), "softmax", tau), alpha)


def first_sentence(alpha: float = 0.5, start: Vector = Query()) -> Intp:
    """The first sentence of the best hit as the anchor (E005)."""
    return Intp(start, Sentence(Retr(start, 1)), alpha)


BASELINE = Rerank(Query())
"""Plain cosine, the baseline P0 (E002)."""
KNOWN: tuple[Rerank, ...] = (
    BASELINE,
    Rerank(rocchio(2, 0.5)),
    Rerank(soft_centroid()),
    Rerank(soft_centroid(start=soft_centroid())),
    Rerank(Aggr(Retr(Query(), 1), "mean")),
    Rerank(first_sentence()),
)
"""P0, Rocchio, SoftCentroid, two rounds of it, hard top-1, FirstSent."""


def nodes(node: Node) -> Iterator[Node]:
    """The expression and all within it."""
    yield node
    for item in fields(node):
        value = getattr(node, item.name)
        if type(value) in KINDS.values():
            yield from nodes(value)


def cost(program: Node) -> int:
    """Encoder passes: its different ENC (E001)."""
    return len({node for node in nodes(program) if isinstance(node, (Query, Sentence))})


def rounds(program: Node) -> int:
    """Its different RETR."""
    return len({node for node in nodes(program) if isinstance(node, Retr)})


def family(node: Any) -> str:
    """The expression without its numbers."""
    if type(node) not in KINDS.values():
        return str(node) if isinstance(node, str) else ""
    parts = [family(getattr(node, item.name)) for item in fields(node)]
    return f"{type(node).__name__}({', '.join(part for part in parts if part)})"


def to_tree(node: Any) -> Any:
    """As lists of JSON values: ``["Retr", ["Query"], 3]``."""
    if type(node) not in KINDS.values():
        return node
    return [type(node).__name__, *(to_tree(getattr(node, item.name)) for item in fields(node))]


def of_tree(tree: Any) -> Any:
    """The expression of a `to_tree`."""
    return KINDS[tree[0]](*map(of_tree, tree[1:])) if isinstance(tree, list) else tree


def neighbours(node: Any) -> Iterator[Any]:
    """The expression with one number or operation replaced by another of `GRID`."""
    for item in fields(node):
        value = getattr(node, item.name)
        others = neighbours(value) if type(value) in KINDS.values() else GRID[item.name]
        yield from (changed for other in others if (changed := replace(node, **{item.name: other})) != node)


@dataclass(eq=False)
class Corpus:
    """Vectors of N documents and B queries, and what expressions over them came to."""

    documents: Floats  # [N, d] at length 1, in half precision
    queries: Floats  # [B, d] likewise
    sentences: Floats | None = None  # [N, d] of the documents' first sentences; 0 where there is none
    barred: Integers | None = None  # [B] a document that is the query itself, -1 for none
    _hits: dict[Retr, tuple[Integers, Floats]] = field(default_factory=dict)
    _vectors: dict[Vector, Floats] = field(default_factory=dict)

    def ranked(self, program: Rerank, k: int) -> tuple[Integers, Floats]:
        """The k best documents of each query as (number, cosine), both [B, k or N]; -1 and -inf where barred."""
        return self.hits(Retr(program.vector, k))

    def hits(self, node: Retr) -> tuple[Integers, Floats]:
        if node not in self._hits:
            cosines = self.rounded(node.vector) @ self.documents.T
            if self.barred is not None:
                rows = np.flatnonzero(self.barred >= 0)
                cosines[rows, self.barred[rows]] = -np.inf
            found = _find_nearest(cosines, min(node.k, cosines.shape[1]))
            values = np.take_along_axis(cosines, found, axis=1)
            self._hits[node] = np.where(np.isfinite(values), found, -1), values
        return self._hits[node]

    def vector(self, node: Vector) -> Floats:
        """[B, d]"""
        if node not in self._vectors:
            self._vectors[node] = self._value(node)
        return self._vectors[node]

    def rounded(self, node: Vector) -> Floats:
        """[B, d] at length 1, in half precision. No direction (no hits, or a sum of 0): the query's own."""
        if isinstance(node, Query):
            return self.queries
        before = self.rounded(node.first) if isinstance(node, Intp) else self.queries
        vectors = self.vector(node)
        return round_moved(before, np.where(lengths(vectors)[:, None] > 0.0, vectors, before))

    def forget(self) -> None:
        """Frees what was kept."""
        self._hits.clear()
        self._vectors.clear()

    def _value(self, node: Vector) -> Floats:
        if isinstance(node, Query):
            return self.queries
        if isinstance(node, Sentence):
            if self.sentences is None:
                raise ValueError(f"{node} needs vectors of first sentences")
            first = self.hits(node.hits)[0][:, 0]
            return np.where(first[:, None] >= 0, self.sentences[first], 0.0)
        if isinstance(node, Intp):
            first = self.rounded(node.first)
            # A centroid goes in as it is, the mean of unit vectors being shorter than they are.
            second = (
                self.vector(node.second) if isinstance(node.second, (Aggr, Sentence)) else self.rounded(node.second)
            )
            return interpolate(first, second, node.alpha, lengths(second) > 0.0)
        documents, cosines = self.hits(node.hits)
        listed = documents >= 0
        rows = self.documents[documents]
        if node.op == "max":
            largest = np.where(listed[:, :, None], rows, -np.inf).max(axis=1)
            return np.where(listed.any(axis=1)[:, None], largest, 0.0)
        weights = softmax(cosines, listed, node.tau) if node.op == "softmax" else listed.astype(float)
        return weighted_mean(weights, rows)[0]


def _find_nearest(cosines: Floats, k: int) -> npt.NDArray[np.int64]:
    """[B, k] places of the k largest of each row, then by place; all ties at the end are looked at."""
    count = cosines.shape[1]
    last = np.partition(cosines, count - k, axis=1)[:, count - k]
    found = np.empty((len(cosines), k), dtype=np.int64)
    for row, (values, low) in enumerate(zip(cosines, last, strict=True)):
        places = np.flatnonzero(values >= low)
        found[row] = places[np.argsort(-values[places], kind="stable")[:k]]
    return found
