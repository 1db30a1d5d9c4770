"""The k best of a row of keys by quickselect, compiled by numba."""

from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)
def keep_best(keys, documents, count, k):
    """Move the k best of ``keys[:count]`` to the front; returns the smallest key among them. 0 < k <= count.

    The order is the larger key, then the smaller document. `documents` moves along with `keys`; None: keys alone; numba
    then leaves out all code that reads a document.
    """
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        key = keys[middle]
        if documents is not None:
            document = documents[middle]
        i, j = low, high
        while i <= j:
            if documents is None:
                while keys[i] > key:
                    i += 1
                while keys[j] < key:
                    j -= 1
            else:
                while _precedes(keys[i], documents[i], key, document):
                    i += 1
                while _precedes(key, document, keys[j], documents[j]):
                    j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                if documents is not None:
                    documents[i], documents[j] = documents[j], documents[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@numba.njit(nogil=True, cache=True)
def _precedes(key, document, other_key, other_document):
    """Whether the first of two ranks before the second."""
    return key > other_key or (key == other_key and document < other_document)
