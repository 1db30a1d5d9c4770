"""The path of a planner's fan-out: a small batch in static buffers of padded shape, on a GPU replayed as a CUDA graph.

At 5 to 20 queries the launches of some two dozen small device operations cost more than their work; a graph replays
them as one, between one copy in and one copy out through pinned memory, with one synchronisation.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict

import numpy as np
import torch

from ..engine.arrays import Integers
from ..engine.index.snapshot import Snapshot
from ..engine.plan.plan import Plan
from .batch import Download, answer_size, block_of, record_event
from .tensors import TensorSearch, make_frame

# Padded shapes. A batch takes the smallest that holds it, so that few graphs are captured.
QUERIES = (8, 32)
TERMS = (64, 256)
WIDTHS = (16, 128, 1024)
# Graphs kept. The least recently used one is dropped first; each holds its buffers.
MAX_GRAPHS = 8

Key = tuple[int, int, int, int, int]
"""The snapshot, the padded shape, and which of the fan-outs of that shape that are on their way at once."""

_capturing = threading.Lock()


def _padded(value: int, sizes: tuple[int, ...]) -> int | None:
    return next((size for size in sizes if value <= size), None)


class Fanout:
    """One padded shape over one snapshot (ready on the device), captured at the second use."""

    def __init__(self, snapshot: Snapshot, queries: int, terms: int, k: int, search: TensorSearch) -> None:
        self._snapshot = weakref.ref(snapshot)
        self._k, self._search = k, search
        # Held here, because a captured graph reads it.
        self._frame = make_frame(snapshot, queries, terms, False, k, search.residency, search.verbs)
        device = search.residency.device
        self._captures = device.type == "cuda"
        self._asked = torch.empty(terms + queries + 1, dtype=torch.int64, pin_memory=self._captures)
        self._found = torch.empty(answer_size(queries, k), dtype=torch.int64, pin_memory=self._captures)
        self._inputs = torch.empty(terms + queries + 1, dtype=torch.int64, device=device)
        self._terms, self._offsets = self._inputs.split_with_sizes([terms, queries + 1])
        self._graph: torch.cuda.CUDAGraph | None = None
        self._uses = 0
        self.busy = False
        """Whether an answer is on its way, or not read yet. Set under the lock of the search, cleared by any thread."""

    def begin(self, terms: Integers, offsets: Integers, k: int) -> Download:
        """Launch the padded batch; its rows and the first `k` columns are what will be read."""
        staged = self._asked.numpy()
        size = len(self._terms)
        staged[: len(terms)] = terms
        staged[len(terms) : size] = -1
        # Queries past those of the batch are empty. The last of them reads the padding, which matches nothing.
        staged[size : size + len(offsets)] = offsets
        staged[size + len(offsets) :] = len(terms)
        staged[-1] = size
        # From here on a copy may be running. If it fails, the fan-out stays busy and is not used again.
        self.busy = True
        self._uses += 1
        if self._captures and self._graph is None and self._uses > 1:
            graph = torch.cuda.CUDAGraph()
            # A process captures one graph at a time. Other threads may use the device meanwhile.
            with _capturing, torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._run()
            self._graph = graph
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        event = record_event() if self._captures else None
        padded = len(self._offsets) - 1, self._k
        return Download(self._found, event, padded, len(offsets) - 1, k, self._let_go)

    def _let_go(self) -> None:
        self.busy = False

    def _run(self) -> None:
        """Run from the host's input buffer to the host's output buffer, without waiting."""
        snapshot = self._snapshot()
        assert snapshot is not None
        self._inputs.copy_(self._asked, non_blocking=True)
        answer = self._search.answer(snapshot, self._terms, self._offsets, None, self._k, self._frame)
        self._found.copy_(block_of(answer), non_blocking=True)


class Fanouts:
    """The captured shapes of one engine."""

    def __init__(self, search: TensorSearch) -> None:
        self._search = search
        self._kept: OrderedDict[Key, tuple[weakref.ref[Snapshot], Fanout]] = OrderedDict()

    def begin(self, plan: Plan) -> Download | None:
        """The started answer to the plan's queries; None unless they are few, unfiltered and narrow, with one k."""
        if len(plan.rows) > QUERIES[-1] or not plan.reads_all or plan.wide.any() or plan.snapshot.long:
            return None
        k = int(plan.k[0]) if len(plan.k) else 0
        if (plan.k != k).any():
            return None
        owners = np.repeat(np.arange(len(plan.rows)), np.diff(plan.offsets))
        counts = np.bincount(owners, weights=plan.multiplicities, minlength=len(plan.rows)).astype(np.int64)
        repeated = np.repeat(plan.terms[plan.slots], plan.multiplicities).astype(np.int64)
        return self.begin_terms(plan.snapshot, repeated, np.concatenate([[0], np.cumsum(counts)]), k)

    def begin_terms(self, snapshot: Snapshot, repeated: Integers, offsets: Integers, k: int) -> Download | None:
        """As `begin`, for queries given by the ids of their terms, which repeat and may be unknown to the snapshot."""
        count = len(offsets) - 1
        shape = (_padded(count, QUERIES), _padded(len(repeated), TERMS), _padded(k, WIDTHS))
        if not k or not len(repeated) or None in shape:
            return None
        queries, terms, width = (int(size or 0) for size in shape)
        for gone in [kept for kept, (held, _) in self._kept.items() if held() is None]:
            del self._kept[gone]
        for turn in itertools.count():
            key = (id(snapshot), queries, terms, width, turn)
            kept = self._kept.get(key)
            # Another call's answer may still lie in its buffers.
            if kept is None or not kept[1].busy:
                break
        fanout = Fanout(snapshot, queries, terms, width, self._search) if kept is None else kept[1]
        self._kept[key] = weakref.ref(snapshot), fanout
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_GRAPHS:
            self._kept.popitem(last=False)
        return fanout.begin(repeated, offsets, k)
