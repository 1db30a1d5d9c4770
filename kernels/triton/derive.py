"""Contributions of a segment's postings, bit for bit `BM25.quanta`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..work import DOCUMENT_BITS, DevicePostings, Formula
from .launching import compiled_for

_BITS = tl.constexpr(DOCUMENT_BITS)
_DOCUMENT = tl.constexpr((1 << DOCUMENT_BITS) - 1)
_FREQUENCY = tl.constexpr((1 << (32 - DOCUMENT_BITS)) - 1)
# Adding and subtracting 1.5 * 2**52 rounds to an integer, half to even, where magnitudes stay below 2**51.
_ROUNDER = tl.constexpr(1.5 * 2.0**52)


@dataclass(frozen=True)
class Settings:
    block: int = 512
    warps: int = 4


def launch(
    postings: DevicePostings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor, settings: Settings
) -> None:
    count, terms = len(quanta), len(postings.offsets) - 1
    if not count:
        return
    numbers = (formula.k1, formula.b, formula.delta, formula.scale)
    _derive[(triton.cdiv(count, settings.block),)](
        words=postings.words,
        frequencies=postings.words if postings.frequencies is None else postings.frequencies,
        offsets=postings.offsets,
        lengths=postings.lengths,
        idf=idf,
        quanta=quanta,
        numbers=halves(*numbers, *formula.weights, *formula.average_lengths),
        count=count,
        terms=terms,
        size=postings.lengths.shape[1],
        FIELDS=len(formula.weights) if formula.fielded else 1,
        ALL_FIELDS=len(formula.weights),
        STORED=postings.frequencies is not None,
        SHAPE=formula.shape,
        FIELDED=formula.fielded,
        SIGNED=formula.signed,
        BLOCK=settings.block,
        num_warps=settings.warps,
        # A contracted multiply and add rounds once instead of twice.
        enable_fp_fusion=False,
    )


def halves(*numbers: float) -> tuple[int, ...]:
    """The two 32-bit halves of each float64, as odd integers of 41 bits.

    Triton hands a Python float over in float32, and compiles a kernel anew for an integer in a tuple that is 1, fits
    32 bits or is divisible by 16; these never are.
    """
    bits = (int(struct.unpack("<Q", struct.pack("<d", number))[0]) for number in numbers)
    return tuple(1 << 40 | half << 1 | 1 for whole in bits for half in (whole >> 32, whole & 0xFFFFFFFF))


@triton.jit
def float64_of(numbers, PLACE: tl.constexpr):
    high = (numbers[2 * PLACE] >> 1) & 0xFFFFFFFF
    low = (numbers[2 * PLACE + 1] >> 1) & 0xFFFFFFFF
    return ((high << 32) | low).to(tl.float64, bitcast=True)


@triton.jit
def _norm(lengths, document, size, live, numbers, FIELD: tl.constexpr, ALL_FIELDS: tl.constexpr):
    b = float64_of(numbers, 1)
    length = tl.load(lengths + FIELD * size.to(tl.int64) + document, mask=live, other=1).to(tl.float64)
    return (1.0 - b) + b * (length / float64_of(numbers, 4 + ALL_FIELDS + FIELD))


@triton.jit
def _frequency(words, frequencies, posting, count, live, FIELD: tl.constexpr, STORED: tl.constexpr):
    if STORED:
        tf = tl.load(frequencies + FIELD * count.to(tl.int64) + posting, mask=live, other=1)
    else:
        # The bits are those of uint32; the arithmetic shift's sign has to go.
        tf = (tl.load(words + posting, mask=live, other=0) >> _BITS) & _FREQUENCY
    return tf.to(tl.float64)


@compiled_for("count", "terms", "size")
def _derive(
    words,  # [postings] int32 (bits of uint32): document | frequency << DOCUMENT_BITS
    frequencies,  # [fields, postings] int32 if STORED
    offsets,  # [terms + 1] int64
    lengths,  # [fields, documents] int32
    idf,  # [terms] float64
    quanta,  # [postings] int32 or int64, written
    numbers,  # `_halves` of k1, b, delta, scale, weights, average lengths
    count,  # int32, postings
    terms,  # int32
    size,  # int32, documents
    FIELDS: tl.constexpr,
    ALL_FIELDS: tl.constexpr,
    STORED: tl.constexpr,
    SHAPE: tl.constexpr,
    FIELDED: tl.constexpr,
    SIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    posting = first + tl.arange(0, BLOCK)
    live = posting < count
    document = tl.load(words + posting, mask=live, other=0) & _DOCUMENT

    # The terms of the block's first and last posting bound the search of the others: inside a long list it is none.
    lowest, highest = _terms_of(offsets, first, tl.minimum(first + BLOCK, count) - 1, terms)
    low = tl.zeros((BLOCK,), tl.int32) + lowest
    span = highest - lowest + 1
    while span > 1:
        middle = low + span // 2
        low = tl.where(tl.load(offsets + middle) <= posting, middle, low)
        span -= span // 2
    weight = tl.load(idf + low)

    k1 = float64_of(numbers, 0)
    delta = float64_of(numbers, 2)
    if FIELDED:
        c = tl.zeros((BLOCK,), tl.float64)
        for field in tl.static_range(FIELDS):
            tf = _frequency(words, frequencies, posting, count, live, field, STORED)
            norm = _norm(lengths, document, size, live, numbers, field, ALL_FIELDS)
            # A field that lacks the term may have norm 0; it adds nothing.
            present = tf > 0.0
            part = (float64_of(numbers, 4 + field) * tf) / tl.where(present, norm, 1.0)
            c = c + tl.where(present, part, 0.0)
        saturated = c
        if SHAPE != 1:
            saturated = (c * (k1 + 1.0)) / tl.where(live, k1 + c, 1.0)
    else:
        tf = tl.where(live, _frequency(words, frequencies, posting, count, live, 0, STORED), 1.0)
        if SHAPE == 3:
            saturated = tf / float64_of(numbers, 3)
        else:
            norm = _norm(lengths, document, size, live, numbers, 0, ALL_FIELDS)
            saturated = tf / tl.where(live, norm, 1.0) if SHAPE == 1 else (tf * (k1 + 1.0)) / (tf + k1 * norm)
    if SHAPE == 1:
        shifted = saturated + delta
        saturated = ((k1 + 1.0) * shifted) / tl.where(live, k1 + shifted, 1.0)
    elif SHAPE == 2:
        saturated = delta + saturated
    exact = (weight * saturated) * float64_of(numbers, 3)
    rounded = ((exact + _ROUNDER) - _ROUNDER).to(tl.int64)
    if not SIGNED:
        rounded = tl.maximum(rounded, 1)
    tl.store(quanta + posting, rounded.to(quanta.dtype.element_ty), mask=live)


@triton.jit
def _terms_of(offsets, first, last, terms):
    """The last terms whose lists begin at or before two postings; empty lists before them begin there too."""
    lowest = terms * 0
    highest = lowest
    # The place is among the next `span`.
    span = terms
    while span > 1:
        half = span // 2
        lowest = tl.where(tl.load(offsets + lowest + half) <= first, lowest + half, lowest)
        highest = tl.where(tl.load(offsets + highest + half) <= last, highest + half, highest)
        span -= half
    return lowest, highest
