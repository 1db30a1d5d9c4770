"""AgentIR's pipeline over the kernels of baseline.cu (SPEC A045 to A051), which fanrank is measured beside."""

from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fanrank.engine.errors import ParameterError
from fanrank.kernels.cuda.arguments import read_layouts
from fanrank.kernels.cuda.launcher import Launcher, with_headers

from ..harness.cases import K1, B
from .batches import HitArrays, Ready, Variant, capture_graph, device_name, launcher_of, mean_of
from .corpora import Problem, flat

SOURCE = Path(__file__).with_name("baseline.cu")
# The first structure of the source.
ARGUMENTS = read_layouts("".join(SOURCE.read_text().partition("\n};\n")[:2]))["BaselineArguments"]
SCORE_THREADS = 128
SLOTS = {32: 128, 128: 32}  # slots of a thread: threads (A049)
MATRIX_BYTES = 16 << 30  # AgentIR's limit for the score matrix (A051)
GRAPH_BYTES = 4 << 30
"""The largest matrix of a batch that is measured as a CUDA graph."""


class Baseline:
    """Float32 scores of every document, then a scan for each query.

    For comparison alone: float sums depend on the order of the atomics, and k is at most 128.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def search(
        self,
        terms: torch.Tensor,
        multiplicities: torch.Tensor,
        *,
        lengths: torch.Tensor,
        average_length: float,
        k: int,
        merge: str = "warp",
        **arrays: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scores float32 [batch, k], documents int64 [batch, k]); 0 and -1 past the last match.

        `terms` and `multiplicities` are int32 [batch, max terms], a term -1 where a query has fewer; `lengths` int32
        [documents]; `arrays` are `offsets` int64 [terms + 1], `documents` and `frequencies` int32 [postings], and `idf`
        float32 [terms]. `merge` is "naive" or "warp".
        """
        slots = next((slots for slots in SLOTS if slots >= k), 0)
        if k < 1 or not slots:
            raise ParameterError(f"the baseline selects 1 to {max(SLOTS)} documents, not {k}")
        batch, max_terms = terms.shape
        count = lengths.numel()
        scores = torch.empty((batch, k), dtype=torch.float32, device=terms.device)
        best = torch.empty((batch, k), dtype=torch.int64, device=terms.device)
        chunk = max(1, MATRIX_BYTES // max(1, 4 * count))
        for start in range(0, batch, chunk):
            rows = slice(start, min(start + chunk, batch))
            queries = rows.stop - rows.start
            matrix = torch.zeros((queries, count), dtype=torch.float32, device=terms.device)
            if max_terms:
                own = {"terms": terms[rows], "multiplicities": multiplicities[rows], "scores": matrix}
                own |= {"lengths": lengths, **arrays}
                of: Any = {"max_terms": max_terms, "k1": K1, "b": B, "document_count": count}
                arguments = ARGUMENTS.fill(average_length=average_length, **of, **own)
                self._launcher.launch("baseline_score", (queries, max_terms, 1), (SCORE_THREADS, 1, 1), 0, (arguments,))
            given = (c_int32(k), c_int64(count), matrix, scores[rows], best[rows])
            name = f"baseline_select_{merge}_{slots}"
            self._launcher.launch(name, (queries, 1, 1), (SLOTS[slots], 1, 1), 0, given)
        return scores, best


class FlatIndex:
    """The whole corpus as one CSR on a device."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        whole = flat(problem)
        self.problem, self.device, self.documents_total = problem, device, len(whole.lengths)
        self.average = float(whole.lengths.mean(dtype=np.float64))
        idf = np.zeros(len(problem.document_frequencies), dtype=np.float32)
        idf[: len(problem.snapshot.term_idf)] = problem.snapshot.term_idf
        arrays = {"offsets": whole.offsets, "documents": whole.documents, "frequencies": whole.frequencies}
        arrays |= {"lengths": whole.lengths, "idf": idf}
        self.arrays = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


class BaselineSystem:
    """Float atomics into a matrix, then one block a query selects."""

    def __init__(self, merge: str, index: FlatIndex) -> None:
        self.name = f"baseline-{merge}"
        self.device = device_name(index.device)
        self.merge, self.index = merge, index
        self.index_bytes: int | None = sum(array.nbytes for array in index.arrays.values())
        self.baseline = Baseline(launcher_of(index.device, SOURCE, with_headers(SOURCE)))

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel",) if k <= max(SLOTS) else ()

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
            how: Any = {"average_length": index.average, "k": variant.k, "merge": self.merge, **index.arrays}

            def once() -> None:
                held[number] = self.baseline.search(on_device, ones, **how)

            once()
            return capture_graph(once, pool) if captured else once

        works = [work(number) for number in range(len(variants))]

        def answer(number: int) -> HitArrays:
            works[number]()
            scores, documents = held[number]
            return scores.cpu().numpy(), documents.cpu().numpy(), None

        # The least bytes of a batch: every score is zeroed and read once, and each posting is read once.
        counted = [
            {
                "device_bytes": 8 * v.queries * index.documents_total + 8 * index.problem.distinct(v.start, v.stop),
                "l2_float": v.touched,
            }
            for v in variants
        ]
        on_device = index.device.type == "cuda"
        return Ready(lambda number: works[number](), answer, on_device, exact=False, counted=mean_of(counted))
