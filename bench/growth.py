"""What a query costs while the memory grows a thousandfold: ``python -m bench.growth`` (SPEC A030 to A038, Table 2).

bench/README.md says what is asked and compared. Times are microseconds: ``p50_us``, ``p99_us`` and the quartiles are
those of a query (a fan-out's time over its 20, or the single call's), ``fanout_*`` those of a fan-out.
``latency_ratio`` is the median over the same method's at the smallest size. ``searched_share`` is the scored postings
over all postings of the queries' lists. ``verified`` is None for a method that others are compared with.
``build_records_per_s`` and ``peak_rss_gib`` (of the process, so far) are the engine's.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr
from fanrank.engine.errors import FanrankError

from .harness.command import Command, among, numbers, positive
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
)
from .harness.rows import round_digits
from .harness.synthetic import TWO_YEARS, WEEK, SyntheticMemory, SyntheticQuestion

SIZES = (4_052, 40_081, 239_799, 999_978, 1_998_918, 3_997_578, 4_998_640)
"""The sizes of AgentIR's Table 2 (A037)."""
CORPORA = ("steady", "two-years")
LARGEST_TWO_YEARS = SIZES[3]
"""Of the corpora whose engines are each made anew."""
TWO_YEAR_METHODS = ("vectorised", "temporal", "decay", "decay-exhaustive")
"""The CPU's methods on the ``two-years`` corpora. The other methods do the same there as on the ``steady`` ones."""
CHUNK = 50_000
"""Records made at a time, outside the clock of the build."""
FAN_OUTS = 100
FEWEST = 5
VERIFIED = 10
"""The fan-outs that are compared bit for bit and whose postings are counted."""
MOST_WINDOWS = 16
"""The most windows that "auto" is checked for."""


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
    budget: float = 5.0
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
        return answer(self.engine, method, queries, threads=self.effort.threads, timing=timing)

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
        """The number of newest windows whose exhaustive answer these hits are, 0 for all; None if there is none."""
        counts = range(MOST_WINDOWS + 1) if method.windows == "auto" else (int(method.windows or 0),)
        for count in counts:
            # 0: "auto" searches all of few records.
            since = newest_windows(self._late_times, count) if count else None
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

    def row(self, item: Measured, corpus: str, built: float) -> dict[str, Any]:
        """The row of a finished measurement."""
        identity = {"corpus": corpus, "records": self.memory.records, "method": item.method.name}
        if item.error is not None or not item.fanout_us:
            return {**identity, "error": item.error or "no fan-out was asked"}
        q1, p50, q3, p99 = quartiles_of(item.single_us)
        _, fanout_p50, _, fanout_p99 = quartiles_of(item.fanout_us)
        asked = len(item.fanout_us)
        cut = asked < len(self.fan_outs)
        return {
            **{**identity, "backend": item.backend, "batch": item.method.batch, "k": K, "fan_outs": asked},
            "threads": self.effort.threads if item.method.batch > 1 else 1,
            **{"p50_us": p50, "q1_us": q1, "q3_us": q3, "p99_us": p99},
            **{"fanout_p50_us": fanout_p50, "fanout_p99_us": fanout_p99},
            "searched_share": round_digits(item.postings / max(1, self.exhaustive_postings)),
            "hit_rate": round(item.hits / (FAN_OUT * asked), 4),
            **{"verified": item.verified, "windows": item.windows, "error": None},
            "segments": self.engine.stats().get("segments"),
            "build_records_per_s": round(built),
            "peak_rss_gib": peak_rss_gib(),
            "note": f"slow: the first {asked} of {len(self.fan_outs)} fan-outs" if cut else "",
        }


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


def run_corpus(
    corpus: str, sizes: Sequence[int], chosen: Sequence[Method], effort: Effort, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """All rows of one family of corpora, smallest first."""
    import_analyzer()
    medians: dict[str, float] = {}
    engine, size_before, seconds = fr.Engine(keep_texts=False), 0, 0.0
    for size in sorted(sizes):
        memory = SyntheticMemory(size)
        if corpus != "steady":
            memory = replace(memory, interval=TWO_YEARS / size)
            engine, size_before, seconds = fr.Engine(keep_texts=False), 0, 0.0
        seconds += grow(engine, memory, size_before, say)
        size_before = size
        say(f"{corpus}, {size:,} records: warms up and compares")
        case = Case(engine, memory, chosen, effort)
        case.warm()
        say(f"{corpus}, {size:,} records: times")
        gc.collect()
        case.time()
        for row in (case.row(item, corpus, size / seconds) for item in case.items):
            if row["error"] is None:
                ratio = row["p50_us"] / medians.setdefault(row["method"], row["p50_us"])
                row["latency_ratio"] = round_digits(ratio)
            yield row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if nothing failed and all answers had the bits they must have."""
    every = {method.name: method for method in list_methods()}
    command = Command("growth", "A fan-out's time while memory grows.")
    command.add("--sizes", type=numbers, help="records (default: those of Table 2, of two years the first four)")
    command.add("--corpora", type=among(CORPORA), default=CORPORA)
    command.add("--methods", type=among(every), default=tuple(every))
    command.add("--fan-outs", type=positive, default=FAN_OUTS, help=f"of a method and size (default {FAN_OUTS})")
    command.add("--budget", type=float, default=5.0, help="seconds after which a method may stop (default 5)")
    command.add("--threads", type=positive, default=1, help="of every method but the sequential one (default 1)")
    options = command.parse(arguments)
    effort = Effort(options.fan_outs, options.budget, options.threads)
    for corpus in options.corpora:
        chosen = [every[name] for name in options.methods]
        if corpus == "two-years":
            chosen = [one for one in chosen if one.name in TWO_YEAR_METHODS or one.backend not in ("cpu", "numpy")]
        sizes = options.sizes or [size for size in SIZES if corpus == "steady" or size <= LARGEST_TWO_YEARS]
        for row in run_corpus(corpus, sizes, chosen, effort, command.say):
            command.keep([row])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
