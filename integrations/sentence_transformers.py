"""`semantic_search_fanrank`: a search engine for embeddings of sentence-transformers, dense or sparse.

It takes and returns what ``sentence_transformers.util.semantic_search`` and the functions of
``sentence_transformers.sparse_encoder.search_engines`` do.

Dense embeddings. The engine compares unit vectors in half precision, so its similarities differ from those of the given
vectors by at most `tolerance`, about 2**-10. A search therefore takes more candidates than asked for, and scores them
again from the given vectors in float64. It takes yet more until no vector that was left out can enter the best. So the
answer is that of comparing each query with every vector in float64, however close two vectors are.

The inner product of vectors of any length becomes a cosine by one more component: with the greatest length M, a vector
d is indexed as ``[d, sqrt(M**2 - |d|**2)] / M``, a query q as ``[q, 0] / |q|``. Their cosine is ``q @ d / (|q| * M)``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..engine.encoders.encoder import OwnVectors
from ..engine.encoders.sparse import weights_of
from ..engine.engine import Engine
from ..engine.errors import MissingExtraError, ParameterError, QueryError
from ..engine.records.query import Query
from ..engine.records.record import Record

try:
    import torch
    from sentence_transformers import util
except ImportError as error:
    raise MissingExtraError("sentence-transformers", "sentence-transformers") from error

if TYPE_CHECKING:
    Floats = npt.NDArray[np.floating[Any]]
    Found = list[list[dict[str, int | float]]]

Kind = Literal["cosine", "dot", "sparse"]

EXTRA = 32
"""Candidates beyond `top_k` that the first search takes. More are taken where these do not decide the answer."""
GROWTH = 8
"""By what factor the next search takes more."""


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Embeddings that were indexed by `semantic_search_fanrank`, to be searched again. Any thread may search."""

    engine: Engine
    kind: Kind
    """``cosine`` and ``dot`` of dense embeddings; ``sparse`` is the inner product of sparse ones."""
    shape: tuple[int, int]
    """The number of embeddings, and that of their components."""
    rows: Floats | None = None
    """[shape] the dense embeddings as they were given; they score the candidates."""
    lengths: npt.NDArray[np.float64] | None = None
    """[embeddings] the length of each dense embedding."""

    def __len__(self) -> int:
        return self.shape[0]


def tolerance(dimension: int) -> float:
    """How far the cosine of two unit vectors may be from that of their rows in half precision.

    A component is off by at most 2**-11 of itself, or by 2**-25 where float16 has no finer step. So a row is off by at
    most ``2**-11 + sqrt(dimension) * 2**-25``, which counts once for each of two rows and once for their product. The
    float64 numbers that are compared with it are off by less than 2**-40.
    """
    row = 2.0**-11 + math.sqrt(dimension) * 2.0**-25
    return 2.0 * row + row * row + 2.0**-40


def semantic_search_fanrank(
    query_embeddings: Any,
    corpus_embeddings: Any = None,
    corpus_index: VectorIndex | None = None,
    top_k: int = 10,
    output_index: bool = False,
    *,
    score_function: str | Callable[..., Any] = "cosine",
    threads: int = 1,
    **options: Any,
) -> tuple[Found, float] | tuple[Found, float, VectorIndex]:
    """Find the `top_k` nearest embeddings of a corpus for a batch of queries, in one call.

    `query_embeddings` and `corpus_embeddings` are dense (a torch tensor, a numpy array, or a list of either or of
    numbers), or both sparse (a torch tensor of any sparse layout, or a scipy matrix), as a `SparseEncoder` makes them.
    A single vector is a batch of one. `corpus_index` is what an earlier call with `output_index` returned, and takes
    the place of `corpus_embeddings`.

    `score_function` is ``cosine`` or ``dot``, or ``util.cos_sim`` or ``util.dot_score``. Sparse embeddings are compared
    by ``dot`` whatever it says, as the other engines for them do. With a `corpus_index` it is that of the index.
    `threads` changes how fast the answer comes. `options` go to `Engine`, as in ``backend="cuda"``.

    Returns the hits of each query, ``{"corpus_id": row, "score": score}``, best first, and the seconds that the search
    took; with `output_index` the `VectorIndex` too. Equal scores are in order of `corpus_id`.

    Scores of dense embeddings are computed in float64, component after component, so they do not depend on the batch or
    the machine. Those of ``util.semantic_search`` are sums in float32, and differ in the seventh digit. Scores of
    sparse embeddings are exact sums of products of weights rounded to multiples of 2**-10; only embeddings that share a
    component with the query, and so score above zero, are found.

    Raises `ParameterError` for embeddings that are no rows of finite numbers, of another length than those of the
    corpus, with a length of 0 where cosines are asked, sparse with a weight below zero, and for another score function;
    `QueryError` for a `top_k` that is no integer or below 0.
    """
    if isinstance(top_k, bool) or not isinstance(top_k, (int, np.integer)) or top_k < 0:
        raise QueryError(f"top_k must be an integer of 0 or more, not {top_k!r}")
    if corpus_index is None:
        if corpus_embeddings is None:
            raise ParameterError("give corpus_embeddings, or the corpus_index that an earlier call returned")
        corpus_index = _build(corpus_embeddings, _kind_of(score_function), options)
    elif corpus_embeddings is not None or options:
        raise ParameterError("a corpus_index is there already: corpus_embeddings and options are for a new one")
    elif not isinstance(corpus_index, VectorIndex):
        raise ParameterError(f"corpus_index must be a VectorIndex, not {type(corpus_index).__name__}")
    started = time.perf_counter()
    search = _search_sparse if corpus_index.kind == "sparse" else _search_dense
    found = search(corpus_index, query_embeddings, int(top_k), threads)
    seconds = time.perf_counter() - started
    return (found, seconds, corpus_index) if output_index else (found, seconds)


def _kind_of(score_function: object) -> Kind:
    if score_function in ("cosine", util.cos_sim):
        return "cosine"
    if score_function in ("dot", util.dot_score):
        return "dot"
    raise ParameterError(f"score_function must be 'cosine', 'dot', util.cos_sim or util.dot_score: {score_function!r}")


def _is_sparse(embeddings: Any) -> bool:
    if isinstance(embeddings, torch.Tensor):
        return embeddings.layout != torch.strided
    return hasattr(embeddings, "tocsr")


def _dense(embeddings: Any, what: str) -> Floats:
    """The embeddings as an array [n, dimension] of float32 or float64."""
    if _is_sparse(embeddings):
        raise ParameterError(f"the {what} embeddings are sparse, and the others are dense: both must be of one kind")
    if isinstance(embeddings, Sequence) and any(isinstance(row, torch.Tensor) for row in embeddings):
        embeddings = torch.stack([torch.as_tensor(row) for row in embeddings])
    if isinstance(embeddings, torch.Tensor):
        wide = embeddings.detach().cpu()
        embeddings = (wide if wide.dtype == torch.float64 else wide.float()).numpy()
    try:
        rows = np.asarray(embeddings)
        rows = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"the {what} embeddings must be rows of numbers, all of one length") from None
    rows = rows[None, :] if rows.ndim == 1 and rows.size else rows
    if rows.ndim != 2 and rows.size:
        raise ParameterError(f"the {what} embeddings must be rows of numbers, not an array of shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ParameterError(f"the {what} embeddings hold a value that is not finite")
    return rows


def _sparse(embeddings: Any, what: str) -> Any:
    if not _is_sparse(embeddings):
        raise ParameterError(f"the {what} embeddings are dense, and the others are sparse: both must be of one kind")
    if isinstance(embeddings, torch.Tensor) and embeddings.ndim == 1:
        return embeddings.unsqueeze(0)
    return embeddings


def _build(embeddings: Any, kind: Kind, options: dict[str, Any]) -> VectorIndex:
    if _is_sparse(embeddings):
        matrix = _sparse(embeddings, "corpus")
        engine = Engine(**options)
        engine.add(Record(str(row), "", weights=weights) for row, weights in enumerate(weights_of(matrix)))
        return VectorIndex(engine, "sparse", (int(matrix.shape[0]), int(matrix.shape[1])))
    rows = _dense(embeddings, "corpus")
    if not len(rows) or not rows.shape[-1]:
        raise ParameterError("the corpus has no embedding; give at least one row")
    # The caller may change the array later.
    rows = rows.copy()
    rows.flags.writeable = False
    lengths = np.concatenate([_lengths(rows[block]) for block in _blocks(len(rows))])
    _check_lengths(lengths, kind, "corpus")
    engine = Engine(encoder=OwnVectors(rows.shape[1] + (kind == "dot")), keep_texts=False, **options)
    longest = float(lengths.max())
    for block in _blocks(len(rows)):
        vectors = rows[block].astype(np.float64)
        if kind == "dot" and longest:
            rest = np.sqrt(np.maximum(0.0, 1.0 - (lengths[block] / longest) ** 2))
            vectors = np.concatenate([vectors / longest, rest[:, None]], axis=1)
        elif kind == "dot":
            vectors = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)
        engine.add([Record(str(row), "") for row in range(block.start, block.stop)], vectors=vectors)
    return VectorIndex(engine, kind, (len(rows), rows.shape[1]), rows, lengths)


def _blocks(rows: int, size: int = 1 << 14) -> Iterator[slice]:
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _lengths(rows: Floats) -> npt.NDArray[np.float64]:
    return np.sqrt(_sum_products(rows, rows))


def _sum_products(left: Floats, right: Floats) -> npt.NDArray[np.float64]:
    """The inner product of each pair of rows, float64, summed from the first component to the last."""
    with np.errstate(over="ignore", invalid="ignore"):
        summed: npt.NDArray[np.float64] = np.cumsum(left.astype(np.float64) * right, axis=-1)[..., -1]
    return summed


def _check_lengths(lengths: npt.NDArray[np.float64], kind: Kind, what: str) -> None:
    if not np.isfinite(lengths).all():
        row = int(np.argmin(np.isfinite(lengths)))
        raise ParameterError(f"{what} embedding {row} is so long that its length is no float64; scale it")
    if kind == "cosine" and not lengths.all():
        row = int(np.argmin(lengths != 0.0))
        raise ParameterError(f"{what} embedding {row} has length 0, which is no direction; leave it out")


def _search_dense(index: VectorIndex, embeddings: Any, top_k: int, threads: int) -> Found:
    assert index.rows is not None
    assert index.lengths is not None
    queries = _dense(embeddings, "query")
    if not len(queries):
        return []
    if queries.shape[1] != index.shape[1]:
        raise ParameterError(
            f"the query embeddings have {queries.shape[1]} components, and those of the corpus {index.shape[1]}"
        )
    lengths = _lengths(queries)
    _check_lengths(lengths, index.kind, "query")
    wanted = min(top_k, len(index))
    if not wanted:
        return [[] for _ in queries]
    error, longest = tolerance(index.shape[1] + 1), float(index.lengths.max())
    found: Found = [[] for _ in queries]
    # All inner products with a query of length 0 are 0.
    open_rows = np.flatnonzero(lengths)
    for row in np.flatnonzero(lengths == 0.0).tolist():
        found[row] = [{"corpus_id": number, "score": 0.0} for number in range(wanted)]
    depth = wanted + EXTRA
    while len(open_rows):
        depth = min(depth, len(index))
        asked = queries[open_rows].astype(np.float64)
        if index.kind == "dot":
            asked = np.concatenate([asked, np.zeros((len(asked), 1))], axis=1)
        hits = index.engine.search([Query(vector=row) for row in asked], depth, strategy="dense", threads=threads)
        left = []
        for place, row in enumerate(open_rows.tolist()):
            numbers = np.array(hits.ids[place, : hits.counts[place]].tolist(), dtype=np.int64)
            numbers.sort()
            scores = _sum_products(index.rows[numbers], queries[row])
            unit = float(lengths[row]) * longest
            if index.kind == "cosine":
                scores = scores / (index.lengths[numbers] * lengths[row])
                unit = 1.0
            # Stable, so equal scores stay in the order of their numbers.
            best = np.argsort(-scores, kind="stable")[:wanted]
            least = float(hits.scores[place, hits.counts[place] - 1])
            if depth < len(index) and (least + error) * unit >= scores[best[-1]]:
                left.append(row)
                continue
            pairs = zip(numbers[best].tolist(), scores[best].tolist(), strict=True)
            found[row] = [{"corpus_id": number, "score": score} for number, score in pairs]
        open_rows = np.array(left, dtype=np.int64)
        depth *= GROWTH
    return found


def _search_sparse(index: VectorIndex, embeddings: Any, top_k: int, threads: int) -> Found:
    matrix = _sparse(embeddings, "query")
    if int(matrix.shape[1]) != index.shape[1]:
        raise ParameterError(
            f"the query embeddings have {matrix.shape[1]} components, and those of the corpus {index.shape[1]}"
        )
    queries = [Query(weights=weights) for weights in weights_of(matrix)]
    hits = index.engine.search(queries, top_k, strategy="sparse", threads=threads)
    return [[{"corpus_id": int(id), "score": score} for id, score in row] for row in hits]
