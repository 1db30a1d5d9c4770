"""Turns segments and snapshots into named arrays, and arrays back into segments and snapshots.

Large arrays of an engine's directory are packed in bits (`packed`), and unpacked into memory when they are read. An
index that was saved alone stays as plain arrays, which any tool reads and which processes share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of
from ..index.bm25 import BM25
from ..index.columns import ABSENT, Columns, Ids, Strings
from ..index.segment import NESTED, Segment
from ..index.snapshot import Snapshot
from ..index.tombstones import Tombstones
from ..settings import compiled_loops
from ..vectors.vectors import Vectors
from .state import new_numbering

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SavedIndex:
    """Everything that is needed to restore an engine."""

    analyzer: str  # as `Analyzer.stored`
    parameters: Mapping[str, Any]  # of `BM25`
    columns: Mapping[str, str]  # as `Schema.declared`
    terms: Sequence[str]
    categories: Mapping[str, Sequence[str]]  # values of each category column
    namespaces: Mapping[str, Snapshot]
    sequence: int = 0
    """The last change of the record store that the index covers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The engine's other parameters, by name."""
    weight_terms: Sequence[str] = ()
    """The terms of learned weights."""
    entity_terms: Sequence[str] = ()
    """The terms of the records' entities and relations."""
    numbering: int = field(default_factory=new_numbering)
    """As that of `MemoryState`: strings of another numbering do not continue those of this one."""


def snapshot_from(segments: Sequence[Segment], deleted: Mapping[int, Sequence[int]], bm25: BM25) -> Snapshot:
    tombstones = {}
    for number, documents in deleted.items():
        mask = np.zeros(segments[number].size, dtype=np.bool_)
        mask[np.array(documents)] = True
        tombstones[number] = Tombstones.of(segments[number], mask)
    return Snapshot((), bm25).extended(segments, tombstones)


def part_arrays(segments: Sequence[Segment], *, lookup: bool = True) -> dict[str, Array]:
    """The arrays of these segments, each concatenated over all of them; without the hashes of ids unless `lookup`.

    The arrays of vectors and of nested segments are there only if a segment has some. The names of a nested segment's
    arrays begin with its own name.
    """
    ids = [segment.ids for segment in segments]
    arrays: dict[str, Array] = {
        **_posting_arrays(segments),
        "lengths": np.concatenate([s.lengths for s in segments], axis=1),
    }
    if lookup:
        arrays["id_hashes"] = np.concatenate([i.hashes for i in ids])
        arrays["id_order"] = np.concatenate([i.order for i in ids])
    columns = Columns.concatenate([s.columns for s in segments])
    arrays |= {f"category_{name}": codes for name, codes in columns.categories.items()}
    arrays |= {f"number_{name}": numbers for name, numbers in columns.numbers.items()}
    present = [s.vectors for s in segments if s.vectors is not None]
    if present:
        arrays["vectors"] = np.concatenate([vectors.matrix for vectors in present])
        arrays["vector_offsets"] = np.concatenate(
            [np.zeros(s.size + 1, dtype=np.int64) if s.vectors is None else s.vectors.offsets for s in segments]
        )
    for inner in NESTED:
        if any(s.held(inner) is not None for s in segments):
            arrays |= {f"{inner}_{name}": a for name, a in _posting_arrays([s.nested(inner) for s in segments]).items()}
    return arrays | string_arrays({"ids": Strings.concatenate([i.strings for i in ids])})


def _posting_arrays(segments: Sequence[Segment]) -> dict[str, Array]:
    shapes = [(s.size, len(s.terms), s.postings, s.class_lengths.shape[1]) for s in segments]
    return {
        "shapes": np.array(shapes, dtype=np.int64),
        "terms": np.concatenate([s.terms for s in segments]),
        "offsets": np.concatenate([s.offsets for s in segments]),
        "documents": np.concatenate([s.documents for s in segments]),
        "kinds": np.concatenate([s.impact_classes for s in segments]),
        "kind_frequencies": np.concatenate([s.class_frequencies for s in segments], axis=1),
        "kind_lengths": np.concatenate([s.class_lengths for s in segments], axis=1),
    }


def segments_from(arrays: Mapping[str, Array]) -> list[Segment]:
    """The segments whose `part_arrays` these are."""
    segments = []
    document = 0
    categories = {n.removeprefix("category_"): a for n, a in arrays.items() if n.startswith("category_")}
    numbers = {n.removeprefix("number_"): a for n, a in arrays.items() if n.startswith("number_")}
    ids = string_columns(arrays)["ids"]
    # Version 7 had hashes by position, without their order. They are made anew, as those of later versions are.
    lookup = (arrays["id_hashes"], arrays["id_order"]) if "id_order" in arrays else None
    sizes = arrays["shapes"][:, 0].tolist()
    present = {name for name in ("vector", *NESTED) if any(array.startswith(name) for array in arrays)}
    vectors = _vectors(arrays, sizes) if "vector" in present else repeat(None)
    nested = [_postings(arrays, f"{name}_") if name in present else repeat(None) for name in NESTED]
    for size, postings, rows, *inner in zip(sizes, _postings(arrays), vectors, *nested, strict=False):
        documents = slice(document, document + size)
        codes = {name: column[documents] for name, column in categories.items()}
        values = {name: column[documents] for name, column in numbers.items()}
        common: dict[str, Any] = {
            "ids": Ids(
                Strings(ids.block, ids.offsets[document : document + size + 1]),
                None if lookup is None else (lookup[0][documents], lookup[1][documents]),
            ),
            "columns": Columns(
                size,
                {name: column for name, column in codes.items() if len(column) and column.max() != ABSENT},
                {name: column for name, column in values.items() if not np.isnan(column).all()},
            ),
        }
        inner_segments: dict[str, Any] = {
            name: Segment(**arrays_of, **common, lengths=np.zeros((1, size), dtype=np.int32))
            for name, arrays_of in zip(NESTED, inner, strict=True)
            if arrays_of is not None and len(arrays_of["documents"])
        }
        lengths = arrays["lengths"][:, documents]
        segments.append(Segment(**postings, **common, lengths=lengths, vectors=rows, **inner_segments))
        document += size
    return segments


def _postings(arrays: Mapping[str, Array], prefix: str = "") -> Iterator[dict[str, Any]]:
    """The arrays of each segment's postings, in order."""
    term = posting = kind = 0
    for row, (_, terms, postings, kinds) in enumerate(arrays[f"{prefix}shapes"].tolist()):
        posting_range, class_range = slice(posting, posting + postings), slice(kind, kind + kinds)
        yield {
            "terms": arrays[f"{prefix}terms"][term : term + terms],
            # Each segment's offsets have one entry more than it has terms.
            "offsets": arrays[f"{prefix}offsets"][term + row : term + row + terms + 1],
            "documents": arrays[f"{prefix}documents"][posting_range],
            "impact_classes": arrays[f"{prefix}kinds"][posting_range],
            "class_frequencies": arrays[f"{prefix}kind_frequencies"][:, class_range],
            "class_lengths": arrays[f"{prefix}kind_lengths"][:, class_range],
        }
        term, posting, kind = term + terms, posting + postings, kind + kinds


def _vectors(arrays: Mapping[str, Array], sizes: Sequence[int]) -> Iterator[Vectors | None]:
    """The vectors of each segment, in order."""
    first = row = 0
    for size in sizes:
        offsets = arrays["vector_offsets"][first : first + size + 1]
        rows = int(offsets[-1])
        yield Vectors(arrays["vectors"][row : row + rows], offsets) if rows else None
        first, row = first + size + 1, row + rows


def head_arrays(index: SavedIndex, places: Mapping[Segment, tuple[str, int]], tags: Sequence[str]) -> dict[str, Array]:
    """The arrays that say which segments of the parts the index consists of, and which documents are deleted.

    `places` says of each segment the tag of its part and its row in the part; `tags` are the tags of all parts.
    """
    numbers = {tag: number for number, tag in enumerate(tags)}
    rows: list[tuple[int, int, int]] = []
    deleted = [np.zeros((0, 2), dtype=np.int64)]
    for namespace, snapshot in enumerate(index.namespaces.values()):
        for number, tombstones in snapshot.tombstones.items():
            documents = np.flatnonzero(tombstones.deleted)
            deleted.append(np.stack([np.full(len(documents), len(rows) + number), documents], axis=1))
        for segment in snapshot.segments:
            tag, row = places[segment]
            rows.append((namespace, numbers[tag], row))
    return {
        "segments": np.array(rows, dtype=np.int64).reshape(-1, 3),
        "deleted": np.concatenate(deleted),
        **string_arrays({"namespaces": Strings.of(index.namespaces)}),
    }


def string_arrays(columns: Mapping[str, Strings]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, column in columns.items():
        arrays[f"{name}_block"], arrays[f"{name}_offsets"] = column.block, column.offsets
    return arrays


def string_columns(arrays: Mapping[str, Array]) -> dict[str, Strings]:
    names = [name.removesuffix("_block") for name in arrays if name.endswith("_block")]
    return {name: Strings(arrays[f"{name}_block"], arrays[f"{name}_offsets"]) for name in names}


Packing = str | Sequence[Any]
"""How an array is packed: `BITS`; or as version 7 did it, (how many bytes a number takes, whether they are steps)."""
BITS = "bits"

# Arrays of fewer bytes stay as they are, so that older versions of fanrank can read a small index.
PACKED_LEAST = 1 << 16
BLOCK, MARGIN = 32, 8
"""The numbers of a block of bits, and the zeros after the last one; as in native/bits.hpp."""
_HEAD = np.dtype([("least", "<i8"), ("step_bits", "u1")])
# Without compiled loops so many blocks are packed at a time, each bit as a byte.
_BLOCKS_AT_ONCE = 1 << 14


def packed(array: Array) -> Array | None:
    """The array in bits; None where that is no shorter than what it is.

    The least number is taken from all, or each becomes its step from the one before it, modulo the power of two above
    the largest. Each block of 32 then has as many bits a number as its largest needs. Bytes of texts stay as they are:
    `memory.forget` looks for ids in the files.
    """
    if array.nbytes < PACKED_LEAST or array.dtype.kind not in "iu" or array.dtype.itemsize < 2:
        return None
    if array.dtype == np.uint64:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    least = int(flat.min())
    if int(flat.max()) - least >= 1 << 32:
        return None
    # Both wrap around in 32 bits, and so does their difference, which fits.
    data = _bits_of(flat.astype(np.uint32) - np.uint32(least % (1 << 32)), least)
    return None if len(data) >= array.nbytes else data


def unpacked(data: Array, packing: Packing, dtype: str, shape: list[int]) -> Array:
    """The array that `packed` was given, or its predecessor in version 7. Raises `ValueError` for bytes that neither
    made."""
    count = int(np.prod(shape))
    if packing == BITS:
        kind = np.dtype(dtype)
        least, numbers = _numbers_in(data, count, min(kind.itemsize, 4))
        array = numbers.view(kind) if numbers.itemsize == kind.itemsize else numbers.astype(kind)
        if least:
            if not np.iinfo(kind).min <= least <= np.iinfo(kind).max:
                raise ValueError("the least number does not fit together with the dtype")
            array += kind.type(least)
    else:
        array = _from_bytes(data, int(packing[0]), bool(packing[1]), dtype, count)
    array.flags.writeable = False
    return array.reshape(shape)


def _bits_of(values: npt.NDArray[np.uint32], least: int) -> npt.NDArray[np.uint8]:
    step_bits = int(values.max()).bit_length()
    steps = values.copy()
    steps[1:] -= values[:-1]
    steps &= np.uint32((1 << step_bits) - 1)
    widths = _widths_of(values)
    widths_of_steps = _widths_of(steps)
    if widths_of_steps.sum(dtype=np.int64) < widths.sum(dtype=np.int64):
        values, widths = steps, widths_of_steps
    else:
        step_bits = 0
    bits = np.zeros(int(widths.sum(dtype=np.int64)) * BLOCK // 8 + MARGIN, np.uint8)
    if (loops := compiled_loops()) is not None:
        loops.pack_bits(values, widths, bits)
    else:
        blocks = np.pad(values, (0, -len(values) % BLOCK)).reshape(-1, BLOCK)
        for width, some, places in _places(widths):
            each = (blocks[some, :, None] >> np.arange(width, dtype=np.uint32)) & np.uint32(1)
            bits[places] = np.packbits(each.astype(np.uint8).reshape(len(some), -1), axis=1, bitorder="little")
    head = np.array([(least, step_bits)], _HEAD)
    return np.concatenate([head.view(np.uint8), widths, bits])


def _numbers_in(data: Array, count: int, itemsize: int) -> tuple[int, npt.NDArray[np.unsignedinteger[Any]]]:
    """(what is to be added to all, the numbers of so many bytes)."""
    blocks = -(-count // BLOCK)
    ((least, step_bits),) = data[: _HEAD.itemsize].view(_HEAD).tolist()
    widths, bits = np.split(data[_HEAD.itemsize :], [blocks])
    if (loops := compiled_loops()) is not None:
        numbers = np.empty(count, f"u{itemsize}")
        loops.unpack_bits(bits, widths, step_bits, numbers, itemsize)
        return least, numbers
    largest = max(step_bits, int(widths.max(initial=0)))
    if len(bits) != int(widths.sum(dtype=np.int64)) * BLOCK // 8 + MARGIN or largest > 32:
        raise ValueError("numbers, widths and bits do not fit together")
    values = np.zeros((blocks, BLOCK), np.uint32)
    for width, some, places in _places(widths):
        each = np.unpackbits(bits[places], axis=1, bitorder="little").reshape(len(some), BLOCK, width)
        values[some] = each @ (np.uint32(1) << np.arange(width, dtype=np.uint32))
    flat = values.reshape(-1)[:count]
    if step_bits:
        flat = np.cumsum(flat, dtype=np.uint32) & np.uint32((1 << step_bits) - 1)
    return least, flat.astype(f"u{itemsize}", copy=False)


def _widths_of(numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """[blocks] the bits of each block's largest number."""
    # The exponent of a number of float64 is that of its highest bit, plus one.
    largest = np.maximum.reduceat(numbers, np.arange(0, len(numbers), BLOCK))
    return np.frexp(largest.astype(np.float64))[1].astype(np.uint8)


def _places(widths: Array) -> Iterator[tuple[int, Integers, Integers]]:
    """(a width above 0, some blocks that have it, [blocks, bytes] where their bits lie), for all blocks."""
    starts = offsets_of(widths.astype(np.int64) * (BLOCK // 8))
    for width in np.unique(widths[widths > 0]).tolist():
        all_of_it = np.flatnonzero(widths == width)
        for first in range(0, len(all_of_it), _BLOCKS_AT_ONCE):
            some = all_of_it[first : first + _BLOCKS_AT_ONCE]
            yield width, some, starts[some, None] + np.arange(width * BLOCK // 8)


def _from_bytes(data: Array, width: int, steps: bool, dtype: str, count: int) -> Array:
    """An array of version 7. The largest value of so many bytes stands for a number that needs more; those follow."""
    split = count * width
    small = data[:split].view(f"<u{width}")
    array = small.astype(dtype)
    large = small == (1 << 8 * width) - 1
    array[large] = data[split:].view(np.dtype(dtype).newbyteorder("<"))
    if steps:
        np.cumsum(array, dtype=array.dtype, out=array)
    return array
