"""The system that fanrank is measured beside on a GPU: AgentIR's execution."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..harness.cases import K1, B
from .batches import HitArrays, Ready, Variant, capture_graph, device_name, mean_of
from .corpora import Problem, flat

GRAPH_BYTES = 4 << 30
"""The largest matrix of a baseline's batch that is measured as a CUDA graph."""


class FlatIndex:
    """The whole corpus as one CSR on a device, the index of the baseline."""

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
