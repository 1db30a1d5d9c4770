"""Loops that cut texts into tokens and look the tokens up. numba compiles them; none needs the interpreter's lock.

A *block* is several texts in UTF-8, with a line feed after each text. A *chunk* is a run of bytes between separators.
Separators are the ASCII characters that are neither letters nor digits, and dashes and quotation marks beyond ASCII,
which are common. A chunk that is all ASCII is one token. Any other chunk goes through the analyzer. ASCII letters are
lowered. A chunk of up to eight bytes is one number, with the first byte lowest, and this number is its *key*. A longer
chunk is several numbers, and its key is their hash.

A *table* [slots, 2] uint64 maps chunks to codes. A slot holds the key (0: free) and ``place << 32 | code``. The place
is the position of the chunk's bytes in a *store*, or `SHORT`. A store is ``[0, length, numbers, length, numbers, ...]``
uint64. Chunks are compared byte by byte, never by hash alone. Each slot and each place in a store is zero until it is
written, and is written once. A reader who sees a half-written chunk therefore does not find it, and never finds a wrong
one.

A *walk* reads blocks. Its *new chunks* are the chunks that the table lacks. The walk numbers them as they come, in a
table and a store of its own: the new table and the new store.
"""

from __future__ import annotations

import numba
import numpy as np

from .analyzers import MAX_LENGTH
from .porter import stem, strip_suffix

# At most this many chunks for every eight slots of a table.
FILL = 5

STEMS = {"minimal": 0, "stopword": 0, "full": 1, "nltk": 2}

# Codes of a walk: 0 and above for a term, -1 for a dropped token, -2 and below for new chunks.
DROPPED, NEW = -1, -2
UNKNOWN = np.int64(-(1 << 40))
SHORT = LOW = np.uint64(0xFFFFFFFF)
ZERO, ONE, SEVEN, BYTE, HALF, LAST = (np.uint64(number) for number in (0, 1, 7, 8, 32, 56))
ONES = np.uint64(0x0101010101010101)
HIGHS = np.uint64(0x8080808080808080)
# Each byte lowered, or 0 for a separator.
LOWER = np.array(
    [(ord(chr(byte).lower()) if chr(byte).isalnum() else 0) if byte < 128 else byte for byte in range(256)],
    dtype=np.uint8,
)
# Number of zeros after a block, so that eight bytes can be read at its end.
PADDING = 8


@numba.njit(nogil=True, cache=True)
def lower(block, out):
    """Writes the block's bytes lowered, with 0 for separators. `out` is longer by at least `PADDING` bytes."""
    for position in range(len(block)):
        out[position] = LOWER[block[position]]
    out[len(block) : len(block) + PADDING] = 0


@numba.njit(nogil=True, cache=True)
def walk(
    lowered,  # [bytes + PADDING] uint8: from `lower`
    ends,  # [texts] int64: the line feed after each text
    table,  # [slots, 2] uint64
    store,  # [numbers] uint64: of the table
    multiplier,  # uint64: used for all hashes
    new_table,  # [slots, 2] uint64
    new_store,  # [numbers] uint64
    state,  # [2] int64: new chunks so far, numbers of the new store in use; updated
    codes,  # [bytes / 2 + 1] int32: written
    counts,  # [texts] int64: tokens of each text; written
):
    """Writes the codes of a block's tokens, without dropped tokens. Returns (new table, new store, number of codes).

    Larger copies replace the new table and the new store where they are full.
    """
    shift, new_shift = _shift(table), _shift(new_table)
    known, used = state[0], state[1]
    p = ZERO
    n = 0
    for text in range(len(ends)):
        before = n
        end = np.uint64(ends[text])
        while True:
            while lowered[p] == ZERO and p < end:
                p += ONE
            if p >= end:
                break
            start = p
            key = wide = _load(lowered, p)
            zeros = _zeros(key)
            place = SHORT
            if zeros != ZERO:
                mask = _before(zeros)
                key &= mask
                wide &= mask
                length = np.int64(((mask & ONES) * ONES) >> LAST)
                p += np.uint64(length)
            else:
                new_store, length, p, wide = _pack(lowered, p, new_store, used)
                key = new_store[used + 1] if length == 8 else _hash(new_store, used, length, multiplier)
            if wide & HIGHS != ZERO and _cut(lowered, start, p):
                p = start
                continue
            if length <= 8:
                code = _find_short(table, key, multiplier, shift)
                if code == UNKNOWN:
                    code = _find_short(new_table, key, multiplier, new_shift)
                    if code != UNKNOWN:
                        code = NEW - code
            else:
                code = _find_long(table, store, key, new_store, used, multiplier, shift)
                if code == UNKNOWN:
                    place = np.uint64(used)
                    code = _find_long(new_table, new_store, key, new_store, used, multiplier, new_shift)
                    if code != UNKNOWN:
                        code = NEW - code
            if code == UNKNOWN:
                new_store[used] = np.uint64(length)
                if length <= 8:
                    new_store[used + 1] = key
                _put(new_table, key, (place << HALF) | np.uint64(known), multiplier, new_shift)
                code = NEW - known
                known += 1
                used += 1 + ((length + 7) >> 3)
                if used + 4 > len(new_store):
                    new_store = grow_store(new_store, 2 * len(new_store))
                if 8 * known > FILL * len(new_table):
                    new_table = grow_table(new_table, 2 * len(new_table), multiplier)
                    new_shift = _shift(new_table)
            codes[n] = code
            n += code != DROPPED
        counts[text] = n - before
    state[0], state[1] = known, used
    return new_table, new_store, n


@numba.njit(nogil=True, cache=True)
def _load(lowered, p):
    """Eight bytes as one number, the first byte lowest. LLVM makes one instruction of it."""
    return (
        np.uint64(lowered[p])
        | (np.uint64(lowered[p + ONE]) << np.uint64(8))
        | (np.uint64(lowered[p + np.uint64(2)]) << np.uint64(16))
        | (np.uint64(lowered[p + np.uint64(3)]) << np.uint64(24))
        | (np.uint64(lowered[p + np.uint64(4)]) << np.uint64(32))
        | (np.uint64(lowered[p + np.uint64(5)]) << np.uint64(40))
        | (np.uint64(lowered[p + np.uint64(6)]) << np.uint64(48))
        | (np.uint64(lowered[p + np.uint64(7)]) << np.uint64(56))
    )


@numba.njit(nogil=True, cache=True)
def _zeros(number):
    """The highest bit of each byte that is 0. This is exact, because no byte is 1."""
    return (number - ONES) & ~number & HIGHS


@numba.njit(nogil=True, cache=True)
def _before(zeros):
    """All bits of the bytes before the first zero byte. `zeros` is from `_zeros`."""
    return ((zeros & (~zeros + ONE)) >> SEVEN) - ONE


@numba.njit(nogil=True, cache=True)
def _pack(lowered, p, store, at):
    """Writes the chunk at p to the store. Returns (store, length of the chunk, its end, its numbers joined by or)."""
    place = at + 1
    start = p
    number = _load(lowered, p)
    zeros = _zeros(number)
    wide = ZERO
    while zeros == ZERO:
        store[place] = number
        wide |= number
        place += 1
        p += BYTE
        if place + 3 > len(store):
            store = grow_store(store, 2 * len(store))
        number = _load(lowered, p)
        zeros = _zeros(number)
    mask = _before(zeros)
    store[place] = number & mask
    p += ((mask & ONES) * ONES) >> LAST
    store[at] = p - start
    return store, np.int64(p - start), p, wide | (number & mask)


@numba.njit(nogil=True, cache=True)
def _cut(lowered, start, stop):
    """Overwrites dashes and quotation marks, U+2010 to U+2027 (E2 80 90 to E2 80 A7), with zeros. Returns whether any
    were there."""
    cut = False
    for position in range(start, stop):
        # A character never reaches beyond its chunk, so at most padding is read after it.
        if lowered[position] == 0xE2 and lowered[position + 1] == 0x80 and 0x90 <= lowered[position + 2] <= 0xA7:
            lowered[position : position + 3] = 0
            cut = True
    return cut


@numba.njit(nogil=True, cache=True)
def _hash(store, at, length, multiplier):
    key = np.uint64(length)
    for place in range(at + 1, at + 1 + ((length + 7) >> 3)):
        key = (key ^ store[place]) * multiplier
        key ^= key >> HALF
    return max(key, ONE)


@numba.njit(nogil=True, cache=True)
def _shift(table):
    shift, slots = 64, len(table)
    while slots > 1:
        shift -= 1
        slots >>= 1
    return np.uint64(shift)


@numba.njit(nogil=True, cache=True)
def _find_short(table, key, multiplier, shift):
    """The code of a chunk of up to eight bytes, or `UNKNOWN`."""
    last = np.uint64(len(table) - 1)
    slot = (key * multiplier) >> shift
    while True:
        slot_key = table[slot, 0]
        if slot_key == key:
            entry = table[slot, 1]
            if entry >> HALF == SHORT:
                return np.int64(np.int32(np.uint32(entry & LOW)))
        elif slot_key == ZERO:
            return UNKNOWN
        slot = (slot + ONE) & last


@numba.njit(nogil=True, cache=True)
def _find_long(table, store, key, other, at, multiplier, shift):
    """The code of the chunk of more than eight bytes at place `at` of the store `other`, or `UNKNOWN`."""
    last = np.uint64(len(table) - 1)
    slot = (key * multiplier) >> shift
    while True:
        slot_key = table[slot, 0]
        if slot_key == key:
            entry = table[slot, 1]
            if entry >> HALF != SHORT and _same(store, np.int64(entry >> HALF), other, at):
                return np.int64(np.int32(np.uint32(entry & LOW)))
        elif slot_key == ZERO:
            return UNKNOWN
        slot = (slot + ONE) & last


@numba.njit(nogil=True, cache=True)
def _same(store, place, other, at):
    # A reader may hold a shorter store than the table's newest entries point into.
    size = (_length(other, at) + 7) >> 3
    if place + size >= len(store):
        return False
    step = 0
    while step <= size and store[place + step] == other[at + step]:
        step += 1
    return step > size


@numba.njit(nogil=True, cache=True)
def _length(store, at):
    return np.int64(store[at])


@numba.njit(nogil=True, cache=True)
def _put(table, key, entry, multiplier, shift):
    last = np.uint64(len(table) - 1)
    slot = (key * multiplier) >> shift
    while table[slot, 0] != ZERO:
        slot = (slot + ONE) & last
    table[slot, 1] = entry
    table[slot, 0] = key


@numba.njit(nogil=True, cache=True)
def grow_store(store, size):
    """A copy of a store with room for `size` numbers."""
    copy = np.zeros(size, dtype=np.uint64)
    copy[: len(store)] = store
    return copy


@numba.njit(nogil=True, cache=True)
def grow_table(table, slots, multiplier):
    """A copy of a table with this many slots."""
    copy = np.zeros((slots, 2), dtype=np.uint64)
    shift = _shift(copy)
    for slot in range(len(table)):
        if table[slot, 0] != ZERO:
            _put(copy, table[slot, 0], table[slot, 1], multiplier, shift)
    return copy


@numba.njit(nogil=True, cache=True)
def stems(
    new_store,  # [numbers] uint64
    kind,  # one of the values of `STEMS`
    numeric,  # whether digits alone are a term
    multiplier,  # uint64: used for all hashes
    table,  # [slots, 2] uint64: zeros, with room for all terms
    terms,  # [numbers] uint64: a store with room for all terms; written
    places,  # [terms or more] int64: place of each term in `terms`; written
    heads,  # [terms or more] uint64: first eight bytes of each term, first byte highest, for sorting; written
    term_of,  # [new chunks] int64: term of each chunk, or -1; written
    wide,  # [new chunks] int64: place in the new store of a chunk that is not all ASCII, else 0; written
):
    """Numbers the distinct terms of a walk's new chunks. Returns (number of terms, numbers of `terms` in use)."""
    shift = _shift(table)
    letters = np.empty(MAX_LENGTH + 1, dtype=np.uint8)
    at, used, known = 1, 1, 0
    for chunk in range(len(term_of)):
        length = _length(new_store, at)
        begin = at
        high, above = ZERO, np.uint8(0)
        for first in range(0, length, 8):
            at += 1
            number = new_store[at]
            high |= number
            for position in range(first, min(first + 8, length)):
                letter = np.uint8(number & np.uint64(255))
                number >>= BYTE
                above = max(above, letter)
                if position < MAX_LENGTH:
                    letters[position] = letter
        at += 1
        term_of[chunk], wide[chunk] = -1, 0
        if high & HIGHS != ZERO:
            wide[chunk] = begin
            continue
        if not numeric and above <= 57:
            continue
        size = min(length, MAX_LENGTH)
        if kind == 1:
            size = strip_suffix(letters, size)
        elif kind == 2:
            size = stem(letters, size)
        if size == 0:
            continue
        terms[used] = np.uint64(size)
        for first in range(0, size, 8):
            number = ZERO
            for position in range(min(first + 8, size) - 1, first - 1, -1):
                number = (number << BYTE) | np.uint64(letters[position])
            terms[used + 1 + (first >> 3)] = number
        if size <= 8:
            key = terms[used + 1]
            code = _find_short(table, key, multiplier, shift)
            entry = SHORT << HALF
        else:
            key = _hash(terms, used, size, multiplier)
            code = _find_long(table, terms, key, terms, used, multiplier, shift)
            entry = np.uint64(used) << HALF
        if code == UNKNOWN:
            _put(table, key, entry | np.uint64(known), multiplier, shift)
            code = known
            places[known] = used
            head = ZERO
            for position in range(8):
                head = (head << BYTE) | np.uint64(letters[position] if position < size else 0)
            heads[known] = head
            known += 1
            used += 1 + ((size + 7) >> 3)
        term_of[chunk] = code
    return known, used


@numba.njit(nogil=True, cache=True)
def spell(store, places, out):
    """Writes the strings at these places of a store, each with a line feed after it. Returns the length."""
    n = 0
    for at in places:
        length = _length(store, at)
        for first in range(0, length, 8):
            at += 1
            number = store[at]
            for _ in range(first, min(first + 8, length)):
                out[n] = np.uint8(number & np.uint64(255))
                number >>= BYTE
                n += 1
        out[n] = 10
        n += 1
    return n


@numba.njit(nogil=True, cache=True)
def enter(
    table,  # [slots, 2] uint64: with room for all new chunks
    store,  # [numbers] uint64: with room for all new chunks
    used,  # numbers of the store in use
    multiplier,  # uint64: used for all hashes
    new_store,  # [numbers] uint64
    codes,  # [new chunks] int32
):
    """Adds those of a walk's new chunks to a table that have a code above `NEW`.

    Returns (number of chunks added, numbers of the store in use).
    """
    shift = _shift(table)
    at = 1
    added = 0
    for chunk in range(len(codes)):
        length = _length(new_store, at)
        size = (length + 7) >> 3
        if codes[chunk] > NEW and length <= MAX_LENGTH:
            code = np.uint64(np.uint32(codes[chunk]))
            if length <= 8:
                key = new_store[at + 1]
                absent = _find_short(table, key, multiplier, shift) == UNKNOWN
                place = SHORT
            else:
                key = _hash(new_store, at, length, multiplier)
                absent = _find_long(table, store, key, new_store, at, multiplier, shift) == UNKNOWN
                place = np.uint64(used)
                if absent:
                    for step in range(size + 1):
                        store[used + step] = new_store[at + step]
                    used += size + 1
            if absent:
                _put(table, key, (place << HALF) | code, multiplier, shift)
                added += 1
        at += size + 1
    return added, used


@numba.njit(nogil=True, cache=True)
def size_of(codes, starts):
    """The number of terms for the codes of a walk. New chunk i has ``starts[i + 1] - starts[i]`` terms."""
    total = 0
    for position in range(len(codes)):
        code = codes[position]
        total += 1 if code >= 0 else starts[NEW - code + 1] - starts[NEW - code]
    return total


@numba.njit(nogil=True, cache=True)
def settle(
    codes,  # [tokens of the block] int32
    counts,  # [texts of the block] int64: number of codes of each text; replaced by its number of terms
    starts,  # [new chunks + 1] int64: terms of new chunk i are ``new_terms[starts[i]:starts[i + 1]]``
    new_terms,  # [terms of all new chunks] int32: ids; those below 0 are left out
    first,  # number of the block's first text
    terms,  # [terms of all blocks] int32: written
    documents,  # [terms of all blocks] int32: text of each term; written
    n,  # first free place of `terms`
):
    """Writes the terms for the codes of a block, and the text of each term. Returns the next free place."""
    at = 0
    for text in range(len(counts)):
        begin = n
        for token in range(at, at + counts[text]):
            code = codes[token]
            if code >= 0:
                terms[n], documents[n] = code, first + text
                n += 1
            else:
                for number in range(starts[NEW - code], starts[NEW - code + 1]):
                    if new_terms[number] >= 0:
                        terms[n], documents[n] = new_terms[number], first + text
                        n += 1
        at += counts[text]
        counts[text] = n - begin
    return n
