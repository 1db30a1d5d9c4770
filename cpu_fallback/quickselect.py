"""The k best of a row of keys by quickselect, compiled by numba."""

from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)
def keep_best(keys, documents, count, k):
    """Move the k best of ``keys[:count]`` to the front; returns the smallest key among them. 0 < k <= count.

    The order is the larger key, then the smaller document. `documents` moves along with `keys`; None: keys alone, for
    which numba leaves out all that asks for a document.
    """
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        key = keys[middle]
        if documents is not None:
            document = documents[middle]
        i, j = low, high
        while i <= j:
            while keys[i] > key or (documents is not None and keys[i] == key and documents[i] < document):
                i += 1
            while keys[j] < key or (documents is not None and keys[j] == key and documents[j] > document):
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
