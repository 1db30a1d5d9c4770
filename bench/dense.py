"""Dense search beside FAISS's flat index, batched and looped: ``python -m bench.dense`` (SPEC A068, B006).

bench/README.md says of what. Systems take turns within a repetition, and BLAS and FAISS keep to one thread. Times are
milliseconds a batch, medians over `reps`; ``recall`` is that of the first 100 queries.
"""

import os

if __name__ == "__main__":
    # The libraries read these once, when they are loaded.
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[_variable] = "1"

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanrank.cpu_fallback.dense import verbs as cpu
from fanrank.engine.vectors.faiss_index import index_of
from fanrank.engine.vectors.index_options import DEFAULT
from fanrank.engine.vectors.interaction import Interaction
from fanrank.engine.vectors.vectors import Vectors, normalize
from fanrank.engine.vectors.verbs import DenseVerbs, Mode, Stretch

from .harness.command import Command, among, numbers, positive
from .harness.rows import round_digits

SIZES, BATCHES, KS = (5_000, 100_000), (1, 20, 500), (10, 100)
DIMENSION = 384
CLUSTER = 100
"""The mean number of vectors in a cluster."""
SPREAD = 0.8
"""The standard deviation of a vector from its cluster's centre in each component; that of the centres is 1."""
LOOPED = 20
"""The largest batch that is also searched one query at a time."""
SHORTEST = 0.05
"""Seconds; a shorter measurement is repeated inside one clock."""


@dataclass(frozen=True, eq=False)
class System:
    """A system. It takes queries [B, d] twice (as stored, and in float32), and returns (scores, documents) [B, k]."""

    name: str
    exact: bool
    looped: bool
    build_s: float
    search: Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]

    def answer(self, queries: np.ndarray, singles: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if not self.looped:
            return self.search(queries, singles, k)
        parts = [self.search(queries[i : i + 1], singles[i : i + 1], k) for i in range(len(queries))]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def make_clusters(seed: int, documents: int, queries: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [documents, dimension] and queries [queries, dimension] of the same clusters, as they are stored."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, documents // CLUSTER), dimension), dtype=np.float32)

    def some(number: int) -> np.ndarray:
        chosen = centres[rng.integers(0, len(centres), number)]
        return normalize(chosen + SPREAD * rng.standard_normal((number, dimension), dtype=np.float32))

    return some(documents), some(queries)


def _search_by(
    vectors: Vectors, mode: Mode, verbs: DenseVerbs = cpu
) -> Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    stretches = [Stretch(vectors, 0)]

    def search(queries: np.ndarray, singles: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return verbs.best(queries, stretches, k, Interaction(), mode)[:2]

    return search


def systems_of(rows: np.ndarray, wanted: Sequence[str]) -> list[System]:
    """The named systems, built. The systems that need FAISS are left out where it is not installed."""
    vectors, found = Vectors(rows, np.arange(len(rows) + 1)), []

    def add(name: str, exact: bool, build: Callable[[], Any]) -> None:
        if not {name, f"{name}-looped"} & set(wanted):
            return
        start = time.perf_counter()
        search = build()
        seconds = time.perf_counter() - start
        for looped in (False, True):
            label = f"{name}-looped" if looped else name
            if label in wanted:
                found.append(System(label, exact, looped, round(seconds, 3), search))

    def int8() -> Any:
        _ = vectors.codes
        return _search_by(vectors, "int8")

    add("exact", True, lambda: _search_by(vectors, "exact"))
    add("int8", False, int8)
    if {"exact-device", "int8-device"} & set(wanted):
        device = _device()
        add("exact-device", True, lambda: _search_by(vectors, "exact", device))
        add("int8-device", False, lambda: _search_by(vectors, "int8", device))
    try:
        import faiss
    except ImportError:
        return found
    faiss.omp_set_num_threads(1)

    def hnsw(verbs: DenseVerbs = cpu) -> Any:
        if len(rows) >= DEFAULT.least_rows:
            index_of(verbs, vectors, DEFAULT)
        return _search_by(vectors, "hnsw", verbs)

    def flat() -> Any:
        index = faiss.IndexFlatIP(rows.shape[1])
        index.add(rows.astype(np.float32))
        return lambda queries, singles, k: index.search(singles, k)

    add("hnsw", False, hnsw)
    if {"hnsw-device", "hnsw-device-looped"} & set(wanted):
        graph = _device()
        add("hnsw-device", False, lambda: hnsw(graph))
    add("faiss-flat", False, flat)
    return found


def _device() -> DenseVerbs:
    """The verbs on the GPU; answers are on the host. The first, untimed answer uploads the vectors."""
    import torch

    from fanrank.kernels.dense import dense_verbs

    if not torch.cuda.is_available():
        raise SystemExit("bench.dense: no CUDA device for exact-device, int8-device and hnsw-device")
    return dense_verbs("triton", gpu=torch.cuda.current_device())


SYSTEMS = ("exact", "exact-looped", "int8", "int8-looped", "hnsw", "hnsw-looped", "faiss-flat", "faiss-flat-looped")
ON_DEVICE = ("exact-device", "int8-device", "hnsw-device")
DEVICE_SYSTEMS = tuple(f"{name}{looped}" for name in ON_DEVICE for looped in ("", "-looped"))
"""Those that need a GPU, and run only if they are named."""


def best_of(rows: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best in float64 by a full sort, query by query. Ties go to the smaller document number."""
    wide = rows.astype(np.float32).astype(np.float64)
    scores, documents = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    for number, query in enumerate(queries.astype(np.float64)):
        scored = wide @ query
        documents[number] = np.argsort(-scored, kind="stable")[:k]
        scores[number] = scored[documents[number]]
    return scores, documents


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """The share of the exact hits that `found` holds."""
    shares = [len(np.intersect1d(hits, other)) / len(other) for hits, other in zip(found, exact, strict=True)]
    return float(np.mean(shares))


def run_cell(
    systems: Sequence[System], rows: np.ndarray, queries: np.ndarray, k: int, reps: int
) -> list[dict[str, Any]]:
    """The rows of one batch and k."""
    singles = queries.astype(np.float32)
    scores, documents = best_of(rows, queries[:100], k)
    chosen = [one for one in systems if not one.looped or len(queries) <= LOOPED]
    checked: dict[str, tuple[float, bool | None]] = {}
    loops: dict[str, int] = {}
    for one in chosen:
        found_scores, found = one.answer(queries, singles, k)
        same = bool((found[:100] == documents).all() and (found_scores[:100] == scores).all()) if one.exact else None
        checked[one.name] = recall(found[:100], documents), same
        start = time.perf_counter()
        one.answer(queries, singles, k)
        loops[one.name] = max(1, round(SHORTEST / max(time.perf_counter() - start, 1e-9)))
    ms: dict[str, list[float]] = {one.name: [] for one in chosen}
    for rep in range(reps):
        for one in [*chosen[rep % len(chosen) :], *chosen[: rep % len(chosen)]]:
            start = time.perf_counter()
            for _ in range(loops[one.name]):
                one.answer(queries, singles, k)
            ms[one.name].append(1e3 * (time.perf_counter() - start) / loops[one.name])
    return [
        {
            **{"system": one.name, "documents": len(rows), "dimension": rows.shape[1], "batch": len(queries), "k": k},
            "ms_per_batch": round_digits(statistics.median(ms[one.name])),
            "ms_min": round_digits(min(ms[one.name])),
            "ms_iqr": round_digits(spread(ms[one.name])),
            "ms_per_query": round_digits(statistics.median(ms[one.name]) / len(queries)),
            "recall": round(checked[one.name][0], 4),
            "verified": checked[one.name][1],
            **{"threads": 1, "reps": reps, "build_s": one.build_s},
        }
        for one in chosen
    ]


def spread(values: Sequence[float]) -> float:
    """The distance of the quartiles; 0 for one value."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if every exact answer was right, else 1."""
    command = Command("dense", "Dense search, batched and looped.")
    command.add("--documents", type=numbers, default=SIZES)
    command.add("--batches", type=numbers, default=BATCHES)
    command.add("--ks", type=numbers, default=KS)
    every = (*SYSTEMS, *DEVICE_SYSTEMS)
    command.add("--systems", type=among(every), default=SYSTEMS, help=f"of {','.join(every)}")
    command.add("--reps", type=positive, default=7)
    options = command.parse(arguments)
    for size in options.documents:
        command.say(f"dense: {size:,} vectors, built")
        rows, queries = make_clusters(1, size, max(options.batches), DIMENSION)
        systems = systems_of(rows, options.systems)
        for batch in options.batches:
            for k in options.ks:
                command.say(f"dense: {size:,} vectors, {batch} queries, k {k}")
                command.keep(run_cell(systems, rows, queries[:batch], min(k, size), options.reps))
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
