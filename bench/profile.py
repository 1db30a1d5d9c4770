"""Where the time of a search goes, texts in and ids out: ``python -m bench.profile``.

It takes a fan-out of 20 and batches of 500 and 5,000 distinct texts, with one thread, on every CPU backend. The
repetition of median time (of `REPS` or more) is shown phase by phase (`fanrank.engine.timing.Phases`; ``convert``
includes the ids). So the phases of a row add up to a real call; ``other`` is the time outside all phases. The head line
ends with two limits of one core, measured in the same run: the posting data over the bandwidth of a copy, and the
postings over the rate of scattered additions. It also says how far the whole call is above the larger limit.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.index.columns import Ids, Strings
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

from .gpu import corpora as gpu_corpora
from .harness.cases import CORPORA, K1, B
from .harness.corpora import load, prepare
from .harness.counting import count_work
from .harness.machine import ceiling
from .harness.methods import stamp_rows
from .harness.options import names, numbers, progress
from .harness.paths import RESULTS
from .harness.rows import append

CASES = ("scifact", "sgd", "nq-shaped")
BATCHES = (20, 500, 5_000)
SYSTEMS = {"fanrank-native": "native", "fanrank-numpy": "numpy"}
REPS = 5
SECONDS = 0.5
"""Seconds; short calls are repeated for about this long."""
OTHER = "other"


@dataclass(frozen=True)
class ProfileRow:
    """One phase of one call; `share` is of the whole call, counts are of the call's queries on average.

    `bytes_per_query` is the posting data that was read. Where the backend does not count it, it is the postings times
    the bytes of one.
    """

    bench: str
    case: str
    batch: int
    k: int
    threads: int
    system: str
    phase: str
    us_per_query: float
    share: float
    postings_per_query: float
    bytes_per_query: float
    run: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""
    ceiling: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Case:
    """An index, and the texts that its queries are made of."""

    engine: fr.Engine
    texts: Sequence[str]

    @property
    def segments(self) -> Sequence[Any]:
        return self.engine.index.memory.snapshot("").segments


def case_of(name: str) -> Case:
    """The corpus of this name: from its prepared tokens, or a shaped one from `bench.gpu.corpora`."""
    engine = fr.Engine(analyzer="minimal", method="lucene", k1=K1, b=B, keep_texts=False, backend="numpy")
    if name in CORPORA:
        tokens = load(prepare(CORPORA[name]))
        engine.add(fr.Record(id=str(n), text=" ".join(terms)) for n, terms in enumerate(tokens.document_terms()))
        engine.flush()  # or due merges run beside the first calls
        return Case(engine, tokens.query_texts)
    problem = gpu_corpora.problem(name)
    words = [f"w{number}" for number in range(len(problem.document_frequencies))]
    memory = engine.index.memory
    memory.state = replace(memory.state, indexer=TermIndexer(memory.analyzer, Vocabulary(words)))
    memory.snapshots = {"": _add_ids(problem.snapshot)}
    return Case(engine, [" ".join(words[term] for term in problem.query(n)) for n in range(problem.queries)])


def _add_ids(snapshot: Snapshot) -> Snapshot:
    """The snapshot of a shaped corpus. Record ids are document numbers; records cannot be looked up by id."""
    segments = []
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        strings = Strings.of(str(first + number) for number in range(segment.size))
        ids = Ids(strings, np.zeros(segment.size, np.uint64), np.arange(segment.size, dtype=np.int32))
        segments.append(replace(segment, ids=ids))
    return Snapshot((), snapshot.bm25).extended(segments)


def make_distinct(texts: Sequence[str], count: int, seed: int = 1) -> list[str]:
    """`count` different texts: the given ones, then their words in other orders. Equal queries would be answered once.

    Raises `ValueError` if their words have too few orders.
    """
    shuffler = random.Random(seed)
    found = dict.fromkeys(texts[:count])
    misses = 0
    while len(found) < count:
        words = texts[shuffler.randrange(len(texts))].split()
        shuffler.shuffle(words)
        before = len(found)
        found.setdefault(" ".join(words))
        misses = 0 if len(found) > before else misses + 1
        if misses > 10_000:
            raise ValueError(f"the words of {len(texts)} texts have fewer than {count} orders")
    return list(found)


@dataclass(frozen=True)
class Call:
    """One call: seconds of the whole, and microseconds of each phase."""

    seconds: float
    phases: dict[str, float]


def time_call(engine: fr.Engine, texts: Sequence[str], k: int, threads: int) -> Call:
    """Time one call, from texts to ids."""
    start = time.perf_counter()
    hits = engine.search(texts, k, threads=threads, timing=True)
    searched = time.perf_counter()
    _ = hits.ids
    end = time.perf_counter()
    assert hits.timing is not None
    phases = {name: spent * 1e3 for name, spent in hits.timing.items()}
    phases["convert"] = phases.get("convert", 0.0) + (end - searched) * 1e6
    phases[OTHER] = (end - start) * 1e6 - sum(phases.values())
    return Call(end - start, phases)


def measure(case: Case, name: str, batch: int, k: int, threads: int, system: str, common: dict[str, Any]) -> list[Any]:
    """The rows of one call."""
    engine = case.engine
    engine.backend = backends.choose(SYSTEMS[system])
    texts = make_distinct(case.texts, batch)
    time_call(engine, texts, k, threads)
    with count_work() as counts:
        first = time_call(engine, texts, k, threads)
    gc.collect()
    reps = max(REPS, min(200, int(SECONDS / first.seconds)))
    calls = sorted((time_call(engine, texts, k, threads) for _ in range(reps)), key=lambda call: call.seconds)
    median = calls[len(calls) // 2]
    read = counts["bytes"] or counts["postings"] * _posting_bytes(case, SYSTEMS[system])
    return [
        ProfileRow(
            case=name,
            batch=batch,
            k=k,
            threads=threads,
            system=system,
            phase=phase,
            us_per_query=float(f"{spent / batch:.4g}"),
            share=round(spent / (median.seconds * 1e6), 4),
            postings_per_query=round(counts["postings"] / batch, 1),
            bytes_per_query=round(read / batch, 1),
            **common,
        )
        for phase, spent in median.phases.items()
    ]


def _posting_bytes(case: Case, backend: str) -> float:
    """The mean bytes of a posting: a document number, and a derived contribution of 4 bytes (numpy) or an impact class
    (native)."""
    sizes = [s.documents.itemsize + (4 if backend == "numpy" else s.impact_classes.itemsize) for s in case.segments]
    return float(np.average(sizes, weights=[max(s.postings, 1) for s in case.segments]))


def limits(row: ProfileRow) -> dict[str, float]:
    """The least microseconds a query of one core, for the copied bytes and for the additions."""
    return {
        "copy": row.bytes_per_query / (row.ceiling["copy_gb_per_s"] * 1e3),
        "scattered additions": row.postings_per_query / row.ceiling["scatter_add_m_per_s"],
    }


def render(rows: Sequence[ProfileRow]) -> str:
    """The rows of one call as text, with its limits in the first line."""
    head = rows[0]
    whole = sum(row.us_per_query for row in rows)
    lower = limits(head)
    name, bound = max(lower.items(), key=lambda item: item[1])
    both = ", ".join(f"{limit} {us:.2f} us" for limit, us in lower.items())
    lines = [
        f"{head.case}, {head.batch:,} queries, k {head.k}, {head.system}: {whole:.2f} us a query, "
        f"{head.postings_per_query:,.0f} postings; limits: {both}; {whole / bound if bound else 0:.1f} times {name}"
    ]
    lines += [f"    {row.phase:18} {row.us_per_query:9.2f} us {row.share:7.1%}" for row in rows]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description="Where the time of a search goes.")
    parser.add_argument("--cases", type=names, default=CASES, help=f"of {','.join({**CORPORA, **gpu_corpora.SHAPES})}")
    parser.add_argument("--batches", type=numbers, default=BATCHES)
    parser.add_argument("--k", type=numbers, default=(10,), help="10, or 10,100")
    parser.add_argument("--systems", type=names, default=tuple(SYSTEMS), help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", action="store_true", help="add the rows to bench/results/profile.jsonl")
    parser.add_argument("--json", type=Path, help="add the rows to this file")
    options = parser.parse_args(arguments)
    for given, known in ((options.cases, {*CORPORA, *gpu_corpora.SHAPES}), (options.systems, SYSTEMS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    say = progress()
    common = {**stamp_rows("profile"), "ceiling": ceiling()}
    print(json.dumps(common["ceiling"]))
    for name in options.cases:
        say(f"{name} is built")
        try:
            case = case_of(name)
        except OSError as error:
            print(f"{name}: left out, it cannot be read: {error}", file=sys.stderr)
            continue
        for system in options.systems:
            for batch in options.batches:
                for k in options.k:
                    say(f"{name}: {system}, {batch} queries, k {k}")
                    rows = measure(case, name, batch, k, options.threads, system, common)
                    say("")
                    print(render(rows), flush=True)
                    for path in filter(None, (options.json, RESULTS / "profile.jsonl" if options.results else None)):
                        append(path, rows)
        case.engine.close()


if __name__ == "__main__":
    main()
