"""The ids and metadata columns of a segment's documents (SPEC A003).

Long because strings, ids and columns of segments are cut and joined alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import offsets_of, ranges
from ..errors import ParameterError, RecordError, choices
from ..locks import once
from ..records.filters import CONNECTIVES, PAYLOAD
from ..records.record import CATEGORIES, NUMBERS, Record
from ..records.values import json_text
from ..settings import compiled_loops
from ..text.vocabulary import Vocabulary

ABSENT = -1
"""The code in a category column of a document that has no value there."""

KINDS = ("category", "number", "json")
"""What a column that the user declares can hold: strings, numbers, or any JSON value."""

ANY = "*"
"""Stands for all further names: ``{"*": "json"}`` lets a filter declare those, too, that no record has as a key."""
AUTO = "auto"
"""Short for ``{ANY: "json"}``."""

ORDER = "fanrank_order"
"""The column of a shard that holds the numbers of its records' writes."""


def stable_hash(string: str) -> int:
    """A 64-bit hash that is the same in every process (Python's own hash is not)."""
    # A caller may look up a string with lone surrogates, although no id holds one.
    data = string.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def hashes_of(strings: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The `stable_hash` of each string."""
    if (loops := compiled_loops()) is not None:
        hashes = np.empty(len(strings), dtype=np.uint64)
        with suppress(UnicodeEncodeError):
            loops.hash_ids(list(strings), hashes)
            return hashes
    digest = hashlib.blake2b
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    return np.frombuffer(b"".join([digest(data, digest_size=8).digest() for data in encoded]), dtype="<u8").astype(
        np.uint64
    )


@dataclass(frozen=True)
class Strings:
    """A column of strings as one UTF-8 block: string i is ``block[offsets[i]:offsets[i + 1]]``.

    The first offset need not be 0. So a column can be a window of a larger one, and a file can be mapped instead of
    copied.
    """

    block: npt.NDArray[np.uint8]  # [bytes]
    offsets: npt.NDArray[np.int64]  # [strings + 1]

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        strings = list(strings)
        text = "".join(strings)
        if text.isascii():
            # All strings are encoded at once, as each character is one byte: a third of the time.
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

    @property
    def bytes(self) -> int:
        """Bytes of the strings and their offsets."""
        return int(self.offsets[-1] - self.offsets[0]) + self.offsets.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> str:
        return self.block[self.offsets[position] : self.offsets[position + 1]].tobytes().decode()

    def take(self, positions: npt.NDArray[np.int64]) -> list[str]:
        """The strings at these positions, in their order."""
        starts = self.offsets[positions]
        lengths = self.offsets[positions + 1] - starts
        return _cut(self.block[ranges(starts, lengths)].tobytes(), lengths)

    def tolist(self) -> list[str]:
        return _cut(self.block[self.offsets[0] : self.offsets[-1]].tobytes(), np.diff(self.offsets))


def _lengths(pieces: Sequence[str] | Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def _cut(data: bytes, lengths: npt.NDArray[np.int64]) -> list[str]:
    """The strings of these lengths (in bytes) that stand one after another in `data`."""
    bounds = pairwise([0, *np.cumsum(lengths).tolist()])
    if data.isascii():
        # All strings are decoded at once, as each character is one byte: a fifth of the time.
        text = data.decode()
        return [text[start:end] for start, end in bounds]
    return [data[start:end].decode() for start, end in bounds]


@dataclass(frozen=True)
class Ids:
    """Record ids, and a look-up by id without a dictionary: sorted hashes, each with its record (12 bytes a record)."""

    strings: Strings
    given: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]] | None
    """The look-up; None: it is made when it is first asked."""

    @once
    def _lookup(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        return _sort_hashes(self._hash()) if self.given is None else self.given

    def _hash(self) -> npt.NDArray[np.uint64]:
        if (loops := compiled_loops()) is None:
            return hashes_of(self.strings.tolist())
        hashes = np.empty(len(self), dtype=np.uint64)
        loops.hash_column(self.strings.block, self.strings.offsets, hashes)
        return hashes

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """[records] ascending."""
        return self._lookup[0]

    @property
    def order(self) -> npt.NDArray[np.int32]:
        """[records] position of the record with this hash."""
        return self._lookup[1]

    @classmethod
    def of(cls, ids: Sequence[str], hashes: npt.NDArray[np.uint64] | None = None) -> Ids:
        """A column of these ids. `hashes` [ids] are their hashes, if the caller has them."""
        return cls._sorted(Strings.of(ids), hashes_of(ids) if hashes is None else hashes)

    @classmethod
    def concatenate(cls, columns: Sequence[Ids]) -> Ids:
        """The ids of all columns, one column after another."""
        return cls.join([column.strings for column in columns], [column.by_position() for column in columns])

    @classmethod
    def join(cls, strings: list[Strings], hashes: list[npt.NDArray[np.uint64]]) -> Ids:
        """A column of the ids of all parts, one part after another, with their hashes in the same order.

        Empties both lists on the way, so that the parts and the whole are not in memory at the same time.
        """
        all_hashes = np.concatenate(hashes)
        hashes.clear()
        ascending, order = _sort_hashes(all_hashes)
        del all_hashes
        joined = Strings.concatenate(strings)
        strings.clear()
        return cls(joined, (ascending, order))

    @classmethod
    def _sorted(cls, strings: Strings, hashes: npt.NDArray[np.uint64]) -> Ids:
        return cls(strings, _sort_hashes(hashes))

    @property
    def bytes(self) -> int:
        """Bytes of the ids and of the look-up by id."""
        return self.strings.bytes + 12 * len(self)

    def __len__(self) -> int:
        return len(self.strings)

    def __getitem__(self, position: int) -> str:
        return self.strings[position]

    def find(self, record_id: str, hashed: int | None = None) -> int | None:
        """The position of the record with this id, or None."""
        value = np.uint64(stable_hash(record_id) if hashed is None else hashed)
        hashes, order = self._lookup
        start = int(np.searchsorted(hashes, value))
        while start < len(hashes) and hashes[start] == value:
            position = int(order[start])
            if self.strings[position] == record_id:
                return position
            start += 1
        return None

    def find_all(self, ids: Sequence[str], hashes: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
        """(index in `ids`, position) of each of these ids that a record has; `hashes` [ids] are the hashes of `ids`."""
        ascending, _ = self._lookup
        if not len(ascending):
            return
        starts = np.minimum(np.searchsorted(ascending, hashes), len(ascending) - 1)
        for index in np.flatnonzero(ascending[starts] == hashes).tolist():
            position = self.find(ids[index], int(hashes[index]))
            if position is not None:
                yield index, position

    def take(self, positions: npt.NDArray[np.int64]) -> Ids:
        """The ids at these positions, in their order."""
        starts = self.strings.offsets[positions]
        lengths = self.strings.offsets[positions + 1] - starts
        strings = Strings(self.strings.block[ranges(starts, lengths)], offsets_of(lengths))
        return self._sorted(strings, self.by_position()[positions])

    def by_position(self) -> npt.NDArray[np.uint64]:
        """[records] the hash of each record's id."""
        if self.given is None and "_lookup" not in vars(self):
            return self._hash()
        ascending, order = self._lookup
        hashes = np.empty_like(ascending)
        hashes[order] = ascending
        return hashes


def _sort_hashes(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """(the hashes, ascending; the position that each had). Equal hashes keep their order."""
    order = np.argsort(hashes).astype(np.int32)
    ascending = hashes[order]
    if (ascending[1:] == ascending[:-1]).any():
        # Equal hashes are rare, so the stable sort, which takes three times as long, runs only where there are any.
        order = np.argsort(hashes, kind="stable").astype(np.int32)
    return ascending, order


@dataclass(frozen=True)
class Schema:
    """The names of all metadata columns: the built-in ones, then those that the user declares."""

    categories: tuple[str, ...]  # CATEGORIES, then the user's, then those of `json`
    numbers: tuple[str, ...]  # NUMBERS, then the user's
    json: tuple[str, ...] = ()
    """The category columns that hold any JSON value, as its canonical text."""
    auto: bool = False
    """Whether a filter declares any name, and not those alone that a record has as a key."""

    @classmethod
    def of(cls, columns: Mapping[str, str] | str | None) -> Schema:
        """The built-in columns and the user's: name -> one of `KINDS`; or `AUTO`. Raises `ParameterError`."""
        if columns == AUTO:
            columns = {ANY: "json"}
        if columns is not None and not isinstance(columns, Mapping):
            raise ParameterError(f"columns must map names to kinds, or be {AUTO!r}, not {type(columns).__name__}")
        declared: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for name, kind in (columns or {}).items():
            _check_column(name, kind)
            if name != ANY:
                declared[kind].append(name)
        json = tuple(declared["json"])
        categories = (*CATEGORIES, *declared["category"], *json)
        return cls(categories, (*NUMBERS, *declared["number"]), json, ANY in (columns or {}))

    @property
    def names(self) -> tuple[str, ...]:
        return *self.categories, *self.numbers

    def declared(self) -> dict[str, str]:
        """The user's columns, in the form that `of` takes."""
        return {
            **({ANY: "json"} if self.auto else {}),
            **{name: "json" if name in self.json else "category" for name in self.categories[len(CATEGORIES) :]},
            **dict.fromkeys(self.numbers[len(NUMBERS) :], "number"),
        }

    def undeclared(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of these names that no column has, each once."""
        known = self.names
        return tuple(dict.fromkeys(name for name in names if name not in known))

    def declaring(self, names: Iterable[str]) -> Schema:
        """The schema with further columns of kind ``json``. Raises `ParameterError` for what is no name."""
        names = tuple(names)
        if ANY in names:
            raise ParameterError(
                f"column {ANY!r} is none: it stands for all others; write {PAYLOAD + ANY!r} for a payload's key"
            )
        return Schema.of({**self.declared(), **dict.fromkeys(names, "json")})

    def reaching(self, names: Iterable[str]) -> Schema:
        """The schema in which a filter on these names is read: with `auto` it has a column for each."""
        missing = self.undeclared(names) if self.auto else ()
        return self.declaring(missing) if missing else self

    def keeps(self, columns: Schema) -> bool:
        """Whether this can be what became of these columns since, as filters and `add_column` declared others."""
        before, now = columns.declared().items(), self.declared().items()
        grown = before <= now and (self.auto or all(kind == "json" for _, kind in now - before))
        return grown and self.auto == columns.auto


def _check_column(name: object, kind: object) -> None:
    """Raise `ParameterError` for what cannot be a declared column."""
    if kind not in KINDS:
        raise ParameterError(f"column {name!r}: unknown kind {kind!r}{choices(kind, KINDS)}")
    if name == ANY and kind != "json":
        raise ParameterError(f"column {ANY!r} stands for all others, which are of kind 'json', not {kind!r}")
    if not isinstance(name, str) or not name or (kind != "json" and not _is_name(name)):
        raise ParameterError(
            f"a column's name must be letters, digits and underscores, or {PAYLOAD!r} and a key, not {name!r}; one of "
            "kind 'json' may be any text"
        )
    if name in Record.__dataclass_fields__ or name in CONNECTIVES:
        raise ParameterError(
            f"column {name!r} is taken: it is built in; choose another name, or {PAYLOAD + name!r} for a payload's key"
        )
    if name.encode("utf-8", "replace").decode() != name:
        raise ParameterError(f"column {name!r} holds a lone surrogate, which no file can store; choose another name")


def needs_json(columns: Mapping[str, str]) -> bool:
    """Whether declared columns need what came with kind ``json``: that kind, or names of keys of payloads."""
    return any(kind == "json" or not name.isidentifier() for name, kind in columns.items())


def _is_name(name: str) -> bool:
    return name.isidentifier() or (name.startswith(PAYLOAD) and len(name) > len(PAYLOAD))


def value_in(record: Record, name: str) -> Any:
    """What a record holds for a declared column: the value in `extra`, else in `payload`; None where there is none.

    A name with dots leads into nested objects where no key has it whole. One that begins with `PAYLOAD` is looked for
    in the payload alone.
    """
    if name.startswith(PAYLOAD):
        found, name = _NOTHING, name.removeprefix(PAYLOAD)
    else:
        found = _find(record.extra, name)
    if found is _NOTHING and record.payload is not None:
        found = _find(record.payload, name)
    return None if found is _NOTHING else found


def holds_key(values: Mapping[str, Any], name: str) -> bool:
    """Whether `extra` or a payload holds a value, or None, under a column's name."""
    return _find(values, name) is not _NOTHING


_NOTHING: Any = object()


def _find(values: Mapping[str, Any], name: str) -> Any:
    while name not in values:
        first, dot, name = name.partition(".")
        inner = values.get(first) if dot else None
        if not isinstance(inner, Mapping):
            return _NOTHING
        values = inner
    return values[name]


@dataclass(frozen=True, eq=False)
class Columns:
    """The metadata of `size` documents. A column without any value is left out."""

    size: int
    categories: Mapping[str, npt.NDArray[np.int32]]  # codes [size], ABSENT where there is no value
    numbers: Mapping[str, npt.NDArray[np.float64]]  # [size], NaN where there is no value

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        schema: Schema,
        values: Mapping[str, Vocabulary],
        orders: Sequence[int] | None = None,
    ) -> Columns:
        """The columns of these records; new category values enter `values`.

        The user's columns are read as `value_in` says; None means no value. `orders` are the values of `ORDER`, where
        the records do not bring them. Raises `RecordError` for a value of the wrong type; `values` may have grown by
        then.
        """
        size = len(records)
        values_by_column: dict[str, list[Any]] = {
            name: list(map(_BUILT_IN[name], records))
            if name in _BUILT_IN
            else [record.extra[name] if name in record.extra else value_in(record, name) for record in records]
            for name in schema.names
            if orders is None or name != ORDER
        }
        categories, numbers = {}, {}
        for name in schema.categories:
            strings = values_by_column[name]
            if strings.count(None) == size:
                continue
            if name in schema.json:
                strings = _json_texts(name, strings, records)
            elif name not in CATEGORIES:
                _check_strings(name, strings, records)
            codes = dict.fromkeys(strings, ABSENT)
            for string in codes:
                if string is not None:
                    codes[string] = values[name].add(str.__str__(string))  # a string enumeration has another hash
            # A batch mostly comes from one user and one session. Filling takes a third of the time of looking up.
            categories[name] = (
                np.full(size, codes[strings[0]], dtype=np.int32)
                if len(codes) == 1
                else np.fromiter(map(codes.__getitem__, strings), np.int32, size)
            )
        for name in schema.numbers:
            if name not in values_by_column:
                numbers[name] = np.array(orders, dtype=np.float64)
                continue
            column = values_by_column[name]
            absent = column.count(None)
            if absent == size:
                continue
            if name not in NUMBERS:
                _check_numbers(name, column, records)
            if absent:
                column = [np.nan if number is None else number for number in column]
            numbers[name] = np.fromiter(column, np.float64, size)
        return cls(size, categories, numbers)

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The documents of all parts, one part after another."""
        categories = {name: None for part in parts for name in part.categories}
        numbers = {name: None for part in parts for name in part.numbers}
        return cls(
            sum([part.size for part in parts]),
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

    def renumbered(self, numbers: Mapping[str, npt.NDArray[np.int32]]) -> Columns:
        """The columns with other codes. `numbers` has the new code of each old one, and `ABSENT` at its end, by column.

        Returns `self` where no code changes.
        """
        codes = {name: numbers[name][column] for name, column in self.categories.items() if name in numbers}
        if all(np.array_equal(column, self.categories[name]) for name, column in codes.items()):
            return self
        return Columns(self.size, {**self.categories, **codes}, self.numbers)

    @property
    def bytes(self) -> int:
        """Bytes of all codes and numbers."""
        codes = sum(column.nbytes for column in self.categories.values())
        return codes + sum(numbers.nbytes for numbers in self.numbers.values())

    @property
    def times(self) -> npt.NDArray[np.float64] | None:
        """[size] seconds, NaN where a document has no time; None if no document has one."""
        return self.numbers.get("time")


_BUILT_IN = {name: attrgetter(name) for name in (*CATEGORIES, *NUMBERS)}


def _json_texts(name: str, column: Sequence[object], records: Sequence[Record]) -> list[str | None]:
    def text(value: object, record: Record) -> str | None:
        try:
            return None if value is None else json_text(value)
        except ValueError as error:
            raise RecordError(f"column {name!r} must be a JSON value: {error}", record_id=record.id) from None

    return list(map(text, column, records))


def _check_strings(name: str, column: Sequence[object], records: Sequence[Record]) -> None:
    for value, record in zip(column, records, strict=True):
        if value is None:
            continue
        if not isinstance(value, str):
            raise RecordError(
                f"column {name!r} must be a string or None, not {type(value).__name__}", record_id=record.id
            )
        if not value.isascii() and value.encode("utf-8", "replace").decode() != value:
            raise RecordError(f"column {name!r} holds a lone surrogate, which no file can store", record_id=record.id)


def _check_numbers(name: str, column: Sequence[object], records: Sequence[Record]) -> None:
    for value, record in zip(column, records, strict=True):
        if value is None:
            continue
        # The usual types are checked first: 7 us for 100 values instead of 22.
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
