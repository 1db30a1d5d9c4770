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
settings  block sizes, one changed at a time; only if it is named
========  ============================================================================================================

All parts but ``pipeline`` time the kernels as a CUDA graph (``kernel``) and launched one by one (``eager``). Every
answer is compared with numpy's, bit for bit, before a clock starts. Every row has the ceilings measured in the run.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

Options = dict[str, Any]
USUAL: tuple[Options, ...] = ({},)
CUDA_IDEAS: tuple[Options, ...] = ({}, {"posting_bytes": 4}, {"tables": False}, {"wide": True})
CUDA_SETTINGS: tuple[Options, ...] = ({}, *({"tile_bits": bits} for bits in (11, 12, 13, 15)))
TRITON_SETTINGS: tuple[Options, ...] = (
    *USUAL,
    *({name: value} for name, values in {
        "narrow_tile_bits": (9, 10, 12, 13), "score.warps": (2, 4, 8, 16), "score.slots": (2, 4, 8),
        "score.postings": (64, 128, 256, 512), "score.programs": (1, 2, 3, 4), "plan.postings": (128, 256, 512),
        "plan.ways": (32, 128, 256), "order.tiles": (32, 64, 128), "order.slots": (4, 8, 16),
        "order.warps": (2, 4, 8), "select.block": (512, 1024, 2048), "select.warps": (4, 8, 16),
        "select.stripe": (2048, 4096, 8192),
    }.items() for value in values),
)  # fmt: skip
HELD = ("posting_bytes", "tables", "wide")
"""Options that are not those of verbs."""


@dataclass(frozen=True)
class Sizes:
    """How large a run is."""

    ideas: tuple[str, ...] = ("sgd", "fiqa-shaped", "nq-shaped")
    postings: tuple[int, ...] = tuple(10**n for n in range(4, 9))
    grown: int = 10**7  # postings of the corpus that batch, k and length are measured on
    batch: int = 256
    batches: tuple[int, ...] = (1, 4, 20, 100, 500, 2_000, 10_000)
    ks: tuple[int, ...] = (10, 30, 100, 300, 1_000)
    lengths: tuple[int, ...] = (2, 5, 10, 20, 50, 100, 200, 500)
    terms: int = 5
    k: int = 100
    streamed: str = "sgd"
    stream_batches: tuple[int, ...] = (20, 250)
    variants: int = 4


SMOKE = Sizes(
    ("fiqa-shaped",), (400, 2_000), 2_000, 3, (1, 4), (3, 20), (2, 9), 3, 5, "fiqa-shaped", (2, 3), variants=1
)


class Ablated(DeviceSystem):
    """The kernels with other `options` than usual. The phases of tensors and texts are left out."""

    def phases(self, batch: int, k: int) -> Sequence[str]:
        return ("kernel", *STOPS, *(("eager",) if self.torch_device.type == "cuda" else ()))

    def chunk(self, part: Chunk) -> Chunk:
        return replace(part, wide=True) if self.options.get("wide") else part


def list_systems(family: str, problem: Problem, ideas: Sequence[Options]) -> Iterator[tuple[str, System | str]]:
    """(name, system) for each of the ideas; the reason in place of a system that cannot be measured."""
    plain = device_search(family)
    shared: dict[tuple[int, bool], DeviceSearch] = {}
    for options in ideas:
        name = " ".join([f"fanrank-{family}", *(f"{key}={value}" for key, value in options.items())])
        # Variants with the same bytes a posting and the same tables share one upload of the segments.
        key = options.get("posting_bytes", 8), options.get("tables", True)
        over = shared.get(key)
        # Without tables every list is short. Which lists are is decided at the upload.
        least = TABLED_POSTINGS if key[1] else MAX_SEGMENT_DOCUMENTS + 1
        try:
            search = DeviceSearch(
                verbs_of(plain, {key: value for key, value in options.items() if key not in HELD}),
                plain.residency.device,
                posting_bytes=key[0],
                residency=None if over is None else over.residency,
            )
            shared.setdefault(key, search)
            with patch.object(resident, "TABLED_POSTINGS", least):
                made = Ablated(family, problem, search, options)
            yield name, made
        except Exception as error:
            yield name, reason_of(error)


def verbs_of(plain: DeviceSearch, options: Options) -> Any:
    """The family's verbs with some options changed; a dot leads into the settings of one of Triton's kernels."""
    if plain.verbs.name != "triton":
        from fanrank.kernels.cuda.verbs import CudaVerbs

        return CudaVerbs(plain.verbs._launcher, name=plain.verbs.name, **options)  # type: ignore[attr-defined]
    from fanrank.kernels.triton.verbs import TritonVerbs, tuning

    found = tuning(plain.residency.device)
    for name, value in options.items():
        kernel, _, setting = name.partition(".")
        changed: Any = replace(getattr(found, kernel), **{setting: value}) if setting else value
        found = replace(found, **{kernel: changed})
    return TritonVerbs(plain.residency.device, found)


class AblationRun:
    """One run over a command: its parts are methods."""

    def __init__(self, command: GpuCommand) -> None:
        self.command, self.options = command, command.options
        self.sizes = SMOKE if self.options.smoke else Sizes()
        self.part = ""
        self.usable = {status.name: status.usable for status in backend.statuses()}
        own = ("cuda", "triton") if command.gpu else ("cuda-host", "triton")
        self.families = [family for family in self.options.families or own if self.usable.get(family)]

    def goes_on(self, what: str) -> bool:
        """Whether there is time left. Says what is measured, or left out."""
        self.command.say(f"{self.part}: {what}{' left out' * self.command.spent}")
        return not self.command.spent

    def keep(self, new: Sequence[Row]) -> None:
        self.command.keep({**row, "part": self.part} for row in new)

    def cells(
        self, problem: Problem, shapes: Sequence[tuple[int, int]], cuda: Sequence[Options], triton: Sequence[Options]
    ) -> None:
        """Measure every idea of every family on batches of (size, k) of the problem's queries."""
        if not self.goes_on(f"{problem.name}, {problem.postings:,} postings; numpy's answers"):
            return
        expected = gpu_systems.reference(problem, max(k for _, k in shapes), self.options.threads)
        systems: list[System] = []
        for family in self.families:
            for name, made in list_systems(family, problem, triton if family == "triton" else cuda):
                if isinstance(made, str):
                    self.command.say(f"{name}: {made}")
                    place = {"corpus": problem.name, "system": name, "phase": "", "batch": 0, "k": 0}
                    self.keep([{**place, "error": made}])
                else:
                    systems.append(made)
        for batch, k in shapes:
            if not self.goes_on(f"{problem.name}, batch {batch}, k {k}"):
                continue
            cell = gpu_run.cell_of(problem, batch, k, expected, self.sizes.variants)
            items = gpu_run.measure(cell, systems, self.options.reps, self.options.budget)
            of: Mapping[str, Any] = {system.name: system for system in systems}
            terms = round(len(problem.terms) / max(1, problem.queries), 2)
            for row in gpu_run.rows_of(cell, items, self.command.common["ceiling"]):
                self.keep([{**row, "options": of[row["system"]].options, "terms_per_query": terms}])
            for system in of.values():
                system.forget()
            gpu_run.free_memory()

    def asked(self, whole: Problem, shapes: Sequence[tuple[int, int]], queries: int, terms: int = 0) -> None:
        """Measure the usual kernels, and those of 4 bytes a posting, on so many queries of a grown corpus."""
        problem = gpu_corpora.with_queries(whole, queries, terms or self.sizes.terms)
        self.cells(problem, shapes, ({}, {"posting_bytes": 4}), USUAL)

    def ideas(self) -> None:
        self._on_corpora(CUDA_IDEAS, USUAL)

    def settings(self) -> None:
        self._on_corpora(CUDA_SETTINGS, TRITON_SETTINGS)

    def _on_corpora(self, cuda: Sequence[Options], triton: Sequence[Options]) -> None:
        for name in self.sizes.ideas:
            if self.goes_on(name):
                problem = gpu_corpora.problem(name, self.options.smoke)
                batch = min(self.sizes.batch, problem.queries)
                few = gpu_corpora.first_queries(problem, batch * self.sizes.variants)
                self.cells(few, [(batch, self.sizes.k)], cuda, triton)

    def batch(self) -> None:
        for size in self.sizes.batches:
            queries = size * (self.sizes.variants if size <= 1_000 else 1)
            self.asked(self.grown(), [(size, self.sizes.k)], queries)

    def corpus(self) -> None:
        for postings in self.sizes.postings:
            if self.goes_on(f"{postings:,} postings"):
                own = gpu_corpora.load_shaped(gpu_corpora.zipf(postings))
                self.asked(own, [(self.sizes.batch, self.sizes.k)], self.sizes.batch * self.sizes.variants)

    def k(self) -> None:
        shapes = [(self.sizes.batch, k) for k in self.sizes.ks]
        self.asked(self.grown(), shapes, self.sizes.batch * self.sizes.variants)

    def length(self) -> None:
        for length in self.sizes.lengths:
            self.asked(self.grown(), [(self.sizes.batch, self.sizes.k)], self.sizes.batch, length)

    def grown(self) -> Problem:
        return gpu_corpora.load_shaped(gpu_corpora.zipf(self.sizes.grown))

    def pipeline(self) -> None:
        problem = gpu_corpora.problem(self.sizes.streamed, self.options.smoke)
        self.cells(problem, [(size, self.sizes.k) for size in self.sizes.stream_batches], USUAL, USUAL)
        expected = gpu_systems.reference(problem, self.sizes.k, self.options.threads)
        engine = engine_of(problem)
        for name in (*self.families, *(name for name in ("native",) if self.usable.get(name))):
            engine.backend = backend.choose(name)
            for size in self.sizes.stream_batches:
                if self.goes_on(f"{name}, batch {size}"):
                    self.keep(self.streams(problem, engine, size, expected))

    def streams(self, problem: Problem, engine: fr.Engine, size: int, expected: HitArrays) -> list[Row]:
        """The loop and the stream over all of the problem's whole batches, in turns."""
        texts = [" ".join(f"w{term}" for term in problem.query(query)) for query in range(problem.queries)]
        batches = [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]
        k, served = self.sizes.k, engine.backend.name
        ways: dict[str, Callable[[], list[fr.Hits]]] = {
            "loop": lambda: [engine.search(batch, k) for batch in batches],
            "stream": lambda: list(engine.search_stream(batches, k)),
        }
        same = {way: agreement(answer(), expected, size, k) for way, answer in ways.items()}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(self.options.reps):
            for way, answer in ways.items():
                start = time.perf_counter()
                answer()
                seconds[way].append(time.perf_counter() - start)
        on_gpu = self.command.gpu and served not in backend.CPU
        made = []
        for way, own in seconds.items():
            each = [1e3 * second / len(batches) for second in own]
            middle = statistics.median(each)
            row: Row = {"corpus": problem.name, "system": f"fanrank-{served}", "phase": way, "batch": size, "k": k}
            row |= {"device": device_name(torch.device("cuda")) if on_gpu else "cpu", "queries": size, "error": None}
            row |= {"variants": len(batches), "ms": middle, "ms_min": min(each), "ms_max": max(each)}
            row |= {"reps": len(each), "threads": 1, "queries_per_s": round(1e3 * size / middle, 1)}
            row |= {"postings_per_query": round(problem.touched(0, problem.queries) / problem.queries, 1)}
            row |= {"postings_per_s": 0.0, "documents": problem.snapshot.size, "postings": problem.postings}
            made.append({**row, "identical": same[way]})
        return made


def engine_of(problem: Problem) -> fr.Engine:
    """An engine over the problem's documents, as bags of words ``w<term>`` in the order of their numbers."""
    engine = fr.Engine(analyzer="minimal", method="lucene", k1=K1, b=B, keep_texts=False, backend="numpy")
    for first, segment in zip(problem.snapshot.firsts, problem.snapshot.segments, strict=True):
        terms = np.repeat(segment.terms, np.diff(segment.offsets))
        order = np.argsort(segment.documents, kind="stable")
        words = [f"w{term}" for term in np.repeat(terms[order], segment.frequencies()[0][order]).tolist()]
        ends = np.cumsum(segment.lengths[0]).tolist()
        engine.add(
            fr.Record(str(first + number), " ".join(words[begin:end]))
            for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        )
    engine.flush()
    return engine


def agreement(found: Sequence[fr.Hits], expected: HitArrays, size: int, k: int) -> float:
    """The share of queries whose scores and documents are the expected ones."""
    same = []
    for number, hits in enumerate(found):
        scores, documents, counts = (part[number * size : (number + 1) * size] for part in expected)
        wanted = np.where(documents[:, :k] < 0, -np.inf, scores[:, :k] / fr.engine.index.bm25.SCALE)
        equal = (hits.scores == wanted).all(axis=1) & (hits.documents == documents[:, :k]).all(axis=1)
        same.append(equal & (hits.counts == np.minimum(counts, k)))
    return float(np.concatenate(same).mean())


PARTS = ("ideas", "batch", "corpus", "k", "length", "pipeline", "settings")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if every answer was numpy's and nothing failed, else 1."""
    command = GpuCommand("ablation", "What each idea of the kernels is worth, and how time grows.", "gpu_ablation")
    command.add("--parts", type=among(PARTS), default=PARTS[:-1])
    command.add("--families", type=names, help="cuda,triton,cuda-host; default: those of the GPU")
    command.add("--threads", type=int, default=gpu_systems.default_threads(), help="of numpy's answers")
    command.add_limits(7, 0.1, 9.0)
    options = command.parse(arguments)
    command.common["bench"] = "gpu-ablation"
    command.measure_ceilings()
    run = AblationRun(command)
    for run.part in options.parts:
        getattr(run, run.part)()
    return command.end()


if __name__ == "__main__":
    raise SystemExit(main())
