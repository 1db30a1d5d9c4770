"""Turns segments and snapshots into named arrays, and arrays back into segments and snapshots.

Large arrays of an engine's directory are packed: one or two bytes a number, which are the number itself, or its step
from the one before it. The largest value of so many bytes stands for a number that needs more; those follow, whole, in
order. What is read is unpacked into memory. An index that was saved alone stays as plain arrays, which any tool reads
and which processes share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ..index.bm25 import BM25
from ..index.columns import ABSENT, Columns, Ids, Strings
from ..index.segment import NESTED, Segment
from ..index.snapshot import Snapshot
from ..index.tombstones import Tombstones
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
    """The arrays of these segments, each array concatenated over all of them; the hashes of ids by position, without
    their order, unless `lookup`.

    The arrays of vectors and of nested segments are there only if a segment has some. The names of a nested segment's
    arrays begin with its own name.
    """
    ids = [segment.ids for segment in segments]
    arrays: dict[str, Array] = {
        **_posting_arrays(segments),
        "lengths": np.concatenate([s.lengths for s in segments], axis=1),
        "id_hashes": np.concatenate([i.hashes if lookup else i.by_position() for i in ids]),
    }
    if lookup:
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


def segments_from(arrays: Mapping[str, Array], *, lookup: bool = True) -> list[Segment]:
    """The segments whose `part_arrays` these are."""
    segments = []
    document = 0
    categories = {n.removeprefix("category_"): a for n, a in arrays.items() if n.startswith("category_")}
    numbers = {n.removeprefix("number_"): a for n, a in arrays.items() if n.startswith("number_")}
    ids, hashes = string_columns(arrays)["ids"], arrays["id_hashes"]
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
                (hashes[documents], arrays["id_order"][documents]) if lookup else hashes[documents],
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


Packing = tuple[int, bool]
"""How many bytes a number takes, and whether they are steps."""

# Arrays of fewer bytes stay as they are, so that older versions of fanrank can read a small index.
PACKED_LEAST = 1 << 16
WAYS: tuple[Packing, ...] = ((1, False), (1, True), (2, False), (2, True))


def packed(array: Array) -> tuple[Packing, Array] | None:
    """The shortest way to hold the array, and its bytes; None where that is as it is."""
    if array.nbytes < PACKED_LEAST or array.dtype.kind not in "iu" or array.dtype.itemsize < 2:
        return None
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    values = {False: flat, True: _steps_of(flat)}
    itemsize = array.dtype.itemsize
    ways = [way for way in WAYS if way[0] < itemsize]
    sizes = [width * len(flat) + itemsize * int(np.count_nonzero(_large(values[s], width))) for width, s in ways]
    if min(sizes) >= array.nbytes:
        return None
    width, steps = best = ways[sizes.index(min(sizes))]
    numbers = values[steps]
    large = _large(numbers, width)
    small = numbers.astype(f"<u{width}")
    small[large] = (1 << 8 * width) - 1
    whole = numbers[large].astype(numbers.dtype.newbyteorder("<"))
    return best, np.concatenate([small.view(np.uint8), whole.view(np.uint8)])


def unpacked(data: Array, packing: Packing, dtype: str, shape: list[int]) -> Array:
    """The array that `packed` was given. Raises `ValueError` for bytes that it did not make."""
    width, steps = packing
    split = int(np.prod(shape)) * width
    small = data[:split].view(f"<u{width}")
    array = small.astype(dtype)
    large = small == (1 << 8 * width) - 1
    array[large] = data[split:].view(np.dtype(dtype).newbyteorder("<"))
    if steps:
        np.cumsum(array, dtype=array.dtype, out=array)
    array.flags.writeable = False
    return array.reshape(shape)


def _steps_of(flat: Array) -> Array:
    # Where a step does not fit, it wraps around, and so does the sum.
    steps = flat.copy()
    np.subtract(flat[1:], flat[:-1], out=steps[1:])
    return steps


def _large(numbers: Array, width: int) -> npt.NDArray[np.bool_]:
    unsigned = numbers.view(f"u{numbers.dtype.itemsize}")
    return np.asarray(unsigned >= (1 << 8 * width) - 1)
