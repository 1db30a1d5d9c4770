"""Postings by term: built from tokens, and joined from the postings of neighbouring documents.

Both are done in C++ (`native/postings.hpp`) or in numpy, which give the same arrays. Numpy sorts (term, document)
pairs: 83 ns a token of dialogue turns, and 97 us for one turn. The C++ counts, which it can because tokens come in the
order of their documents: 9 ns a token, and 7 us for one turn.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..settings import compiled_loops

Unsigned = npt.NDArray[np.unsignedinteger[Any]]
Number = TypeVar("Number", bound=np.generic)

# Postings copied at a time by a join in numpy: some 200 us, for which searches may wait for the interpreter's lock.
MERGE_BLOCK = 1 << 14
# Postings copied at a time by a join in C++, which runs without that lock. The memory of the postings that were read is
# given back after each block.
COMPILED_BLOCK = 1 << 20
# Impact classes are numbered through a table of flags if it needs at most this many entries, else by sorting.
FLAGS = 1 << 24
# Terms are counted in a table over the vocabulary, unless that table has more than this many entries for each of them.
# Then they are sorted.
SPARSE = 8
# A part with fewer postings gets no memory map of its own: giving it back would free a page or two.
MAPPED_LEAST = 1 << 14


class Lists(Protocol):
    """What `join_postings` takes: postings of neighbouring documents, in arrays as those of `Postings`."""

    @property
    def terms(self) -> npt.NDArray[np.int32]: ...
    @property
    def offsets(self) -> npt.NDArray[np.signedinteger[Any]]: ...
    @property
    def documents(self) -> npt.NDArray[np.integer[Any]]: ...
    @property
    def impact_classes(self) -> Unsigned: ...
    @property
    def class_frequencies(self) -> npt.NDArray[np.int32]: ...
    @property
    def class_lengths(self) -> npt.NDArray[np.int32]: ...
    @property
    def lengths(self) -> npt.NDArray[np.int32]: ...


@dataclass(frozen=True, eq=False)
class Postings:
    """The arrays of a `Segment` that hold its postings; `engine/index/segment.py` explains them."""

    terms: npt.NDArray[np.int32]  # [terms]
    offsets: Integers  # [terms + 1]
    documents: npt.NDArray[np.int32]  # [postings]
    impact_classes: Unsigned  # [postings]
    class_frequencies: npt.NDArray[np.int32]  # [fields, impact_classes]
    class_lengths: npt.NDArray[np.int32]  # [fields, impact_classes]
    lengths: npt.NDArray[np.int32]  # [fields, size]

    @classmethod
    def none(cls, size: int) -> Postings:
        """The postings of `size` documents without tokens, with one text field."""
        empty = np.zeros(0, dtype=np.int32)
        impact_classes = np.zeros(0, dtype=class_type(0))
        table = empty.reshape(1, 0)
        return cls(
            empty, np.zeros(1, dtype=np.int64), empty, impact_classes, table, table, np.zeros((1, size), dtype=np.int32)
        )


def sort_tokens(fields: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]], size: int) -> Postings:
    """The postings of `size` documents.

    Each text field is a pair ``(terms [tokens], document of each token [tokens])``, with the documents ascending.
    """
    compiled = compiled_loops()
    if compiled is not None:
        return Postings(*compiled.sort_tokens(np.empty, fields, size, FLAGS))
    lengths = np.empty((len(fields), size), dtype=np.int32)
    for position, (_, documents) in enumerate(fields):
        lengths[position] = np.bincount(documents, minlength=size)
    keys_by_field = []
    for terms, documents in fields:
        # One sort of (term, document) pairs gives the lists; the lengths of runs of equal pairs are the frequencies.
        keys = terms.astype(np.int64) << 32 | documents
        keys.sort()
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        keys_by_field.append((keys[starts], np.diff(starts, append=len(keys))))
    if len(fields) == 1:
        keys, counts = keys_by_field[0]
        frequencies = counts[None, :]
    else:
        keys = distinct_numbers(np.concatenate([keys for keys, _ in keys_by_field]))
        frequencies = np.zeros((len(fields), len(keys)), dtype=np.int64)
        for position, (field_keys, counts) in enumerate(keys_by_field):
            frequencies[position, np.searchsorted(keys, field_keys)] = counts
    term_of_posting = (keys >> 32).astype(np.int32)
    starts = np.flatnonzero(np.diff(term_of_posting, prepend=-1))
    documents = (keys & 0xFFFFFFFF).astype(np.int32)
    impact_classes, representatives = classes_of([*frequencies, *lengths[:, documents]])
    return Postings(
        terms=term_of_posting[starts],
        offsets=np.append(starts, len(keys)).astype(np.int64),
        documents=documents,
        impact_classes=impact_classes,
        class_frequencies=frequencies[:, representatives].astype(np.int32),
        class_lengths=lengths[:, documents[representatives]],
        lengths=lengths,
    )


def classes_of(columns: Sequence[npt.NDArray[np.signedinteger[Any]]]) -> tuple[Unsigned, Integers]:
    """(the number of the tuple at each index, an index at which each tuple stands).

    The tuple at index i is ``column[i]`` of all columns; no value is negative. Tuples are numbered in lexicographic
    order, so that the numbering depends on the tuples alone.
    """
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    possible = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if possible * width > FLAGS:
            codes, possible = _renumber(codes, possible)
        codes = codes * width + column
        possible *= width
    codes, count = _renumber(codes, possible)
    representatives = np.empty(count, dtype=np.int64)
    representatives[codes] = np.arange(len(codes))
    return codes.astype(class_type(count)), representatives


def _renumber(codes: Integers, possible: int) -> tuple[Integers, int]:
    """(the rank of each code among the distinct codes, the number of distinct codes). Codes are below `possible`."""
    if possible > min(FLAGS, 16 * len(codes) + 1024):
        distinct_codes, ranks = np.unique(codes, return_inverse=True)
        return ranks.reshape(-1).astype(np.int64), len(distinct_codes)
    flags = np.zeros(possible, dtype=np.bool_)
    flags[codes] = True
    ranks = np.cumsum(flags) - 1
    return ranks[codes], int(ranks[-1]) + 1


def class_type(count: int) -> npt.DTypeLike:
    """The dtype for the numbers of `count` impact classes.

    It is uint16 for all but very unusual segments, which halves what a search reads.
    """
    return np.uint16 if count <= 1 << 16 else np.uint32


def join_postings(parts: Sequence[Lists]) -> Postings:
    """The postings of all documents of the parts, one part after another.

    The time is linear in the postings, without a sort. Blocks of neighbouring terms are copied from all parts at once;
    other threads may run between the blocks. A `Part` gives back the memory of the postings that were read.
    """
    compiled = compiled_loops()
    if compiled is not None:
        arrays = [_arrays_of(part) for part in parts]
        return Postings(*compiled.join_postings(np.empty, arrays, len(parts[0].lengths), COMPILED_BLOCK, FLAGS))
    terms, offsets = _all_terms(parts)
    fields = len(parts[0].lengths)
    tables = [np.concatenate([part.class_frequencies, part.class_lengths]) for part in parts]
    table = np.concatenate(tables, axis=1)
    numbers, representatives = classes_of(list(table.astype(np.int64)))
    table = table[:, representatives]
    classes_of_parts = np.split(numbers, np.cumsum([columns.shape[1] for columns in tables])[:-1])

    documents = np.empty(int(offsets[-1]), dtype=np.int32)
    impact_classes = np.empty(len(documents), dtype=class_type(table.shape[1]))
    free = offsets[:-1].copy()
    firsts = np.cumsum([0, *(part.lengths.shape[1] for part in parts)])[:-1].tolist()
    ends = [lists.stop for lists in blocks(offsets, MERGE_BLOCK * len(parts), pause=False)]
    stops = [np.searchsorted(part.terms, terms[np.array(ends, dtype=np.int64) - 1], side="right") for part in parts]
    starts = [0] * len(parts)
    for number in range(len(ends)):
        low = 0 if number == 0 else ends[number - 1]
        block_terms = terms[low : ends[number]]
        for index, (part, first, names) in enumerate(zip(parts, firsts, classes_of_parts, strict=True)):
            start, stop = starts[index], int(stops[index][number])
            if start < stop:
                rows = low + np.searchsorted(block_terms, part.terms[start:stop])
                bounds = part.offsets[start : stop + 1]
                _copy_lists(
                    rows, bounds, part.documents, part.impact_classes, first, names, free, documents, impact_classes
                )
                if isinstance(part, Part):
                    part.give_back(int(bounds[-1]))
                time.sleep(0)
            starts[index] = stop
    return Postings(
        terms=terms,
        offsets=offsets,
        documents=documents,
        impact_classes=impact_classes,
        class_frequencies=table[:fields],
        class_lengths=table[fields:],
        lengths=np.concatenate([part.lengths for part in parts], axis=1),
    )


def _arrays_of(part: Lists) -> tuple[object, ...]:
    """A part as `join_postings` of the extension takes it: its arrays, and what is told how many postings were read."""
    return (
        part.terms,
        part.offsets,
        part.documents,
        part.impact_classes,
        # Selections of columns lie in memory column by column.
        np.ascontiguousarray(part.class_frequencies),
        np.ascontiguousarray(part.class_lengths),
        np.ascontiguousarray(part.lengths),
        part.give_back if isinstance(part, Part) else None,
    )


def _all_terms(parts: Sequence[Lists]) -> tuple[npt.NDArray[np.int32], Integers]:
    """The terms of all parts, ascending, and the offsets of their joined lists."""
    width = max((int(part.terms[-1]) + 1 for part in parts if len(part.terms)), default=0)
    if width > SPARSE * sum(len(part.terms) for part in parts):
        terms = distinct_numbers(np.concatenate([part.terms for part in parts]))
        counts = np.zeros(len(terms), dtype=np.int64)
        for part in parts:
            counts[np.searchsorted(terms, part.terms)] += np.diff(part.offsets)
    else:
        counts = np.zeros(width, dtype=np.int64)
        for part in parts:
            counts[part.terms] += np.diff(part.offsets)
        terms = np.flatnonzero(counts).astype(np.int32)
        counts = counts[terms]
    offsets = np.zeros(len(terms) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return terms, offsets


def _copy_lists(
    rows: Integers,
    bounds: npt.NDArray[np.signedinteger[Any]],
    documents: npt.NDArray[np.integer[Any]],
    impact_classes: Unsigned,
    first: int,
    names: Unsigned,
    free: Integers,
    all_documents: npt.NDArray[np.int32],
    all_classes: Unsigned,
) -> None:
    """Copy the lists of one part into the joined lists, and advance `free`.

    The part's list i, ``[bounds[i], bounds[i + 1])``, is appended to the joined list ``rows[i]``, whose next free
    posting is ``free[rows[i]]``. In the joined lists, the part's documents are numbered from `first` on, and its impact
    class k is ``names[k]``.
    """
    source = slice(int(bounds[0]), int(bounds[-1]))
    counts = np.diff(bounds)
    target = np.repeat(free[rows] - bounds[:-1], counts) + np.arange(source.start, source.stop)
    all_documents[target] = documents[source] + np.int32(first)
    all_classes[target] = names[impact_classes[source]]
    free[rows] += counts


def blocks(offsets: Integers, size: int | None = None, pause: bool = True) -> Iterator[slice]:
    """Slices of neighbouring lists with about `size` postings together (by default `MERGE_BLOCK`). With `pause`, other
    threads may run after each.
    """
    size = MERGE_BLOCK if size is None else size
    start, last = 0, len(offsets) - 1
    while start < last:
        end = int(np.searchsorted(offsets, offsets[start] + size, side="right")) - 1
        end = min(max(end, start + 1), last)
        yield slice(start, end)
        if pause:
            time.sleep(0)
        start = end


def distinct_numbers(numbers: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The distinct numbers, ascending. Sorts `numbers` in place.

    `np.unique` takes ten times as long, as it hashes the numbers first.
    """
    numbers.sort()
    new = np.ones(len(numbers), dtype=np.bool_)
    new[1:] = numbers[1:] != numbers[:-1]
    return numbers[new]


@dataclass(eq=False)
class Part:
    """The postings of a chunk until it is joined with others, in 4 bytes each instead of 6.

    The documents and impact classes lie in memory maps of their own, unless there are few. A join gives the beginning
    of these maps back to the system as it proceeds; otherwise the peak memory of a build would be twice the index.
    """

    terms: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int32]
    documents: Unsigned
    impact_classes: Unsigned
    class_frequencies: npt.NDArray[np.int32]
    class_lengths: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    _mapped: list[tuple[mmap.mmap, int]]
    _freed: list[int] = field(default_factory=lambda: [0, 0])

    @classmethod
    def of(cls, postings: Postings) -> Part:
        narrow = np.uint16 if postings.lengths.shape[1] <= 1 << 16 else np.uint32
        documents: Unsigned = postings.documents.astype(narrow)
        impact_classes = postings.impact_classes
        mapped: list[tuple[mmap.mmap, int]] = []
        if len(documents) >= MAPPED_LEAST:
            documents, document_memory = _map(documents)
            impact_classes, class_memory = _map(impact_classes)
            mapped = [(document_memory, documents.itemsize), (class_memory, impact_classes.itemsize)]
        return cls(
            postings.terms,
            postings.offsets.astype(np.int32 if postings.offsets[-1] < 1 << 31 else np.int64),
            documents,
            impact_classes,
            postings.class_frequencies,
            postings.class_lengths,
            postings.lengths,
            mapped,
        )

    def give_back(self, postings: int) -> None:
        """Give the memory of the first `postings` postings back to the system; they must not be read again."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if advice is None:  # some systems lack it; peak memory is higher there
            return
        for number, (memory, width) in enumerate(self._mapped):
            start, end = self._freed[number], postings * width // mmap.PAGESIZE * mmap.PAGESIZE
            if start < end:
                memory.madvise(advice, start, end - start)
                self._freed[number] = end


def _map(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], mmap.mmap]:
    """A copy of the values (at least one) in anonymous memory, and that memory."""
    size = values.nbytes
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        # Private, because the system keeps shared memory in spite of the advice.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    copy = np.frombuffer(memory, dtype=values.dtype, count=len(values))
    copy[:] = values
    return copy, memory
