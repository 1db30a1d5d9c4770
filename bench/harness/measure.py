"""Verify and measure all systems on one corpus, interleaved: each repetition times every (system, cell) once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Cell, Corpus
from .client import Worker
from .corpora import Tokens, load, prepare
from .environments import PeerError, python_of
from .paths import CACHE
from .reference import ReferencePostings, postings_of
from .rows import Row
from .systems import PEERS, System
from .verify import Verdict, check

VERIFIED_QUERIES = 50
FEWEST_QUERIES = 10
SHORTEST = 0.25
"""Seconds; a shorter measurement is repeated inside one clock until it takes about this long."""
BUILD_TIMEOUT = 3600.0


@dataclass
class Running:
    """A live worker and the answer of its build."""

    worker: Worker
    version: str
    build_docs_per_s: float
    index_bytes: int
    cold_ms: float


@dataclass
class Measured:
    """One system in one cell, during the run."""

    system: System
    cell: Cell
    queries: int = 0
    loops: int = 1
    ms: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    verdict: Verdict | None = None
    error: str | None = None


class Case:
    """One corpus, one worker a peer, and the measurements so far. `say` receives progress lines."""

    def __init__(self, corpus: Corpus, threads: int, budget: float, install: bool, say: Callable[[str], None]) -> None:
        self.name, self.threads, self.budget, self.install, self.say = corpus.name, threads, budget, install, say
        self.folder = prepare(corpus)
        self.tokens: Tokens = load(self.folder)
        self.postings: ReferencePostings = postings_of(self.tokens)
        self.running: dict[str, Running | str] = {}  # peer -> its worker, or the reason why there is none

    def start(self, name: str) -> None:
        """Start a peer and build its index; a failure becomes the reason in its rows."""
        worker = None
        try:
            python = python_of(PEERS[name], self.install)
            self.say(f"{self.name}: {name} builds")
            worker = Worker(python, name, self.threads, CACHE / "logs" / f"{self.name}.{name}.log")
            scratch = CACHE / "work" / self.name / name
            loaded = worker.ask("load", BUILD_TIMEOUT, corpus=str(self.folder), scratch=str(scratch))
            built = worker.ask("build", BUILD_TIMEOUT)
            rate = self.tokens.documents / built["seconds"]
            some = min(VERIFIED_QUERIES, self.tokens.queries)
            first = {"k": 10, "threads": 1, "phase": "kernel", "options": {}}
            cold = 1e3 * worker.ask("search", BUILD_TIMEOUT, queries=some, **first)["seconds"] / some
            self.running[name] = Running(worker, loaded["version"], rate, built["index_bytes"], cold)
        except PeerError as error:
            self.running[name] = str(error)
            if worker is not None:
                worker.close()
            self.say(f"{self.name}: {name}: {error}")

    def close(self) -> None:
        """End every worker."""
        for running in self.running.values():
            if isinstance(running, Running):
                running.worker.close()

    def _search(self, item: Measured, queries: int, loops: int = 1, save: Path | None = None) -> dict[str, Any]:
        running = self.running[item.system.peer]
        if isinstance(running, str):
            raise PeerError(running)
        cell = item.cell
        options = dict(item.system.options)
        place = None if save is None else str(save)
        request = {"k": cell.k, "threads": cell.threads, "phase": cell.phase, "options": options}
        timeout = 120 + 20 * self.budget
        return running.worker.ask("search", timeout, queries=queries, loops=loops, save=place, **request)

    def warm(self, item: Measured) -> None:
        """Verify (`kernel` phase only), warm up, and choose how many queries and loops one measurement takes."""
        try:
            some = min(FEWEST_QUERIES, self.tokens.queries)
            self._search(item, some)
            each = self._search(item, some)["seconds"] / some
            affordable = max(FEWEST_QUERIES, int(self.budget / max(each, 1e-9)))
            if item.cell.phase == "kernel":
                item.verdict = self._verify(item, min(VERIFIED_QUERIES, affordable, self.tokens.queries))
            item.queries = min(self.tokens.queries, affordable)
            seconds = self._search(item, item.queries)["seconds"]
            item.loops = max(1, min(200, round(SHORTEST / max(seconds, 1e-9))))
        except PeerError as error:
            item.error = str(error)

    def _verify(self, item: Measured, count: int) -> Verdict:
        place = CACHE / "work" / self.name / "answers.npz"
        place.parent.mkdir(parents=True, exist_ok=True)
        self._search(item, count, save=place)
        with np.load(place) as answers:
            documents, scores = answers["documents"], answers["scores"]
        peer = PEERS[item.system.peer]
        return check(peer, self.tokens, self.postings, range(count), item.cell.k, documents, scores)

    def time(self, item: Measured) -> None:
        """One measurement."""
        if item.error is not None:
            return
        try:
            answer = self._search(item, item.queries, item.loops)
        except PeerError as error:
            item.error = str(error)
            return
        item.ms.append(1e3 * answer["seconds"] / (item.queries * item.loops))
        item.cpu.append(answer["cpu"] / answer["seconds"])

    def row(self, item: Measured, shared: dict[str, Any]) -> Row:
        """The row of a finished measurement; `shared` holds the fields that all rows of the run have in common."""
        peer = PEERS[item.system.peer]
        running = self.running[item.system.peer]
        built = running if isinstance(running, Running) else None
        done = bool(item.ms) and item.error is None
        verdict = item.verdict
        notes = [peer.note] if peer.note else []
        if done and item.queries < self.tokens.queries:
            notes.append(f"slow: the first {item.queries} of {self.tokens.queries} queries")
        quartiles = statistics.quantiles(item.ms, n=4, method="inclusive") if len(item.ms) > 1 else None
        return Row(
            case=self.name,
            system=item.system.name,
            k=item.cell.k,
            threads=item.cell.threads,
            phase=item.cell.phase,
            version=built.version if built else None,
            ms_per_query=_round(statistics.median(item.ms)) if done else None,
            ms_min=_round(min(item.ms)) if done else None,
            ms_max=_round(max(item.ms)) if done else None,
            ms_iqr=_round(quartiles[2] - quartiles[0]) if done and quartiles else None,
            reps=len(item.ms),
            queries=item.queries,
            cpu_per_wall=round(statistics.median(item.cpu), 2) if done else None,
            cold_ms_per_query=_round(built.cold_ms) if built else None,
            documents=self.tokens.documents,
            postings=self.postings.count,
            postings_per_query=round(self.postings.touched(self.tokens), 1),
            build_docs_per_s=round(built.build_docs_per_s) if built else None,
            index_bytes=built.index_bytes if built else None,
            bytes_per_posting=round(built.index_bytes / max(1, self.postings.count), 2) if built else None,
            verified=None if verdict is None else verdict.passed(peer.tolerance),
            overlap=None if verdict is None else round(verdict.overlap, 6),
            lucene_overlap=None if verdict is None else round(verdict.lucene_overlap, 6),
            max_relative_error=None if verdict is None else float(f"{verdict.error:.2e}"),
            note="; ".join(notes),
            error=item.error,
            **shared,
        )


def _round(ms: float) -> float:
    return float(f"{ms:.4g}")


def _places(cells: Sequence[Cell], systems: Sequence[System]) -> list[tuple[Cell, System]]:
    return [(cell, system) for cell in cells for system in systems if cell.phase in system.phases]


def _error_row(corpus: Corpus, system: System, cell: Cell, reason: str, shared: dict[str, Any]) -> Row:
    place: dict[str, Any] = {"case": corpus.name, "k": cell.k, "threads": cell.threads, "phase": cell.phase}
    return Row(system=system.name, error=reason, **place, **shared)


def run_case(
    corpus: Corpus,
    systems: Sequence[System],
    cells: Sequence[Cell],
    reps: int,
    budget: float,
    install: bool,
    shared: dict[str, Any],
    say: Callable[[str], None],
) -> list[Row]:
    """All rows of one corpus. Only one worker works at a time. The order of systems rotates from cell to cell."""
    try:
        case = Case(corpus, max(cell.threads for cell in cells), budget, install, say)
    except OSError as error:
        reason = f"the corpus cannot be read: {error}"
        return [_error_row(corpus, system, cell, reason, shared) for cell, system in _places(cells, systems)]
    try:
        for peer in dict.fromkeys(system.peer for system in systems):
            case.start(peer)
        items = [[Measured(system, cell) for system in systems if cell.phase in system.phases] for cell in cells]
        for of_cell in items:
            for item in of_cell:
                say(f"{corpus.name}: {item.system.name} warms up, k={item.cell.k} threads={item.cell.threads}")
                case.warm(item)
        for rep in range(reps):
            say(f"{corpus.name}: repetition {rep + 1} of {reps}")
            for place, of_cell in enumerate(items):
                first = (rep + place) % max(1, len(of_cell))
                for item in of_cell[first:] + of_cell[:first]:
                    case.time(item)
        return [case.row(item, shared) for of_cell in items for item in of_cell]
    finally:
        case.close()
