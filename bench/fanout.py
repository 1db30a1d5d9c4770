"""A planner's fan-out beside the peers, texts in, ids and scores out: ``python -m bench.fanout`` (`make fanout`).

bench/README.md says what is asked, compared and timed. A row is one system with one size of calls (`process` "warm"),
or in fresh processes ("cold"). Times are of calls, in milliseconds: median, 99th percentile (with fewer than 100 calls
the most), and the median of each round. ``cpu_ms`` is the processor's time of a call, on average. ``batch`` is the
number of queries of a call; ``whole`` says that they are all of the corpus. Cold times are medians over processes, each
[wall, processor].
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.stopwords import NLTK_ENGLISH

from .harness.cases import CORPORA, Corpus
from .harness.client import Worker
from .harness.code import ANALYSIS, FAN_OUTS, code_of, hash_of
from .harness.command import Command, among, positive
from .harness.corpora import Tokens, document_texts, load, prepare, save
from .harness.environments import PeerError, python_of
from .harness.paths import CACHE, ROOT
from .harness.reference import ReferencePostings, postings_of
from .harness.rows import round_digits
from .harness.systems import PEERS, SYSTEMS, System
from .harness.verify import check

K = 10
BATCHES = {"1": 60, "5": 40, "20": 20, "200": 3, "all": 1}
"""Queries of a call -> calls of a round."""
SMALL = ("1", "5", "20")
COLD_QUERIES = 20
LARGE = 1_000_000
"""Corpora of so many documents are asked fan-outs alone: a peer takes 25 ms a query, so 40 s for all of them."""
VERIFIED_QUERIES = 50
TIMEOUT = 3600.0
OWN = "fanrank"


ANALYZER = "nltk"
"""Its stop words and stemmer are those that all systems are given."""


def draw_calls(queries: int, batch: str, calls: int, seed: int) -> list[list[int]]:
    """The queries of each call, without repeats within a call as far as there are queries."""
    if batch == "all":
        return [list(range(queries))] * calls
    drawn = random.Random(seed)
    return [drawn.sample(range(queries), min(int(batch), queries)) for _ in range(calls)]


def stemmed_tokens(corpus: Corpus) -> Tokens:
    """The corpus and its queries as tokens of `ANALYZER`; prepared once."""
    plain = load(prepare(corpus))
    if corpus.source == "synthetic":
        return plain  # its words have no stems, and none is a stop word
    folder = CACHE / "corpora" / f"{corpus.name}-{ANALYZER}"
    stamp = json.dumps([corpus.stamp, hash_of(ANALYSIS, ROOT)])
    if not (folder / "stamp.json").is_file() or (folder / "stamp.json").read_text() != stamp:
        save(_analysed(corpus, plain.query_texts), folder, stamp)
    return load(folder)


def _analysed(corpus: Corpus, queries: Sequence[str]) -> Tokens:
    analyzer = get_analyzer(ANALYZER)
    vocabulary: dict[str, int] = {}
    tokens: list[int] = []
    offsets = [0]
    for text in document_texts(corpus):
        tokens.extend(vocabulary.setdefault(term, len(vocabulary)) for term in analyzer(text))
        offsets.append(len(tokens))
    known = [[vocabulary[term] for term in analyzer(text) if term in vocabulary] for text in queries]
    return Tokens(
        corpus.name,
        list(vocabulary),
        np.array(tokens, np.int32),
        np.array(offsets, np.int64),
        np.array([term for terms in known for term in terms], np.int32),
        np.cumsum([0, *map(len, known)]),
        list(queries),
    )


class Running:
    """One system on one corpus: its worker, and its times so far."""

    def __init__(self, system: System, case: "Case") -> None:
        self.system, self.case = system, case
        self.python = python_of(PEERS[system.peer])
        self.folder = CACHE / "work" / case.name / f"texts-{system.peer}"
        self.log = CACHE / "logs" / f"{case.name}.{system.name}.texts.log"
        self._build()
        self.ms: dict[str, list[list[float]]] = {}
        self.cpu_ms: dict[str, list[float]] = {}
        self.cold: list[dict[str, Any]] = []
        self.verified: bool | None = None
        self.overlap = 0.0

    def start(self) -> None:
        """Start the worker and open the index."""
        self.worker = self._start()
        opened = self._open(self.worker)
        self.version, self.mode = opened["version"], opened["mode"]

    def _start(self) -> Worker:
        return Worker(self.python, self.system.peer, 1, self.log, self.system.environment)

    def _build(self) -> None:
        """Write the index, if there is none of this corpus by this version."""
        installs = [*PEERS[self.system.peer].installs, code_of("building") if self.system.peer == OWN else ""]
        stamp = json.dumps([self.case.corpus.stamp, installs])
        kept = self.folder.with_suffix(".json")
        if kept.is_file() and kept.read_text() == stamp:
            return
        self.case.say(f"{self.case.name}: {self.system.peer} builds")
        kept.unlink(missing_ok=True)
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.folder.mkdir(parents=True, exist_ok=True)
        worker = self._start()
        try:
            worker.ask("build", TIMEOUT, texts=str(self.case.file), folder=str(self.folder), stop=self.case.stop)
        finally:
            worker.close()
        kept.write_text(stamp)

    def _open(self, worker: Worker) -> dict[str, Any]:
        options = dict(self.system.options)
        opened = worker.ask("open", TIMEOUT, folder=str(self.folder), stop=self.case.stop, options=options)
        worker.ask("queries", TIMEOUT, texts=self.case.texts)
        return opened

    def verify(self) -> None:
        """Compare the first answers with the reference. Queries that repeat a term are left out: systems weigh a
        repeated term differently."""
        place = CACHE / "work" / self.case.name / "answers.npz"
        tokens = self.case.tokens
        count = min(VERIFIED_QUERIES, tokens.queries)
        self.worker.ask("answer", TIMEOUT, queries=count, k=K, save=str(place))
        plain = [each for each in range(count) if len(set(tokens.query_ids(each))) == len(tokens.query_ids(each))]
        with np.load(place) as answers:
            documents, scores = answers["documents"][plain], answers["scores"][plain]
        peer = PEERS[self.system.peer]
        verdict = check(peer, tokens, self.case.postings, plain, K, documents, scores)
        self.overlap = round(verdict.overlap, 4)
        self.verified = verdict.passed(peer.tolerance) if self.system.peer == OWN else None

    def time(self, batch: str, calls: list[list[int]]) -> None:
        answer = self.worker.ask("time", TIMEOUT, calls=calls, k=K)
        self.ms.setdefault(batch, []).append(answer["ms"])
        self.cpu_ms.setdefault(batch, []).extend(answer["cpu_ms"])

    def time_cold(self, calls: list[list[int]]) -> None:
        """One fresh process."""
        worker = self._start()
        try:
            opened = self._open(worker)
            answer = worker.ask("time", TIMEOUT, calls=calls, k=K)
        finally:
            worker.close()
        first, second = zip(answer["ms"], answer["cpu_ms"], strict=True)
        self.cold.append({"import": opened["import"], "open": opened["open"], "first": first, "second": second})

    def rows(self) -> list[dict[str, Any]]:
        shared: dict[str, Any] = {
            **{"case": self.case.name, "system": self.system.name, "documents": self.case.tokens.documents},
            **{"version": self.version, "mode": self.mode, "verified": self.verified, "overlap": self.overlap},
            **{"note": PEERS[self.system.peer].note, "k": K, "threads": 1, "error": None},
        }
        rows = []
        for batch, rounds in self.ms.items():
            every = [ms for own in rounds for ms in own]
            row = {
                "process": "warm",
                "batch": min(self.case.size_of(batch), self.case.tokens.queries),
                "whole": batch == "all",
                "ms": round_digits(statistics.median(every)),
                "p99_ms": round_digits(float(np.percentile(every, 99, method="higher"))),
                "round_ms": [round_digits(statistics.median(own)) for own in rounds],
                "cpu_ms": round_digits(statistics.fmean(self.cpu_ms[batch])),
                **{"calls": len(every), "rounds": len(rounds)},
            }
            rows.append({**row, **shared})
        if self.cold:
            cold: dict[str, Any] = {f"{step}_ms": self._cold_median(step) for step in self.cold[0]}
            size = min(COLD_QUERIES, self.case.tokens.queries)
            rows.append({"process": "cold", "batch": size, "whole": False, "calls": len(self.cold), **cold, **shared})
        return rows

    def _cold_median(self, step: str) -> tuple[float, float]:
        wall, cpu = zip(*(process[step] for process in self.cold), strict=True)
        return round_digits(statistics.median(wall)), round_digits(statistics.median(cpu))


class Case:
    """One corpus. Raises `OSError` where its data is not there."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name, self.corpus, self.say = name, CORPORA[name], say
        say(f"{name}: prepares")
        self.tokens = stemmed_tokens(self.corpus)
        self.texts = self.tokens.query_texts
        self.stop = sorted(NLTK_ENGLISH)
        self.file = CACHE / "corpora" / f"{name}.texts.jsonl"
        if not self.file.is_file():
            part = self.file.with_suffix(".part")
            with part.open("w", encoding="utf-8") as handle:
                handle.writelines(json.dumps(text) + "\n" for text in document_texts(self.corpus))
            part.rename(self.file)

    @cached_property
    def postings(self) -> ReferencePostings:
        return postings_of(self.tokens)

    def size_of(self, batch: str) -> int:
        return self.tokens.queries if batch == "all" else int(batch)


def _start(system: System, case: Case) -> Running | str:
    """The system, verified; or the reason why it cannot be measured."""
    try:
        own = Running(system, case)
        own.start()
        own.verify()
    except PeerError as error:
        return str(error)
    return own


def run_case(
    case: Case, chosen: Sequence[System], batches: Sequence[str], rounds: int, cold: int
) -> list[dict[str, Any]]:
    """The rows of one corpus. Only one worker works at a time."""
    running: list[Running] = []
    rows: list[dict[str, Any]] = []
    try:
        for system in chosen:
            own = _start(system, case)
            if isinstance(own, Running):
                running.append(own)
            else:
                rows.append({"case": case.name, "system": system.name, "process": "warm", "error": own})
        for own in running:
            for batch in batches:  # what is derived at the first use
                own.worker.ask("time", TIMEOUT, calls=draw_calls(len(case.texts), batch, 2, -1), k=K)
        for number in range(rounds):
            for place, batch in enumerate(batches):
                case.say(f"{case.name}: round {number + 1} of {rounds}, calls of {batch}")
                calls = draw_calls(len(case.texts), batch, BATCHES.get(batch, 3), number)
                first = (number + place) % max(1, len(running))
                for own in running[first:] + running[:first]:
                    own.time(batch, calls)
        for number in range(cold):
            case.say(f"{case.name}: fresh processes, {number + 1} of {cold}")
            for own in running:
                own.time_cold(draw_calls(len(case.texts), str(COLD_QUERIES), 2, number))
        return rows + [row for own in running for row in own.rows()]
    finally:
        for own in running:
            own.worker.close()


def measure(
    name: str, systems: Sequence[System], options: argparse.Namespace, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The rows of a corpus, or the reason why there are none."""
    try:
        case = Case(name, say)
    except OSError as error:
        reason = f"the corpus cannot be read: {error}"
        return [{"case": name, "system": each.name, "process": "warm", "error": reason} for each in systems]
    if options.build:
        for system in {each.peer: each for each in systems}.values():
            with suppress(PeerError):
                Running(system, case)
        return []
    whole = case.tokens.documents < LARGE
    batches = [batch for batch in options.batches if whole or batch in SMALL]
    return run_case(case, systems, batches, options.rounds, options.cold)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if fanrank verified and no system failed, else 1."""
    chosen = tuple(system.name for system in SYSTEMS.values() if system.default)
    command = Command("fanout", "A planner's fan-out beside the peers.")
    command.add("--corpora", type=among(CORPORA), default=FAN_OUTS)
    command.add("--systems", type=among(SYSTEMS), default=chosen, help="default all but fanrank-numpy")
    command.add("--batches", type=among(BATCHES), default=tuple(BATCHES))
    command.add("--rounds", type=positive, default=5)
    command.add("--cold", type=int, default=2, help="fresh processes of each system (default 2)")
    command.add("--build", action="store_true", help="only build the indexes that are missing; no rows")
    options = command.parse(arguments)
    systems = [system for system in SYSTEMS.values() if system.name in options.systems]
    for name in options.corpora:
        command.keep(measure(name, systems, options, command.say))
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
