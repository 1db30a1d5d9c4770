"""Loops for `engine/index/postings.py`, compiled by numba. They run without the interpreter's lock."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def count_lists(
    terms,  # [tokens] int32
    documents,  # [tokens] int32: document of each token, ascending
    lists,  # [largest term + 2] int64: zeros
):
    """Count each term's postings into ``lists[term + 1]``."""
    last = np.full(len(lists), -1, dtype=np.int32)
    for token in range(len(terms)):
        term = np.uint32(terms[token])
        if last[term] != documents[token]:
            last[term] = documents[token]
            lists[term + 1] += 1


@numba.njit(nogil=True, cache=True)
def fill_lists(
    terms,  # [tokens] int32
    token_documents,  # [tokens] int32: document of each token, ascending
    lists,  # [largest term + 2] int64: first posting of each term
    documents,  # [postings] int32: written
    frequencies,  # [postings] int32: written
):
    """Write the documents and frequencies of all postings, list after list."""
    last = np.full(len(lists), -1, dtype=np.int32)
    free = lists.copy()
    for token in range(len(terms)):
        term = np.uint32(terms[token])
        document = token_documents[token]
        if last[term] == document:
            frequencies[free[term] - 1] += 1
        else:
            last[term] = document
            documents[free[term]] = document
            frequencies[free[term]] = 1
            free[term] += 1


@numba.njit(nogil=True, cache=True)
def flag_classes(
    frequencies,  # [postings] int32
    documents,  # [postings] int32
    lengths,  # [documents of the segment] int32
    width,  # largest length + 1
    flags,  # [codes] bool: written
):
    """Mark the code ``frequency * width + length`` of every posting."""
    for posting in range(len(documents)):
        flags[np.int64(frequencies[posting]) * width + lengths[documents[posting]]] = True


@numba.njit(nogil=True, cache=True)
def rank_classes(
    frequencies,  # [postings] int32
    documents,  # [postings] int32
    lengths,  # [documents of the segment] int32
    width,  # largest length + 1
    ranks,  # [codes] uint16 or uint32: impact class of each code
    impact_classes,  # [postings] uint16 or uint32: written
):
    """Write the number of every posting's impact class."""
    for posting in range(len(documents)):
        impact_classes[posting] = ranks[np.int64(frequencies[posting]) * width + lengths[documents[posting]]]


@numba.njit(nogil=True, cache=True)
def copy_lists(
    rows,  # [lists] int64: joined list that each list of the part belongs to
    bounds,  # [lists + 1] int32 or int64: postings of each list of the part
    documents,  # [postings of the part] uint16, uint32 or int32
    impact_classes,  # [postings of the part] uint16 or uint32
    first,  # number of the part's first document in the joined postings
    names,  # [impact_classes of the part] uint16 or uint32: impact class in the joined postings
    free,  # [joined lists] int64: next free posting of each list; advanced
    all_documents,  # [joined postings] int32: written
    all_classes,  # [joined postings] uint16 or uint32: written
):
    """As `_copy_lists` of engine/index/postings.py."""
    for number in range(len(rows)):
        target = free[rows[number]]
        for source in range(bounds[number], bounds[number + 1]):
            all_documents[target] = np.int64(documents[source]) + first
            all_classes[target] = names[impact_classes[source]]
            target += 1
        free[rows[number]] = target
