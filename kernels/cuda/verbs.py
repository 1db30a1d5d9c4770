"""The verbs over the CUDA kernels."""

from __future__ import annotations

import ctypes

import torch

from ...engine.errors import ParameterError
from ..work import (
    DOCUMENT_BITS,
    MAX_SELECTED,
    MIN_TILE_BITS,
    POSTING_BYTES,
    Buffers,
    DevicePostings,
    Extent,
    Formula,
    KernelAnswer,
    Tables,
    TermBatch,
    Work,
    tiles_of,
)
from .arguments import DERIVE, DESCRIBE, ORDER, PLAN, SCORE, SELECT, TABULATE
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
WARP_SELECT_SIZES = (32, 128)  # more would take so many registers that few warps fit a multiprocessor
BITONIC_SLOTS = 1024  # at least this many: the slots beside the k best hold the survivors of several rounds

SELECT_METHODS = ("auto", "bitonic")


class CudaVerbs:
    """The CUDA C++ family of kernels.

    `select_method`: "bitonic" sorts in shared memory, "auto" has warps keep lists in registers up to a width of 128;
    the rows are the same. `tile_bits` overrides the preferred tile size, which is the largest of which two blocks fit a
    multiprocessor of the device, up to 2**14 documents.

    Raises `ParameterError` for an option that is not offered, and for a tile that does not fit a block of the device.
    """

    posting_bytes = POSTING_BYTES

    def __init__(
        self,
        launcher: Launcher,
        select_method: str = "auto",
        *,
        tile_bits: int | None = None,
        name: str = "cuda",
    ) -> None:
        if select_method not in SELECT_METHODS:
            raise ParameterError(f"select_method must be one of {', '.join(SELECT_METHODS)}, not {select_method!r}")
        if tile_bits is not None and not MIN_TILE_BITS <= tile_bits <= MAX_TILE_BITS:
            raise ParameterError(f"tile_bits must lie in [{MIN_TILE_BITS}, {MAX_TILE_BITS}], not {tile_bits}")
        self.name = name
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

    def scratch_bytes(self, extent: Extent) -> int:
        return 0

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
            postings,
            formula,
            is_signed=formula.signed,
            fields=fields,
            weights=constants[0],
            average_lengths=constants[1],
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
        arguments = TABULATE.fill(tables, lists=lists)
        self._launch_warps("plan_tables", lists * tables.tiles, arguments)

    def describe(self, work: Work, buffers: Buffers) -> None:
        slots, queries = work.slot_unit.numel(), work.query_k.numel()
        arguments = DESCRIBE.fill(work, buffers, is_signed=work.signed, slots=slots, queries=queries)
        self._launch_warps("plan_describe", slots + max(1, -(-queries // WARP)), arguments)

    def plan(self, batch: TermBatch, work: Work, buffers: Buffers) -> None:
        segments, terms, queries = work.segments.shape[0], batch.terms.numel(), work.query_k.numel()
        if segments == 0:
            raise ParameterError("plan needs a table of at least one segment; pad it with an empty one")
        blocks = -(-(terms + queries + 1) * WARP // PLAN_THREADS)
        arguments = PLAN.fill(
            batch,
            work,
            buffers,
            is_signed=work.signed,
            segment_blocks=blocks,
            segment_count=segments,
            term_count=terms,
            queries=queries,
            widest=-1.0 if batch.widest is None else batch.widest,
        )
        self._launch("plan_terms", blocks * segments, PLAN_THREADS, 0, arguments)

    def order(self, work: Work, buffers: Buffers) -> None:
        queries = work.query_k.numel()
        if queries == 0:
            return
        # No unit has more tiles than a whole segment, or than the query.
        groups = -(-min(work.most_tiles, tiles_of(1 << DOCUMENT_BITS, work.tile_bits)) // WARP)
        arguments = ORDER.fill(work, buffers, group_bits=max(groups - 1, 0).bit_length())
        self._launch("order_decayed" if work.decays else "order_plain", queries, ORDER_THREADS, 0, arguments)

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
        shared_bytes = tile_bytes(work.tile_bits, wide=work.wide, signed=work.signed, decays=work.decays)
        kernel = ("score_long" if work.long_quanta else "score_wide") if work.wide else "score_narrow"
        if work.signed:
            kernel += "_signed"
        elif work.decays:
            kernel += "_decayed"
        if work.posting_bytes < 8:
            kernel += f"_{work.posting_bytes}"
        grid = min(turns, limits.multiprocessors * _blocks(shared_bytes, limits))
        self._launch(kernel, grid, SCORE_THREADS, shared_bytes, SCORE.fill(work, buffers, queries=queries))

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        queries = work.query_k.numel()
        if queries == 0:
            return
        largest = min(work.width, MAX_SELECTED)
        keys, key_bytes = ("wide", 16) if work.long_keys else ("narrow", 8)
        slots = max(BITONIC_SLOTS, 2 << max(largest - 1, 0).bit_length())
        arguments = SELECT.fill(
            work,
            buffers,
            slots=slots,
            width=answer.scores.shape[1],
            answer_scores=answer.scores,
            answer_documents=answer.documents,
            answer_counts=answer.counts,
        )
        size = next((size for size in WARP_SELECT_SIZES if size >= largest), None)
        if size is not None and self._select_method == "auto":
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
