"""Small random launches for every kernel family, and a plain reference for each verb.

`cases()` builds the fixed list, `build(seed, ...)` one random launch, `check_family(verbs, case)` runs cut, score and
select on it and asserts everything that `kernels/work.py` promises. `check_derive` and `check_select` do so for one
verb. Nothing here depends on the family; `device` says where the tensors lie.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanrank.engine.index.bm25 import BM25, INT32_MAX, SCALE, Statistics
from fanrank.engine.index.decay import TABLE
from fanrank.kernels.device import MAX_CLASSES
from fanrank.kernels.work import (
    DOCUMENT_BITS,
    UNBOUNDED,
    Buffers,
    DevicePostings,
    Formula,
    KernelAnswer,
    Verbs,
    Work,
    no_decay,
)

GUARD = 64
"""Poisoned elements behind each output, which must stay as they are."""
POISON = 0x7F
LOW = (1 << 32) - 1
SHAPES = {"bm25l": 1, "bm25+": 2, "dot": 3}
NOW = 1.7e9
"""About when the queries are asked."""
HALF_LIVES = (2.0, 3600.0, 69.3 * 3600.0, 86400.0 * 365.0 * 10.0)

Array = npt.NDArray[Any]
Ranked = list[tuple[int, int]]


@dataclass(eq=False)
class SegmentCase:
    """One segment on the host and on the device."""

    first: int
    size: int
    documents: list[Array]  # of each local term: ascending, local
    quanta: list[Array]  # int64, beside `documents`
    postings: DevicePostings
    idf: torch.Tensor  # float64 [terms]
    saturated: Array  # float64 [postings] contributions but for the idf
    device_quanta: torch.Tensor  # what `derive` must give


@dataclass(eq=False)
class Case:
    """A launch with its reference; holds every tensor that an address of `work` points to."""

    name: str
    model: BM25
    formula: Formula
    segments: list[SegmentCase]
    work: Work
    owners: Array  # [units] segment
    matches: list[dict[int, int]]  # of each query: document -> score, or its bits, over all that match and pass
    kept: list[torch.Tensor] = field(default_factory=list)

    def expected(self, query: int) -> Ranked:
        """(score, document) of the k best, best first."""
        ranked = sorted((-score, document) for document, score in self.matches[query].items())
        return [(-score, document) for score, document in ranked[: int(self.work.query_k[query])]]


def cases(device: str = "cpu") -> Iterator[Case]:
    """The fixed cases: every feature at least once."""
    for seed, (name, options) in enumerate(CASES.items()):
        yield build(seed, name=name, device=device, **options)


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
    """A random launch. `wide` is "none", "some" or "all": which queries carry the flag though they need not.

    A query whose bound leaves int32 is always wide; `max_weight` above 1,000 brings that about. `restricted` is the
    share of units with a filter, and of those with a document range, whose ends lie at tile borders, or beside them,
    where `borders`. `decays` is "none", "some" or "all" (none where signed); `times` as `_times` takes them.
    """
    rng = np.random.default_rng(seed)
    weights = {field_name: round(float(rng.uniform(0.3, 4.0)), 2) for field_name in ("text", "title", "tool")[:fields]}
    model = BM25(method=method, fields=weights if fields > 1 else {"text": 1.0}, **(parameters or {}))
    bits = int(rng.integers(5, 8)) if tile_bits is None else tile_bits
    sizes = [int(size) for size in rng.integers(1, 150, size=rng.integers(1, 4))] if sizes is None else list(sizes)
    stored = bool(rng.integers(2)) or fields > 1 if stored_frequencies is None else stored_frequencies
    segments, formula = _segments(rng, model, sizes, terms, identical, stored, long_quanta, device)
    # A generator of its own, so that the rest of a launch does not depend on whether anything decays.
    decays = "none" if model.signed else decays
    decay = Decays(np.random.default_rng((seed, 1)), decays, times, half_lives, queries, segments)
    path = (wide, long_quanta, restricted, no_units, borders, decay, device)
    work, owners, matches, kept = _work(rng, model, segments, bits, queries, ks, max_weight, *path)
    return Case(name or f"seed {seed}", model, formula, segments, work, owners, matches, kept)


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
        if not self.rate[query]:
            return quanta
        return decayed_bits(
            quanta, float(self.times[segment][document]), float(self.now[query]), float(self.rate[query])
        )

    def tensors(self, bits: int, kept: list[torch.Tensor], device: str) -> dict[str, torch.Tensor]:
        """The tensors of `Work`; those that they refer to are added to `kept`."""
        if not self.rate.any():
            return no_decay(torch.device(device))
        addresses: list[list[int]] = []
        for times in self.times:
            latest = [times[start : start + (1 << bits)].max() for start in range(0, len(times), 1 << bits)]
            kept += [_tensor(times, device), _tensor(np.array(latest), device)]
            addresses.append([tensor.data_ptr() for tensor in kept[-2:]])
        rows = np.array(addresses, dtype=np.int64)
        arrays = [rows[:, 0], rows[:, 1], self.now, self.rate, TABLE.copy()]
        return dict(zip(no_decay(torch.device("cpu")), (_tensor(array, device) for array in arrays), strict=True))


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


def _segments(
    rng: np.random.Generator,
    model: BM25,
    sizes: Sequence[int],
    terms: int,
    identical: bool,
    stored: bool,
    long_quanta: bool,
    device: str,
) -> tuple[list[SegmentCase], Formula]:
    fields = len(model.fields)
    densities = rng.choice([0.0, 0.03, 0.3, 0.5, 0.9, 1.0], size=terms)
    if identical:
        densities = np.where(densities > 0.0, 1.0, 0.0)
    frequencies, lengths = [], []
    for size in sizes:
        present = rng.random((terms, size)) < densities[:, None]
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
    assert model.delta is not None
    formula = Formula(
        SHAPES.get(model.method, 0),
        model.fielded,
        model.signed,
        model.k1,
        model.b,
        model.delta,
        SCALE,
        list(model.fields.values()),
        [statistics.average_length(position) if totals[position] else 1.0 for position in range(fields)],
    )
    firsts = _firsts(rng, sizes)
    segments = [
        _segment(model, first, tf, length, statistics, idf, stored, long_quanta, device)
        for first, tf, length in zip(firsts, frequencies, lengths, strict=True)
    ]
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


def _segment(
    model: BM25,
    first: int,
    frequencies: Array,
    lengths: Array,
    statistics: Statistics,
    idf: Array,
    stored: bool,
    long_quanta: bool,
    device: str,
) -> SegmentCase:
    _, terms, size = frequencies.shape
    term, document = np.nonzero(frequencies.any(axis=0))
    tf = frequencies[:, term, document]
    offsets = np.searchsorted(term, np.arange(terms + 1)).astype(np.int64)
    norms = model.norms(lengths, statistics)
    saturated = model.saturated(tf.astype(np.uint32), norms[:, document])
    quanta = model.quanta(saturated, idf[term])
    if not long_quanta:
        assert np.abs(quanta).max(initial=0) <= INT32_MAX
    words = document.astype(np.uint32)
    if not stored:
        words |= tf[0].astype(np.uint32) << np.uint32(DOCUMENT_BITS)
    postings = DevicePostings(
        _tensor(words.view(np.int32), device),
        _tensor(tf.astype(np.int32), device) if stored else None,
        _tensor(offsets, device),
        _tensor(lengths, device),
    )
    cuts = offsets[1:-1]
    return SegmentCase(
        first,
        size,
        np.split(document, cuts),
        np.split(quanta, cuts),
        postings,
        _tensor(idf, device),
        saturated,
        _tensor(quanta.astype(np.int64 if long_quanta else np.int32), device),
    )


def _work(
    rng: np.random.Generator,
    model: BM25,
    segments: list[SegmentCase],
    bits: int,
    queries: int,
    ks: Sequence[int],
    max_weight: int,
    wide: str,
    long_quanta: bool,
    restricted: float,
    no_units: bool,
    borders: bool,
    decay: Decays,
    device: str,
) -> tuple[Work, Array, list[dict[int, int]], list[torch.Tensor]]:
    terms = len(segments[0].documents)
    k = rng.choice(list(ks), size=queries)
    asked = [
        (rng.permutation(terms)[: rng.integers(0 if q == 0 else 1, terms + 1)], rng.integers(1, max_weight + 1, terms))
        for q in range(queries)
    ]
    kept: list[torch.Tensor] = []
    lists: dict[tuple[int, int], int] = {}
    units: list[tuple[int, int]] = []
    slots: list[list[tuple[int, int]]] = []
    filters, lows, highs = [], [], []
    matches: list[dict[int, int]] = [{} for _ in range(queries)]
    bounds = [0] * queries
    for number, segment in enumerate(segments):
        for q in range(queries):
            if no_units or rng.random() < 0.15:
                continue
            units.append((number, q))
            chosen, weights = asked[q]
            own = [(lists.setdefault((number, int(t)), len(lists)), int(weights[t])) for t in chosen.tolist()]
            slots.append(own)
            passing = np.ones(segment.size, dtype=np.bool_)
            filters.append(0)
            if rng.random() < restricted:
                passing = rng.random(segment.size) < rng.choice([0.0, 0.05, 0.5, 1.0])
                # Bits past the last document are noise.
                padded = np.concatenate([passing, rng.random(-segment.size % 32) < 0.5])
                bitmap = np.packbits(padded, bitorder="little").view(np.uint32)
                kept.append(_tensor(bitmap.view(np.int32).copy(), device))
                filters[-1] = kept[-1].data_ptr()
            low, high = 0, segment.size
            if rng.random() < restricted:
                low, high = sorted(rng.integers(0, segment.size + 1, size=2).tolist())
                if borders:
                    low, high = sorted(_beside_a_border(rng, end, bits, segment.size) for end in (low, high))
            lows.append(low)
            highs.append(high)
            for t in chosen.tolist():
                weight = int(weights[t])
                bounds[q] += weight * int(np.abs(segment.quanta[t]).max(initial=0))
                for document, quanta in zip(segment.documents[t].tolist(), segment.quanta[t].tolist(), strict=True):
                    if low <= document < high and passing[document]:
                        key = segment.first + document
                        matches[q][key] = matches[q].get(key, 0) + weight * quanta
    for q, number in itertools.product(range(queries), range(len(segments))):
        first = segments[number].first
        for key in [key for key in matches[q] if 0 <= key - first < segments[number].size]:
            matches[q][key] = decay.score(q, matches[q][key], number, key - first)
    is_wide = np.array([bound > INT32_MAX for bound in bounds]) | long_quanta | (decay.rate > 0.0)
    if wide != "none":
        is_wide |= (rng.random(queries) < 0.5) | (wide == "all")
    tile = 1 << bits
    tiles = np.array([-(-segment.size // tile) for segment in segments])
    owners = np.array([number for number, _ in units], dtype=np.int64)
    per_segment = np.bincount(owners, minlength=len(segments))
    list_segment = np.array([number for number, _ in lists], dtype=np.int64)
    cut_rows = np.zeros(len(lists), dtype=np.int64)
    position = 0
    for row in rng.permutation(len(lists)).tolist():
        cut_rows[row] = position
        position += int(tiles[list_segment[row]]) + 1
    starts, lengths = [], []
    for number, t in lists:
        offsets = segments[number].postings.offsets
        length = int(offsets[t + 1] - offsets[t])
        lengths.append(length)
        # A list that does not exist has no place either.
        starts.append(int(offsets[t]) if length else 0)
    room = np.zeros(queries, dtype=np.int64)
    for number, q in units:
        room[q] += min(int(k[q]), tile) * tiles[number]
    words = [segment.postings.words.data_ptr() for segment in segments]
    quanta_addresses = [segment.device_quanta.data_ptr() for segment in segments]

    def tensor(values: Any, dtype: Any) -> torch.Tensor:
        return _tensor(np.asarray(values, dtype=dtype), device)

    work = Work(
        tile_bits=bits,
        max_tiles=int(tiles.max()),
        blocks=int((tiles * per_segment).sum()),
        width=int(k.max()) + int(rng.integers(0, 3)),
        signed=model.signed,
        long_quanta=long_quanta,
        any_narrow=not bool(is_wide.all()),
        any_wide=bool(is_wide.any()),
        any_decay=bool(decay.rate.any()),
        words=tensor(words, np.int64),
        quanta=tensor(quanta_addresses, np.int64),
        sizes=tensor([segment.size for segment in segments], np.int32),
        firsts=tensor([segment.first for segment in segments], np.int64),
        block_offset=tensor(np.concatenate([[0], np.cumsum(tiles * per_segment)]), np.int64),
        unit_offset=tensor(np.concatenate([[0], np.cumsum(per_segment)]), np.int32),
        list_segment=tensor(list_segment, np.int32),
        list_start=tensor(starts, np.int64),
        list_length=tensor(lengths, np.int32),
        list_cuts=tensor(cut_rows, np.int64),
        unit_query=tensor([q for _, q in units], np.int32),
        unit_slots=tensor(np.concatenate([[0], np.cumsum([len(own) for own in slots])]), np.int64),
        unit_filter=tensor(filters, np.int64),
        unit_low=tensor(lows, np.int32),
        unit_high=tensor(highs, np.int32),
        slot_list=tensor([number for own in slots for number, _ in own], np.int32),
        slot_weight=tensor([weight for own in slots for _, weight in own], np.int32),
        query_k=tensor(k, np.int32),
        query_wide=tensor(is_wide, np.uint8),
        candidate_offset=tensor(np.concatenate([[0], np.cumsum(room)]), np.int64),
        **decay.tensors(bits, kept, device),
    )
    return work, owners, matches, kept


def _beside_a_border(rng: np.random.Generator, document: int, bits: int, size: int) -> int:
    """The tile border before this document, or a neighbour of it."""
    border = document >> bits << bits
    return int(np.clip(border + rng.integers(-1, 2), 0, size))


def _tensor(values: Array, device: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def of_classes(case: Case, posting_bytes: int) -> Case:
    """The case with 6 or 4 bytes a posting, whose contributions are made of impact classes: neither signed nor long."""
    work = case.work
    assert not work.signed
    assert not work.long_quanta
    device = str(work.words.device)
    kept = list(case.kept)

    def address(values: Array) -> int:
        kept.append(_tensor(values, device))
        return kept[-1].data_ptr()

    # Without an address, so that what must not be read is not there.
    rows = np.zeros((3, len(case.segments)), dtype=np.int64)
    for number, segment in enumerate(case.segments):
        distinct, impact_classes = np.unique(segment.saturated, return_inverse=True)
        assert len(distinct) <= MAX_CLASSES[posting_bytes]
        words = np.concatenate(segment.documents).astype(np.uint32)
        if posting_bytes == 4:
            words |= impact_classes.astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        else:
            rows[1, number] = address(impact_classes.astype(np.uint16).view(np.int16))
        rows[0, number] = address(words.view(np.int32))
        rows[2, number] = address(distinct)
    # A list that does not exist has none.
    list_idf = np.full(len(work.list_segment), np.nan)
    for number, owner in enumerate(work.list_segment.tolist()):
        if work.list_length[number] > 0:
            segment = case.segments[owner]
            term = torch.searchsorted(segment.postings.offsets, work.list_start[number], right=True) - 1
            list_idf[number] = float(segment.idf[term])
    words_of, quanta_of, saturated_of = (_tensor(row, device) for row in rows)
    made = replace(
        work,
        words=words_of,
        quanta=quanta_of,
        posting_bytes=posting_bytes,
        saturated=saturated_of,
        list_idf=_tensor(list_idf, device),
    )
    return replace(case, name=f"{case.name}, {posting_bytes} bytes a posting", work=made, kept=kept)


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

    def check(self) -> None:
        for whole, size in self._whole:
            guard = whole[size:].cpu().view(torch.uint8)
            assert bool((guard == self._poison).all()), f"wrote past the end of {size} x {whole.dtype}"


def fresh(work: Work, device: str, poison: int = POISON) -> tuple[Buffers, KernelAnswer, Guarded]:
    """Poisoned buffers and a poisoned answer; thresholds and counts as a launch begins."""
    guarded = Guarded(device, poison)
    cuts = _cut_entries(work)
    candidates = int(work.candidate_offset[-1])
    queries = len(work.query_k)
    buffers = Buffers(
        guarded.take((cuts,), torch.int32),
        guarded.take((cuts,), torch.int64),
        guarded.take((queries,), torch.int64),
        guarded.take((queries,), torch.int32),
        guarded.take((candidates,), torch.int64),
        guarded.take((candidates if work.any_wide else 0,), torch.int32),
    )
    reset(work, buffers)
    shape = (queries, work.width)
    answer = KernelAnswer(
        guarded.take(shape, torch.int64), guarded.take(shape, torch.int64), guarded.take((queries,), torch.int32)
    )
    return buffers, answer, guarded


def reset(work: Work, buffers: Buffers) -> None:
    buffers.thresholds.fill_(UNBOUNDED if work.signed else 1)
    buffers.counts.zero_()


def _cut_entries(work: Work) -> int:
    sizes, owners = work.sizes.cpu().numpy(), work.list_segment.cpu().numpy()
    return int((-(-sizes[owners] >> work.tile_bits) + 1).sum())


def check_derive(verbs: Verbs, case: Case) -> None:
    """`derive` gives `BM25.quanta`, bit for bit, for every segment."""
    for segment in case.segments:
        expected = segment.device_quanta
        guarded = Guarded(str(expected.device))
        quanta = guarded.take(tuple(expected.shape), expected.dtype)
        verbs.derive(segment.postings, case.formula, segment.idf, quanta)
        np.testing.assert_array_equal(quanta.cpu().numpy(), expected.cpu().numpy(), err_msg=case.name)
        guarded.check()


def check_family(verbs: Verbs, case: Case) -> None:
    """cut, score and select on poisoned buffers; then score and select on what that left, the thresholds at their
    best."""
    work = case.work
    buffers, answer, guarded = fresh(work, str(work.query_k.device))
    verbs.cut(work, buffers)
    _run(verbs, work, buffers, answer)
    check_cuts(case, buffers)
    check_candidates(case, buffers)
    check_answer(case, answer)
    guarded.check()
    reset(work, buffers)
    for query, matches in enumerate(case.matches):
        best = case.expected(query)
        if best and len(best) < len(matches):
            buffers.thresholds[query] = best[-1][0]
    _run(verbs, work, buffers, answer)
    check_cuts(case, buffers)
    check_candidates(case, buffers)
    check_answer(case, answer)
    guarded.check()


def one_list(seed: int, **options: Any) -> Case:
    """One query over 160 equal documents in five tiles, whose postings' words have room for marks; every k is kept."""
    case = build(
        seed, sizes=(160,), tile_bits=5, queries=1, identical=True, restricted=0.0, stored_frequencies=True, **options
    )
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
    return replace(case, work=replace(case.work, unit_low=ends[0], unit_high=ends[1]), matches=matches)


RANGES = [(0, 0), (0, 1), (0, 32), (31, 32), (31, 33), (32, 32), (32, 64), (33, 63), (40, 40), (63, 65), (95, 160)]
RANGES += [(159, 160), (160, 160), (0, 160)]
"""Document ranges at and around the borders of the tiles of `one_list`."""


def tiles_within(low: int, high: int) -> set[int]:
    """The tiles of `one_list` that have documents in [low, high)."""
    return {document >> 5 for document in range(low, high)}


def _run(verbs: Verbs, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
    paths = [wide for wide, any_such in ((False, work.any_narrow), (True, work.any_wide)) if any_such]
    for wide in paths:
        verbs.score(work, buffers, wide=wide)
    for wide in paths:
        verbs.select(work, buffers, answer, wide=wide)


def check_cuts(case: Case, buffers: Buffers) -> None:
    work = case.work
    cuts, maxima = buffers.cuts.cpu().numpy(), buffers.maxima.cpu().numpy()
    for number in range(len(work.list_segment)):
        segment = case.segments[int(work.list_segment[number])]
        start, length = int(work.list_start[number]), int(work.list_length[number])
        documents = segment.postings.words.cpu().numpy()[start : start + length] & ((1 << DOCUMENT_BITS) - 1)
        quanta = np.abs(segment.device_quanta.cpu().numpy()[start : start + length].astype(np.int64))
        tiles = -(-segment.size >> work.tile_bits)
        row = int(work.list_cuts[number])
        expected = np.searchsorted(documents, np.arange(tiles + 1) << work.tile_bits)
        what = f"{case.name}: list {number}"
        np.testing.assert_array_equal(cuts[row : row + tiles + 1], expected, err_msg=f"cuts of {what}")
        largest = [int(quanta[a:b].max(initial=0)) for a, b in itertools.pairwise(expected)]
        np.testing.assert_array_equal(maxima[row : row + tiles], largest, err_msg=f"maxima of {what}")


def candidates_of(work: Work, buffers: Buffers, query: int) -> Ranked:
    """The (score, document) pairs that a query's blocks emitted."""
    start, count = int(work.candidate_offset[query]), int(buffers.counts[query])
    room = int(work.candidate_offset[query + 1]) - start
    assert 0 <= count <= room, f"query {query}: {count} candidates, room for {room}"
    keys = buffers.keys[start : start + count].cpu().tolist()
    if work.query_wide[query]:
        low = [bits & LOW for bits in buffers.documents[start : start + count].cpu().tolist()]
        return [(key, LOW - bits) for key, bits in zip(keys, low, strict=True)]
    return [(key >> 32, LOW - (key & LOW)) for key in keys]


def check_candidates(case: Case, buffers: Buffers) -> None:
    """Only true matches, none twice, at most min(k, tile size) a block, all of the k best; thresholds that are true."""
    work = case.work
    tile = 1 << work.tile_bits
    for query, matches in enumerate(case.matches):
        what = f"{case.name}: query {query}"
        emitted = candidates_of(work, buffers, query)
        k = int(work.query_k[query])
        for score, document in emitted:
            assert matches.get(document) == score, (
                f"{what}: {document} emitted with {score}, not {matches.get(document)}"
            )
        assert len({document for _, document in emitted}) == len(emitted), f"{what}: a document twice"
        blocks: Counter[tuple[int, int]] = Counter()
        for _, document in emitted:
            owner = next(n for n, s in enumerate(case.segments) if s.first <= document < s.first + s.size)
            blocks[owner, (document - case.segments[owner].first) >> work.tile_bits] += 1
        assert max(blocks.values(), default=0) <= min(k, tile), f"{what}: too many of one block"
        best = case.expected(query)
        missing = set(best) - set(emitted)
        assert not missing, f"{what}: {sorted(missing)[:5]} not emitted"
        if best:
            assert int(buffers.thresholds[query]) <= best[-1][0], f"{what}: the threshold is above a selected score"


def check_answer(case: Case, answer: KernelAnswer) -> None:
    for query in range(len(case.matches)):
        _check_row(answer, query, case.expected(query), f"{case.name}: query {query}")


def _check_row(answer: KernelAnswer, query: int, expected: Ranked, what: str) -> None:
    width = answer.scores.shape[1]
    padding = width - len(expected)
    scores = [score for score, _ in expected] + [0] * padding
    documents = [document for _, document in expected] + [-1] * padding
    assert int(answer.counts[query]) == len(expected), what
    assert answer.scores[query].cpu().tolist() == scores, what
    assert answer.documents[query].cpu().tolist() == documents, what


def check_select(
    verbs: Verbs, seed: int, counts: Sequence[int], ks: Sequence[int], *, wide: bool, device: str = "cpu"
) -> None:
    """`select` alone, on made-up candidates: `counts` and `ks` of each query; a few queries are of the other kind."""
    rng = np.random.default_rng(seed)
    template = build(0, device=device, sizes=(40,), queries=1, no_units=True).work
    queries = len(counts)
    room = np.array([count + int(rng.integers(0, 9)) for count in counts], dtype=np.int64)
    is_wide = np.array([wide ^ bool(rng.random() < 0.2) for _ in range(queries)])
    width = max(ks) + 1
    work = replace(
        template,
        width=width,
        any_narrow=not bool(is_wide.all()),
        any_wide=bool(is_wide.any()),
        query_k=_tensor(np.array(ks, dtype=np.int32), device),
        query_wide=_tensor(is_wide.astype(np.uint8), device),
        candidate_offset=_tensor(np.concatenate([[0], np.cumsum(room)]), device),
    )
    buffers, answer, guarded = fresh(work, device)
    expected: list[Ranked] = []
    for query, count in enumerate(counts):
        limit = 1 << int(rng.choice([1, 8, 31] + [40, 61] * bool(is_wide[query])))
        documents = (1 << 32) - 1 - rng.choice(max(1 << 16, 2 * count), size=count, replace=False)
        if rng.random() < 0.5:
            documents = documents ^ (1 << 31)
        scores = rng.integers(-limit, limit, size=count)
        start = int(work.candidate_offset[query])
        keys = scores if is_wide[query] else (scores << 32) | (LOW - documents)
        buffers.keys[start : start + count] = _tensor(keys, device)
        if is_wide[query]:
            low = (LOW - documents).astype(np.uint32).view(np.int32)
            buffers.documents[start : start + count] = _tensor(low, device)
        buffers.counts[query] = count
        order = np.lexsort((documents, -scores))[: ks[query]]
        expected.append(list(zip(scores[order].tolist(), documents[order].tolist(), strict=True)))
    untouched = answer.scores.clone()
    verbs.select(work, buffers, answer, wide=wide)
    for query, best in enumerate(expected):
        if is_wide[query] == wide:
            _check_row(answer, query, best, f"select seed {seed}: query {query} of {counts[query]} candidates")
        else:
            assert torch.equal(answer.scores[query], untouched[query]), (
                f"select seed {seed}: row {query} is not its own"
            )
    guarded.check()


CASES: dict[str, dict[str, Any]] = {
    "plain": {"sizes": (70, 33), "tile_bits": 5},
    "one document": {"sizes": (1,), "tile_bits": 5},
    "a tile and one": {"sizes": (32, 33, 31), "tile_bits": 5},
    "whole tiles": {"sizes": (64, 128), "tile_bits": 6, "wide": "none"},
    "larger tiles": {"sizes": (300, 129), "tile_bits": 7},
    "ties everywhere": {"sizes": (100, 40), "tile_bits": 5, "identical": True, "ks": (1, 5, 33, 200)},
    "ties in larger tiles": {
        "restricted": 0.0,
        "sizes": (200,),
        "tile_bits": 7,
        "identical": True,
        "ks": (70, 100, 128),
    },
    "ties, one best": {"sizes": (100, 100), "tile_bits": 6, "identical": True, "ks": (1,)},
    "no filters": {"sizes": (90, 65), "tile_bits": 5, "restricted": 0.0, "ks": (1, 7)},
    "filters everywhere": {"sizes": (90, 65), "tile_bits": 5, "restricted": 1.0},
    "nothing asked for": {"sizes": (50,), "ks": (0,)},
    "no units": {"sizes": (50, 20), "no_units": True},
    "more than there are": {"sizes": (90, 7), "ks": (1000,)},
    "signed": {"method": "robertson", "sizes": (80, 45), "tile_bits": 5},
    "signed ties": {"method": "robertson", "sizes": (80, 45), "tile_bits": 5, "identical": True},
    "signed, wide": {"method": "okapi", "sizes": (80, 45), "tile_bits": 5, "wide": "all"},
    "large narrow scores": {
        "sizes": (90,),
        "tile_bits": 5,
        "max_weight": 2800,
        "wide": "none",
        "restricted": 0.0,
        "ks": (3,),
    },
    "large weights": {"sizes": (80, 45), "tile_bits": 5, "max_weight": 1 << 28, "wide": "none"},
    "large weights, signed": {"method": "robertson", "sizes": (80, 45), "tile_bits": 5, "max_weight": 1 << 28},
    "long quanta": {
        "method": "bm25+",
        "sizes": (80, 45),
        "long_quanta": True,
        "parameters": {"k1": 1000.0, "delta": 1000.0},
    },
    "long quanta, signed": {"method": "robertson", "sizes": (80, 45), "long_quanta": True, "max_weight": 1 << 30},
    "fields": {"fields": 3, "sizes": (80, 45)},
    "fields, bm25l": {"fields": 2, "method": "bm25l", "sizes": (80, 45), "stored_frequencies": True},
    "every length counts": {"fields": 2, "sizes": (40, 5), "parameters": {"b": 1.0, "k1": 0.0}},
    "bm25l": {"method": "bm25l", "sizes": (80, 45), "stored_frequencies": False},
    "bm25+": {"method": "bm25+", "sizes": (80, 45), "stored_frequencies": True},
    "floored": {"method": "robertson_floor0", "sizes": (80, 45)},
    "ranges at borders": {"sizes": (100, 64), "tile_bits": 5, "restricted": 0.8, "borders": True, "queries": 6},
    "decay": {"sizes": (90, 65), "tile_bits": 5, "decays": "all", "restricted": 0.0},
    "decay of some": {"sizes": (90, 65), "tile_bits": 5, "decays": "some", "wide": "some", "queries": 6},
    "decay beside narrow queries": {"sizes": (70, 33), "tile_bits": 5, "decays": "some", "wide": "none", "queries": 5},
    "decay, ties": {"sizes": (100, 40), "tile_bits": 5, "decays": "all", "identical": True, "ks": (1, 5, 33)},
    "decay in larger tiles": {"sizes": (300, 129), "tile_bits": 7, "decays": "all", "ks": (1, 20, 140)},
    "decay, more than there are": {"sizes": (90, 7), "tile_bits": 5, "decays": "all", "ks": (1000,)},
    "decay, in order": {
        "sizes": (160, 100),
        "tile_bits": 5,
        "decays": "all",
        "times": "ordered",
        "ks": (1, 3, 10),
        "restricted": 0.0,
    },
    "decay in seconds": {"sizes": (90, 40), "tile_bits": 5, "decays": "all", "half_lives": (1e-3, 2.0)},
    "decay, ranges at borders": {
        "sizes": (100, 64),
        "tile_bits": 5,
        "decays": "some",
        "restricted": 0.8,
        "borders": True,
        "queries": 6,
    },
    "decay of large weights": {"sizes": (80, 45), "tile_bits": 5, "decays": "all", "max_weight": 1 << 28},
    "decay to next to nothing": {
        "method": "bm25+",
        "sizes": (80, 45),
        "tile_bits": 5,
        "decays": "all",
        "times": "ordered",
        "half_lives": (1e-3,),
        "long_quanta": True,
        "terms": 12,
        "max_weight": 1 << 30,
        "parameters": {"k1": 1000.0, "delta": 1000.0},
        "restricted": 0.0,
        "ks": (5, 8),
        "queries": 8,
    },
    "decay of long quanta": {
        "method": "bm25+",
        "sizes": (80, 45),
        "decays": "some",
        "long_quanta": True,
        "parameters": {"k1": 1000.0, "delta": 1000.0},
    },
    "learned weights": {"method": "dot", "sizes": (80, 45), "stored_frequencies": True, "max_weight": 1 << 20},
    "learned weights in words": {"method": "dot", "sizes": (80, 45), "stored_frequencies": False, "max_weight": 100},
}
"""Options of `build` by name; the place is the seed."""
