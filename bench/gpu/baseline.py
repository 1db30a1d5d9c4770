"""The pipeline of the AgentIR paper over the kernels of baseline.cu, to compare with."""

# Sources: A045 to A051.
from ctypes import c_int32, c_int64
from pathlib import Path

import torch

from fanrank.engine.errors import ParameterError
from fanrank.kernels.cuda.arguments import read_layouts
from fanrank.kernels.cuda.launcher import FOLDER, CupyLauncher, Launcher, with_headers

SOURCE = Path(__file__).with_name("baseline.cu")
# The first structure of the source.
ARGUMENTS = read_layouts("".join(SOURCE.read_text().partition("\n};\n")[:2]))["BaselineArguments"]

SCORE_THREADS = 128
SLOTS = {32: 128, 128: 32}  # slots of a thread: threads (A049)
MATRIX_BYTES = 16 << 30  # AgentIR's limit for the score matrix (A051)


class BaselineLauncher(CupyLauncher):
    """Launches the kernels of baseline.cu."""

    def _source(self, name: str) -> str:
        return with_headers(SOURCE)


def launcher_of(device: torch.device) -> Launcher:
    """A launcher of the baseline's kernels: on the GPU, or compiled for the CPU."""
    if device.type == "cuda":
        return BaselineLauncher(device)
    from fanrank.kernels.cuda_host import HostLauncher, build

    return HostLauncher(build([SOURCE], include=[FOLDER]))


class Baseline:
    """The pipeline of the AgentIR paper: float32 scores of every document, then a scan for each query.

    For comparison alone: float sums depend on the order of the atomics, and k is at most 128.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def search(
        self,
        terms: torch.Tensor,
        multiplicities: torch.Tensor,
        *,
        offsets: torch.Tensor,
        documents: torch.Tensor,
        frequencies: torch.Tensor,
        lengths: torch.Tensor,
        idf: torch.Tensor,
        average_length: float,
        k: int,
        k1: float = 1.2,
        b: float = 0.75,
        merge: str = "warp",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scores float32 [batch, k], documents int64 [batch, k]); 0 and -1 past the last match.

        `terms` and `multiplicities` are int32 [batch, max terms], a term -1 where a query has fewer; `offsets` int64
        [terms + 1]; `documents` and `frequencies` int32 [postings]; `lengths` int32 [documents]; `idf` float32 [terms].
        `merge` is "naive" or "warp".
        """
        slots = next((slots for slots in SLOTS if slots >= k), 0)
        if k < 1 or not slots:
            raise ParameterError(f"the baseline selects 1 to {max(SLOTS)} documents, not {k}")
        if merge not in ("naive", "warp"):
            raise ParameterError(f"merge must be 'naive' or 'warp', not {merge!r}")
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
                arguments = ARGUMENTS.fill(
                    max_terms=max_terms,
                    k1=k1,
                    b=b,
                    average_length=average_length,
                    document_count=count,
                    terms=terms[rows],
                    multiplicities=multiplicities[rows],
                    offsets=offsets,
                    documents=documents,
                    frequencies=frequencies,
                    lengths=lengths,
                    idf=idf,
                    scores=matrix,
                )
                self._launcher.launch("baseline_score", (queries, max_terms, 1), (SCORE_THREADS, 1, 1), 0, (arguments,))
            self._launcher.launch(
                f"baseline_select_{merge}_{slots}",
                (queries, 1, 1),
                (SLOTS[slots], 1, 1),
                0,
                (c_int32(k), c_int64(count), matrix, scores[rows], best[rows]),
            )
        return scores, best
