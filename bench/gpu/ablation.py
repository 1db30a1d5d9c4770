"""The ablation of the GPU kernels: what each idea is worth, and how time grows. ``python -m bench.gpu.ablation``.

One run measures many variants and writes a row for each. Its parts:

========  ============================================================================================================
ideas     the CUDA kernels, with one idea left out at a time; postings of 8 and 4 bytes; no tables of
          long lists; wide sums; Triton
batch     queries at once, 1 to 10,000
corpus    postings, 10**4 to 10**8
k         10 to 1,000
length    terms of a query, 2 to 500
pipeline  `Engine.search` in a loop and `Engine.search_stream`, beside the kernels alone on the same batches
========  ============================================================================================================

All parts but ``pipeline`` time the kernels as a CUDA graph (``kernel``) and launched one by one (``eager``). Every
answer is compared with numpy's, bit for bit, before a clock starts. Every row has the ceilings measured in the run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.index.snapshot import MAX_SEGMENT_DOCUMENTS
from fanrank.kernels import resident
from fanrank.kernels.batch import Chunk
from fanrank.kernels.families import device_search
from fanrank.kernels.search import DeviceSearch
from fanrank.kernels.work import TABLED_POSTINGS

from ..harness.cases import K1, B
from ..harness.command import among, names
from . import corpora as gpu_corpora
from . import run as gpu_run
from . import systems as gpu_systems
from .batches import HitArrays, System, device_name
from .command import GpuCommand, reason_of
from .corpora import Problem
from .rows import Row
from .systems import STOPS, DeviceSystem

PARTS = ("ideas", "batch", "corpus", "k", "length", "pipeline")
CUDA_IDEAS: tuple[dict[str, Any], ...] = (
    {},
    {"posting_bytes": 4},
    {"tables": False},
    {"wide": True},
)
TRITON_IDEAS: tuple[dict[str, Any], ...] = ({},)
GROWTH: tuple[dict[str, Any], ...] = ({}, {"posting_bytes": 4})
"""The variants that the growing parts (batch, corpus, k, length) measure."""


@dataclass(frozen=True)
class Sizes:
    """How large a run is."""

    ideas: tuple[str, ...]
    postings: tuple[int, ...]
    grown: int  # postings of the corpus that batch, k and length are measured on
    batch: int
    batches: tuple[int, ...]
    ks: tuple[int, ...]
    lengths: tuple[int, ...]
    terms: int
    k: int
    streamed: str
    stream_batches: tuple[int, ...]
    variants: int


FULL = Sizes(
    **{"ideas": ("sgd", "fiqa-shaped", "nq-shaped"), "postings": tuple(10**n for n in range(4, 9)), "grown": 10**7},
    **{"batch": 256, "batches": (1, 4, 20, 100, 500, 2_000, 10_000), "ks": (10, 30, 100, 300, 1_000)},
    **{"lengths": (2, 5, 10, 20, 50, 100, 200, 500), "terms": 5, "k": 100, "streamed": "sgd"},
    **{"stream_batches": (20, 250), "variants": 4},
)
SMOKE = Sizes(
    **{
        "ideas": ("fiqa-shaped",),
        "postings": (400, 2_000),
        "grown": 2_000,
        "batch": 3,
        "batches": (1, 4),
        "ks": (3, 20),
    },
    **{"lengths": (2, 9), "terms": 3, "k": 5, "streamed": "fiqa-shaped", "stream_batches": (2, 3), "variants": 1},
)


class Ablated(DeviceSystem):
    """The kernels with other `options` than usual. The phases of tensors and texts are left out."""

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel", *STOPS, *(("eager",) if self.torch_device.type == "cuda" else ()))

    def chunk(self, part: Chunk) -> Chunk:
        return replace(part, wide=True) if self.options.get("wide") else part


def list_systems(family: str, problem: Problem, ideas: Sequence[dict[str, Any]]) -> Iterator[tuple[str, System | str]]:
    """(name, system) for each of the ideas; the reason in place of a system that cannot be measured."""
    plain = device_search(family)
    shared: dict[tuple[int, bool], DeviceSearch] = {}
    for options in ideas:
        name = " ".join([f"fanrank-{family}", *(f"{key}={value}" for key, value in options.items())])
        try:
            own = {key: value for key, value in options.items() if key not in ("posting_bytes", "tables", "wide")}
            # Variants with the same bytes a posting and the same tables share one upload of the segments.
            key = options.get("posting_bytes", 8), options.get("tables", True)
            over = shared.get(key)
            search = DeviceSearch(
                verbs_of(plain, own),
                plain.residency.device,
                posting_bytes=key[0],
                residency=None if over is None else over.residency,
            )
            shared.setdefault(key, search)
            # Without tables every list is short. Which lists are is decided at the upload.
            least = TABLED_POSTINGS if key[1] else MAX_SEGMENT_DOCUMENTS + 1
            with patch.object(resident, "TABLED_POSTINGS", least):
                made = Ablated(family, problem, search, options)
            yield name, made
        except Exception as error:
            yield name, reason_of(error)


def verbs_of(plain: DeviceSearch, options: dict[str, Any]) -> Any:
    """The family's verbs with some options changed."""
    if plain.verbs.name != "triton":
        from fanrank.kernels.cuda.verbs import CudaVerbs

        return CudaVerbs(plain.verbs._launcher, name=plain.verbs.name, **options)  # type: ignore[attr-defined]
    from fanrank.kernels.triton.verbs import TritonVerbs, tuning

    device = plain.residency.device
    usual = tuning(device)
    return TritonVerbs(device, replace(usual, score=replace(usual.score, **options)))


class AblationRun:
    """One run over a command: its parts are methods."""

    def __init__(self, command: GpuCommand) -> None:
        self.command, self.options = command, command.options
        self.sizes = SMOKE if self.options.smoke else FULL
        self.part = ""
        statuses = {status.name: status.usable for status in backend.statuses()}
        own = ("cuda", "triton") if command.gpu else ("cuda-host", "triton")
        self.families = [family for family in self.options.families or own if statuses.get(family)]

    def say(self, line: str) -> None:
        self.command.say(line)

    @property
    def spent(self) -> bool:
        return self.command.spent

    def keep(self, new: Sequence[Row]) -> None:
        self.command.keep({**row, "part": self.part} for row in new)

    def cells(
        self, problem: Problem, shapes: Sequence[tuple[int, int]], ideas: dict[str, Sequence[dict[str, Any]]]
    ) -> None:
        """Measure every idea of every family on batches of (size, k) of the problem's queries."""
        self.say(f"{self.part}: {problem.name}, {problem.postings:,} postings; numpy's answers")
        expected = gpu_systems.reference(problem, max(k for _, k in shapes), self.options.threads)
        systems: list[System] = []
        for family, own in ideas.items():
            for name, made in list_systems(family, problem, own):
                if isinstance(made, str):
                    place: dict[str, Any] = {"corpus": problem.name, "system": name, "phase": "", "batch": 0, "k": 0}
                    self.keep([{**place, "error": made}])
                    self.say(f"{name}: {made}")
                else:
                    systems.append(made)
        terms = len(problem.terms) / max(1, problem.queries)
        for batch, k in shapes:
            if self.spent:
                self.say(f"{self.part}: {problem.name}, batch {batch}, k {k} left out")
                continue
            self.say(f"{self.part}: {problem.name}, batch {batch}, k {k}")
            cell = gpu_run.cell_of(problem, batch, k, expected, self.sizes.variants)
            items = gpu_run.measure(cell, systems, self.options.reps, self.options.budget)
            of = {system.name: system for system in systems}
            for row in gpu_run.rows_of(cell, items, self.command.common["ceiling"]):
                options = of[row["system"]].options  # type: ignore[attr-defined]
                self.keep([{**row, "options": options, "terms_per_query": round(terms, 2)}])
            for system in systems:
                system.forget()  # type: ignore[attr-defined]
            gpu_run.free_memory()

    def every(self, ideas: Sequence[dict[str, Any]] = GROWTH) -> dict[str, Sequence[dict[str, Any]]]:
        """The ideas for the CUDA kernels, and Triton's as they are."""
        return {family: ({},) if family == "triton" else ideas for family in self.families}

    # The parts

    def ideas(self) -> None:
        for name in self.sizes.ideas:
            if self.spent:
                self.say(f"{self.part}: {name} left out")
                continue
            problem = gpu_corpora.problem(name, self.options.smoke)
            batch = min(self.sizes.batch, problem.queries)
            problem = gpu_corpora.first_queries(problem, batch * self.sizes.variants)
            own = {family: TRITON_IDEAS if family == "triton" else CUDA_IDEAS for family in self.families}
            self.cells(problem, [(batch, self.sizes.k)], own)

    def batch(self) -> None:
        whole = self.grown()
        for size in self.sizes.batches:
            if not self.spent:
                queries = size * (self.sizes.variants if size <= 1_000 else 1)
                self.cells(
                    gpu_corpora.with_queries(whole, queries, self.sizes.terms), [(size, self.sizes.k)], self.every()
                )

    def corpus(self) -> None:
        for postings in self.sizes.postings:
            if not self.spent:
                whole = gpu_corpora.load_shaped(gpu_corpora.zipf(postings))
                asked = gpu_corpora.with_queries(whole, self.sizes.batch * self.sizes.variants, self.sizes.terms)
                self.cells(asked, [(self.sizes.batch, self.sizes.k)], self.every())

    def k(self) -> None:
        asked = gpu_corpora.with_queries(self.grown(), self.sizes.batch * self.sizes.variants, self.sizes.terms)
        self.cells(asked, [(self.sizes.batch, k) for k in self.sizes.ks], self.every())

    def length(self) -> None:
        whole = self.grown()
        for length in self.sizes.lengths:
            if not self.spent:
                asked = gpu_corpora.with_queries(whole, self.sizes.batch, length)
                self.cells(asked, [(self.sizes.batch, self.sizes.k)], self.every())

    def grown(self) -> Problem:
        return gpu_corpora.load_shaped(gpu_corpora.zipf(self.sizes.grown))

    def pipeline(self) -> None:
        problem = gpu_corpora.problem(self.sizes.streamed, self.options.smoke)
        self.cells(problem, [(size, self.sizes.k) for size in self.sizes.stream_batches], self.every(({},)))
        expected = gpu_systems.reference(problem, self.sizes.k, self.options.threads)
        self.say("pipeline: the engine")
        engine = engine_of(problem)
        cpu = [name for name in ("native",) if _is_usable(name)]
        for name in (*self.families, *cpu):
            engine.backend = backend.choose(name)
            for size in self.sizes.stream_batches:
                if not self.spent:
                    self.say(f"pipeline: {name}, batch {size}")
                    self.keep(self.streams(problem, engine, size, expected))

    def streams(self, problem: Problem, engine: fr.Engine, size: int, expected: HitArrays) -> list[Row]:
        """The loop and the stream over all of the problem's whole batches, in turns."""
        batches = text_batches(problem, size)
        served = engine.backend.name
        ways: dict[str, Callable[[], list[fr.Hits]]] = {
            "loop": lambda: [engine.search(batch, self.sizes.k) for batch in batches],
            "stream": lambda: list(engine.search_stream(batches, self.sizes.k)),
        }
        same = {way: agreement(answer(), expected, size, self.sizes.k) for way, answer in ways.items()}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(self.options.reps):
            for way, answer in ways.items():
                start = time.perf_counter()
                answer()
                seconds[way].append(time.perf_counter() - start)
        on_device = served not in backend.CPU
        device = device_name(torch.device("cuda" if self.command.gpu else "cpu")) if on_device else "cpu"
        made = []
        for way, own in seconds.items():
            each = [1e3 * second / len(batches) for second in own]
            middle = statistics.median(each)
            made.append(
                {
                    **{"corpus": problem.name, "system": f"fanrank-{served}", "phase": way, "batch": size},
                    **{"k": self.sizes.k, "device": device, "queries": size, "variants": len(batches), "error": None},
                    **{"ms": middle, "ms_min": min(each), "ms_max": max(each), "reps": len(each), "threads": 1},
                    "queries_per_s": round(1e3 * size / middle, 1),
                    "postings_per_query": round(problem.touched(0, problem.queries) / problem.queries, 1),
                    **{"postings_per_s": 0.0, "documents": problem.snapshot.size, "postings": problem.postings},
                    "identical": same[way],
                }
            )
        return made


def engine_of(problem: Problem) -> fr.Engine:
    """An engine over the problem's documents, as bags of words ``w<term>`` in the order of their numbers."""
    engine = fr.Engine(analyzer="minimal", method="lucene", k1=K1, b=B, keep_texts=False, backend="numpy")
    for first, segment in zip(problem.snapshot.firsts, problem.snapshot.segments, strict=True):
        terms = np.repeat(segment.terms, np.diff(segment.offsets))
        order = np.argsort(segment.documents, kind="stable")
        repeated = np.repeat(terms[order], segment.frequencies()[0][order])
        ends = np.cumsum(segment.lengths[0]).tolist()
        words = [f"w{term}" for term in repeated.tolist()]
        begins = [0, *ends[:-1]]
        engine.add(
            fr.Record(str(first + number), " ".join(words[begin:end]))
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
        )
    engine.flush()
    return engine


def text_batches(problem: Problem, size: int) -> list[list[str]]:
    """The problem's queries in whole batches of texts, as `engine_of` writes terms."""
    texts = [" ".join(f"w{term}" for term in problem.query(query)) for query in range(problem.queries)]
    return [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]


def agreement(found: Sequence[fr.Hits], expected: HitArrays, size: int, k: int) -> float:
    """The share of queries whose scores and documents are the expected ones."""
    same = []
    for number, hits in enumerate(found):
        own = slice(number * size, (number + 1) * size)
        scores, documents, counts = (part[own] for part in expected)
        wanted = np.where(documents[:, :k] < 0, -np.inf, scores[:, :k] / fr.engine.index.bm25.SCALE)
        equal = (hits.scores == wanted).all(axis=1) & (hits.documents == documents[:, :k]).all(axis=1)
        same.append(equal & (hits.counts == np.minimum(counts, k)))
    return float(np.concatenate(same).mean())


def _is_usable(name: str) -> bool:
    return any(status.name == name and status.usable for status in backend.statuses())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if every answer was numpy's and nothing failed, else 1."""
    command = GpuCommand("ablation", "What each idea of the kernels is worth, and how time grows.", "gpu_ablation")
    command.add("--parts", type=among(PARTS), default=PARTS)
    command.add("--families", type=names, help="cuda,triton,cuda-host; default: those of the GPU")
    command.add("--threads", type=int, default=gpu_systems.default_threads(), help="of numpy's answers")
    command.add_limits(7, 0.1, 9.0)
    options = command.parse(arguments)
    command.common["bench"] = "gpu-ablation"
    command.measure_ceilings()
    run = AblationRun(command)
    for part in options.parts:
        run.part = part
        if run.spent:
            run.say(f"{part} left out")
        else:
            getattr(run, part)()
    return command.end()


if __name__ == "__main__":
    raise SystemExit(main())
