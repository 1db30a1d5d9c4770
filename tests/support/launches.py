"""Small random launches for every kernel family, as `kernels/work.py` describes them, with all that they must give.

`build(seed, ...)` makes one launch that was planned on the host, `cases()` fixed lists of them,
`planned(case)` the batch of terms that asks the same of whole segments. `support.kernel_cases` checks a family with
them. Nothing here depends on the family; `device` says where the tensors lie.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanrank.engine.index.bm25 import BM25, INT32_MAX, SCALE, Statistics
from fanrank.engine.index.decay import TABLE
from fanrank.kernels.work import (
    DOCUMENT_BITS,
    SEGMENT_FIELDS,
    TABLED_POSTINGS,
    DevicePostings,
    Formula,
    Tables,
    TermBatch,
    Work,
    tiles_of,
)

GUARD = 64
"""Poisoned elements behind each output, which must stay as they are."""
POISON = 0x7F
SHAPES = {"bm25l": 1, "bm25+": 2, "dot": 3}
NOW = 1.7e9
"""About when the queries are asked."""
HALF_LIVES = (2.0, 3600.0, 69.3 * 3600.0, 86400.0 * 365.0 * 10.0)
DENSITIES = (0.0, 0.03, 0.3, 0.5, 0.9, 1.0)
"""Shares of a segment's documents that hold a term."""
MAX_CLASSES = 1 << 32 - DOCUMENT_BITS
COLUMN = {name: place for place, name in enumerate(SEGMENT_FIELDS)}
"""By field of a segment's row: its column."""
UNKNOWN = -1
"""A term that no segment has."""

Array = npt.NDArray[Any]
Ranked = list[tuple[int, int]]


class Guarded:
    """Poisoned tensors with a guard behind each."""

    def __init__(self, device: str, poison: int = POISON) -> None:
        self._device, self._poison = device, poison
        self._whole: list[tuple[torch.Tensor, int]] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = int(np.prod(shape, dtype=np.int64))
        whole = torch.empty(size + GUARD, dtype=dtype, device=self._device)
        whole.view(torch.uint8).fill_(self._poison)
        self._whole.append((whole, size))
        return whole[:size].view(shape)

    def poison(self) -> None:
        """Everything holds anything again."""
        for whole, _ in self._whole:
            whole.view(torch.uint8).fill_(self._poison)

    def check(self) -> None:
        for whole, size in self._whole:
            guard = whole[size:].cpu().view(torch.uint8)
            assert bool((guard == self._poison).all()), f"wrote past the end of {size} x {whole.dtype}"


class Placed:
    """Puts arrays on a device, and keeps those of which only the address is known."""

    def __init__(self, device: str, kept: Sequence[torch.Tensor] = ()) -> None:
        self._device, self.kept = device, list(kept)

    def tensor(self, values: Any, dtype: Any = None) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(self._device)

    def address(self, values: Array) -> int:
        self.kept.append(self.tensor(values))
        return self.kept[-1].data_ptr()

    def bitmap(self, rng: np.random.Generator, passing: Array) -> int:
        """The address of a bitmap. Bits past the last document are noise."""
        padded = np.concatenate([passing, rng.random(-len(passing) % 32) < 0.5])
        return self.address(np.packbits(padded, bitorder="little").view(np.int32).copy())


@dataclass(eq=False)
class SegmentCase:
    """One segment on the host and on the device."""

    first: int
    size: int
    terms: Array  # int64 [terms] places in the vocabulary, ascending
    documents: list[Array]  # of each term: ascending, local
    quanta: list[Array]  # int64, beside `documents`
    postings: DevicePostings
    idf: torch.Tensor  # float64 [terms]
    saturated: Array  # float64 [postings] contributions but for the idf
    device_quanta: torch.Tensor  # what `derive` must give
    alive: Array | None = None  # bool [size]; None: all are
    rows: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int32))  # of the tables, or -1

    def position(self, term: int) -> int:
        """Where a term of the vocabulary stands among the segment's, or -1."""
        place = int(np.searchsorted(self.terms, term))
        return place if place < len(self.terms) and self.terms[place] == term else -1


@dataclass(eq=False)
class UnitCase:
    """A (query, segment) pair."""

    query: int
    segment: int  # a row of the table; those from `Case.segments` on are padding
    passing: Array  # bool [size] documents of the filter
    filter: int  # its address, or 0
    low: int
    high: int
    slots: list[tuple[int, int]]  # (position among the segment's terms or -1, weight)


@dataclass(eq=False)
class Case:
    """A launch with its reference; holds every tensor that an address of `work` points to."""

    name: str
    model: BM25
    formula: Formula
    segments: list[SegmentCase]
    work: Work  # `launches` has it for each width
    units: list[UnitCase]
    matches: list[dict[int, int]]  # of each query: document -> score, or its bits, over all that match and pass
    asked: list[list[tuple[int, int]]]  # of each query: (place in the vocabulary or `UNKNOWN`, weight)
    vocabulary: Array  # int64, the vocabulary id of each place
    tables: list[Tables]  # of each segment, poisoned
    guarded: Guarded  # of the tables
    decay: Decays
    kept: list[torch.Tensor] = field(default_factory=list)

    def expected(self, query: int) -> Ranked:
        """(score, document) of the k best, best first."""
        ranked = sorted((-score, document) for document, score in self.matches[query].items())
        return [(-score, document) for score, document in ranked[: int(self.work.query_k[query])]]

    def is_wide(self, query: int) -> bool:
        return bool(self.work.query_wide[query])

    def launches(self) -> list[Work]:
        """One for the queries of each width."""
        widths = sorted(set(self.work.query_wide.tolist())) or [int(self.work.long_quanta)]
        return [replace(self.work, wide=bool(wide)) for wide in widths]

    def tiles(self, segment: int) -> int:
        """Tiles of a row of the table."""
        return tiles_of(self.size(segment), self.work.tile_bits)

    def size(self, segment: int) -> int:
        return self.segments[segment].size if segment < len(self.segments) else 0


def cases(options: dict[str, dict[str, Any]] | None = None) -> Iterator[Case]:
    """The cases of these options; without any, those of `CASES`, with every feature at least once."""
    for seed, (name, own) in enumerate((CASES if options is None else options).items()):
        yield build(seed, name=name, **own)


def build(
    seed: int,
    *,
    name: str = "",
    device: str = "cpu",
    method: str = "lucene",
    parameters: dict[str, Any] | None = None,
    fields: int = 1,
    stored_frequencies: bool | None = None,
    tile_bits: int | None = None,
    sizes: Sequence[int] | None = None,
    terms: int = 7,
    densities: Sequence[float] = DENSITIES,
    absent: float = 0.15,
    unknown: float = 0.1,
    empty: float = 0.15,
    tabled: float = 0.3,
    table: int | None = None,
    queries: int = 3,
    ks: Sequence[int] = (0, 1, 3, 10, 40, 300),
    identical: bool = False,
    max_weight: int = 3,
    wide: str = "some",
    long_quanta: bool = False,
    restricted: float = 0.4,
    no_units: bool = False,
    borders: bool = False,
    decays: str = "none",
    times: str = "mixed",
    half_lives: Sequence[float] = HALF_LIVES,
) -> Case:
    """A random launch.

    Of the `terms` of the vocabulary a segment lacks the share `absent`; `unknown` is the share of terms asked for that
    no segment has, `empty` that of queries without terms. `tabled` is the share of short lists that the tables hold
    beside the long ones. `table` is the least number of rows in the table of segments. `wide` is "none", "some" or
    "all": which queries carry the flag though they need not. A query whose bound leaves int32 is always wide;
    `max_weight` above 1,000 brings that about. `restricted` is the share of units with a filter, and of those with a
    document range, whose ends lie at tile borders, or beside them, where `borders`. `decays` is "none", "some" or "all"
    (none where signed); `times` as `_times` takes them.
    """
    rng = np.random.default_rng(seed)
    weights = {field_name: round(float(rng.uniform(0.3, 4.0)), 2) for field_name in ("text", "title", "tool")[:fields]}
    model = BM25(method=method, fields=weights if fields > 1 else {"text": 1.0}, **(parameters or {}))
    bits = int(rng.integers(5, 8)) if tile_bits is None else tile_bits
    sizes = [int(size) for size in rng.integers(1, 150, size=rng.integers(1, 4))] if sizes is None else list(sizes)
    stored = bool(rng.integers(2)) or fields > 1 if stored_frequencies is None else stored_frequencies
    placed = Placed(device)
    shape = (terms, densities, absent, identical, stored, long_quanta)
    segments, formula = _segments(rng, model, sizes, shape, placed)
    # A generator of its own, so that the rest of a launch does not depend on whether anything decays.
    decays = "none" if model.signed else decays
    decay = Decays(np.random.default_rng((seed, 1)), decays, times, half_lives, queries, segments)
    guarded = Guarded(device)
    vocabulary = np.sort(rng.choice(10 * terms + 20, terms, replace=False)).astype(np.int64)
    count = len(segments) + int(rng.integers(0, 3)) if table is None else max(table, len(segments))
    rows = np.zeros((count, len(SEGMENT_FIELDS)), dtype=np.int64)
    tables = _tabled(rng, segments, decay, vocabulary, rows, (bits, tabled, long_quanta), placed, guarded)
    asked = _asked(rng, queries, terms, max_weight, unknown, empty)
    units = []
    for query in range(queries):
        for number, segment in enumerate(segments):
            if no_units or rng.random() < 0.15:
                continue
            passing, filter_ = np.ones(segment.size, dtype=np.bool_), 0
            if rng.random() < restricted:
                passing = rng.random(segment.size) < rng.choice([0.0, 0.05, 0.5, 1.0])
                if rng.random() < 0.4:
                    # All that pass lie side by side, so that tiles before and behind them have none.
                    low, high = sorted(rng.integers(0, segment.size + 1, size=2).tolist())
                    passing = (np.arange(segment.size) >= low) & (np.arange(segment.size) < high)
                filter_ = placed.bitmap(rng, passing)
            low, high = 0, segment.size
            if rng.random() < restricted:
                low, high = sorted(rng.integers(0, segment.size + 1, size=2).tolist())
                if borders:
                    low, high = sorted(_beside_a_border(rng, end, bits, segment.size) for end in (low, high))
            slots = [(segment.position(term), weight) for term, weight in asked[query]]
            if rng.random() < 0.5:
                # A planner may leave out what the segment lacks.
                slots = [slot for slot in slots if slot[0] >= 0]
            units.append(UnitCase(query, number, passing, filter_, low, high, slots))
    k = rng.choice(list(ks), size=queries)
    bounds = [_bound(segments, [unit for unit in units if unit.query == query]) for query in range(queries)]
    is_wide = np.array([bound > INT32_MAX for bound in bounds]) | long_quanta
    if wide != "none":
        is_wide |= (rng.random(queries) < 0.5) | (wide == "all")
    tiles = [tiles_of(segment.size, bits) for segment in segments]
    unit_tiles = np.array([tiles[unit.segment] for unit in units], dtype=np.int64)
    of_query = np.array([unit.query for unit in units], dtype=np.int64)
    query_tiles = np.bincount(of_query, weights=unit_tiles, minlength=queries).astype(np.int64)
    spare = rng.integers(0, 3, size=queries)
    room = np.minimum(k, 1 << bits) * query_tiles + spare
    slot_counts = np.array([len(unit.slots) for unit in units], dtype=np.int64)
    descriptors = np.zeros(len(units), dtype=np.int64)
    position = 0
    for place in rng.permutation(len(units)).tolist():
        descriptors[place] = position
        position += int(slot_counts[place] * unit_tiles[place]) + int(rng.integers(0, 2))

    tensor = placed.tensor
    decaying = bool(decay.rate.any())
    work = Work(
        tile_bits=bits,
        most_tiles=int((query_tiles + spare).max(initial=0)),
        most_candidates=int(room.max(initial=0)),
        width=int(k.max(initial=0)) + int(rng.integers(0, 3)),
        signed=model.signed,
        long_quanta=long_quanta,
        wide=bool(is_wide.any()),
        decays=decaying,
        segments=tensor(rows),
        query_units=tensor(np.searchsorted(of_query, np.arange(queries + 1)), np.int32),
        query_k=tensor(k, np.int32),
        query_wide=tensor(is_wide, np.uint8),
        query_now=tensor(decay.now if decaying else [], np.float64),
        query_rate=tensor(decay.rate if decaying else [], np.float64),
        candidate_offset=tensor(np.concatenate([[0], np.cumsum(room)]), np.int64),
        entry_offset=tensor(np.concatenate([[0], np.cumsum(query_tiles + spare)]), np.int64),
        unit_segment=tensor([unit.segment for unit in units], np.int32),
        unit_filter=tensor([unit.filter for unit in units], np.int64),
        unit_low=tensor([unit.low for unit in units], np.int32),
        unit_high=tensor([unit.high for unit in units], np.int32),
        unit_slots=tensor(np.concatenate([[0], np.cumsum(slot_counts)]), np.int64),
        unit_descriptors=tensor(descriptors, np.int64),
        slot_unit=tensor(np.repeat(np.arange(len(units)), slot_counts), np.int32),
        slot_position=tensor([position for unit in units for position, _ in unit.slots], np.int32),
        slot_weight=tensor([weight for unit in units for _, weight in unit.slots], np.int32),
        decay_table=tensor(TABLE.copy() if decaying else [], np.int32),
    )
    matches = _matches(queries, segments, units, decay)
    made = (model, formula, segments, work, units, matches, asked, vocabulary, tables, guarded, decay, placed.kept)
    return Case(name or f"seed {seed}", *made)


def _asked(
    rng: np.random.Generator, queries: int, terms: int, max_weight: int, unknown: float, empty: float
) -> list[list[tuple[int, int]]]:
    """What each query asks for. Now and then a term comes twice."""
    asked = []
    for _ in range(queries):
        chosen = (
            rng.permutation(terms)[: rng.integers(1, terms + 1)] if rng.random() >= empty else np.zeros(0, np.int64)
        )
        if len(chosen) and rng.random() < 0.3:
            chosen = np.append(chosen, chosen[0])
        chosen = np.where(rng.random(len(chosen)) < unknown, UNKNOWN, chosen)
        weights = rng.integers(1, max_weight + 1, len(chosen))
        asked.append(list(zip(chosen.tolist(), weights.tolist(), strict=True)))
    return asked


def _bound(segments: Sequence[SegmentCase], units: Sequence[UnitCase]) -> int:
    """No sum of these units is larger."""
    return sum(
        weight * int(np.abs(segments[unit.segment].quanta[position]).max(initial=0))
        for unit in units
        for position, weight in unit.slots
        if position >= 0
    )


def _matches(
    queries: int, segments: Sequence[SegmentCase], units: Sequence[UnitCase], decay: Decays
) -> list[dict[int, int]]:
    matches: list[dict[int, int]] = [{} for _ in range(queries)]
    for unit in units:
        if unit.segment >= len(segments):
            continue
        segment = segments[unit.segment]
        sums: dict[int, int] = {}
        for position, weight in unit.slots:
            if position < 0:
                continue
            pairs = zip(segment.documents[position].tolist(), segment.quanta[position].tolist(), strict=True)
            for document, quanta in pairs:
                if unit.low <= document < unit.high and unit.passing[document]:
                    sums[document] = sums.get(document, 0) + weight * quanta
        for document, quanta in sums.items():
            score = decay.score(unit.query, quanta, unit.segment, document)
            matches[unit.query][segment.first + document] = score
    return matches


class Decays:
    """Which queries of a launch decay, and how old its documents are."""

    def __init__(
        self,
        rng: np.random.Generator,
        decays: str,
        times: str,
        half_lives: Sequence[float],
        queries: int,
        segments: Sequence[SegmentCase],
    ) -> None:
        share = {"none": 0.0, "some": 0.6, "all": 1.0}[decays]
        self.now = NOW + rng.uniform(-9.0, 9.0, queries)
        half_life = rng.choice(list(half_lives), queries)
        self.rate = np.where(rng.random(queries) < share, 65536.0 / half_life, 0.0)
        self.times = [_times(rng, times, segment.size) for segment in segments]
        if decays == "some" and queries > 1:
            self.rate[0], self.rate[-1] = 65536.0 / half_life[0], 0.0

    def score(self, query: int, quanta: int, segment: int, document: int) -> int:
        """The score that stands for a sum."""
        return self.at(query, quanta, float(self.times[segment][document]))

    def at(self, query: int, quanta: int, time: float) -> int:
        """The score that stands for a sum, of a document of this time."""
        rate = float(self.rate[query])
        return decayed_bits(quanta, time, float(self.now[query]), rate) if rate else quanta

    def latest(self, segment: int, bits: int) -> Array:
        """The latest time of each tile."""
        times = self.times[segment]
        return np.array([times[start : start + (1 << bits)].max() for start in range(0, len(times), 1 << bits)])

    def none(self) -> Decays:
        """Of the same launch, where nothing decays."""
        other = object.__new__(Decays)
        other.now, other.rate, other.times = self.now, np.zeros_like(self.rate), self.times
        return other


def _times(rng: np.random.Generator, how: str, size: int) -> Array:
    """Times of a segment's documents, +inf without one: ascending over months ("ordered"), or anything ("mixed").

    Of these some are equal, some lie after `NOW`, some are missing and some are older than a score can fade.
    """
    if how == "ordered":
        return np.sort(NOW - rng.uniform(0.0, 1e7, size))
    ages = rng.choice([1.0, 3600.0, 86400.0, 1e7, 1e10, 1e15, -5.0, -1e9], size) * rng.uniform(0.0, 1.0, size)
    times = np.where(rng.random(size) < 0.3, NOW - 3600.0, NOW - ages)
    if rng.random() < 0.5:
        times = np.sort(times)
    times[rng.random(size) < rng.choice([0.0, 0.02, 0.3])] = np.inf
    return times


def decayed_bits(quanta: int, time: float, now: float, rate: float) -> int:
    """What `engine.decay.decayed_bits` gives, one document at a time, in Python's own floats."""
    ticks = 0
    age = (now - time) * rate
    if age > 0.0:
        ticks = 900 << 16 if age >= 900 << 16 else math.floor(age)
    decayed = math.ldexp(float(quanta) * float(TABLE[ticks & 65535]), -(ticks >> 16) - 30)
    return int(struct.unpack("<q", struct.pack("<d", decayed))[0])


def formula_of(model: BM25, averages: list[float]) -> Formula:
    """The formula over fields of these average lengths."""
    weights, shape = list(model.fields.values()), SHAPES.get(model.method, 0)
    parameters = (model.k1, model.b, model.delta or 0.0)
    return Formula(shape, model.fielded, model.signed, *parameters, SCALE, weights, averages)


def _segments(
    rng: np.random.Generator,
    model: BM25,
    sizes: Sequence[int],
    shape: tuple[int, Sequence[float], float, bool, bool, bool],
    placed: Placed,
) -> tuple[list[SegmentCase], Formula]:
    terms, density, absent, identical, stored, long_quanta = shape
    fields = len(model.fields)
    densities = rng.choice(list(density), size=terms)
    if identical:
        densities = np.where(densities > 0.0, 1.0, 0.0)
    frequencies, lengths, held = [], [], []
    for size in sizes:
        present = rng.random((terms, size)) < densities[:, None]
        # A term that is held may still have no posting.
        held.append(np.flatnonzero(rng.random(terms) >= absent))
        present[np.setdiff1d(np.arange(terms), held[-1])] = False
        tf = np.minimum(rng.geometric(0.6, size=(fields, terms, size)), 4095)
        tf[rng.random(tf.shape) < 0.01] = 4095
        if fields > 1:
            tf[rng.random(tf.shape) < 0.4] = 0
        if identical:
            tf[:] = 2
        tf = tf * present
        frequencies.append(tf.astype(np.int64))
        lengths.append(
            (tf.sum(axis=1) + (0 if identical else rng.integers(0, 4, size=(fields, size)))).astype(np.int32)
        )
    df = sum((tf.any(axis=0).sum(axis=1) for tf in frequencies), np.zeros(terms, dtype=np.int64))
    totals = tuple(int(sum(rows[position].sum(dtype=np.int64) for rows in lengths)) for position in range(fields))
    statistics = Statistics(max(1, sum(sizes)), totals, np.maximum(df, 1))
    idf = model.idf(np.maximum(df, 1), statistics)
    averages = [statistics.average_length(position) if totals[position] else 1.0 for position in range(fields)]
    formula = formula_of(model, averages)
    segments = []
    for first, tf, length, own in zip(_firsts(rng, sizes), frequencies, lengths, held, strict=True):
        term, document = np.nonzero(tf[:, own].any(axis=0))
        counts = tf[:, own][:, term, document]
        offsets = np.searchsorted(term, np.arange(len(own) + 1)).astype(np.int64)
        saturated = model.saturated(counts.astype(np.uint32), model.norms(length, statistics)[:, document])
        quanta = model.quanta(saturated, idf[own][term])
        assert long_quanta or np.abs(quanta).max(initial=0) <= INT32_MAX
        words = document.astype(np.uint32)
        if not stored:
            words |= counts[0].astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        postings = DevicePostings(
            placed.tensor(words.view(np.int32)),
            placed.tensor(counts, np.int32) if stored else None,
            placed.tensor(offsets),
            placed.tensor(length),
        )
        lists = (np.split(each, offsets[1:-1])[: len(own)] for each in (document, quanta))
        made = placed.tensor(quanta, np.int64 if long_quanta else np.int32)
        segment = SegmentCase(first, tf.shape[2], own, *lists, postings, placed.tensor(idf[own]), saturated, made)
        segments.append(segment)
        if rng.random() < 0.5:
            segment.alive = rng.random(segment.size) < rng.choice([0.05, 0.5, 0.97])
    return segments, formula


def _firsts(rng: np.random.Generator, sizes: Sequence[int]) -> list[int]:
    """Disjoint ranges of document numbers: dense from 0, or up to the very end of uint32; in any order."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    shift = int(rng.choice([0, 1 << 20, (1 << 31) - int(starts[-1]) // 2, (1 << 32) - int(starts[-1])]))
    order = rng.permutation(len(sizes))
    firsts = [0] * len(sizes)
    position = shift
    for number in order.tolist():
        firsts[number] = position
        position += sizes[number]
    return firsts


def _tabled(
    rng: np.random.Generator,
    segments: Sequence[SegmentCase],
    decay: Decays,
    vocabulary: Array,
    rows: Array,
    how: tuple[int, float, bool],
    placed: Placed,
    guarded: Guarded,
) -> list[Tables]:
    """Fill the rows of the segments and of padding; what `tabulate` must fill."""
    bits, tabled, long_quanta = how
    tables: list[Tables] = []
    tiles_before = 0
    address = placed.address
    for number, segment in enumerate(segments):
        tiles = tiles_of(segment.size, bits)
        lengths = np.array([len(documents) for documents in segment.documents], dtype=np.int64)
        chosen = np.flatnonzero((lengths >= TABLED_POSTINGS * tiles) | (rng.random(len(lengths)) < tabled))
        segment.rows = np.full(len(lengths), -1, dtype=np.int32)
        segment.rows[rng.permutation(chosen)] = np.arange(len(chosen))
        terms = np.argsort(np.where(segment.rows < 0, len(lengths), segment.rows), kind="stable")[: len(chosen)]
        cuts = guarded.take((len(chosen), tiles + 1), torch.int32)
        maxima = guarded.take((len(chosen), tiles), torch.int64)
        values = {
            "words": segment.postings.words.data_ptr(),
            "quanta": segment.device_quanta.data_ptr(),
            "terms": address(vocabulary[segment.terms].astype(np.int32)),
            "offsets": segment.postings.offsets.data_ptr(),
            "rows": address(segment.rows),
            "row_cuts": cuts.data_ptr(),
            "row_maxima": maxima.data_ptr(),
            "term_count": len(segment.terms),
            "size": segment.size,
            "first": segment.first,
            "tiles": tiles,
            "tile_offset": tiles_before,
        }
        if segment.alive is not None:
            values["alive"] = placed.bitmap(rng, segment.alive)
        if decay.rate.any():
            values["times"] = address(decay.times[number])
            values["latest"] = address(decay.latest(number, bits))
        for name, value in values.items():
            rows[number, COLUMN[name]] = value
        tiles_before += tiles
        row = placed.tensor(rows[number : number + 1]).clone()
        own = placed.tensor(terms, np.int32)
        tables.append(Tables(row, bits, tiles, long_quanta, 8, own, cuts, maxima))
    rows[len(segments) :, COLUMN["tile_offset"]] = tiles_before
    return tables


def _beside_a_border(rng: np.random.Generator, document: int, bits: int, size: int) -> int:
    """The tile border before this document, or a neighbour of it."""
    border = document >> bits << bits
    return int(np.clip(border + rng.integers(-1, 2), 0, size))


def of_classes(case: Case) -> Case:
    """The case with 4 bytes a posting, whose contributions are made of impact classes: neither signed nor long."""
    work = case.work
    assert not work.signed
    assert not work.long_quanta
    placed = Placed(str(work.segments.device), case.kept)
    rows = work.segments.cpu().numpy().copy()
    tables = []
    for number, segment in enumerate(case.segments):
        distinct, impact_classes = np.unique(segment.saturated, return_inverse=True)
        assert len(distinct) <= MAX_CLASSES
        words = np.concatenate([np.zeros(0, dtype=np.int64), *segment.documents]).astype(np.uint32)
        # Without an address, so that what must not be read is not there.
        rows[number, COLUMN["quanta"]] = 0
        words |= impact_classes.astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        rows[number, COLUMN["words"]] = placed.address(words.view(np.int32))
        rows[number, COLUMN["saturated"]] = placed.address(distinct)
        rows[number, COLUMN["idf"]] = segment.idf.data_ptr()
        row = placed.tensor(rows[number : number + 1]).clone()
        tables.append(replace(case.tables[number], segment=row, posting_bytes=4))
    made = replace(work, segments=placed.tensor(rows), posting_bytes=4)
    return replace(case, name=f"{case.name}, 4 bytes a posting", work=made, tables=tables, kept=placed.kept)


def planned(case: Case, seed: int, *, k: int | None = None) -> tuple[TermBatch, Case]:
    """What the case's queries ask of all segments, as a batch of terms; and as a launch that was planned on the host.

    Only live documents count, all queries have one k, nothing decays.
    """
    rng = np.random.default_rng((seed, 2))
    work, tensor = case.work, Placed(str(case.work.segments.device)).tensor
    queries, table = len(case.asked), len(work.segments)
    tile_offsets = work.segments[:, COLUMN["tile_offset"]].cpu().numpy()
    alive = work.segments[:, COLUMN["alive"]].cpu().numpy()
    sizes = work.segments[:, COLUMN["size"]].cpu().numpy()
    k = int(work.query_k.max()) if k is None else k
    tiles = sum(case.tiles(number) for number in range(table)) + int(rng.integers(0, 3))
    weighted = rng.random() < 0.5 or any(weight > 3 for own in case.asked for _, weight in own)
    asked = [[(term, weight if weighted else 1) for term, weight in own] for own in case.asked]
    counts = np.array([len(own) for own in asked], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(offsets[-1])

    units = []
    for query, number in np.ndindex(queries, table):
        real = number < len(case.segments)
        passing = np.ones(int(sizes[number]), dtype=np.bool_)
        own_alive = case.segments[number].alive if real else None
        slots = [(case.segments[number].position(term) if real else -1, weight) for term, weight in asked[query]]
        passing = passing if own_alive is None else own_alive
        units.append(UnitCase(query, number, passing, int(alive[number]), 0, int(sizes[number]), slots))

    sums = np.array([sum(weight for _, weight in own) for own in asked], dtype=np.int64)
    largest = max((int(np.abs(own).max(initial=0)) for one in case.segments for own in one.quanta), default=0)
    widest: float | None = None
    if not work.long_quanta:
        widest = float(largest)
        if rng.random() < 0.7 and sums.any():
            # Larger than need be, so that some queries are wide.
            widest = max(widest, INT32_MAX / float(np.median(sums[sums > 0])))
        elif (sums * largest < INT32_MAX).all() and rng.random() < 0.5:
            widest = None
    is_wide = np.full(queries, work.long_quanta) if widest is None else sums.astype(np.float64) * widest >= INT32_MAX

    ids = [int(case.vocabulary[term]) if term >= 0 else UNKNOWN for own in asked for term, _ in own]
    # An id between two of the vocabulary, or beyond them, matches nothing either.
    strange = [*np.setdiff1d(np.arange(int(case.vocabulary.max()) + 9), case.vocabulary).tolist(), 1 << 40]
    ids = [int(rng.choice(strange)) if one == UNKNOWN and rng.random() < 0.5 else one for one in ids]
    # Terms past those of the last query belong to none.
    spare = int(rng.integers(0, 3))
    ids += case.vocabulary[:1].tolist() * spare
    own_weights = [weight for own in asked for _, weight in own] + [1] * spare
    weights = tensor(own_weights, np.int32) if weighted else None
    batch = TermBatch(
        tensor(ids, np.int64), tensor(offsets, np.int64), weights, k, tiles, tiles * min(k, 1 << work.tile_bits), widest
    )
    places = np.arange(queries + 1)
    starts = offsets[:-1, None] * table + counts[:, None] * np.arange(table)
    described = offsets[:-1, None] * tiles + counts[:, None] * tile_offsets
    made = replace(
        work,
        most_tiles=tiles,
        most_candidates=batch.candidates,
        width=k + int(rng.integers(0, 3)),
        wide=bool(is_wide.any()),
        decays=False,
        query_units=tensor(places * table, np.int32),
        query_k=tensor(np.full(queries, k), np.int32),
        query_wide=tensor(is_wide, np.uint8),
        query_now=tensor([], np.float64),
        query_rate=tensor([], np.float64),
        candidate_offset=tensor(places * batch.candidates, np.int64),
        entry_offset=tensor(places * tiles, np.int64),
        unit_segment=tensor(np.tile(np.arange(table), queries), np.int32),
        unit_filter=tensor(np.tile(alive, queries), np.int64),
        unit_low=tensor(np.zeros(queries * table), np.int32),
        unit_high=tensor(np.tile(sizes, queries), np.int32),
        unit_slots=tensor(np.append(starts.reshape(-1), total * table), np.int64),
        unit_descriptors=tensor(described.reshape(-1), np.int64),
        slot_unit=tensor([], np.int32),
        slot_position=tensor([], np.int32),
        slot_weight=tensor([], np.int32),
        decay_table=tensor([], np.int32),
    )
    decay = case.decay.none()
    matches = _matches(queries, case.segments, units, decay)
    name = f"{case.name}, planned on the device"
    return batch, replace(case, name=name, work=made, units=units, matches=matches, asked=asked, decay=decay)


def one_list(seed: int, **options: Any) -> Case:
    """One query over 160 equal documents in five tiles, whose postings' words have room for marks; every k is kept."""
    plain: dict[str, Any] = {"queries": 1, "identical": True, "restricted": 0.0, "stored_frequencies": True}
    whole: dict[str, Any] = {"densities": (1.0,), "absent": 0.0, "unknown": 0.0, "empty": 0.0}
    case = build(seed, sizes=(160,), tile_bits=5, **plain, **whole, **options)
    assert len(case.matches[0]) == 160
    return case


def narrowed(case: Case, low: int, high: int) -> Case:
    """The case, of one segment and unrestricted, with this document range for every unit."""
    (segment,) = case.segments
    ends = [torch.full_like(case.work.unit_low, end) for end in (low, high)]
    matches = [
        {document: score for document, score in own.items() if low <= document - segment.first < high}
        for own in case.matches
    ]
    units = [replace(unit, low=low, high=high) for unit in case.units]
    return replace(case, work=replace(case.work, unit_low=ends[0], unit_high=ends[1]), matches=matches, units=units)


RANGES = [(0, 0), (0, 1), (0, 32), (31, 32), (31, 33), (32, 32), (32, 64), (33, 63), (40, 40), (63, 65), (95, 160)]
RANGES += [(159, 160), (160, 160), (0, 160)]
"""Document ranges at and around the borders of the tiles of `one_list`."""


def tiles_within(low: int, high: int) -> set[int]:
    """The tiles of `one_list` that have documents in [low, high)."""
    return {document >> 5 for document in range(low, high)}


LONG: dict[str, Any] = {"method": "bm25+", "long_quanta": True, "parameters": {"k1": 1000.0, "delta": 1000.0}}
"""Contributions that leave int32."""
_CASES: dict[str, dict[str, Any]] = {
    "plain": {"sizes": (70, 33)},
    "one document": {"sizes": (1,)},
    "a tile and one": {"sizes": (32, 33, 31)},
    "whole tiles": {"sizes": (64, 128), "tile_bits": 6, "wide": "none"},
    "larger tiles": {"sizes": (300, 129), "tile_bits": 7},
    "ties everywhere": {"sizes": (100, 40), "identical": True, "ks": (1, 5, 33, 200)},
    "ties in larger tiles": {
        "restricted": 0.0,
        "sizes": (200,),
        "tile_bits": 7,
        "identical": True,
        "ks": (70, 100, 128),
    },
    "ties, one best": {"sizes": (100, 100), "tile_bits": 6, "identical": True, "ks": (1,)},
    "no filters": {"sizes": (90, 65), "restricted": 0.0, "ks": (1, 7)},
    "filters everywhere": {"sizes": (90, 65), "restricted": 1.0},
    "nothing asked for": {"sizes": (50,), "ks": (0,), "tile_bits": None},
    "no units": {"sizes": (50, 20), "no_units": True, "tile_bits": None},
    "more than there are": {"sizes": (90, 7), "ks": (1000,), "tile_bits": None},
    "signed": {"method": "robertson"},
    "signed ties": {"method": "robertson", "identical": True},
    "signed, wide": {"method": "okapi", "wide": "all"},
    "large narrow scores": {"sizes": (90,), "max_weight": 2800, "wide": "none", "restricted": 0.0, "ks": (3,)},
    "large weights": {"max_weight": 1 << 28, "wide": "none"},
    "large weights, signed": {"method": "robertson", "max_weight": 1 << 28},
    "long quanta": {**LONG, "tile_bits": None},
    "long quanta, signed": {"method": "robertson", "long_quanta": True, "max_weight": 1 << 30, "tile_bits": None},
    "fields": {"fields": 3, "tile_bits": None},
    "fields, bm25l": {"fields": 2, "method": "bm25l", "stored_frequencies": True, "tile_bits": None},
    "every length counts": {"fields": 2, "sizes": (40, 5), "parameters": {"b": 1.0, "k1": 0.0}, "tile_bits": None},
    "bm25l": {"method": "bm25l", "stored_frequencies": False, "tile_bits": None},
    "bm25+": {"method": "bm25+", "stored_frequencies": True, "tile_bits": None},
    "floored": {"method": "robertson_floor0", "tile_bits": None},
    "ranges at borders": {"sizes": (100, 64), "restricted": 0.8, "borders": True, "queries": 6},
    "decay": {"sizes": (90, 65), "decays": "all", "restricted": 0.0},
    "decay of some": {"sizes": (90, 65), "decays": "some", "wide": "some", "queries": 6},
    "decay beside narrow queries": {"sizes": (70, 33), "decays": "some", "wide": "none", "queries": 5},
    "decay, ties": {"sizes": (100, 40), "decays": "all", "identical": True, "ks": (1, 5, 33)},
    "decay in larger tiles": {"sizes": (300, 129), "tile_bits": 7, "decays": "all", "ks": (1, 20, 140)},
    "decay, more than there are": {"sizes": (90, 7), "decays": "all", "ks": (1000,)},
    "decay, in order": {"sizes": (160, 100), "decays": "all", "times": "ordered", "ks": (1, 3, 10), "restricted": 0.0},
    "decay in seconds": {"sizes": (90, 40), "decays": "all", "half_lives": (0.001, 2.0)},
    "decay, ranges at borders": {
        "sizes": (100, 64),
        "decays": "some",
        "restricted": 0.8,
        "borders": True,
        "queries": 6,
    },
    "decay of large weights": {"decays": "all", "max_weight": 1 << 28},
    "decay to next to nothing": {
        **LONG,
        "decays": "all",
        "times": "ordered",
        "half_lives": (0.001,),
        "terms": 12,
        "max_weight": 1 << 30,
        "restricted": 0.0,
        "ks": (5, 8),
        "queries": 8,
    },
    "decay of long quanta": {**LONG, "decays": "some", "tile_bits": None},
    "learned weights": {"method": "dot", "stored_frequencies": True, "max_weight": 1 << 20, "tile_bits": None},
    "learned weights in words": {"method": "dot", "stored_frequencies": False, "max_weight": 100, "tile_bits": None},
}
CASES = {name: {"sizes": (80, 45), "tile_bits": 5, **options} for name, options in _CASES.items()}
"""Options of `build` by name; the place is the seed. In tiles of 32 documents both segments cross a border."""

_BORDERS: dict[str, dict[str, Any]] = {
    "32 tiles": {"sizes": (1024,), "ks": (3, 40), "tabled": 0.5},
    "33 tiles": {"sizes": (1025, 7), "ks": (3, 40), "tabled": 0.5},
    "64 tiles": {"sizes": (2048,), "ks": (3, 40), "tabled": 0.5, "wide": "all"},
    "65 tiles, restricted": {"sizes": (2060, 40), "restricted": 0.8, "borders": True, "ks": (3, 40), "tabled": 0.5},
    "filters of many words": {"sizes": (4000, 900), "tile_bits": 9, "restricted": 0.9, "ks": (3, 40), "queries": 6},
    "long lists alone": {"sizes": (1056, 640), "densities": (1.0,), "tabled": 0.0, "ks": (3, 40)},
    "short lists alone": {"sizes": (2100, 1024), "densities": (0.01, 0.06, 0.3), "tabled": 0.0, "ks": (3, 40)},
    "70 tiles that decay": {
        "sizes": (2200, 40),
        "decays": "some",
        "queries": 4,
        "ks": (3, 40),
        "wide": "some",
        "tabled": 0.5,
    },
    "many tiles, signed": {"method": "robertson", "sizes": (1300,), "ks": (3, 40), "tabled": 0.5},
    "many tiles of long quanta": {**LONG, "sizes": (1100,), "ks": (3, 40)},
    "more than 1,024": {"sizes": (1500, 90), "tile_bits": 7, "ks": (1025, 1200), "wide": "some", "queries": 4},
    "more than 1,024 ties": {"sizes": (1300, 200), "tile_bits": 7, "ks": (1030, 1200), "identical": True},
    "more than 1,024 ties that decay": {
        "sizes": (1300, 40),
        "tile_bits": 7,
        "ks": (1030, 1200),
        "identical": True,
        "decays": "some",
    },
    "more than 128 slots": {"sizes": (90, 33), "terms": 300, "queries": 2, "ks": (5,), "wide": "some"},
    "weights of many terms": {"sizes": (70,), "terms": 120, "queries": 6, "ks": (5,), "max_weight": 50},
    "weights of many terms again": {"sizes": (70,), "terms": 120, "queries": 6, "ks": (5,), "max_weight": 50},
    "queries without terms": {"sizes": (40, 90), "empty": 0.7, "queries": 7},
    "terms in no segment": {"sizes": (40, 90), "unknown": 0.8, "absent": 0.5, "queries": 5},
    "segments without terms": {"sizes": (40, 33, 70), "absent": 1.0},
    "some segments lack most": {"sizes": (40, 33, 70, 5), "absent": 0.9, "queries": 5},
    "a table of one": {"sizes": (70,), "table": 1},
    "a table of four": {"sizes": (70, 3, 33, 64), "table": 4},
    "a table of four, half of it padding": {"sizes": (70, 33), "table": 4},
    "a table of sixteen": {"sizes": tuple(range(20, 100, 5)), "table": 16, "terms": 4},
    "a table of sixteen, most of it padding": {"sizes": (70, 33, 100), "table": 16},
    "forty segments": {"sizes": tuple(range(1, 80, 2)), "terms": 3, "ks": (3,)},
    "forty queries": {"sizes": (70, 33), "queries": 40, "ks": (1, 3, 40)},
    "no documents match": {"sizes": (70, 33), "densities": (0.0,)},
}
BORDERS = {name: {"tile_bits": 5, **options} for name, options in _BORDERS.items()}
"""Options of `build` by name, at the borders of what a warp, a block or a table takes at a time; the place is the
seed."""
