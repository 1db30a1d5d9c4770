"""What a segment knows of its documents besides their terms: ids and metadata columns (SPEC A003)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import offsets_of, ranges
from ..errors import ParameterError, RecordError
from ..records.filters import CONNECTIVES
from ..records.record import CATEGORIES, Record
from ..text.vocabulary import Vocabulary

ABSENT = -1
"""The code of no value in a category column."""

NUMBERS = ("time", "importance")
"""The built-in metadata columns that hold numbers."""

KINDS = ("category", "number")
"""What a column of the user's can hold: strings or numbers."""


def stable_hash(string: str) -> int:
    """A 64-bit hash that is the same in every process (Python's own is not)."""
    # Lone surrogates, which no id holds, may be asked for.
    data = string.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def hashes_of(strings: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The `stable_hash` of each."""
    digest = hashlib.blake2b
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    return np.frombuffer(b"".join([digest(one, digest_size=8).digest() for one in encoded]), dtype="<u8").astype(
        np.uint64
    )


@dataclass(frozen=True)
class Strings:
    """A column of strings as one UTF-8 block: string i is ``block[offsets[i]:offsets[i + 1]]``.

    The first offset need not be 0: a column can be a window of a larger one, so that a file is mapped, not copied.
    """

    block: npt.NDArray[np.uint8]  # [bytes]
    offsets: npt.NDArray[np.int64]  # [strings + 1]

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        strings = list(strings)
        text = "".join(strings)
        if text.isascii():
            # One encoding for all, as bytes and characters count alike: a third of the time.
            return cls(np.frombuffer(text.encode(), dtype=np.uint8), offsets_of(_lengths(strings)))
        encoded = [string.encode() for string in strings]
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets_of(_lengths(encoded)))

    @classmethod
    def concatenate(cls, columns: Sequence[Strings]) -> Strings:
        offsets = np.zeros(sum(map(len, columns)) + 1, dtype=np.int64)
        start = 0
        for column in columns:
            end = start + len(column)
            np.add(column.offsets[1:], offsets[start] - column.offsets[0], out=offsets[start + 1 : end + 1])
            start = end
        blocks = [column.block[column.offsets[0] : column.offsets[-1]] for column in columns]
        return cls(np.concatenate(blocks), offsets)

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


def _lengths(pieces: Sequence[str] | Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def _cut(data: bytes, lengths: npt.NDArray[np.int64]) -> list[str]:
    """Strings of these lengths in bytes, standing one after another."""
    bounds = pairwise([0, *np.cumsum(lengths).tolist()])
    if data.isascii():
        # One decoding for all, as bytes and characters count alike: a fifth of the time.
        text = data.decode()
        return [text[start:end] for start, end in bounds]
    return [data[start:end].decode() for start, end in bounds]


@dataclass(frozen=True)
class Ids:
    """Record ids with a look-up that needs no dictionary: hashes in order, and whose they are (12 bytes a record)."""

    strings: Strings
    hashes: npt.NDArray[np.uint64]  # [records] ascending
    order: npt.NDArray[np.int32]  # [records] position of the record with this hash

    @classmethod
    def of(cls, ids: Sequence[str], hashes: npt.NDArray[np.uint64] | None = None) -> Ids:
        """These ids; `hashes` [ids] are theirs, where the caller has them."""
        return cls._sorted(Strings.of(ids), hashes_of(ids) if hashes is None else hashes)

    @classmethod
    def concatenate(cls, columns: Sequence[Ids]) -> Ids:
        in_place = []
        for column in columns:
            hashes = np.empty_like(column.hashes)
            hashes[column.order] = column.hashes
            in_place.append(hashes)
        return cls.join([column.strings for column in columns], in_place)

    @classmethod
    def join(cls, strings: list[Strings], hashes: list[npt.NDArray[np.uint64]]) -> Ids:
        """These ids, one part after another, with their hashes in the same order. Empties both lists as it goes, so
        that the parts need not stand beside the whole.
        """
        whole = np.concatenate(hashes)
        hashes.clear()
        ascending, order = _ascending(whole)
        del whole
        joined = Strings.concatenate(strings)
        strings.clear()
        return cls(joined, ascending, order)

    @classmethod
    def _sorted(cls, strings: Strings, hashes: npt.NDArray[np.uint64]) -> Ids:
        return cls(strings, *_ascending(hashes))

    def __len__(self) -> int:
        return len(self.strings)

    def __getitem__(self, position: int) -> str:
        return self.strings[position]

    def find(self, record_id: str, hashed: int | None = None) -> int | None:
        """The position of the record with this id, or None."""
        value = np.uint64(stable_hash(record_id) if hashed is None else hashed)
        start = int(np.searchsorted(self.hashes, value))
        while start < len(self.hashes) and self.hashes[start] == value:
            position = int(self.order[start])
            if self.strings[position] == record_id:
                return position
            start += 1
        return None

    def find_all(self, ids: Sequence[str], hashes: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
        """(place in `ids`, position) of those of `ids` (with their hashes) that are here."""
        if not len(self.hashes):
            return
        starts = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        for place in np.flatnonzero(self.hashes[starts] == hashes).tolist():
            position = self.find(ids[place], int(hashes[place]))
            if position is not None:
                yield place, position

    def take(self, positions: npt.NDArray[np.int64]) -> Ids:
        """The ids at these positions, in their order."""
        starts = self.strings.offsets[positions]
        lengths = self.strings.offsets[positions + 1] - starts
        hashes = np.empty_like(self.hashes)
        hashes[self.order] = self.hashes
        return self._sorted(
            Strings(self.strings.block[ranges(starts, lengths)], offsets_of(lengths)), hashes[positions]
        )


def _ascending(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """The hashes in order, and where each was; equal ones in order of arrival."""
    order = np.argsort(hashes).astype(np.int32)
    ascending = hashes[order]
    if (ascending[1:] == ascending[:-1]).any():
        # There are hardly any, and a stable sort takes three times as long.
        order = np.argsort(hashes, kind="stable").astype(np.int32)
    return ascending, order


@dataclass(frozen=True)
class Schema:
    """Which metadata columns there are: the built-in ones and the user's."""

    categories: tuple[str, ...]  # CATEGORIES, then the user's
    numbers: tuple[str, ...]  # NUMBERS, then the user's

    @classmethod
    def of(cls, columns: Mapping[str, str] | None) -> Schema:
        """The built-in columns and these: name -> "category" (strings) or "number". Raises `ParameterError`."""
        if columns is not None and not isinstance(columns, Mapping):
            raise ParameterError(f"columns must map names to kinds, not {type(columns).__name__}")
        own: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for name, kind in (columns or {}).items():
            if not isinstance(name, str) or not name.isidentifier():
                raise ParameterError(f"a column's name must be letters, digits and underscores, not {name!r}")
            if name in Record.__dataclass_fields__ or name in CONNECTIVES:
                raise ParameterError(f"column {name!r} is taken: it is built in; choose another name")
            if kind not in KINDS:
                raise ParameterError(f"column {name!r}: unknown kind {kind!r}; there are: {', '.join(KINDS)}")
            own[kind].append(name)
        return cls((*CATEGORIES, *own["category"]), (*NUMBERS, *own["number"]))

    def declared(self) -> dict[str, str]:
        """The user's columns, as `of` takes them."""
        return {
            **dict.fromkeys(self.categories[len(CATEGORIES) :], "category"),
            **dict.fromkeys(self.numbers[len(NUMBERS) :], "number"),
        }


@dataclass(frozen=True, eq=False)
class Columns:
    """The metadata of `size` documents. A column that none of them has a value in is left out."""

    size: int
    categories: Mapping[str, npt.NDArray[np.int32]]  # codes [size], ABSENT where there is no value
    numbers: Mapping[str, npt.NDArray[np.float64]]  # [size], NaN where there is no value

    @classmethod
    def of(cls, records: Sequence[Record], schema: Schema, values: Mapping[str, Vocabulary]) -> Columns:
        """The columns of these records; new category values enter `values`.

        The user's columns are read from `Record.extra`, where None is no value. Raises `RecordError` for a value of
        the wrong type there; `values` may have grown by then.
        """
        size = len(records)
        found: dict[str, list[Any]] = {
            name: list(map(_BUILT_IN[name], records))
            if name in _BUILT_IN
            else [record.extra.get(name) for record in records]
            for name in (*schema.categories, *schema.numbers)
        }
        categories, numbers = {}, {}
        for name in schema.categories:
            strings = found[name]
            if strings.count(None) == size:
                continue
            if name not in CATEGORIES:
                _check_strings(name, strings, records)
            codes = dict.fromkeys(strings, ABSENT)
            for string in codes:
                if string is not None:
                    codes[string] = values[name].add(str.__str__(string))  # a string enumeration has another hash
            # A batch mostly comes from one user and one session: filling takes a third of looking up.
            categories[name] = (
                np.full(size, codes[strings[0]], dtype=np.int32)
                if len(codes) == 1
                else np.fromiter(map(codes.__getitem__, strings), np.int32, size)
            )
        for name in schema.numbers:
            own = found[name]
            absent = own.count(None)
            if absent == size:
                continue
            if name not in NUMBERS:
                _check_numbers(name, own, records)
            if absent:
                own = [np.nan if number is None else number for number in own]
            numbers[name] = np.fromiter(own, np.float64, size)
        return cls(size, categories, numbers)

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The documents of all parts, one part after another."""
        categories = {name: None for part in parts for name in part.categories}
        numbers = {name: None for part in parts for name in part.numbers}
        return cls(
            sum(part.size for part in parts),
            {
                name: np.concatenate(
                    [
                        part.categories[name] if name in part.categories else np.full(part.size, ABSENT, dtype=np.int32)
                        for part in parts
                    ]
                )
                for name in categories
            },
            {
                name: np.concatenate(
                    [part.numbers[name] if name in part.numbers else np.full(part.size, np.nan) for part in parts]
                )
                for name in numbers
            },
        )

    def take(self, positions: npt.NDArray[np.int64]) -> Columns:
        """The documents at these positions, in their order."""
        codes = {name: column[positions] for name, column in self.categories.items()}
        numbers = {name: column[positions] for name, column in self.numbers.items()}
        return Columns(
            len(positions),
            {name: column for name, column in codes.items() if (column != ABSENT).any()},
            {name: column for name, column in numbers.items() if not np.isnan(column).all()},
        )

    @property
    def times(self) -> npt.NDArray[np.float64] | None:
        """[size] seconds, NaN where a document has none; None where no document has one."""
        return self.numbers.get("time")


_BUILT_IN = {name: attrgetter(name) for name in (*CATEGORIES, *NUMBERS)}


def _check_strings(name: str, found: Sequence[object], records: Sequence[Record]) -> None:
    for value, record in zip(found, records, strict=True):
        if value is None:
            continue
        if not isinstance(value, str):
            raise RecordError(
                f"column {name!r} must be a string or None, not {type(value).__name__}", record_id=record.id
            )
        if not value.isascii() and value.encode("utf-8", "replace").decode() != value:
            raise RecordError(f"column {name!r} holds a lone surrogate, which no file can store", record_id=record.id)


def _check_numbers(name: str, found: Sequence[object], records: Sequence[Record]) -> None:
    for value, record in zip(found, records, strict=True):
        if value is None:
            continue
        # The usual types first: 7 us for 100 values instead of 22.
        if type(value) not in (float, int) and (
            isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating))
        ):
            raise RecordError(
                f"column {name!r} must be a number or None, not {type(value).__name__}", record_id=record.id
            )
        try:
            finite = isfinite(value)  # type: ignore[arg-type]
        except OverflowError:  # an integer beyond float64
            finite = False
        if not finite:
            raise RecordError(f"column {name!r} must be a finite float64", record_id=record.id)
