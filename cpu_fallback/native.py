"""The search verb in C++ (`native/search.cpp`): the same answer as `search.py`. Only short calls keep the
interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..engine.index.bm25 import SCALE
from ..engine.index.masks import EVERYTHING
from ..engine.index.native import native_links, native_masks, native_snapshot
from ..engine.index.snapshot import Snapshot
from ..engine.plan.plan import Plan
from ..engine.plan.requests import QuerySettings, Requests
from ..engine.plan.verbs import COUNTED, Output, TextHits
from ..engine.timing import Phases
from .search import MAX_THREADS, search_numpy

if TYPE_CHECKING:
    from ..native import _compiled

# Documents of a tile: 128 KiB of scores, a part of the second-level cache.
TILE = 1 << 15
# Documents of a tile where scores fade; the search may end after any tile.
FADED_TILE = 1 << 12
# Postings per hundred documents of a tile from which on its scores are looked through document by document.
SCAN_PERCENT = 25
# A segment with fewer documents is read in full: surveying its lists would cost more than it saves.
PRUNED_DOCUMENTS = 1 << 12
# Keys kept before the k best of them are picked out, as a multiple of k (above 1), and at least.
ROOM = 4
MIN_ROOM = 128
# Uses of a long list in one epoch after which it is kept as a dense row. Filling a row costs as much as two to four
# uses, and new memory. One fan-out has fewer uses, so no row is filled where every search meets a new epoch.
DENSE_USES = 24
# With fewer postings in all its lists, one thread answers a query: sharing it out costs some 10 us.
SHARED_POSTINGS = 1 << 16
# Documents for each that a query's postings lend to, from which on those alone are summed up. Otherwise all documents
# are, in the order of their sessions, which is made anew after a write.
LENT_SHARE = 12
# Documents for each posting of a query up to which own sums are added up first, and lent block by block.
LATER_SHARE = 9
# The longest list of a query whose postings are kept until a dialogue's candidates are known; in longer ones the
# documents near candidates are looked up.
KEPT_POSTINGS = 1 << 12

_UNIT = 1.0 / SCALE


def search_native(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    execution: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """As `search_numpy`, which also serves the rare plans: signed ones, and ones whose scores may leave int32.

    ``auto`` is ``pruned`` here: a segment of `PRUNED_DOCUMENTS` or more is read by MaxScore. Contributions are computed
    from the impact classes of postings as they are read, so that a write costs the searches after it nothing.
    """
    phases = phases or Phases()
    rare = [plan for plan in plans if not _is_common(plan)]
    out = search_numpy(rare, batch, k, threads=threads, execution=execution, phases=phases)
    with phases("score and select"):
        for plan in plans:
            if _is_common(plan) and k and batch:
                _search(plan.snapshot, plan.requests, out, threads, execution, phases)
    return out


def search_neighbours(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    execution: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """As `neighbours.search_neighbours`, which also serves the rare plans, and those with a query that decays."""
    from . import neighbours

    phases = phases or Phases()
    common = [plan for plan in plans if _is_common(plan) and not plan.rates.any()]
    rare = [plan for plan in plans if plan not in common]
    out = neighbours.search_neighbours(rare, batch, k, threads=threads, execution=execution, phases=phases)
    with phases("score and select"):
        for plan in common if k and batch else ():
            for lent in dict.fromkeys(setting.lent for setting in plan.requests.settings):
                own = np.array([setting.lent == lent for setting in plan.requests.settings])[plan.requests.setting]
                requests = plan.requests if own.all() else plan.requests.select(np.flatnonzero(own))
                weights = np.array(lent, dtype=np.int64)
                if plan.snapshot.segments:
                    lending = native_links(plan.snapshot), weights
                    _search(plan.snapshot, requests, out, threads, execution, phases, lending)
    return out


def _is_common(plan: Plan) -> bool:
    if plan.signed or plan.snapshot.long or bool(plan.large.any()):
        return False
    # Where a repeated term counts once, weights of some queries alone would need a mark for each query.
    weighted = plan.requests.weighted
    return weighted is None or bool(weighted.all()) or plan.snapshot.bm25.query_tf != "unique"


def _search(
    snapshot: Snapshot,
    requests: Requests,
    out: Output,
    threads: int,
    execution: str,
    phases: Phases,
    lending: tuple[_compiled.Links, npt.NDArray[np.int64]] | None = None,
) -> None:
    compiled = native_snapshot(snapshot)
    assert compiled is not None
    scores, documents, counts = out
    counted = compiled.search_terms(
        requests.terms,
        requests.offsets,
        requests.weights,
        requests.rows,
        requests.k,
        requests.setting,
        tuple(_setting(snapshot, setting) for setting in requests.settings),
        _options(execution),
        min(threads, MAX_THREADS),
        scores,
        documents,
        counts,
        lending,
    )
    assert counted is not None
    for name, number in zip(COUNTED, counted, strict=False):
        phases.count(name, number)


def search_texts(
    snapshot: Snapshot,
    settings: QuerySettings,
    analysed: Any,
    texts: Sequence[str] | Sequence[tuple[str, ...]],
    k: int,
    *,
    threads: int,
    execution: str,
) -> TextHits | None:
    """As `SearchTexts`. None for signed methods, and where scores may leave int32."""
    found = _search_texts(snapshot, settings, analysed, texts, k, threads, execution, None)
    assert not isinstance(found, list)
    return found


def search_dialogues(
    snapshot: Snapshot,
    settings: QuerySettings,
    analysed: Any,
    texts: Sequence[str],
    k: int,
    dialogue: _compiled.Asked,
    *,
    threads: int,
    execution: str,
) -> TextHits | list[int] | None:
    """As `search_texts`, by a strategy for dialogues. The documents whose texts must be read first, where there are
    some: then nothing was answered.
    """
    return _search_texts(snapshot, settings, analysed, texts, k, threads, execution, dialogue)


def _search_texts(
    snapshot: Snapshot,
    settings: QuerySettings,
    analysed: Any,
    texts: Sequence[str] | Sequence[tuple[str, ...]],
    k: int,
    threads: int,
    execution: str,
    dialogue: _compiled.Asked | None,
) -> TextHits | list[int] | None:
    compiled = native_snapshot(snapshot)
    if compiled is None:
        return None
    shape = len(texts), k
    scores, documents = np.empty(shape), np.empty(shape, np.int64)
    counts, source = np.empty(shape[0], np.int32), np.empty(shape[0], np.int64)
    counted = compiled.search_texts(
        analysed,
        texts,
        k,
        _setting(snapshot, settings),
        _options(execution),
        min(threads, MAX_THREADS),
        _UNIT,
        scores,
        documents,
        counts,
        source,
        dialogue,
    )
    if counted is None or isinstance(counted, list):
        return counted
    return TextHits(scores, documents, counts, source, counted[:4], counted[4:])


def _setting(snapshot: Snapshot, setting: QuerySettings) -> tuple[object, float, float, float, float]:
    """What queries share beside their words, as `search_terms` takes it."""
    masks = None if setting.filter is EVERYTHING else native_masks(snapshot, setting.filter)
    return masks, setting.since, setting.until, setting.now, setting.rate


def _options(execution: str) -> tuple[int, ...]:
    """The borders above as the compiled search takes them."""
    exhaustive = execution == "exhaustive"
    sizes = TILE, FADED_TILE, SCAN_PERCENT, PRUNED_DOCUMENTS, ROOM, MIN_ROOM, DENSE_USES, SHARED_POSTINGS
    return *sizes, LENT_SHARE, LATER_SHARE, KEPT_POSTINGS, exhaustive
