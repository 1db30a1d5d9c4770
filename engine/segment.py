"""One stretch of arrival as one CSR: the unit of growth, of files and of device residency. Never changes once built.

Three tiny documents and what they become (one field)::

    0: "cat cat dog"   terms         [0 1 2]            cat, dog, fish (ids of the engine's vocabulary, ascending)
    1: "dog fish"      offsets       [0 1 3 4]          the postings of terms[i] are [offsets[i], offsets[i + 1])
    2: ""              documents     [0  0 1  1]        within the segment, ascending for each term
                       frequencies   [[2  1 1  1]]      raw counts (A011), in the narrowest unsigned type
                       lengths       [[3 2 0]]          kept tokens a document
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import Categories, Ids, concatenate_categories, encode_categories
from .records import Record
from .vocabulary import Encoder, Vocabulary


@dataclass(frozen=True, eq=False)
class Segment:
    """The postings and columns of `size` documents numbered ``first`` to ``first + size - 1`` in their namespace."""

    first: int
    terms: npt.NDArray[np.int32]  # [terms]
    offsets: npt.NDArray[np.int64]  # [terms + 1]
    documents: npt.NDArray[np.int32]  # [postings]
    frequencies: npt.NDArray[np.unsignedinteger[Any]]  # [fields, postings]
    lengths: npt.NDArray[np.int32]  # [fields, size]
    ids: Ids
    times: npt.NDArray[np.float64] | None  # [size] seconds, NaN where a record has none; None where no record has one
    categories: Categories

    @property
    def size(self) -> int:
        return int(self.lengths.shape[1])

    @property
    def postings(self) -> int:
        return len(self.documents)

    @property
    def index_bytes(self) -> int:
        """Bytes of what scoring needs: terms, offsets, documents, frequencies and lengths."""
        return sum(a.nbytes for a in (self.terms, self.offsets, self.documents, self.frequencies, self.lengths))

    def locate(self, terms: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The position of each term in `self.terms`, or -1 where no document of the segment has it."""
        if not len(self.terms):
            return np.full(len(terms), -1, dtype=np.int64)
        positions = np.minimum(np.searchsorted(self.terms, terms), len(self.terms) - 1)
        return np.where(self.terms[positions] == terms, positions, -1).astype(np.int64)


def build_segment(
    records: Sequence[Record], first: int, encoder: Encoder, fields: Sequence[str], categories: Mapping[str, Vocabulary]
) -> Segment:
    """The segment of these records, numbered from `first`; new terms and category values enter their vocabularies.

    `fields` names the text fields in order; ``text`` is the record's own text, others come from `Record.fields`.
    """
    size = len(records)
    keys_by_field = []
    lengths = np.empty((len(fields), size), dtype=np.int32)
    for position, name in enumerate(fields):
        texts = [record.text if name == "text" else record.fields.get(name, "") for record in records]
        terms, documents = encoder.encode_documents(texts)
        lengths[position] = np.bincount(documents, minlength=size)
        # One sort of (term, document) pairs gives the CSR and, from runs of equal pairs, the frequencies.
        keys = terms.astype(np.int64) << 32 | documents
        keys.sort()
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        keys_by_field.append((keys[starts], np.diff(starts, append=len(keys))))
    if len(fields) == 1:
        keys, counts = keys_by_field[0]
        frequencies = counts[None, :]
    else:
        keys = np.unique(np.concatenate([keys for keys, _ in keys_by_field]))
        frequencies = np.zeros((len(fields), len(keys)), dtype=np.int64)
        for position, (own, counts) in enumerate(keys_by_field):
            frequencies[position, np.searchsorted(keys, own)] = counts
    term_of_posting = (keys >> 32).astype(np.int32)
    starts = np.flatnonzero(np.diff(term_of_posting, prepend=-1))
    times = np.array([np.nan if record.time is None else record.time for record in records], dtype=np.float64)
    return Segment(
        first=first,
        terms=term_of_posting[starts],
        offsets=np.append(starts, len(keys)).astype(np.int64),
        documents=(keys & 0xFFFFFFFF).astype(np.int32),
        frequencies=_narrowest(frequencies),
        lengths=lengths,
        ids=Ids.of([record.id for record in records]),
        times=None if np.isnan(times).all() else times,
        categories=encode_categories(records, categories),
    )


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """One segment with the documents of neighbouring segments, in their order. Linear in the postings; no sort."""
    terms = np.unique(np.concatenate([segment.terms for segment in segments]))
    rows = [np.searchsorted(terms, segment.terms) for segment in segments]
    counts = [np.diff(segment.offsets) for segment in segments]
    offsets = np.zeros(len(terms) + 1, dtype=np.int64)
    for row, count in zip(rows, counts, strict=True):
        offsets[1:][row] += count
    np.cumsum(offsets, out=offsets)

    postings, fields = int(offsets[-1]), len(segments[0].lengths)
    documents = np.empty(postings, dtype=np.int32)
    frequencies = np.empty(
        (fields, postings), dtype=np.result_type(*[segment.frequencies.dtype for segment in segments])
    )
    free = offsets[:-1].copy()
    for segment, row, count in zip(segments, rows, counts, strict=True):
        shift = np.repeat(free[row] - segment.offsets[:-1], count)
        target = shift + np.arange(segment.postings)
        documents[target] = segment.documents + np.int32(segment.first - segments[0].first)
        frequencies[:, target] = segment.frequencies
        free[row] += count

    timed = any(segment.times is not None for segment in segments)
    return Segment(
        first=segments[0].first,
        terms=terms,
        offsets=offsets,
        documents=documents,
        frequencies=frequencies,
        lengths=np.concatenate([segment.lengths for segment in segments], axis=1),
        ids=Ids.concatenate([segment.ids for segment in segments]),
        times=np.concatenate([np.full(s.size, np.nan) if s.times is None else s.times for s in segments])
        if timed
        else None,
        categories=concatenate_categories([s.categories for s in segments], [s.size for s in segments]),
    )


def _narrowest(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.unsignedinteger[Any]]:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
