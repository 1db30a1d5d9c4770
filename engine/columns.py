"""What a segment knows of its documents besides their terms: ids, categories, times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .errors import QueryError
from .records import CATEGORIES, Query, Record
from .vocabulary import Vocabulary

ABSENT = -1
"""The code of a category value that is None."""


def stable_hash(string: str) -> int:
    """A 64-bit hash that is the same in every process (Python's own is not)."""
    return int.from_bytes(hashlib.blake2b(string.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Strings:
    """A column of strings as one UTF-8 block: string i is ``block[offsets[i]:offsets[i + 1]]``.

    The first offset need not be 0: a column can be a window of a larger one, so that a file is mapped, not copied.
    """

    block: npt.NDArray[np.uint8]  # [bytes]
    offsets: npt.NDArray[np.int64]  # [strings + 1]

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets)

    @classmethod
    def concatenate(cls, columns: Sequence[Strings]) -> Strings:
        lengths = np.concatenate([np.diff(column.offsets) for column in columns])
        blocks = [column.block[column.offsets[0] : column.offsets[-1]] for column in columns]
        return cls(np.concatenate(blocks), np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> str:
        return self.block[self.offsets[position] : self.offsets[position + 1]].tobytes().decode()

    def take(self, positions: npt.NDArray[np.int64]) -> list[str]:
        """The strings at these positions."""
        starts = self.offsets[positions]
        lengths = self.offsets[positions + 1] - starts
        return _cut(self.block[ranges(starts, lengths)].tobytes(), lengths)

    def tolist(self) -> list[str]:
        return _cut(self.block[self.offsets[0] : self.offsets[-1]].tobytes(), np.diff(self.offsets))


def _cut(data: bytes, lengths: npt.NDArray[np.int64]) -> list[str]:
    """Strings of these lengths in bytes, standing one after another."""
    bounds = pairwise([0, *np.cumsum(lengths).tolist()])
    if data.isascii():
        # One decoding for all, as bytes and characters count alike: a fifth of the time.
        text = data.decode()
        return [text[start:end] for start, end in bounds]
    return [data[start:end].decode() for start, end in bounds]


def ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`lengths[0]` numbers counted up from ``starts[0]``, then `lengths[1]` from ``starts[1]``, and so on."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


@dataclass(frozen=True)
class Ids:
    """Record ids with a look-up that needs no dictionary: hashes in order, and whose they are (12 bytes a record)."""

    strings: Strings
    hashes: npt.NDArray[np.uint64]  # [records] ascending
    order: npt.NDArray[np.int32]  # [records] position of the record with this hash

    @classmethod
    def of(cls, ids: Sequence[str]) -> Ids:
        return cls._sorted(Strings.of(ids), np.array([stable_hash(i) for i in ids], dtype=np.uint64))

    @classmethod
    def concatenate(cls, columns: Sequence[Ids]) -> Ids:
        in_place = []
        for column in columns:
            hashes = np.empty_like(column.hashes)
            hashes[column.order] = column.hashes
            in_place.append(hashes)
        return cls._sorted(Strings.concatenate([column.strings for column in columns]), np.concatenate(in_place))

    @classmethod
    def _sorted(cls, strings: Strings, hashes: npt.NDArray[np.uint64]) -> Ids:
        order = np.argsort(hashes, kind="stable")
        return cls(strings, hashes[order], order.astype(np.int32))

    def __len__(self) -> int:
        return len(self.strings)

    def __getitem__(self, position: int) -> str:
        return self.strings[position]

    def find(self, record_id: str, hashed: int | None = None) -> int | None:
        """The position of the record with this id, or None."""
        if hashed is None and not record_id.isascii() and record_id.encode("utf-8", "replace").decode() != record_id:
            return None  # a lone surrogate, which no id holds
        value = np.uint64(stable_hash(record_id) if hashed is None else hashed)
        start = int(np.searchsorted(self.hashes, value))
        while start < len(self.hashes) and self.hashes[start] == value:
            position = int(self.order[start])
            if self.strings[position] == record_id:
                return position
            start += 1
        return None

    def find_any(self, ids: Sequence[str], hashes: npt.NDArray[np.uint64]) -> str | None:
        """The first of `ids` (with their hashes) that is here, or None."""
        starts = np.minimum(np.searchsorted(self.hashes, hashes), max(len(self.hashes) - 1, 0))
        if not len(self.hashes):
            return None
        for position in np.flatnonzero(self.hashes[starts] == hashes).tolist():
            if self.find(ids[position], int(hashes[position])) is not None:
                return ids[position]
        return None


Categories = Mapping[str, npt.NDArray[np.int32]]
"""Category name -> value codes [documents]; a category that no document has is left out."""


def encode_categories(records: Sequence[Record], values: Mapping[str, Vocabulary]) -> dict[str, npt.NDArray[np.int32]]:
    """The category columns of these records; new values enter `values`."""
    columns = {}
    for name in CATEGORIES:
        strings = [getattr(record, name) for record in records]
        if any(string is not None for string in strings):
            add = values[name].add
            codes = [ABSENT if string is None else add(string) for string in strings]
            columns[name] = np.array(codes, dtype=np.int32)
    return columns


def concatenate_categories(columns: Sequence[Categories], sizes: Sequence[int]) -> dict[str, npt.NDArray[np.int32]]:
    present = [name for name in CATEGORIES if any(name in column for column in columns)]
    return {
        name: np.concatenate(
            [
                column[name] if name in column else np.full(size, ABSENT, dtype=np.int32)
                for column, size in zip(columns, sizes, strict=True)
            ]
        )
        for name in present
    }


Filter = tuple[tuple[str, tuple[int, ...]], ...]
"""A compiled `Query.filter`: for each column the codes that pass, all columns together (and)."""


def compile_filter(query: Query, values: Mapping[str, Vocabulary]) -> Filter:
    """The query's filter in codes, in one canonical form so that equal filters are shared in a batch.

    A value that no record has matches nothing. Raises `QueryError` for a value that is neither a string nor None.
    """
    if not query.filter:
        return ()
    compiled = []
    for name, wanted in sorted(query.filter.items()):
        options: list[object] = (
            list(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, str) else [wanted]
        )
        codes = set()
        for option in options:
            if option is None:
                codes.add(ABSENT)
            elif isinstance(option, str):
                code = values[name].ids.get(option)
                if code is not None:
                    codes.add(code)
            else:
                raise QueryError(f"filter on {name!r}: a value must be a string or None, not {option!r}")
        compiled.append((name, tuple(sorted(codes))))
    return tuple(compiled)


def passing(accepted: Filter, categories: Categories, documents: int) -> npt.NDArray[np.bool_]:
    """Which documents of a segment pass, bool [documents]."""
    mask = np.ones(documents, dtype=np.bool_)
    for name, codes in accepted:
        if name in categories:
            mask &= np.isin(categories[name], np.array(codes, dtype=np.int32))
        elif ABSENT not in codes:
            mask[:] = False
    return mask
