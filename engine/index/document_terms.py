"""Which terms the documents that are deleted from a segment have: what its statistics no longer count.

The segment's postings say it, and all of them must be read. Of few documents their records say it sooner: each word is
looked up in its posting list. The lists decide what a document has, so a record that is not the document's is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..records.entities import terms_of
from ..records.record import Record
from ..text.vocabulary import TermIndexer, Vocabulary
from .build import texts_of
from .postings import blocks
from .segment import NESTED, Segment

# The records of deleted documents are read where their segment has at least so many postings for each of them: it takes
# as long to read and to analyse a record as to pass over so many postings.
POSTINGS_PER_RECORD = 1 << 14


class Counted(NamedTuple):
    """Terms of some documents of a segment, and in how many of these documents each is."""

    terms: Integers  # [terms] positions in the segment's terms, ascending
    frequencies: Integers  # [terms]


class Pairs(NamedTuple):
    """Terms that documents may have, a pair each. A pair may occur twice."""

    documents: Integers  # [pairs]
    terms: npt.NDArray[np.int32]  # [pairs] vocabulary ids


@dataclass(frozen=True, eq=False)
class OwnWords:
    """Reads the records of documents, and finds the terms of their texts, learned weights and entities."""

    read: Callable[[Sequence[str]], Sequence[Record] | None]
    """The records with these ids; None where they cannot be read."""
    fields: Sequence[str]
    indexer: TermIndexer
    nested: Mapping[str, Vocabulary]
    """The vocabulary of each nested segment, by its name."""

    def pairs(self, segment: Segment, documents: Integers) -> dict[str, Pairs] | None:
        """The terms of these documents by their records, by the name of the nested segment ("" for the outer one).

        None where the records cannot be read.
        """
        records = self.read([segment.ids[document] for document in documents.tolist()])
        if records is None:
            return None
        terms, offsets = self.indexer.encode_queries([text for name in self.fields for text in texts_of(records, name)])
        named = {
            "learned": [list(record.weights or ()) for record in records],
            "entities": [terms_of(record.entities, record.relations) for record in records],
        }
        found = {"": Pairs(np.repeat(np.tile(documents, len(self.fields)), np.diff(offsets)), terms)}
        for name, vocabulary in self.nested.items():
            repeated = np.repeat(documents, [len(own) for own in named[name]])
            numbers = (vocabulary.ids.get(term, -1) for term in chain.from_iterable(named[name]))
            found[name] = Pairs(repeated, np.fromiter(numbers, np.int32, len(repeated)))
        return found


def count_documents(segment: Segment, documents: Integers, words: OwnWords | None) -> dict[str, Counted]:
    """The terms of these documents, and those in the nested segments, by the segment's name, where `words` tell them.

    Reads the records with `words` if the documents are few, else all postings.
    """
    postings = segment.postings + sum(map(segment.nested_postings, NESTED))
    few = postings >= POSTINGS_PER_RECORD * len(documents)
    pairs = words.pairs(segment, documents) if words is not None and few else None
    if pairs is None or (counted := _count_pairs(segment, documents, pairs[""])) is None:
        chosen = np.zeros(segment.size, dtype=np.bool_)
        chosen[documents] = True
        return {"": count_terms(segment, chosen)}
    found = {"": counted}
    for name in NESTED:
        inner = segment.held(name)
        if inner is not None and (counted := _count_pairs(inner, documents, pairs[name], nested=True)) is not None:
            found[name] = counted
    return found


def count_terms(segment: Segment, chosen: npt.NDArray[np.bool_]) -> Counted:
    """The terms of the documents where `chosen` [size] is true. Reads all postings, some 3 ns each."""
    chosen_postings = [
        source.start + np.flatnonzero(chosen[segment.documents[source]])
        for lists in blocks(segment.offsets)
        for source in [slice(int(segment.offsets[lists.start]), int(segment.offsets[lists.stop]))]
    ]
    return _count(segment, np.concatenate([np.zeros(0, dtype=np.int64), *chosen_postings]))


def _count(segment: Segment, postings: Integers) -> Counted:
    terms, frequencies = np.unique(np.searchsorted(segment.offsets, postings, side="right") - 1, return_counts=True)
    return Counted(terms.astype(np.int64), frequencies.astype(np.int64))


def _count_pairs(segment: Segment, documents: Integers, pairs: Pairs, *, nested: bool = False) -> Counted | None:
    """The terms of these documents, if the pairs name all of them; else None. `nested` says which segment it is."""
    postings = _find_postings(segment, *pairs)
    if nested:
        complete = len(postings) == segment.posting_counts[documents].sum()
    else:
        # Each posting counts for at least one token. So if these are all tokens, there is no other posting.
        complete = segment.frequencies(postings).sum() == segment.lengths[:, documents].sum()
    return _count(segment, postings) if complete else None


def _find_postings(segment: Segment, documents: Integers, terms: npt.NDArray[np.int32]) -> Integers:
    """The distinct postings of these pairs, ascending; pairs that no posting has are left out."""
    lists = segment.locate(terms)
    documents, lists = documents[lists >= 0], lists[lists >= 0]
    low, ends = segment.offsets[lists], segment.offsets[lists + 1]
    high = ends
    # All lists are bisected at once. Where low and high meet, they stay.
    for _ in range(int((ends - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        before = (segment.documents.take(middle, mode="clip") < documents) & (middle < high)
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    inside = low < ends
    inside[inside] = segment.documents[low[inside]] == documents[inside]
    return np.unique(low[inside])
