"""The search verb for queries whose records borrow from their neighbours, on a device: in torch, without a round trip.

    segments resident ─ own sums of all documents ─ a gather over the links ─ the k best

Contributions are those that `derive` made. Integer sums are exact in any order, so adding postings by atomics gives the
CPU's bits. All documents are summed up, in chunks of queries that fit.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..engine.arrays import Integers, ranges
from ..engine.errors import DeviceMemoryError
from ..engine.index.bm25 import SCALE
from ..engine.index.decay import FACTOR_BITS, MAX_HALF_LIVES, PART_BITS, TICKS
from ..engine.index.neighbours import links_of
from ..engine.index.snapshot import Snapshot
from ..engine.plan.borrowing import lending_parts
from ..engine.plan.passing import flags_of
from ..engine.plan.plan import Plan, SegmentPlan
from ..engine.plan.verbs import Output, empty_output
from ..engine.records.neighbours import STEPS
from ..engine.timing import Phases
from .device import Residency
from .download import Download, Downloads
from .frame import answer_in, answer_size
from .resident import Contributions
from .runtime import is_out_of_memory, with_kernels
from .search import DeviceSearch, apart
from .timing import DevicePhases
from .work import DOCUMENT_BITS, KernelAnswer

# Sums of one launch: 128 MiB, and what `_rank` makes of them beside.
SUMS = 1 << 24
# Of a query and document: the sums, those of steps, a gather, and what a sort takes.
SUM_BYTES = 64
# Below every sum of steps: a document that is no hit.
NO_HIT = -(1 << 63)


@dataclass(frozen=True, eq=False)
class _Sums:
    """What Q queries' own postings add up to. The last column stays 0: it stands for a neighbour that is not there."""

    quanta: torch.Tensor  # int64 [Q, documents + 1]
    matched: torch.Tensor | None  # uint8 [Q, documents + 1] whether a posting is there; None: where quanta are positive


@dataclass(frozen=True, eq=False)
class _Links:
    """By document the one before and the one after it in its session; `documents` where there is none."""

    previous: torch.Tensor  # int32 [documents + 1]
    following: torch.Tensor  # int32 [documents + 1]


@dataclass(frozen=True, eq=False)
class _Fading:
    """How the sums of some queries decay."""

    times: torch.Tensor  # float64 [documents] NaN where a record has none
    table: torch.Tensor  # int32 [TICKS]
    rates: Sequence[tuple[int, float, float]]  # row, now, rate of each query that decays


class DeviceNeighbours:
    """`DeviceSearch` for queries that borrow, over the same segments. Calls run one after another."""

    def __init__(self, search: DeviceSearch) -> None:
        self._search = search
        self._residency: Residency = search.residency
        self._runtime = search.residency.runtime
        self._links: weakref.WeakKeyDictionary[Snapshot, _Links] = weakref.WeakKeyDictionary()
        self._stream = self._runtime.new_stream()
        own = weakref.ref(self)
        self._residency.account.add(lambda: 0 if (alive := own()) is None else alive.bytes)

    @property
    def bytes(self) -> int:
        """Bytes of the links on the device."""
        return sum(links.previous.nbytes + links.following.nbytes for links in list(self._links.values()))

    def __call__(
        self,
        plans: Sequence[Plan],
        batch: int,
        k: int,
        *,
        threads: int = 1,
        execution: str = "auto",
        phases: Phases | None = None,
    ) -> Output:
        """As `search_neighbours` of the CPU. Raises `DeviceMemoryError` where a single query does not fit."""
        return with_kernels(lambda: self._borrow(plans, batch, k, phases))

    def _borrow(self, plans: Sequence[Plan], batch: int, k: int, phases: Phases | None) -> Output:
        out = empty_output(batch, k)
        residency, clock = self._residency, DevicePhases(phases, self._residency.device)
        with self._search.lock, self._runtime.active():
            residency.lifetimes.sweep()
            try:
                for group in apart(plans) if k else ():
                    residency.make_ready([plan.snapshot for plan in group], self._search.verbs, clock)
                    with self._runtime.on(self._stream):
                        try:
                            for plan in group:
                                self._answer(plan, out)
                        finally:
                            residency.lifetimes.launched()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise DeviceMemoryError(
                    f"{residency.device} has no room for the sums of {batch} queries; serve from the CPU ({error})"
                ) from error
        return out

    def _answer(self, plan: Plan, out: Output) -> None:
        queries, width = plan.answerable, plan.snapshot.numbers + 1
        parts, links, downloads = lending_parts(plan), self._links_of(plan.snapshot), Downloads(out)
        free = self._residency.account.free(self._runtime, now=True)
        sums = SUMS if free is None else min(SUMS, free // SUM_BYTES)
        rows = max(1, sums // width)
        for start in range(0, len(queries), rows):
            chunk = queries[start : start + rows]
            self._residency.reserve(SUM_BYTES * len(chunk) * width)
            own = self._add_up(plan, parts, chunk)
            lent = [plan.requests.settings[int(plan.requests.setting[query])].lent for query in chunk]
            for each in dict.fromkeys(lent):
                members = np.array([place for place, other in enumerate(lent) if other == each])
                self._select(plan, chunk[members], members, own, links, each, downloads)
        downloads.write_answers()

    def _add_up(self, plan: Plan, parts: Sequence[SegmentPlan], chunk: Integers) -> _Sums:
        """The sums of the chunk's queries over all segments."""
        runtime, shape = self._runtime, (len(chunk), plan.snapshot.numbers + 1)
        places = shape[0] * shape[1]
        sums = _Sums(
            runtime.empty(places, torch.int64).view(shape),
            runtime.empty(places, torch.uint8).view(shape) if plan.signed else None,
        )
        runtime.call(_clear, sums)
        for part in parts:
            alive = None if part.filters.max(initial=-1) < 0 else runtime.upload(part.passing[0])
            counts = plan.offsets[chunk + 1] - plan.offsets[chunk]
            slots = ranges(plan.offsets[chunk], counts)
            terms = plan.slots[slots]
            lengths = part.ends[terms] - part.starts[terms]
            # A posting's place is this number and its number among all that are read.
            starts = part.starts[terms] - (np.cumsum(lengths) - lengths)
            query = np.repeat(np.arange(len(chunk)), counts)
            lists = np.stack([query, part.positions[terms], plan.multiplicities[slots], starts, lengths])
            runtime.call(
                _add_postings,
                sums,
                self._residency.resident_of(part.segment, plan.snapshot.long).contributions,
                runtime.upload(lists),
                int(lengths.sum()),
                alive,
                part.first,
                part.segment.size,
            )
        return sums

    def _select(
        self,
        plan: Plan,
        queries: Integers,
        members: Integers,
        own: _Sums,
        links: _Links,
        lent: tuple[int, ...],
        downloads: Downloads,
    ) -> None:
        """Give the best of these queries, which all borrow alike, to `downloads`; `members` are their rows in `own`."""
        runtime, snapshot = self._runtime, plan.snapshot
        settings = [plan.requests.settings[int(plan.requests.setting[query])] for query in queries]
        rates = [(row, each.now, each.rate) for row, each in enumerate(settings) if each.rate]
        fading = None
        if rates:
            times = snapshot.numbers_of("time", np.arange(snapshot.numbers))
            fading = _Fading(runtime.upload(times), self._residency.decay_table(), rates)
        masks = [flags_of(snapshot, each) for each in settings]
        passing = None
        if any(mask is not None for mask in masks):
            every = np.ones(snapshot.numbers, dtype=np.bool_)
            passing = runtime.upload(np.stack([every if mask is None else mask for mask in masks]))
        width = min(int(plan.k[queries].max()), snapshot.numbers)
        found = runtime.empty(answer_size(len(queries), width), torch.int64)
        runtime.call(
            _rank,
            own,
            runtime.upload(members),
            links,
            lent,
            fading,
            passing,
            runtime.upload(plan.k[queries]),
            answer_in(found, len(queries), width),
        )
        downloads.add(plan.rows[queries], Download.of(runtime, found, len(queries), width))

    def _links_of(self, snapshot: Snapshot) -> _Links:
        known = self._links.get(snapshot)
        if known is None:
            links = links_of(snapshot)
            made = []
            for way in (links.previous, links.following):
                padded = np.append(way, -1).astype(np.int32)
                padded[padded < 0] = snapshot.numbers
                made.append(padded)
            self._residency.reserve(sum(way.nbytes for way in made))
            known = self._links[snapshot] = _Links(*map(self._runtime.upload, made))
        return known


# What follows runs on the device, by `Runtime.call`.


def _clear(sums: _Sums) -> None:
    sums.quanta.zero_()
    if sums.matched is not None:
        sums.matched.zero_()


def _add_postings(
    sums: _Sums,
    contributions: Contributions,
    lists: torch.Tensor,  # int64 [5, L] row in `sums`, position, multiplicity, start and length of each list
    postings: int,  # of all lists
    alive: torch.Tensor | None,  # bool [size]
    first: int,
    size: int,
) -> None:
    """Add the postings of a segment, whose documents are [first, first + size)."""
    device, width = lists.device, sums.quanta.shape[1]
    query, position, multiplicity, start = lists[:4].repeat_interleave(lists[4], dim=1, output_size=postings)
    where = start + torch.arange(postings, device=device)
    documents = (contributions.words[where] & (1 << DOCUMENT_BITS) - 1).to(torch.int64) + first
    places = query * width + documents
    sums.quanta.view(-1).index_add_(0, places, _quanta_of(contributions, where, position) * multiplicity)
    if sums.matched is not None:
        sums.matched.view(-1)[places] = 1
    if alive is not None:
        stretch = slice(first, first + size)
        sums.quanta[:, stretch] *= alive
        if sums.matched is not None:
            sums.matched[:, stretch] &= alive


def _quanta_of(contributions: Contributions, where: torch.Tensor, lists: torch.Tensor) -> torch.Tensor:
    """int64 [postings] the contributions of the postings at `where`, derived or from their impact classes.

    `lists` [postings] are the positions of their lists.
    """
    if contributions.posting_bytes == 8:
        return contributions.quanta[where].to(torch.int64)
    classes = (contributions.words[where].to(torch.int64) & 0xFFFFFFFF) >> DOCUMENT_BITS
    # As `BM25.quanta`: two products, then one rounding, half to even. No signed method comes here.
    product = contributions.idf[lists] * contributions.saturated[classes]
    return (product * SCALE).round().to(torch.int64).clamp(min=1)


def _rank(
    sums: _Sums,
    members: torch.Tensor,  # int64 [Q] the rows of `sums`
    links: _Links,
    lent: tuple[int, ...],
    fading: _Fading | None,
    passing: torch.Tensor | None,  # bool [Q, documents]
    k: torch.Tensor,  # int64 [Q]
    answer: KernelAnswer,
) -> None:
    """Write the k best of each row's documents, by the steps of their own quanta and of what their neighbours lend."""
    own = sums.quanta[members]
    present = own > 0 if sums.matched is None else sums.matched[members] != 0
    keys, hits = own * STEPS, present.clone()
    for way in (links.previous, links.following):
        at = way
        for steps in lent:
            keys += own[:, at] * steps
            hits |= present[:, at]
            at = way[at]
    keys, hits = keys[:, :-1], hits[:, :-1]
    if fading is not None:
        for row, now, rate in fading.rates:
            keys[row] = _decayed(keys[row], fading, now, rate)
    if passing is not None:
        hits &= passing
    # Stable: of equal sums the smaller document comes first.
    width = answer.scores.shape[1]
    order = torch.where(hits, keys, NO_HIT).argsort(dim=1, descending=True, stable=True)[:, :width]
    counts = torch.minimum(hits.sum(dim=1), k)
    kept = torch.arange(width, device=k.device) < counts[:, None]
    answer.scores.copy_(torch.where(kept, keys.gather(1, order), 0))
    answer.documents.copy_(torch.where(kept, order, -1))
    answer.counts.copy_(counts)


def _decayed(sums: torch.Tensor, fading: _Fading, now: float, rate: float) -> torch.Tensor:
    """The bits of the decayed sums: the operations of `engine/index/decay.py`, each rounded by itself."""
    age = (now - fading.times) * rate
    age = torch.where(age > 0.0, age.clamp(max=float(MAX_HALF_LIVES << PART_BITS)), 0.0)
    ticks = age.to(torch.int64)
    factor = fading.table[ticks & TICKS - 1].to(torch.float64)
    exponent = -((ticks >> PART_BITS) + FACTOR_BITS)
    # The second product is by a power of two, made of its bits.
    power = ((exponent + 1023) << 52).view(torch.float64)
    return (sums.to(torch.float64) * factor * power).view(torch.int64)
