"""The four verbs over the CUDA kernels, and the pipeline of the AgentIR paper to compare with."""

from __future__ import annotations

from ctypes import c_double, c_int32, c_int64
from typing import Any

import torch

from ...engine.errors import ParameterError
from ..work import MAX_SELECTED, MIN_TILE_BITS, POSTING_BYTES, Answer, Buffers, Formula, Postings, Work
from .launcher import Launcher

NARROW_TILE_BITS = 14
"""64 KiB of sums; three blocks fit the 227 KiB of an SM."""
WIDE_TILE_BITS = 12
MAX_NARROW_TILE_BITS = 15
MAX_WIDE_TILE_BITS = 14
"""Beyond these the sums of a tile leave the shared memory of a block."""

MAX_GRID = (1 << 31) - 1
WARP = 32
CUT_THREADS = 256
DERIVE_THREADS = 256
DERIVE_POSTINGS = 4096  # of a block
SCORE_THREADS = 512
BITONIC_THREADS = 256
WARP_SELECT_THREADS = 128
WARP_SELECT_SIZES = (32, 128, 512, 1024)
BITONIC_SLOTS = 1024  # at least: what is left beside the best holds the survivors of several rounds
# Above it a warp's list takes so many registers that few warps fit an SM.
MAX_AUTO_WARP = 128

SELECT_METHODS = ("auto", "bitonic", "warp")
SUMS = ("shared", "global")
# Blocks of a launch whose sums lie in global memory: 64 MiB of narrow tiles, about what the second-level cache holds.
GLOBAL_BLOCKS = 1024
# As score.cu has them.
FLOORS_STAY, UNIT_MAJOR = 1, 2

BASELINE_SCORE_THREADS = 128
BASELINE_SLOTS = {32: 128, 128: 32}  # slots of a thread: threads (A049)
BASELINE_MATRIX_BYTES = 16 << 30  # AgentIR's limit for the score matrix (A051)


class CudaVerbs:
    """The CUDA C++ family of kernels.

    `select_method`: "bitonic" sorts in shared memory, "warp" keeps lists in registers, "auto" chooses by width; the
    rows are the same. `tile_bits` overrides the preferred tile size.

    The others leave out, for measurements, what makes scoring fast; the answer is the same. `sums` "global" keeps a
    narrow tile's sums in global memory, without `raises_floors` no tile is passed over because others were better, and
    without `tile_major` the queries of a tile are not scored side by side. Decay, signed methods and wide sums know
    "shared" alone.
    """

    posting_bytes = POSTING_BYTES

    def __init__(
        self,
        launcher: Launcher,
        select_method: str = "auto",
        *,
        tile_bits: int | None = None,
        sums: str = "shared",
        raises_floors: bool = True,
        tile_major: bool = True,
        name: str = "cuda",
    ) -> None:
        if select_method not in SELECT_METHODS:
            raise ParameterError(f"select_method must be one of {', '.join(SELECT_METHODS)}, not {select_method!r}")
        if tile_bits is not None and not MIN_TILE_BITS <= tile_bits <= MAX_NARROW_TILE_BITS:
            raise ParameterError(f"tile_bits must lie in [{MIN_TILE_BITS}, {MAX_NARROW_TILE_BITS}], not {tile_bits}")
        if sums not in SUMS:
            raise ParameterError(f"sums must be one of {', '.join(SUMS)}, not {sums!r}")
        self.name = name
        self._sums = sums
        self._options = (0 if raises_floors else FLOORS_STAY) | (0 if tile_major else UNIT_MAJOR)
        self._launcher = launcher
        self._select_method = select_method
        self._tile_bits = tile_bits

    def tile_bits(self, wide: bool) -> int:
        preferred = WIDE_TILE_BITS if wide else NARROW_TILE_BITS
        if self._tile_bits is None:
            return preferred
        return min(self._tile_bits, MAX_WIDE_TILE_BITS) if wide else self._tile_bits

    def derive(self, postings: Postings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor) -> None:
        count = quanta.numel()
        if count == 0:
            return
        fields, documents = postings.lengths.shape
        # Filled by kernels: a copy from the host would wait for the stream.
        constants = torch.empty((2, fields), dtype=torch.float64, device=quanta.device)
        for field in range(fields):
            constants[0, field].fill_(float(formula.weights[field]))
            constants[1, field].fill_(float(formula.average_lengths[field]))
        self._launch(
            "derive_int64" if quanta.dtype == torch.int64 else "derive_int32",
            -(-count // DERIVE_POSTINGS),
            DERIVE_THREADS,
            0,
            c_int32(formula.shape),
            c_int32(formula.fielded),
            c_int32(formula.signed),
            c_int32(fields),
            c_double(formula.k1),
            c_double(formula.b),
            c_double(formula.delta),
            c_double(formula.scale),
            constants[0],
            constants[1],
            postings.words,
            postings.frequencies,
            postings.offsets,
            postings.lengths,
            idf,
            c_int64(count),
            c_int64(postings.offsets.numel() - 1),
            c_int64(documents),
            quanta,
        )

    def cut(self, work: Work, buffers: Buffers) -> None:
        lists = work.list_segment.numel()
        if lists == 0 or work.max_tiles == 0:
            return
        groups = -(-(work.max_tiles + 1) // WARP)
        lookup = (work.sizes, work.list_segment, work.list_start, work.list_length, work.list_cuts)
        self._launch(
            "cut_borders",
            -(-lists * groups * WARP // CUT_THREADS),
            CUT_THREADS,
            0,
            c_int32(work.tile_bits),
            c_int32(groups),
            c_int64(lists),
            work.words,
            *lookup,
            buffers.cuts,
        )
        if work.posting_bytes < 8:
            self._launch(
                "cut_maxima_kinds",
                -(-lists * work.max_tiles * WARP // CUT_THREADS),
                CUT_THREADS,
                0,
                c_int32(work.tile_bits),
                c_int32(work.max_tiles),
                c_int32(work.posting_bytes),
                c_int64(lists),
                work.words,
                work.quanta,
                work.saturated,
                work.list_idf,
                *lookup,
                buffers.cuts,
                buffers.maxima,
            )
            return
        self._launch(
            "cut_maxima",
            -(-lists * work.max_tiles * WARP // CUT_THREADS),
            CUT_THREADS,
            0,
            c_int32(work.tile_bits),
            c_int32(work.max_tiles),
            c_int32(work.long_quanta),
            c_int64(lists),
            work.quanta,
            *lookup,
            buffers.cuts,
            buffers.maxima,
        )

    def score(self, work: Work, buffers: Buffers, *, wide: bool) -> None:
        if not (work.any_wide if wide else work.any_narrow):
            return
        if work.tile_bits > (MAX_WIDE_TILE_BITS if wide else MAX_NARROW_TILE_BITS):
            raise ParameterError(f"a tile of 2**{work.tile_bits} documents does not fit the shared memory of a block")
        tile = 1 << work.tile_bits
        shared_bytes = tile * (8 if wide else 4) + tile // 8 * (2 if work.signed else 1)
        kernel = ("score_long" if work.long_quanta else "score_wide") if wide else "score_narrow"
        decay: tuple[torch.Tensor, ...] = ()
        if work.signed:
            kernel += "_signed"
        elif wide and work.any_decay:
            kernel += "_decayed"
            decay = (work.times, work.latest, work.query_now, work.query_rate, work.decay_table)
        more: tuple[Any, ...] = decay
        grid = MAX_GRID
        if work.posting_bytes < 8:
            kernel += f"_{work.posting_bytes}"
            more = (*decay, work.saturated, work.list_idf)
        elif self._sums == "global" and kernel == "score_narrow":
            kernel, grid = "score_narrow_global", GLOBAL_BLOCKS
            stride = -(-shared_bytes // 16) * 16
            device = buffers.keys.device
            more = (torch.empty(min(grid, work.blocks) * stride, dtype=torch.uint8, device=device), c_int64(stride))
            shared_bytes = 0
        for base in range(0, work.blocks, grid):
            self._launch(
                kernel,
                min(work.blocks - base, grid),
                SCORE_THREADS,
                shared_bytes,
                # Where scores decay, blocks are counted down from the last.
                c_int64(work.blocks - 1 - base if decay else base),
                c_int32(work.tile_bits),
                c_int32(self._options),
                c_int32(work.sizes.numel()),
                work.words,
                work.quanta,
                work.sizes,
                work.firsts,
                work.block_offset,
                work.unit_offset,
                work.list_start,
                work.list_length,
                work.list_cuts,
                work.unit_query,
                work.unit_slots,
                work.unit_filter,
                work.unit_low,
                work.unit_high,
                work.slot_list,
                work.slot_weight,
                work.query_k,
                work.query_wide,
                work.candidate_offset,
                buffers.cuts,
                buffers.maxima,
                buffers.floors,
                buffers.counts,
                buffers.keys,
                buffers.documents if wide else None,
                *more,
            )

    def select(self, work: Work, buffers: Buffers, answer: Answer, *, wide: bool) -> None:
        queries = work.query_k.numel()
        if queries == 0 or not (work.any_wide if wide else work.any_narrow):
            return
        largest = min(work.width, MAX_SELECTED)
        kind, key_bytes = ("wide", 16) if wide else ("narrow", 8)
        arguments = (
            c_int32(answer.scores.shape[1]),
            work.query_k,
            work.query_wide,
            work.candidate_offset,
            buffers.counts,
            buffers.keys,
            buffers.documents if wide else None,
            answer.scores,
            answer.documents,
            answer.counts,
        )
        method = self._select_method
        if method == "auto":
            method = "warp" if largest <= MAX_AUTO_WARP else "bitonic"
        if method == "warp":
            size = next(size for size in WARP_SELECT_SIZES if size >= largest)
            lists = WARP_SELECT_THREADS // WARP // 2
            self._launch(
                f"select_warp_{kind}_{size}", queries, WARP_SELECT_THREADS, lists * size * key_bytes, *arguments
            )
        else:
            slots = max(BITONIC_SLOTS, 2 << max(largest - 1, 0).bit_length())
            self._launch(
                f"select_bitonic_{kind}", queries, BITONIC_THREADS, slots * key_bytes, c_int32(slots), *arguments
            )

    def _launch(self, name: str, blocks: int, threads: int, shared_bytes: int, *args: Any) -> None:
        self._launcher.launch(name, (blocks, 1, 1), (threads, 1, 1), shared_bytes, args)


# Sources: A045 to A051.
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
        slots = next((slots for slots in BASELINE_SLOTS if slots >= k), 0)
        if k < 1 or not slots:
            raise ParameterError(f"the baseline selects 1 to {max(BASELINE_SLOTS)} documents, not {k}")
        if merge not in ("naive", "warp"):
            raise ParameterError(f"merge must be 'naive' or 'warp', not {merge!r}")
        batch, max_terms = terms.shape
        count = lengths.numel()
        scores = torch.empty((batch, k), dtype=torch.float32, device=terms.device)
        best = torch.empty((batch, k), dtype=torch.int64, device=terms.device)
        chunk = max(1, BASELINE_MATRIX_BYTES // max(1, 4 * count))
        for start in range(0, batch, chunk):
            rows = slice(start, min(start + chunk, batch))
            own = rows.stop - rows.start
            matrix = torch.zeros((own, count), dtype=torch.float32, device=terms.device)
            if max_terms:
                self._launcher.launch(
                    "baseline_score",
                    (own, max_terms, 1),
                    (BASELINE_SCORE_THREADS, 1, 1),
                    0,
                    (
                        c_int32(max_terms),
                        c_double(k1),
                        c_double(b),
                        c_double(average_length),
                        c_int64(count),
                        terms[rows],
                        multiplicities[rows],
                        offsets,
                        documents,
                        frequencies,
                        lengths,
                        idf,
                        matrix,
                    ),
                )
            self._launcher.launch(
                f"baseline_select_{merge}_{slots}",
                (own, 1, 1),
                (BASELINE_SLOTS[slots], 1, 1),
                0,
                (c_int32(k), c_int64(count), matrix, scores[rows], best[rows]),
            )
        return scores, best
