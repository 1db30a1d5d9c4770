"""What records that borrow from their neighbours cost and give: ``python -m bench.neighbours``.

Rows of three parts; those of the first two are times, milliseconds a query, medians over rounds in which all ways take
turns (``cpu_ms``: the processor's), after answers of numpy and compiled loops were compared to the bit:

- ``cost``: a query by BM25 in compiled loops, plain and borrowing by each of `LOANS`, over the turns of LoCoMo and SGD.
- ``auto``: by ``auto`` without vectors beside ``bm25``, over 50,000 turns made by rule and those of SGD.
- ``quality``: LoCoMo with turns as records. Of each kind of search the loan with the best Hit@5 on every second
  conversation is reported on the others, beside the search without neighbours. ``low`` and ``high`` bound the
  difference in Hit@5 with 95 %, over conversations.
"""

import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.evaluate import Dataset, load_locomo
from fanrank.engine.evaluate.encoders import describe_encoder
from fanrank.engine.hybrid.strategy import NAMED, Dense, Lexical, Strategy
from fanrank.engine.metrics.bootstrap import cluster_bootstrap

from .harness.command import Command, Row, among, positive
from .harness.corpora import sgd_turns
from .harness.paths import data_folder
from .harness.rows import round_digits
from .harness.synthetic import SyntheticMemory
from .harness.vectors import add_encoder, encoder_of

PARTS = ("cost", "auto", "quality")
MEMORIES = ("locomo", "sgd")
BATCHES = (1, 20)
AUTO_BATCHES, MADE = (1, 5, 20), 50_000
ASKED, CHECKED, K = 200, 20, 10
LOANS = tuple(
    fr.Neighbours(window, weight) for window, weight in ((1, 0.2), (2, 0.2), (2, 0.25), (2, 0.35), (2, 0.5), (3, 0.2))
)
PLAIN, GENERAL = "plain", "plain, general"
"""Queries that borrow nothing: as they are, and by the way of queries with options, which those that borrow go."""
DEPTH = 20
"""Hits of a question whose quality is measured."""
METRICS = ("hit@1", "hit@5", "recall@20", "mrr")


def named(loan: fr.Neighbours | None) -> str:
    """A loan in a few letters; empty for none."""
    return "" if loan is None else f"{loan.window} by {loan.weight:.2g}"


def locomo() -> Dataset:
    return load_locomo(data_folder() / "locomo" / "locomo10.json", unit="turn")


def memory_of(name: str, *, keep_texts: bool = False) -> tuple[fr.Engine, list[str]]:
    """One namespace with the turns of a data set, each in its session, and texts to ask."""
    if name == "locomo":
        dataset = locomo()
        own = [(record, f"{record.namespace}:") for record in dataset.records]
        records = [fr.Record(space + one.id, one.text, session=f"{space}{one.session}") for one, space in own]
        texts = [query.text for query in dataset.queries]
    elif name == "sgd":
        turns = enumerate(sgd_turns())
        records = [fr.Record(str(number), turn["utterance"], session=turn["dialogue_id"]) for number, turn in turns]
        texts = [record.text for record in records]
    else:
        memory = SyntheticMemory(MADE)
        records, texts = list(memory.stream()), [query.text for query in memory.questions(ASKED)]
    engine = fr.Engine(keep_texts=keep_texts)
    engine.add(records)
    engine.index.memory.join()
    return engine, texts[:: max(1, len(texts) // ASKED)][:ASKED]


def is_right(engine: fr.Engine, asked: Sequence[fr.Query | str], strategy: str) -> bool:
    """Whether numpy and compiled loops give the same bits. Leaves the compiled loops in the engine."""
    found = []
    for name in ("numpy", "native"):
        engine.backend = backends.choose(name)
        found.append(engine.search(asked, K, strategy=strategy))
    first, second = found
    return bool(np.array_equal(first.scores, second.scores) and np.array_equal(first.ids, second.ids))


def measure_cost(name: str, rounds: int) -> list[Row]:
    """The rows of one memory."""
    engine, texts = memory_of(name)
    right = is_right(engine, [fr.Query(text, neighbours=loan) for text in texts[:CHECKED] for loan in LOANS], "bm25")
    # No hit scores less than 0, so this changes no answer, but the batch goes the way that has all options.
    ways = {PLAIN: [fr.Query(text) for text in texts], GENERAL: [fr.Query(text, min_score=0.0) for text in texts]}
    ways |= {named(loan): [fr.Query(text, neighbours=loan) for text in texts] for loan in LOANS}
    return time_ways("cost", name, engine, BATCHES, ways, rounds, right)


def measure_auto(name: str, rounds: int) -> list[Row]:
    """The rows of one memory."""
    engine, texts = memory_of(name, keep_texts=True)
    right = is_right(engine, texts[:CHECKED], "auto")
    return time_ways("auto", name, engine, AUTO_BATCHES, dict.fromkeys(("bm25", "auto"), texts), rounds, right)


def time_ways(
    part: str,
    name: str,
    engine: fr.Engine,
    batches: Sequence[int],
    ways: Mapping[str, Sequence[fr.Query | str]],
    rounds: int,
    right: bool,
) -> list[Row]:
    """A row for each way at each number of queries a call. A way that a strategy answers has its name."""
    rows = []
    stats = engine.stats()
    common: Row = {"part": part, "memory": name, "records": stats["documents"], "segments": stats["segments"]}
    common |= {"backend": engine.backend.name, "rounds": rounds, "k": K, "verified": right}
    for batch in batches:
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, queries in ways.items():
                began, busy = time.perf_counter(), time.process_time()
                for start in range(0, len(queries), batch):
                    engine.search(queries[start : start + batch], K, strategy=way if part == "auto" else "bm25")
                spent[way].append((time.perf_counter() - began, time.process_time() - busy))
        for way, pairs in spent.items():
            count = len(ways[way])
            times, cpu = ([1e3 * each / count for each in values] for values in zip(*pairs, strict=True))
            row = {**common, "batch": batch, "n": count, "way": way, "least_ms": round_digits(min(times))}
            row["milliseconds"] = round_digits(statistics.median(times))
            rows.append({**row, "cpu_ms": round_digits(statistics.median(cpu))})
    return rows


def strategies_of(kind: str) -> dict[str, Strategy]:
    """A kind of search by each loan, and without; of two channels both borrow alike."""
    found = {}
    for loan in (None, *LOANS):
        words, vectors = Lexical(neighbours=loan), Dense(neighbours=loan)
        channels = {"bm25": (words,), "dense": (vectors,), "fused": (words, vectors)}[kind]
        found[named(loan)] = replace(NAMED[kind], channels=channels)
    return found


def score(found: Sequence[object], gold: Collection[object]) -> tuple[float, ...]:
    """`METRICS` of a question's hits, best first."""
    ranks = [rank for rank, name in enumerate(found, 1) if name in gold]
    first = ranks[0] if ranks else np.inf
    return first <= 1, first <= 5, len(ranks) / len(gold), 1.0 / first


def values_of(engine: fr.Engine, dataset: Dataset, strategy: Strategy) -> npt.NDArray[np.float64]:
    """[questions, METRICS]"""
    found = zip(engine.search(dataset.queries, DEPTH, strategy=strategy).ids, dataset.queries, strict=True)
    return np.array([score(ids, dataset.relevant[str(query.id)]) for ids, query in found], dtype=np.float64)


def measure_quality(encoder: Encoder) -> list[Row]:
    """The rows of each kind of search, without neighbours and with the loan that half of the conversations chose."""
    dataset = locomo()
    engine = fr.Engine(encoder=encoder, keep_texts=False)
    engine.add(dataset.records)
    spaces = list(dict.fromkeys(query.namespace for query in dataset.queries))
    place = np.array([spaces.index(query.namespace) for query in dataset.queries])
    chosen_on, held_out = place % 2 == 0, place % 2 == 1
    rows: list[Row] = []
    for kind in ("bm25", "dense", "fused"):
        values = {loan: values_of(engine, dataset, each) for loan, each in strategies_of(kind).items()}
        best = max([loan for loan in values if loan], key=lambda loan: values[loan][chosen_on, 1].mean())
        for loan in ("", best):
            own = values[loan][held_out]
            compared = cluster_bootstrap(own[:, 1], values[""][held_out, 1], place[held_out].tolist())
            row: dict[str, Any] = {"part": "quality", "dataset": dataset.name, "kind": kind, "borrows": bool(loan)}
            row |= {"loan": loan, "n": int(held_out.sum()), "chosen_on": int(chosen_on.sum())}
            row["metrics"] = dict(zip(METRICS, map(round_digits, own.mean(axis=0).tolist()), strict=True))
            row |= {"difference": compared.difference, "low": compared.low, "high": compared.high}
            rows.append({**row, "encoder": None if kind == "bm25" else describe_encoder(encoder)})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 1 if an answer was wrong, else 0."""
    command = Command("neighbours", "What records that borrow from their neighbours cost and give.")
    command.add("--parts", type=among(PARTS), default=PARTS)
    command.add("--memories", type=among(MEMORIES), default=MEMORIES)
    command.add("--rounds", type=positive, default=5)
    add_encoder(command)
    options = command.parse(arguments)
    for name in options.memories if "cost" in options.parts else ():
        command.say(f"neighbours: cost, {name}")
        command.keep(measure_cost(name, options.rounds))
    for name in ("made", "sgd") if "auto" in options.parts else ():
        command.say(f"neighbours: auto, {name}")
        command.keep(measure_auto(name, options.rounds))
    if "quality" in options.parts:
        command.say("neighbours: quality")
        command.keep(measure_quality(encoder_of(options)))
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
