"""The four verbs over the CUDA kernels, and the pipeline of the AgentIR paper to compare with."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64

import torch

from ...engine.errors import ParameterError
from ..work import (
    DOCUMENT_BITS,
    MAX_SELECTED,
    MIN_TILE_BITS,
    POSTING_BYTES,
    Buffers,
    DevicePostings,
    Formula,
    KernelAnswer,
    Tables,
    TermBatch,
    Work,
    tiles_of,
)
from .arguments import BASELINE, DERIVE, DESCRIBE, ORDER, PLAN, SCORE, SELECT, TABULATE
from .launcher import Launcher

NARROW_TILE_BITS = 14
"""64 KiB of sums; three blocks fit the 227 KiB of an SM."""
WIDE_TILE_BITS = 12
MAX_NARROW_TILE_BITS = 15
MAX_WIDE_TILE_BITS = 14
"""Beyond these the sums of a tile leave the shared memory of a block."""

MAX_GRID = (1 << 31) - 1
WARP = 32
PLAN_THREADS = 256
ORDER_THREADS = 256
DERIVE_THREADS = 256
DERIVE_POSTINGS = 4096  # of a block
SCORE_THREADS = 512
BITONIC_THREADS = 256
WARP_SELECT_THREADS = 128
WARP_SELECT_SIZES = (32, 128, 512, 1024)
BITONIC_SLOTS = 1024  # at least this many: the slots beside the k best hold the survivors of several rounds
# Above it a warp's list takes so many registers that few warps fit an SM.
MAX_AUTO_WARP = 128

SELECT_METHODS = ("auto", "bitonic", "warp")
SUMS = ("shared", "global")
# Blocks of a launch whose sums lie in global memory: 64 MiB of narrow tiles, about what the second-level cache holds.
GLOBAL_BLOCKS = 1024
# As score_tile.cuh has them.
KEEP_THRESHOLDS, UNIT_MAJOR = 1, 2

BASELINE_SCORE_THREADS = 128
BASELINE_SLOTS = {32: 128, 128: 32}  # slots of a thread: threads (A049)
BASELINE_MATRIX_BYTES = 16 << 30  # AgentIR's limit for the score matrix (A051)


class CudaVerbs:
    """The CUDA C++ family of kernels.

    `select_method`: "bitonic" sorts in shared memory, "warp" keeps lists in registers, "auto" chooses by width; the
    rows are the same. `tile_bits` overrides the preferred tile size.

    The other options leave out an optimisation, to measure it; the answer is the same. `sums` "global" keeps a narrow
    tile's sums in global memory; decay, signed methods and wide sums always take "shared". Without `raises_thresholds`
    no tile raises its query's threshold. Without `tile_major` the queries of a tile are not scored side by side.
    """

    posting_bytes = POSTING_BYTES

    def __init__(
        self,
        launcher: Launcher,
        select_method: str = "auto",
        *,
        tile_bits: int | None = None,
        sums: str = "shared",
        raises_thresholds: bool = True,
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
        self._options = (0 if raises_thresholds else KEEP_THRESHOLDS) | (0 if tile_major else UNIT_MAJOR)
        self._launcher = launcher
        self._select_method = select_method
        self._tile_bits = tile_bits

    def tile_bits(self, wide: bool) -> int:
        preferred = WIDE_TILE_BITS if wide else NARROW_TILE_BITS
        if self._tile_bits is None:
            return preferred
        return min(self._tile_bits, MAX_WIDE_TILE_BITS) if wide else self._tile_bits

    def derive(self, postings: DevicePostings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor) -> None:
        count = quanta.numel()
        if count == 0:
            return
        fields, documents = postings.lengths.shape
        # Filled by kernels: a copy from the host would wait for the stream.
        constants = torch.empty((2, fields), dtype=torch.float64, device=quanta.device)
        for field in range(fields):
            constants[0, field].fill_(float(formula.weights[field]))
            constants[1, field].fill_(float(formula.average_lengths[field]))
        arguments = DERIVE.fill(
            shape=formula.shape,
            fielded=formula.fielded,
            is_signed=formula.signed,
            fields=fields,
            k1=formula.k1,
            b=formula.b,
            delta=formula.delta,
            scale=formula.scale,
            weights=constants[0],
            average_lengths=constants[1],
            words=postings.words,
            frequencies=postings.frequencies,
            offsets=postings.offsets,
            lengths=postings.lengths,
            idf=idf,
            postings=count,
            terms=postings.offsets.numel() - 1,
            documents=documents,
            quanta=quanta,
        )
        kernel = "derive_int64" if quanta.dtype == torch.int64 else "derive_int32"
        self._launch(kernel, -(-count // DERIVE_POSTINGS), DERIVE_THREADS, 0, arguments)

    def tabulate(self, tables: Tables) -> None:
        lists = tables.terms.numel()
        if lists == 0:
            return
        if tables.tiles == 0:
            tables.cuts.zero_()
            return
        arguments = TABULATE.fill(
            tile_bits=tables.tile_bits,
            tiles=tables.tiles,
            posting_bytes=tables.posting_bytes,
            long_quanta=tables.long_quanta,
            lists=lists,
            segment=tables.segment,
            terms=tables.terms,
            cuts=tables.cuts,
            maxima=tables.maxima,
        )
        self._launch_warps("plan_tables", lists * tables.tiles, arguments)

    def describe(self, work: Work, buffers: Buffers) -> None:
        slots, queries = work.slot_unit.numel(), work.query_k.numel()
        arguments = DESCRIBE.fill(
            tile_bits=work.tile_bits,
            posting_bytes=work.posting_bytes,
            long_quanta=work.long_quanta,
            is_signed=work.signed,
            slots=slots,
            queries=queries,
            segments=work.segments,
            unit_segment=work.unit_segment,
            unit_slots=work.unit_slots,
            unit_descriptors=work.unit_descriptors,
            slot_unit=work.slot_unit,
            slot_position=work.slot_position,
            slot_weight=work.slot_weight,
            descriptors=buffers.descriptors,
            idf=buffers.idf if work.posting_bytes < 8 else None,
            progress=buffers.progress,
            thresholds=buffers.thresholds,
            counts=buffers.counts,
        )
        self._launch_warps("plan_describe", slots + max(1, -(-queries // WARP)), arguments)

    def plan(self, batch: TermBatch, work: Work, buffers: Buffers) -> None:
        segments, terms, queries = work.segments.shape[0], batch.terms.numel(), work.query_k.numel()
        if segments == 0:
            raise ParameterError("plan needs a table of at least one segment; pad it with an empty one")
        blocks = -(-(terms + queries + 1) * WARP // PLAN_THREADS)
        arguments = PLAN.fill(
            tile_bits=work.tile_bits,
            posting_bytes=work.posting_bytes,
            long_quanta=work.long_quanta,
            is_signed=work.signed,
            k=batch.k,
            segment_blocks=blocks,
            segment_count=segments,
            term_count=terms,
            queries=queries,
            tiles=batch.tiles,
            candidates=batch.candidates,
            widest=-1.0 if batch.widest is None else batch.widest,
            terms=batch.terms,
            offsets=batch.offsets,
            weights=batch.weights,
            segments=work.segments,
            query_units=work.query_units,
            query_k=work.query_k,
            query_wide=work.query_wide,
            candidate_offset=work.candidate_offset,
            entry_offset=work.entry_offset,
            unit_segment=work.unit_segment,
            unit_filter=work.unit_filter,
            unit_low=work.unit_low,
            unit_high=work.unit_high,
            unit_slots=work.unit_slots,
            unit_descriptors=work.unit_descriptors,
            descriptors=buffers.descriptors,
            idf=buffers.idf if work.posting_bytes < 8 else None,
            progress=buffers.progress,
            thresholds=buffers.thresholds,
            counts=buffers.counts,
        )
        self._launch("plan_terms", blocks * segments, PLAN_THREADS, 0, arguments)

    def order(self, work: Work, buffers: Buffers) -> None:
        queries, decays = work.query_k.numel(), work.decays
        if queries == 0:
            return
        # No unit has more tiles than a whole segment, or than the query.
        groups = -(-min(work.most_tiles, tiles_of(1 << DOCUMENT_BITS, work.tile_bits)) // WARP)
        arguments = ORDER.fill(
            tile_bits=work.tile_bits,
            wide=work.wide,
            group_bits=max(groups - 1, 0).bit_length(),
            segments=work.segments,
            query_units=work.query_units,
            query_k=work.query_k,
            query_wide=work.query_wide,
            query_now=work.query_now if decays else None,
            query_rate=work.query_rate if decays else None,
            decay_table=work.decay_table if decays else None,
            entry_offset=work.entry_offset,
            unit_segment=work.unit_segment,
            unit_filter=work.unit_filter,
            unit_low=work.unit_low,
            unit_high=work.unit_high,
            unit_slots=work.unit_slots,
            unit_descriptors=work.unit_descriptors,
            descriptors=buffers.descriptors,
            thresholds=buffers.thresholds,
            entries=buffers.entries,
            entry_counts=buffers.entry_counts,
            progress=buffers.progress,
        )
        self._launch("order_decayed" if decays else "order_plain", queries, ORDER_THREADS, 0, arguments)

    def score(self, work: Work, buffers: Buffers, *, wide: bool) -> None:
        if not (work.any_wide if wide else work.any_narrow):
            return
        if work.tile_bits > (MAX_WIDE_TILE_BITS if wide else MAX_NARROW_TILE_BITS):
            raise ParameterError(f"a tile of 2**{work.tile_bits} documents does not fit the shared memory of a block")
        tile = 1 << work.tile_bits
        shared_bytes = tile * (8 if wide else 4) + tile // 8 * (2 if work.signed else 1)
        kernel = ("score_long" if work.long_quanta else "score_wide") if wide else "score_narrow"
        decays = wide and work.any_decay and not work.signed
        if work.signed:
            kernel += "_signed"
        elif decays:
            kernel += "_decayed"
        grid, global_sums, stride = MAX_GRID, None, 0
        if work.posting_bytes < 8:
            kernel += f"_{work.posting_bytes}"
        elif self._sums == "global" and kernel == "score_narrow":
            kernel, grid = "score_narrow_global", GLOBAL_BLOCKS
            stride = -(-shared_bytes // 16) * 16
            device = buffers.keys.device
            global_sums = torch.empty(min(grid, work.blocks) * stride, dtype=torch.uint8, device=device)
            shared_bytes = 0
        arguments = SCORE.fill(
            block_base=0,
            tile_bits=work.tile_bits,
            options=self._options,
            segments=work.sizes.numel(),
            words_of=work.words,
            quanta_of=work.quanta,
            sizes=work.sizes,
            firsts=work.firsts,
            block_offset=work.block_offset,
            unit_offset=work.unit_offset,
            list_start=work.list_start,
            list_length=work.list_length,
            list_cuts=work.list_cuts,
            unit_query=work.unit_query,
            unit_slots=work.unit_slots,
            unit_filter=work.unit_filter,
            unit_low=work.unit_low,
            unit_high=work.unit_high,
            slot_list=work.slot_list,
            slot_weight=work.slot_weight,
            query_k=work.query_k,
            query_wide=work.query_wide,
            candidate_offset=work.candidate_offset,
            cuts=buffers.cuts,
            maxima=buffers.maxima,
            thresholds=buffers.thresholds,
            counts=buffers.counts,
            keys=buffers.keys,
            documents=buffers.documents if wide else None,
            times_of=work.times if decays else None,
            latest_of=work.latest if decays else None,
            query_now=work.query_now if decays else None,
            query_rate=work.query_rate if decays else None,
            decay_table=work.decay_table if decays else None,
            saturated_of=work.saturated,
            list_idf=work.list_idf,
            global_sums=global_sums,
            stride=stride,
        )
        for first in range(0, work.blocks, grid):
            # Where scores decay, blocks are counted down from the last.
            arguments.block_base = work.blocks - 1 - first if decays else first
            self._launch(kernel, min(work.blocks - first, grid), SCORE_THREADS, shared_bytes, arguments)

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        queries = work.query_k.numel()
        if queries == 0:
            return
        largest = min(work.width, MAX_SELECTED)
        keys, key_bytes = ("wide", 16) if work.long_keys else ("narrow", 8)
        slots = max(BITONIC_SLOTS, 2 << max(largest - 1, 0).bit_length())
        arguments = SELECT.fill(
            slots=slots,
            wide=work.wide,
            width=answer.scores.shape[1],
            query_k=work.query_k,
            query_wide=work.query_wide,
            candidate_offset=work.candidate_offset,
            counts=buffers.counts,
            keys=buffers.keys,
            documents=buffers.documents if work.long_keys else None,
            answer_scores=answer.scores,
            answer_documents=answer.documents,
            answer_counts=answer.counts,
        )
        method = self._select_method
        if method == "auto":
            method = "warp" if largest <= MAX_AUTO_WARP else "bitonic"
        if method == "warp":
            size = next(size for size in WARP_SELECT_SIZES if size >= largest)
            lists = WARP_SELECT_THREADS // WARP // 2
            kernel, threads, shared_bytes = f"select_warp_{keys}_{size}", WARP_SELECT_THREADS, lists * size * key_bytes
        else:
            kernel, threads, shared_bytes = f"select_bitonic_{keys}", BITONIC_THREADS, slots * key_bytes
        self._launch(kernel, queries, threads, shared_bytes, arguments)

    def _launch_warps(self, name: str, warps: int, arguments: ctypes.Structure) -> None:
        self._launch(name, -(-warps * WARP // PLAN_THREADS), PLAN_THREADS, 0, arguments)

    def _launch(self, name: str, blocks: int, threads: int, shared_bytes: int, arguments: ctypes.Structure) -> None:
        self._launcher.launch(name, (blocks, 1, 1), (threads, 1, 1), shared_bytes, (arguments,))


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
            queries = rows.stop - rows.start
            matrix = torch.zeros((queries, count), dtype=torch.float32, device=terms.device)
            if max_terms:
                arguments = BASELINE.fill(
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
                self._launcher.launch(
                    "baseline_score", (queries, max_terms, 1), (BASELINE_SCORE_THREADS, 1, 1), 0, (arguments,)
                )
            self._launcher.launch(
                f"baseline_select_{merge}_{slots}",
                (queries, 1, 1),
                (BASELINE_SLOTS[slots], 1, 1),
                0,
                (c_int32(k), c_int64(count), matrix, scores[rows], best[rows]),
            )
        return scores, best
