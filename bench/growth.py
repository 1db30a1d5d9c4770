"""What a query costs while the memory grows a thousandfold: ``python -m bench.growth`` (SPEC A030 to A038, Table 2).

Two families of corpora: ``steady`` grows in time, 430 records a week, so that four windows hold the same number of
records at every size (one engine, grown from size to size); ``two-years`` lies within two years whatever its size, so
that age must be weighed record by record (one engine a size). Every method answers the same fan-outs of 20 questions
(`SyntheticMemory.questions`), in turn, fan-out by fan-out. The clock begins with texts and ends with ids. Before it
starts, every answer that must have the same bits is compared, so every posting list of the questions is warm.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # python bench/growth.py
    from runpy import run_module

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    run_module("bench.growth", run_name="__main__")
    sys.exit()

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr
from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate.synthetic import TWO_YEARS, WEEK, SyntheticMemory, SyntheticQuestion

from .harness.methods import (
    FAN_OUT,
    Backends,
    K,
    Method,
    answer,
    are_equal,
    count_found,
    import_analyzer,
    list_methods,
    newest_windows,
    peak_rss_gib,
    quartiles_of,
    round_digits,
    stamp_rows,
)
from .harness.options import names, numbers, progress
from .harness.paths import CACHE, RESULTS
from .harness.rows import append

SIZES = (4_052, 40_081, 239_799, 999_978, 1_998_918, 3_997_578, 4_998_640)
"""The sizes of AgentIR's Table 2 (A037)."""
QUICK = SIZES[:3]
CORPORA = ("steady", "two-years")
TWO_YEAR_METHODS = ("vectorised", "temporal", "decay", "decay-exhaustive")
"""The CPU's methods on the ``two-years`` corpora. The other methods do the same there as on the ``steady`` ones."""
CHUNK = 50_000
"""Records made at a time, outside the clock of the build."""
FAN_OUTS = 200
FEWEST = 5
VERIFIED = 10
"""The fan-outs that are compared bit for bit and whose postings are counted."""
MOST_WINDOWS = 16
"""The most windows that "auto" is checked for."""


@dataclass(frozen=True)
class GrowthRow:
    """One method at one size; with `error`, a method that could not answer there.

    Times are microseconds: ``p50_us``, ``p99_us`` and the quartiles are those of a query (a fan-out's time over its 20,
    or the single call's), ``fanout_*`` those of a fan-out. `latency_ratio` is the median over the same method's at the
    smallest size of the corpus and run. `searched_share` is the scored postings over all postings of the queries'
    lists. `hit_rate` is the share of questions whose source record is among the 10 hits. `verified`: the answers were
    bit for bit those of the method's reference, None for a reference. `build_records_per_s` and `peak_rss_gib` (of the
    process, so far) are the engine's.
    """

    bench: str
    run: str
    corpus: str
    records: int
    method: str
    backend: str = ""
    batch: int = FAN_OUT
    k: int = K
    threads: int = 1
    fan_outs: int = 0
    latency_ratio: float | None = None
    p50_us: float | None = None
    q1_us: float | None = None
    q3_us: float | None = None
    p99_us: float | None = None
    fanout_p50_us: float | None = None
    fanout_p99_us: float | None = None
    searched_share: float | None = None
    hit_rate: float | None = None
    verified: bool | None = None
    windows: int | None = None
    segments: int | None = None
    build_records_per_s: float | None = None
    peak_rss_gib: float | None = None
    note: str = ""
    error: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


@dataclass
class Measured:
    """One method at one size, during the run."""

    method: Method
    backend: str = ""
    single_us: list[float] = field(default_factory=list)
    fanout_us: list[float] = field(default_factory=list)
    hits: int = 0
    postings: int = 0
    verified: bool | None = None
    windows: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Effort:
    """How much is measured: fan-outs a method, and the seconds after which a slow method may stop."""

    fan_outs: int = FAN_OUTS
    budget: float = 20.0
    threads: int = 1


class Case:
    """One engine at one size, searched by every method."""

    def __init__(self, engine: fr.Engine, memory: SyntheticMemory, chosen: Sequence[Method], effort: Effort) -> None:
        self.engine, self.memory, self.effort = engine, memory, effort
        questions = memory.questions(effort.fan_outs * FAN_OUT)
        self.fan_outs = [questions[start : start + FAN_OUT] for start in range(0, len(questions), FAN_OUT)]
        self.items = [Measured(method) for method in chosen]
        self.exhaustive_postings = 0
        self._backends = Backends()
        self._exhaustive = Method("exhaustive", "exhaustive")

    def _ask(self, method: Method, queries: Sequence[fr.Query], timing: bool = False) -> list[fr.Hits]:
        self._backends.serve(self.engine, method)
        return answer(
            self.engine, method, queries, threads=self.effort.threads if method.batch > 1 else 1, timing=timing
        )

    def warm(self) -> None:
        """Derive the arrays that the questions touch, compare the answers that must be the same, and count postings."""
        for questions in self.fan_outs:
            self._ask(self._exhaustive, self._exhaustive.queries(questions))
        few = [question for questions in self.fan_outs[:VERIFIED] for question in questions]
        self.exhaustive_postings = _postings(self._ask(self._exhaustive, self._exhaustive.queries(few), timing=True))
        for item in self.items:
            self._check(item, few)

    def _check(self, item: Measured, questions: Sequence[SyntheticQuestion]) -> None:
        try:
            item.backend = self._backends.serve(self.engine, item.method)
            answers = self._ask(item.method, item.method.queries(questions), timing=True)
            item.postings = _postings(answers)
            self._verify(item, questions, answers)
        except FanrankError as error:
            item.error = f"{type(error).__name__}: {error}"

    def _verify(self, item: Measured, questions: Sequence[SyntheticQuestion], answers: Sequence[fr.Hits]) -> None:
        if item.method.exact:
            reference = replace(self._exhaustive, half_life=item.method.half_life)
            item.verified = are_equal(answers, self._ask(reference, reference.queries(questions)))
        elif item.method.windows is not None:
            # Call by call, because "auto" may choose another number of windows after each call.
            calls = [
                questions[start : start + item.method.batch] for start in range(0, len(questions), item.method.batch)
            ]
            counts = [self._windows(item.method, call, hits) for call, hits in zip(calls, answers, strict=True)]
            item.verified = None not in counts
            item.windows = max((count for count in counts if count is not None), default=None)

    def _windows(self, method: Method, questions: Sequence[SyntheticQuestion], hits: fr.Hits) -> int | None:
        """The number of newest windows whose exhaustive answer these hits are; None if there is none."""
        counts = range(1, MOST_WINDOWS + 1) if method.windows == "auto" else (int(method.windows or 0),)
        for count in counts:
            since = newest_windows(self._late_times, count)
            queries = [fr.Query(question.text, now=question.now, since=since) for question in questions]
            if are_equal([hits], self._ask(self._exhaustive, queries)):
                return count
        return None

    @cached_property
    def _late_times(self) -> npt.NDArray[np.float64]:
        """The times of the records in the newest windows, at least `MOST_WINDOWS` of them."""
        reach = int(max(2 * MOST_WINDOWS * WEEK / self.memory.interval, 2 * MOST_WINDOWS))
        return self.memory.times(max(0, self.memory.records - reach))

    def time(self) -> None:
        """Time every fan-out with every method, in turn. A slow method stops when its budget is spent."""
        for number, questions in enumerate(self.fan_outs):
            first = number % max(1, len(self.items))
            for item in self.items[first:] + self.items[:first]:
                slow = len(item.fanout_us) >= FEWEST and sum(item.fanout_us) > 1e6 * self.effort.budget
                if item.error is None and not slow:
                    self._time_one(item, questions)

    def _time_one(self, item: Measured, questions: Sequence[SyntheticQuestion]) -> None:
        queries = item.method.queries(questions)
        self._backends.serve(self.engine, item.method)
        threads = self.effort.threads if item.method.batch > 1 else 1
        answers, spent = [], 0.0
        try:
            for start in range(0, len(queries), item.method.batch):
                call = queries[start : start + item.method.batch]
                begin = time.perf_counter()
                hits = self.engine.search(call, K, threads=threads, execution=item.method.execution)
                _ = hits.ids
                seconds = time.perf_counter() - begin
                item.single_us.append(1e6 * seconds / len(call))
                spent += seconds
                answers.append(hits)
        except FanrankError as error:
            item.error = f"{type(error).__name__}: {error}"
            return
        item.fanout_us.append(1e6 * spent)
        item.hits += count_found(answers, questions)

    def row(self, item: Measured, corpus: str, built: float, common: dict[str, Any]) -> GrowthRow:
        """The row of a finished measurement."""
        identity = {"corpus": corpus, "records": self.memory.records, "method": item.method.name}
        if item.error is not None or not item.fanout_us:
            return GrowthRow(**identity, error=item.error or "no fan-out was asked", **common)
        q1, p50, q3, p99 = quartiles_of(item.single_us)
        _, fanout_p50, _, fanout_p99 = quartiles_of(item.fanout_us)
        question_count = FAN_OUT * len(item.fanout_us)
        cut = len(item.fanout_us) < len(self.fan_outs)
        return GrowthRow(
            **identity,
            backend=item.backend,
            batch=item.method.batch,
            threads=self.effort.threads if item.method.batch > 1 else 1,
            fan_outs=len(item.fanout_us),
            p50_us=p50,
            q1_us=q1,
            q3_us=q3,
            p99_us=p99,
            fanout_p50_us=fanout_p50,
            fanout_p99_us=fanout_p99,
            searched_share=round_digits(item.postings / max(1, self.exhaustive_postings)),
            hit_rate=round(item.hits / question_count, 4),
            verified=item.verified,
            windows=item.windows,
            segments=self.engine.stats().get("segments"),
            build_records_per_s=round(built),
            peak_rss_gib=peak_rss_gib(),
            note=f"slow: the first {len(item.fanout_us)} of {len(self.fan_outs)} fan-outs" if cut else "",
            **common,
        )


def _postings(answers: Sequence[fr.Hits]) -> int:
    return sum(int(hits.postings or 0) for hits in answers)


def grow(engine: fr.Engine, memory: SyntheticMemory, first: int, say: Callable[[str], None]) -> float:
    """Add the records from `first` to the memory's end. Returns the seconds that `add` took."""
    source = memory.stream(first)
    seconds, done = 0.0, first
    while chunk := list(islice(source, CHUNK)):
        begin = time.perf_counter()
        engine.add(chunk)
        seconds += time.perf_counter() - begin
        done += len(chunk)
        say(f"builds: {done:,} of {memory.records:,} records")
    return seconds


def measure(
    case: Case, corpus: str, built: float, common: dict[str, Any], say: Callable[[str], None]
) -> list[GrowthRow]:
    """Warm up, compare and time. Returns the rows."""
    say(f"{corpus}, {case.memory.records:,} records: warms up and compares")
    case.warm()
    say(f"{corpus}, {case.memory.records:,} records: times")
    gc.collect()
    case.time()
    return [case.row(item, corpus, built, common) for item in case.items]


def run_corpus(
    corpus: str,
    sizes: Sequence[int],
    chosen: Sequence[Method],
    effort: Effort,
    common: dict[str, Any],
    say: Callable[[str], None],
    seed: int = 42,
) -> list[GrowthRow]:
    """All rows of one family of corpora, smallest first."""
    import_analyzer()
    rows: list[GrowthRow] = []
    medians: dict[str, float] = {}
    engine, size_before, seconds = fr.Engine(keep_texts=False), 0, 0.0
    for size in sorted(sizes):
        if corpus == "steady":
            memory = SyntheticMemory(size, seed)
        else:
            memory = SyntheticMemory(size, seed, TWO_YEARS / size)
            engine, size_before, seconds = fr.Engine(keep_texts=False), 0, 0.0
        seconds += grow(engine, memory, size_before, say)
        size_before = size
        for row in measure(Case(engine, memory, chosen, effort), corpus, size / seconds, common, say):
            if row.p50_us is not None:
                ratio = row.p50_us / medians.setdefault(row.method, row.p50_us)
                row = replace(row, latency_ratio=round_digits(ratio))
            rows.append(row)
    return rows


def markdown(rows: Sequence[GrowthRow]) -> str:
    """A table for each corpus, with a line for each size and method."""
    lines: list[str] = []
    for corpus in dict.fromkeys(row.corpus for row in rows):
        lines += [
            f"\n{corpus}\n",
            "| records | method | times | p50 us | p99 us | fan-out p50 us | p99 us | searched | hit@10 | same bits |",
            "|---:|---|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        lines += [_line(row) for row in rows if row.corpus == corpus]
    return "\n".join(lines)


def _line(row: GrowthRow) -> str:
    identity = f"| {row.records:,} | {row.method} "
    if row.error is not None:
        return f"{identity}| | | | | | | | error: {row.error} |"
    verdict = "" if row.verified is None else "yes" if row.verified else "NO"
    times = f"{row.latency_ratio:.3g} | {row.p50_us:,.4g} | {row.p99_us:,.4g}"
    fan_outs = f"{row.fanout_p50_us:,.5g} | {row.fanout_p99_us:,.5g}"
    return f"{identity}| {times} | {fan_outs} | {row.searched_share:.2%} | {row.hit_rate:.3f} | {verdict} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="A fan-out's time while memory grows.")
    parser.add_argument("--quick", action="store_true", help="the first three sizes, 50 fan-outs, 3 seconds a method")
    parser.add_argument("--sizes", type=numbers, help="records, comma-separated (default: the seven of Table 2)")
    parser.add_argument("--corpora", type=names, default=CORPORA, help=f"of {','.join(CORPORA)}")
    parser.add_argument("--methods", type=names, help="default: all that serve here")
    parser.add_argument("--fan-outs", type=int, help=f"fan-outs a method and size (default {FAN_OUTS}, quick 50)")
    parser.add_argument("--budget", type=float, help="seconds after which a method may stop (default 20, quick 3)")
    parser.add_argument("--threads", type=int, default=1, help="of every method but the sequential one (default 1)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--name", default="growth", help="rows go to bench/results/NAME.jsonl (quick: bench/.cache)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the rows, not the tables")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 0 if nothing failed and all answers had the bits they must have."""
    parser = _parser()
    options = parser.parse_args(arguments)
    every = list_methods()
    for what, given, known in (
        ("corpus", options.corpora, CORPORA),
        ("method", options.methods or (), [method.name for method in every]),
    ):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"no {what} {', '.join(unknown)}; there are: {', '.join(known)}")
    if options.threads < 1 or (options.fan_outs is not None and options.fan_outs < 1):
        parser.error("--threads and --fan-outs must be 1 or more")
    sizes = options.sizes or (QUICK if options.quick else SIZES)
    fan_outs = options.fan_outs or (50 if options.quick else FAN_OUTS)
    budget = options.budget if options.budget is not None else (3.0 if options.quick else 20.0)
    effort, common, say = Effort(fan_outs, budget, options.threads), stamp_rows("growth"), progress()
    rows: list[GrowthRow] = []
    for corpus in options.corpora:
        chosen = [method for method in every if not options.methods or method.name in options.methods]
        if corpus == "two-years":
            chosen = [
                method for method in chosen if method.name in TWO_YEAR_METHODS or method.backend not in ("cpu", "numpy")
            ]
        own = run_corpus(corpus, sizes, chosen, effort, common, say, options.seed)
        # Written family by family, so that an interrupted run keeps its rows.
        append((CACHE if options.quick else RESULTS) / f"{options.name}.jsonl", own)
        rows += own
    say("")
    print(json.dumps({**common, "rows": [asdict(row) for row in rows]}) if options.json else markdown(rows))
    return int(any(row.error or row.verified is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
