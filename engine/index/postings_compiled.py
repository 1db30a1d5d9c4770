"""The loops of `engine/index/postings.py`, compiled by numba: none holds the interpreter's lock."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def count_lists(terms, documents, lists):
    """Count each term's postings into ``lists[term + 1]``, which begin as 0; tokens in the order of their documents."""
    last = np.full(len(lists), -1, dtype=np.int32)
    for place in range(len(terms)):
        term = np.uint32(terms[place])
        if last[term] != documents[place]:
            last[term] = documents[place]
            lists[term + 1] += 1


@numba.njit(nogil=True, cache=True)
def fill_lists(terms, token_documents, lists, documents, frequencies):
    """Fill the lists, that of a term beginning at ``lists[term]``."""
    last = np.full(len(lists), -1, dtype=np.int32)
    free = lists.copy()
    for place in range(len(terms)):
        term = np.uint32(terms[place])
        document = token_documents[place]
        if last[term] == document:
            frequencies[free[term] - 1] += 1
        else:
            last[term] = document
            documents[free[term]] = document
            frequencies[free[term]] = 1
            free[term] += 1


@numba.njit(nogil=True, cache=True)
def flag_kinds(frequencies, documents, lengths, width, flags):
    """Mark ``frequency * width + length`` of every posting."""
    for place in range(len(documents)):
        flags[np.int64(frequencies[place]) * width + lengths[documents[place]]] = True


@numba.njit(nogil=True, cache=True)
def rank_kinds(frequencies, documents, lengths, width, ranks, kinds):
    """Look up the number of every posting's kind."""
    for place in range(len(documents)):
        kinds[place] = ranks[np.int64(frequencies[place]) * width + lengths[documents[place]]]


@numba.njit(nogil=True, cache=True)
def copy_lists(rows, bounds, documents, kinds, first, names, free, all_documents, all_kinds):
    """As `_copy_lists` of engine/index/postings.py."""
    for place in range(len(rows)):
        target = free[rows[place]]
        for source in range(bounds[place], bounds[place + 1]):
            all_documents[target] = np.int64(documents[source]) + first
            all_kinds[target] = names[kinds[source]]
            target += 1
        free[rows[place]] = target
