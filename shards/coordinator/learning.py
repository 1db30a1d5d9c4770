"""What is learned of a namespace beside its records: which time windows hold its used hits, and what its words were.

The first of its shards keeps what is learned, with its directory, and a namespace that moves takes it along. Whole
copies get it with the records. What is learned of a split namespace counts the records of all its shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Integers
from ...engine.index.columns import hashes_of
from ...engine.monitor.health import TOP_TERMS, top_terms
from ...engine.search.events import occupied_windows, ranks_in, windows_of
from ...engine.storage.state import MemoryState
from ..processes.links import Link
from ..shard.shard import Shard
from .coordinator import Coordinator


def tell(coordinator: Coordinator, namespace: str, verb: str, *arguments: Any) -> None:
    """Tell the shard that keeps what is learned of a namespace, then the whole copies of it."""
    home = coordinator.links[coordinator.view.placement.homes(namespace)[0]]
    learned = home.send("tell", namespace, verb, *arguments).result(coordinator.until())
    coordinator.tell_wholes(namespace, learned)


def learned_of(coordinator: Coordinator, namespaces: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What is learned of these namespaces, as `Shard.learn` takes it."""
    learned: dict[str, dict[str, Any]] = {}
    for home, own in coordinator.placement.by_home(namespaces).items():
        learned |= coordinator.links[home].send("learned", own).result(coordinator.until())
    return learned


def carry_learned(coordinator: Coordinator, namespaces: Iterable[str], target: Link) -> None:
    """Bring what is learned of these namespaces to another shard."""
    target.send("learn", learned_of(coordinator, namespaces)).result(coordinator.until())


Frequencies = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""The hashes of terms, and their document frequencies."""

Windows = tuple[Integers, list[int]]
"""The numbers of the time windows that hold a record, and of those of some records."""


def ranks_over(parts: Iterable[Windows], window: float, now: float | None) -> list[int]:
    """The age ranks of the windows that all shards found. `window` and `now` are as for `ranks_in`."""
    found = list(parts)
    occupied = np.unique(np.concatenate([known for known, _ in found]))
    return ranks_in(occupied, [each for _, own in found for each in own], window, now)


def find_windows(shard: Shard, state: MemoryState, namespace: str, ids: Sequence[str], window: float) -> Windows:
    """(the time windows that hold a record of the shard's part, those of the records with these ids)."""
    snapshot = state.snapshot(namespace)
    places = list(snapshot.find_all(ids).values())
    return occupied_windows(snapshot, window), windows_of(snapshot, places, window)


def most_frequent(parts: Iterable[Frequencies]) -> Integers:
    """The hashes of the most frequent terms. Which of equally frequent ones are the last, their hashes say."""
    found = list(parts)
    terms, places = np.unique(np.concatenate([hashes for hashes, _ in found]), return_inverse=True)
    totals = np.zeros(len(terms), dtype=np.int64)
    np.add.at(totals, places, np.concatenate([own for _, own in found]))
    return top_terms(terms.view(np.int64), totals, TOP_TERMS)


def frequencies_of(shard: Shard, state: MemoryState, namespace: str) -> Frequencies:
    """The document frequencies of all terms in a shard's part of a namespace."""
    counts = state.snapshot(namespace).all_document_frequencies()
    present = np.flatnonzero(counts)
    strings = state.indexer.vocabulary.strings
    return hashes_of([strings[term] for term in present.tolist()]), counts[present].astype(np.int64)
