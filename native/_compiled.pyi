"""Types of the extension module, by binding file."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

# ids_binding.cpp

class RecordIds:
    def fill(self, documents: npt.NDArray[np.int64], ids: npt.NDArray[np.object_], /) -> None: ...

def record_ids(columns: tuple[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]], ...], /) -> RecordIds: ...
def hash_ids(ids: list[str], hashes: npt.NDArray[np.uint64], /) -> None: ...
def hash_column(
    block: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64], /
) -> None: ...

# postings_binding.cpp

def pack_bits(
    numbers: npt.NDArray[np.uint32], widths: npt.NDArray[np.uint8], bits: npt.NDArray[np.uint8], /
) -> None: ...
def unpack_bits(
    bits: npt.NDArray[np.uint8],
    widths: npt.NDArray[np.uint8],
    step_bits: int,
    numbers: npt.NDArray[np.unsignedinteger[Any]],
    bytes: int,
    /,
) -> None: ...
def sort_tokens(
    empty: Callable[..., npt.NDArray[Any]],
    fields: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]],
    size: int,
    flags: int,
    /,
) -> tuple[npt.NDArray[Any], ...]: ...
def join_postings(
    empty: Callable[..., npt.NDArray[Any]],
    parts: Sequence[tuple[object, ...]],
    fields: int,
    block: int,
    flags: int,
    /,
) -> tuple[npt.NDArray[Any], ...]: ...

# rows_binding.cpp

Row = TypeVar("Row", bound=tuple[object, ...])

def encode_rows(
    records: list[Any],
    encode: Callable[..., Row],
    type: type[Row],
    plain: int,
    with_payload: int,
    orders: list[int] | None,
    strings: tuple[str, ...],
    numbers: tuple[str, ...],
    /,
) -> list[Row]: ...

class Symbols:
    def pack(self, rows: list[str], /) -> list[str | bytes]: ...
    def unpack(self, data: bytes, /) -> bytes: ...

def symbols(number: int, runs: bytes, /) -> Symbols: ...
def learn_symbols(rows: list[str], /) -> bytes: ...

# search_binding.cpp

Setting = tuple[object, float, float, float, float]
"""(masks or None, since, until, now, rate)."""
Work = tuple[int, int, int, int, int, int, int]
"""(postings, row entries, lookups, bytes; nanoseconds of analysis, of planning, of scoring)."""

CuePart = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32] | None]
"""(what was read of the texts, lengths, codes of roles) of a segment."""
Speakers = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]
"""(offsets, numbers) of the speakers of a segment that each text names."""
Asked = tuple["Dialogue", bytes, tuple[Speakers | None, ...] | None]
"""(the strategy, which texts ask what an assistant told, the speakers that they name)."""

class Segment:
    def survey(self, saturated: npt.NDArray[np.float64], position: int, /) -> tuple[float, float, float, float]: ...
    def find(self, position: int, document: int, /) -> int: ...

class Masks:
    def surveyed(self) -> int: ...

class Links: ...
class Dialogue: ...

class Snapshot:
    def search_texts(
        self,
        analysis: Any,  # `Analysis`, or (terms, offsets)
        texts: Sequence[str] | Sequence[tuple[str, ...]],
        k: int,
        setting: Setting,
        options: tuple[int, ...],
        threads: int,
        unit: float,
        scores: npt.NDArray[np.float64],
        documents: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int32],
        source: npt.NDArray[np.int64],
        dialogue: Asked | None,
        /,
    ) -> Work | list[int] | None: ...
    def search_terms(
        self,
        terms: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        weights: npt.NDArray[np.int64] | None,
        rows: npt.NDArray[np.int64],
        k: npt.NDArray[np.int64],
        setting: npt.NDArray[np.int64],
        settings: tuple[Setting, ...],
        options: tuple[int, ...],
        threads: int,
        quanta: npt.NDArray[np.int64],
        documents: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int32],
        lending: tuple[Links, npt.NDArray[np.int64]] | None,
        /,
    ) -> Work | None: ...
    def bytes(self) -> int: ...

def segment(*arrays: Any) -> Segment: ...
def masks(arrays: tuple[npt.NDArray[np.bool_], ...], most: int, /) -> Masks: ...
def links(
    parts: tuple[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]], ...],
    earlier: npt.NDArray[np.int64],
    later: npt.NDArray[np.int64],
    later_sorted: npt.NDArray[np.int64],
    earlier_of: npt.NDArray[np.int64],
    /,
) -> Links: ...
def dialogue(
    links: Links,
    lent: npt.NDArray[np.int64],
    around: npt.NDArray[np.int64],
    depth: int,
    shares: tuple[tuple[int, float, bool], ...],
    parts: tuple[CuePart, ...],
    assistant: int,
    options: tuple[float, int, int],
    /,
) -> Dialogue: ...
def snapshot(*values: Any) -> Snapshot: ...

# text_binding.cpp

class Analysis:
    """Everything that one analyzer knows of one vocabulary. One writer at a time; `encode_queries` may run at any time.

    `stem` is one of ``none``, ``step_one``, ``nltk`` and ``martin``. `native/text.hpp` describes the sizes, which only
    tests set. `names` keeps names whole and in their parts, as the analyzer `agent` does.
    """

    def __new__(
        cls,
        analyzer: Callable[[str], list[str]],
        stem: str,
        numbers: bool,
        stop_words: Sequence[str],
        *,
        slots: int = ...,
        room: int = ...,
        block: int = ...,
        share: int = ...,
        spellings: int = ...,
        multiplier: int = ...,
        names: bool = ...,
    ) -> Analysis: ...
    def __len__(self) -> int: ...
    def find(self, term: str, /) -> int: ...
    def spellings(self) -> int: ...
    def add_terms(self, terms: Sequence[str], /) -> None: ...
    def truncate(self, size: int, /) -> None: ...
    def encode_queries(self, texts: Sequence[str], /) -> tuple[bytearray, bytearray]: ...
    def encode_documents(self, texts: Sequence[str], threads: int, /) -> tuple[bytearray, bytearray, list[str]]: ...

def stem(word: str, kind: str, /) -> str: ...
