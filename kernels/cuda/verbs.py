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
from .launcher import DeviceLimits, Launcher

NARROW_TILE_BITS = 14
"""64 KiB of sums; of the 228 KiB of a multiprocessor three blocks take one each."""
WIDE_TILE_BITS = 13
MAX_TILE_BITS = 15
"""Documents of a tile are listed by 16 bits."""

WARP = 32
PLAN_THREADS = 256
ORDER_THREADS = 256
DERIVE_THREADS = 256
DERIVE_POSTINGS = 4096  # of a block
SCORE_THREADS = 512
SCORE_REACHED = 2048  # documents of a tile that are listed, MAX_REACHED of score_tile.cuh
SCORE_STATIC = 9 * 1024  # bytes of static shared memory, at most
BLOCK_RESERVED = 1024  # bytes that a device keeps of each block's shared memory
MAX_RESIDENT_THREADS = 2048  # of a multiprocessor
MAX_TURNS = (1 << 31) - 1  # of a launch of `score`
BITONIC_THREADS = 256
WARP_SELECT_THREADS = 128
WARP_SELECT_SIZES = (32, 128, 512, 1024)
BITONIC_SLOTS = 1024  # at least this many: the slots beside the k best hold the survivors of several rounds
# Above it a warp's list takes so many registers that few warps fit an SM.
MAX_AUTO_WARP = 128

SELECT_METHODS = ("auto", "bitonic", "warp")
SUMS = ("shared", "global")
# As score_tile.cuh has it.
KEEP_THRESHOLDS = 1

BASELINE_SCORE_THREADS = 128
BASELINE_SLOTS = {32: 128, 128: 32}  # slots of a thread: threads (A049)
BASELINE_MATRIX_BYTES = 16 << 30  # AgentIR's limit for the score matrix (A051)


class CudaVerbs:
    """The CUDA C++ family of kernels.

    `select_method`: "bitonic" sorts in shared memory, "warp" keeps lists in registers, "auto" chooses by width; the
    rows are the same. `tile_bits` overrides the preferred tile size, which is the largest of which two blocks fit a
    multiprocessor of the device, up to 2**14 documents.

    The other options leave out an optimisation, to measure it; the answer is the same. `sums` "global" keeps a narrow
    tile's sums in global memory; decay, signed methods and wide sums always take "shared". Without `raises_thresholds`
    no tile raises its query's threshold.

    Raises `ParameterError` for an option that is not offered, and for a tile that does not fit a block of the device.
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
        name: str = "cuda",
    ) -> None:
        if select_method not in SELECT_METHODS:
            raise ParameterError(f"select_method must be one of {', '.join(SELECT_METHODS)}, not {select_method!r}")
        if tile_bits is not None and not MIN_TILE_BITS <= tile_bits <= MAX_TILE_BITS:
            raise ParameterError(f"tile_bits must lie in [{MIN_TILE_BITS}, {MAX_TILE_BITS}], not {tile_bits}")
        if sums not in SUMS:
            raise ParameterError(f"sums must be one of {', '.join(SUMS)}, not {sums!r}")
        self.name = name
        self._sums = sums
        self._options = 0 if raises_thresholds else KEEP_THRESHOLDS
        self._launcher = launcher
        self._select_method = select_method
        self._tile_bits = tile_bits
        if tile_bits is not None:
            _check_tile(tile_bits, launcher.limits, wide=False)

    def tile_bits(self, wide: bool) -> int:
        limits = self._launcher.limits
        if self._tile_bits is not None:
            return min(self._tile_bits, _largest_tile(limits, wide=wide))
        fitting = (
            bits
            for bits in range(WIDE_TILE_BITS if wide else NARROW_TILE_BITS, MIN_TILE_BITS, -1)
            if _blocks(_largest_bytes(bits, wide=wide), limits) >= 2
        )
        return next(fitting, MIN_TILE_BITS)

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

    def score(self, work: Work, buffers: Buffers) -> None:
        """As `Verbs.score`. Raises `ParameterError` if a tile does not fit a block, or there are 2**31 turns."""
        queries = work.query_k.numel()
        turns = queries * work.most_tiles
        if turns == 0:
            return
        if turns > MAX_TURNS:
            raise ParameterError(
                f"a launch scores at most {MAX_TURNS:,} (query, tile) pairs, not {queries:,} queries of "
                f"{work.most_tiles:,} tiles; search fewer queries at a time"
            )
        limits = self._launcher.limits
        _check_tile(work.tile_bits, limits, wide=work.wide)
        decays = work.decays
        shared_bytes = tile_bytes(work.tile_bits, wide=work.wide, signed=work.signed, decays=decays)
        kernel = ("score_long" if work.long_quanta else "score_wide") if work.wide else "score_narrow"
        if work.signed:
            kernel += "_signed"
        elif decays:
            kernel += "_decayed"
        grid, global_sums, stride = min(turns, limits.multiprocessors * _blocks(shared_bytes, limits)), None, 0
        if work.posting_bytes < 8:
            kernel += f"_{work.posting_bytes}"
        elif self._sums == "global" and kernel == "score_narrow":
            kernel += "_global"
            stride = -(-shared_bytes // 16) * 16
            global_sums = torch.empty(grid * stride, dtype=torch.uint8, device=buffers.keys.device)
            shared_bytes = 0
        arguments = SCORE.fill(
            tile_bits=work.tile_bits,
            options=self._options,
            queries=queries,
            segments=work.segments,
            query_k=work.query_k,
            query_now=work.query_now if decays else None,
            query_rate=work.query_rate if decays else None,
            decay_table=work.decay_table if decays else None,
            candidate_offset=work.candidate_offset,
            entry_offset=work.entry_offset,
            unit_segment=work.unit_segment,
            unit_filter=work.unit_filter,
            unit_low=work.unit_low,
            unit_high=work.unit_high,
            unit_slots=work.unit_slots,
            unit_descriptors=work.unit_descriptors,
            descriptors=buffers.descriptors,
            entries=buffers.entries,
            entry_counts=buffers.entry_counts,
            idf=buffers.idf if work.posting_bytes < 8 else None,
            progress=buffers.progress,
            thresholds=buffers.thresholds,
            counts=buffers.counts,
            keys=buffers.keys,
            documents=buffers.documents if work.long_keys else None,
            global_sums=global_sums,
            stride=stride,
        )
        self._launch(kernel, grid, SCORE_THREADS, shared_bytes, arguments)

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


def tile_bytes(bits: int, *, wide: bool, signed: bool, decays: bool) -> int:
    """Bytes of a tile, as `Tile` of score_tile.cuh lays them out."""
    size = 1 << bits
    sums = 8 * size if wide else max(4 * size, 8 * min(size, SCORE_REACHED)) if decays else 4 * size
    return sums + size // 8 * (2 if signed else 1)


def _largest_bytes(bits: int, *, wide: bool) -> int:
    return max(tile_bytes(bits, wide=wide, signed=signed, decays=not signed) for signed in (False, True))


def _blocks(shared_bytes: int, limits: DeviceLimits) -> int:
    """Blocks of `score` that a multiprocessor holds, were it for shared memory and threads alone."""
    own = SCORE_STATIC + shared_bytes
    if own > limits.block_bytes:
        return 0
    return min(limits.multiprocessor_bytes // (own + BLOCK_RESERVED), MAX_RESIDENT_THREADS // SCORE_THREADS)


def _largest_tile(limits: DeviceLimits, *, wide: bool) -> int:
    """The largest tile that fits a block."""
    sizes = range(MAX_TILE_BITS, MIN_TILE_BITS, -1)
    return next((bits for bits in sizes if _blocks(_largest_bytes(bits, wide=wide), limits)), MIN_TILE_BITS)


def _check_tile(bits: int, limits: DeviceLimits, *, wide: bool) -> None:
    largest = _largest_tile(limits, wide=wide)
    if bits > largest:
        raise ParameterError(
            f"a tile of 2**{bits} documents takes {SCORE_STATIC + _largest_bytes(bits, wide=wide) >> 10} KiB of "
            f"shared memory, and a block of this device has {limits.block_bytes >> 10}; ask for tile_bits of at most "
            f"{largest}"
        )


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
