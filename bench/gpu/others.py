"""The systems that fanrank is measured beside on a GPU: AgentIR's execution, products of torch, bm25s."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..harness.cases import K1, B
from .batches import HitArrays, Ready, Variant, capture_graph, device_name, mean_of
from .corpora import Problem, flat

MATRIX_BYTES = 16 << 30
"""Bytes of the score matrix of one chunk of queries (SPEC A051)."""
GRAPH_BYTES = 4 << 30
"""The largest matrix of a baseline's batch that is measured as a CUDA graph."""
PRODUCTS = 1 << 28
"""The most products of one sparse times sparse multiplication. Its buffers take about 40 bytes for each."""


class FlatIndex:
    """The whole corpus as one CSR on a device, with float32 contributions: the index of the float systems."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.device = device
        whole = flat(problem)
        self.problem = problem
        self.documents_total = len(whole.lengths)
        self.average = float(whole.lengths.mean(dtype=np.float64))
        idf = np.zeros(len(problem.document_frequencies))
        idf[: len(problem.snapshot.term_idf)] = problem.snapshot.term_idf

        def move(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        self.offsets = move(whole.offsets)
        self.documents, self.frequencies = move(whole.documents), move(whole.frequencies)
        self.lengths, self.idf = move(whole.lengths), move(idf.astype(np.float32))

    @cached_property
    def values(self) -> torch.Tensor:
        """Float32 [postings]: each posting's contribution."""
        tf = self.frequencies.to(torch.float32)
        norm = K1 * (1 - B + B / self.average * self.lengths.to(torch.float32))
        idf = torch.repeat_interleave(self.idf, torch.diff(self.offsets))
        return idf * tf * (K1 + 1) / (tf + norm[self.documents.long()])

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (self.offsets, self.documents, self.frequencies, self.lengths, self.idf))

    def matrix_counted(self, variant: Variant) -> dict[str, int]:
        """The least bytes of a batch: every score is zeroed and read once, and each posting is read once."""
        matrix = 8 * variant.queries * self.documents_total
        return {"device_bytes": matrix + 8 * self.problem.distinct(variant.start, variant.stop)}


class BaselineSystem:
    """AgentIR's execution (SPEC A045 to A051): float atomics into a matrix, then one block a query selects."""

    def __init__(self, merge: str, index: FlatIndex) -> None:
        from .baseline import Baseline, launcher_of

        self.name = f"baseline-{merge}"
        self.device = device_name(index.device)
        self.merge, self.index = merge, index
        self.index_bytes: int | None = index.bytes
        self.baseline = Baseline(launcher_of(index.device))

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel",) if k <= 128 else ()

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        index = self.index
        # The launches of a large batch cost nothing beside its work, and a graph would keep its matrix.
        matrix = 4 * index.documents_total * variants[0].queries
        captured = index.device.type == "cuda" and matrix <= GRAPH_BYTES
        pool = torch.cuda.graph_pool_handle() if captured else None
        held: list[Any] = [None] * len(variants)

        def work(number: int) -> Callable[[], object]:
            variant = variants[number]
            terms = np.full((variant.queries, int(np.diff(variant.offsets).max(initial=0))), -1, dtype=np.int32)
            places = np.arange(terms.shape[1]) < np.diff(variant.offsets)[:, None]
            terms[places] = variant.terms
            on_device = torch.from_numpy(terms).to(index.device)
            ones = torch.ones_like(on_device)

            def once() -> None:
                held[number] = self.baseline.search(
                    on_device, ones, offsets=index.offsets, documents=index.documents, frequencies=index.frequencies,
                    lengths=index.lengths, idf=index.idf, average_length=index.average, k=variant.k, k1=K1, b=B,
                    merge=self.merge,
                )  # fmt: skip

            once()
            return capture_graph(once, pool) if captured else once

        works = [work(number) for number in range(len(variants))]

        def answer(number: int) -> HitArrays:
            works[number]()
            scores, documents = held[number]
            return scores.cpu().numpy(), documents.cpu().numpy(), None

        counted = mean_of([{**index.matrix_counted(v), "l2_float": v.touched} for v in variants])
        return Ready(lambda number: works[number](), answer, index.device.type == "cuda", exact=False, counted=counted)


class SparseSystem:
    """A sparse product of torch, then `torch.topk`.

    ``spgemm`` multiplies the batch (B x V, CSR) with the index (V x N, CSR) and makes the product dense; ``spmm``
    multiplies the index by document (N x V, CSR) with the dense batch (V x B).
    """

    def __init__(self, product: str, index: FlatIndex) -> None:
        self.name = f"torch-{product}"
        self.device = device_name(index.device)
        self.product, self.index = product, index
        shape = (len(index.offsets) - 1, index.documents_total)
        layout = torch.sparse_csr_tensor if product == "spgemm" else torch.sparse_csc_tensor
        size = shape if product == "spgemm" else shape[::-1]
        warnings.filterwarnings("ignore", message="Sparse CS[RC] tensor support is in beta")
        # Term by term, the arrays are the CSR of V x N and the CSC of N x V.
        arrays = (index.offsets.to(torch.int32), index.documents, index.values)
        self.matrix = layout(*arrays, size=size, device=index.device, check_invariants=False)
        if product == "spmm":
            self.matrix = self.matrix.to_sparse_csr()
        self.index_bytes: int | None = 8 * len(index.documents) + 4 * (self.matrix.shape[0] + 1)

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel",)

    def ready(self, variants: Sequence[Variant], phase: str, budget: float) -> Ready:
        parts = [self._parts(variant) for variant in variants]
        held: list[Any] = [None] * len(variants)

        def once(number: int) -> None:
            held[number] = [self._best(part, variants[number].k) for part in parts[number]]

        def answer(number: int) -> HitArrays:
            once(number)
            scores, documents = (torch.cat(column).cpu().numpy() for column in zip(*held[number], strict=True))
            return scores, np.where(scores > 0, documents, -1), None

        once(0)
        counted = mean_of([self.index.matrix_counted(variant) for variant in variants])
        note = "" if len(parts[0]) == 1 else f"{len(parts[0])} products"
        on_device = self.index.device.type == "cuda"
        return Ready(once, answer, on_device, exact=False, counted=counted, note=note)

    def _parts(self, variant: Variant) -> list[torch.Tensor]:
        """The batch as matrices on the device, each of as many queries as one product may hold."""
        terms, documents = len(self.index.offsets) - 1, self.index.documents_total
        row_bytes = 4 * (documents if self.product == "spgemm" else documents + terms)
        owners = np.repeat(np.arange(variant.queries), np.diff(variant.offsets))
        touched = np.bincount(
            owners, weights=self.index.problem.document_frequencies[variant.terms], minlength=variant.queries
        )
        chunk = np.cumsum(touched) // PRODUCTS if self.product == "spgemm" else np.zeros(variant.queries)
        borders = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), variant.queries]
        most = max(1, MATRIX_BYTES // row_bytes)
        borders = sorted({*borders, *range(0, variant.queries, most)})
        parts = []
        for start, stop in pairwise(borders):
            rows = variant.offsets[start : stop + 1] - variant.offsets[start]
            columns = np.concatenate(
                [np.sort(variant.terms[variant.offsets[q] : variant.offsets[q + 1]]) for q in range(start, stop)]
            )
            row_tensor, column_tensor = (
                torch.from_numpy(array.astype(np.int32)).to(self.index.device) for array in (rows, columns)
            )
            ones = torch.ones(len(columns), dtype=torch.float32, device=self.index.device)
            size = (stop - start, terms)
            batch = torch.sparse_csr_tensor(row_tensor, column_tensor, ones, size=size, check_invariants=False)
            parts.append(batch if self.product == "spgemm" else batch.to_dense().t().contiguous())
        return parts

    def _best(self, batch: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.product == "spgemm":
            scores = torch.sparse.mm(batch, self.matrix).to_dense()
        else:
            scores = torch.sparse.mm(self.matrix, batch).t().contiguous()
        best = torch.topk(scores, min(k, scores.shape[1]))
        return best.values, best.indices
