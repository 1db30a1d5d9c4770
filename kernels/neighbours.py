"""The search verb for queries whose records borrow from their neighbours, on a device: in torch, without a round trip.

    segments resident ─ own sums of all documents ─ a gather over the links ─ the k best

Contributions are those that `derive` made. Integer sums are exact in any order, so adding postings by atomics gives the
CPU's bits. All documents are summed up: Q queries take 8 bytes a query and document, a few times over, and are asked in
chunks that fit.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

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
from ..engine.plan.requests import QuerySettings
from ..engine.plan.verbs import Output, empty_output
from ..engine.records.neighbours import STEPS
from ..engine.timing import Phases
from .device import Residency
from .resident import Resident
from .runtime import is_out_of_memory
from .search import DeviceSearch, apart
from .timing import DevicePhases
from .work import DOCUMENT_BITS

# Sums of one launch: 128 MiB, some four times over.
SUMS = 1 << 24
# Below every sum of steps: a document that is no hit.
NO_HIT = -(1 << 63)


class DeviceNeighbours:
    """`DeviceSearch` for queries that borrow, over the same segments. Calls run one after another."""

    def __init__(self, search: DeviceSearch) -> None:
        self._search = search
        self._residency: Residency = search.residency
        self._runtime = search.residency.runtime
        # [documents + 1] links by snapshot, on the device; -1 has become the place behind the last document.
        self._links: weakref.WeakKeyDictionary[Snapshot, tuple[torch.Tensor, torch.Tensor]] = (
            weakref.WeakKeyDictionary()
        )
        self._stream = self._runtime.new_stream()
        own = weakref.ref(self)
        self._residency.account.add(lambda: 0 if (alive := own()) is None else alive.bytes)

    @property
    def bytes(self) -> int:
        """Bytes of the links on the device."""
        return sum(int(tensor.nbytes) for pair in list(self._links.values()) for tensor in pair)

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
        queries, documents = plan.answerable, plan.snapshot.numbers
        parts = lending_parts(plan)
        rows = max(1, SUMS // (documents + 1))
        for start in range(0, len(queries), rows):
            chunk = queries[start : start + rows]
            own, matched = self._own_sums(plan, parts, chunk)
            for lent in dict.fromkeys(
                plan.requests.settings[int(plan.requests.setting[query])].lent for query in chunk
            ):
                members = [
                    place
                    for place, query in enumerate(chunk.tolist())
                    if plan.requests.settings[int(plan.requests.setting[query])].lent == lent
                ]
                self._select(plan, chunk, members, own, matched, lent, out)

    def _own_sums(
        self, plan: Plan, parts: Sequence[SegmentPlan], chunk: Integers
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(sums of quanta int64 [Q, documents + 1], whether a posting is there, only for signed plans)."""
        device, width = self._residency.device, plan.snapshot.numbers + 1
        sums = torch.zeros(len(chunk), width, dtype=torch.int64, device=device)
        matched = torch.zeros(len(chunk), width, dtype=torch.bool, device=device) if plan.signed else None
        for part in parts:
            resident = self._residency.resident_of(part.segment, plan.snapshot.long)
            alive = None if part.filters.max(initial=-1) < 0 else self._runtime.upload(part.passing[0])
            counts = plan.offsets[chunk + 1] - plan.offsets[chunk]
            slots = ranges(plan.offsets[chunk], counts)
            terms = plan.slots[slots]
            lengths = part.ends[terms] - part.starts[terms]
            pairs = np.stack(
                [np.repeat(np.arange(len(chunk)), counts), part.positions[terms], plan.multiplicities[slots]]
            )
            # Of each posting that is read: its place in the segment, and its query, list and multiplicity.
            starts = part.starts[terms] - (np.cumsum(lengths) - lengths)
            every = self._runtime.upload(np.concatenate([pairs, starts[None]]))
            every = every.repeat_interleave(self._runtime.upload(lengths), dim=1)
            where = every[3] + torch.arange(every.shape[1], device=device)
            documents = (resident.words[where] & (1 << DOCUMENT_BITS) - 1).to(torch.int64) + part.first
            places = every[0] * width + documents
            sums.view(-1).index_add_(0, places, _quanta_of(resident, where, every[1]) * every[2])
            if matched is not None:
                matched.view(-1)[places] = True
            if alive is not None:
                stretch = slice(part.first, part.first + part.segment.size)
                sums[:, stretch] *= alive
                if matched is not None:
                    matched[:, stretch] &= alive
        return sums, matched

    def _select(
        self,
        plan: Plan,
        chunk: Integers,
        members: Sequence[int],
        own: torch.Tensor,
        matched: torch.Tensor | None,
        lent: tuple[int, ...],
        out: Output,
    ) -> None:
        """Write the best of the chunk's queries at the places `members`, which all borrow alike."""
        snapshot, queries = plan.snapshot, chunk[list(members)]
        ways = self._links_of(snapshot)
        own = own[list(members)]
        present = own > 0 if matched is None else matched[list(members)]
        sums, hits = own * STEPS, present.clone()
        for links in ways:
            at = links
            for steps in lent:
                sums += own[:, at] * steps
                hits |= present[:, at]
                at = links[at]
        documents = snapshot.numbers
        keys, hits = sums[:, :documents], hits[:, :documents]
        times: torch.Tensor | None = None
        for place, query in enumerate(queries.tolist()):
            setting = plan.requests.settings[int(plan.requests.setting[query])]
            if setting.rate:
                if times is None:
                    times = self._times_of(snapshot)
                keys[place] = self._decayed(keys[place], times, setting)
            passing = flags_of(snapshot, setting)
            if passing is not None:
                hits[place] &= self._runtime.upload(passing)
        keys = torch.where(hits, keys, NO_HIT)
        # Stable: of equal sums the smaller document comes first.
        width = min(int(plan.k[queries].max()), documents)
        order = keys.argsort(dim=1, descending=True, stable=True)[:, :width]
        best = keys.gather(1, order).cpu().numpy()
        counts = hits.sum(dim=1).cpu().numpy()
        numbers = order.cpu().numpy()
        for place, query in enumerate(queries.tolist()):
            row, count = int(plan.rows[query]), min(int(counts[place]), int(plan.k[query]))
            out[0][row, :count], out[1][row, :count] = best[place, :count], numbers[place, :count]
            out[2][row] = count

    def _links_of(self, snapshot: Snapshot) -> tuple[torch.Tensor, torch.Tensor]:
        known = self._links.get(snapshot)
        if known is None:
            links = links_of(snapshot)
            made = []
            for way in (links.previous, links.following):
                padded = np.append(way, -1).astype(np.int32)
                padded[padded < 0] = snapshot.numbers
                made.append(padded)
            self._residency.reserve(sum(way.nbytes for way in made))
            known = self._links[snapshot] = self._runtime.upload(made[0]), self._runtime.upload(made[1])
        return known

    def _times_of(self, snapshot: Snapshot) -> torch.Tensor:
        """[documents] the times; NaN where a record has none."""
        return self._runtime.upload(snapshot.numbers_of("time", np.arange(snapshot.numbers)))

    def _decayed(self, sums: torch.Tensor, times: torch.Tensor, setting: QuerySettings) -> torch.Tensor:
        """The bits of the decayed sums: the operations of `engine/index/decay.py`, each rounded by itself."""
        age = (setting.now - times) * setting.rate
        age = torch.where(age > 0.0, age.clamp(max=float(MAX_HALF_LIVES << PART_BITS)), 0.0)
        ticks = age.to(torch.int64)
        factor = self._residency.decay_table()[ticks & TICKS - 1].to(torch.float64)
        exponent = -((ticks >> PART_BITS) + FACTOR_BITS)
        # The second product is by a power of two, made of its bits.
        power = ((exponent + 1023) << 52).view(torch.float64)
        return (sums.to(torch.float64) * factor * power).view(torch.int64)


def _quanta_of(resident: Resident, where: torch.Tensor, lists: torch.Tensor) -> torch.Tensor:
    """int64 [postings] the contributions of the postings at `where`, derived or from their impact classes.

    `lists` [postings] are the positions of their lists.
    """
    if resident.posting_bytes == 8:
        return resident.quanta[where].to(torch.int64)
    if resident.posting_bytes == 6:
        classes = resident.impact_classes[where].to(torch.int64) & 0xFFFF
    else:
        classes = (resident.words[where].to(torch.int64) & 0xFFFFFFFF) >> DOCUMENT_BITS
    # As `BM25.quanta`: two products, then one rounding, half to even. No signed method comes here.
    product = resident.idf[lists] * resident.saturated[classes]
    return (product * SCALE).round().to(torch.int64).clamp(min=1)
