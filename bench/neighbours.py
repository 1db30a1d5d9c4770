"""What records that borrow from their neighbours cost and give: ``python -m bench.neighbours``.

Appends to ``bench/results/neighbours.jsonl`` rows of four parts:

- ``cost``: a query by BM25 in compiled loops, plain and borrowing by each of `LOANS`, over the turns of LoCoMo and of
  SGD. Ways take turns: each round asks all queries by every way. ``milliseconds`` and ``cpu_ms`` (the processor's time)
  are medians a query. Before they are timed, answers of numpy and compiled loops are compared to the bit.
- ``auto``: as ``cost``, a query by ``auto`` without vectors beside one by ``bm25``, over 50,000 turns made by rule and
  over those of SGD.
- ``quality``: LoCoMo with turns as records. Of each kind of search the loan with the best Hit@5 on every second
  conversation is reported on the others, beside the search without neighbours. ``low`` and ``high`` bound the
  difference in Hit@5 with 95 %, over conversations.
- ``dialogue``: the same questions by ``dialogue`` and ``dialogue-words``, and by each without some of its channels. The
  weights are fitted to every second conversation and reported on the others, then the other way around. ``low`` and
  ``high`` bound the difference in Hit@5 to `BASE` over all questions: the wider of two bootstraps, over questions and
  over conversations.

Vectors come from ``--embeddings``, or are made anew; ``--parts cost`` needs none.
"""

import gzip
import json
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.evaluate import Dataset, load_locomo
from fanrank.engine.evaluate.encoders import describe_encoder
from fanrank.engine.fuse.candidates import best
from fanrank.engine.fuse.linear import Linear
from fanrank.engine.hybrid.strategy import NAMED, ContextVectors, ContextWords, Cue, Dense, Lexical, Strategy
from fanrank.engine.metrics.bootstrap import cluster_bootstrap, paired_bootstrap
from fanrank.engine.tune.measure import labelled_questions
from fanrank.engine.tune.weights import Collected, Evidence, collect

from .harness.command import Command, among, positive
from .harness.paths import data_folder
from .harness.rows import round_digits
from .harness.synthetic import SyntheticMemory
from .harness.vectors import add_encoder, encoder_of

PARTS = ("cost", "auto", "quality", "dialogue")
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
DIALOGUES = ("dialogue", "dialogue-words")
BASE = "recall"
"""What the strategies for dialogues are compared with; rows without ``to`` are of ``auto`` when it was as this."""
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
        records = [
            fr.Record(f"{record.namespace}:{record.id}", record.text, session=f"{record.namespace}:{record.session}")
            for record in dataset.records
        ]
        texts = [query.text for query in dataset.queries]
    elif name == "sgd":
        records = list(_sgd())
        texts = [record.text for record in records]
    else:
        memory = SyntheticMemory(MADE)
        records, texts = list(memory.stream()), [query.text for query in memory.questions(ASKED)]
    engine = fr.Engine(keep_texts=keep_texts)
    engine.add(records)
    engine.index.memory.join()
    return engine, texts[:: max(1, len(texts) // ASKED)][:ASKED]


def _sgd() -> Iterator[fr.Record]:
    number = 0
    for split in ("train", "dev", "test"):
        with gzip.open(data_folder() / "sgd" / f"{split}.turns.jsonl.gz", "rt", encoding="utf-8") as handle:
            for line in handle:
                turn = json.loads(line)
                yield fr.Record(str(number), turn["utterance"], session=f"{split}-{turn['dialogue_id']}")
                number += 1


def is_right(engine: fr.Engine, texts: Sequence[str]) -> bool:
    """Whether numpy and compiled loops give the same bits, for a few queries of every loan."""
    asked = [fr.Query(text, neighbours=loan) for text in texts[:CHECKED] for loan in LOANS]
    found = []
    for name in ("numpy", "native"):
        engine.backend = backends.choose(name)
        found.append(engine.search(asked, K))
    first, second = found
    return bool(np.array_equal(first.scores, second.scores) and np.array_equal(first.documents, second.documents))


def measure_cost(name: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of one memory."""
    engine, texts = memory_of(name)
    right = is_right(engine, texts)
    # No hit scores less than 0, so this changes no answer, but the batch goes the way that has all options.
    ways = {PLAIN: [fr.Query(text) for text in texts], GENERAL: [fr.Query(text, min_score=0.0) for text in texts]}
    ways |= {named(loan): [fr.Query(text, neighbours=loan) for text in texts] for loan in LOANS}
    return time_ways("cost", name, engine, BATCHES, ways, rounds, right)


def measure_auto(name: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of one memory."""
    engine, texts = memory_of(name, keep_texts=True)
    found = []
    for backend in ("numpy", "native"):
        engine.backend = backends.choose(backend)
        found.append(engine.search(texts[:CHECKED], K, strategy="auto"))
    right = bool(np.array_equal(found[0].scores, found[1].scores) and np.array_equal(found[0].ids, found[1].ids))
    return time_ways("auto", name, engine, AUTO_BATCHES, dict.fromkeys(("bm25", "auto"), texts), rounds, right)


def time_ways(
    part: str,
    name: str,
    engine: fr.Engine,
    batches: Sequence[int],
    ways: Mapping[str, Sequence[fr.Query | str]],
    rounds: int,
    right: bool,
) -> list[dict[str, Any]]:
    """A row for each way at each number of queries a call. A way that a strategy answers has its name."""
    rows = []
    for batch in batches:
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, queries in ways.items():
                began, busy = time.perf_counter(), time.process_time()
                for start in range(0, len(queries), batch):
                    engine.search(queries[start : start + batch], K, strategy=way if part == "auto" else "bm25")
                spent[way].append((time.perf_counter() - began, time.process_time() - busy))
        for way, pairs in spent.items():
            times, cpu = ([1e3 * each / len(queries) for each in values] for values in zip(*pairs, strict=True))
            rows.append(
                {
                    "part": part,
                    "memory": name,
                    "records": engine.stats()["documents"],
                    "segments": engine.stats()["segments"],
                    "backend": engine.backend.name,
                    "batch": batch,
                    "n": len(queries),
                    "rounds": rounds,
                    "k": K,
                    "way": way,
                    "milliseconds": round_digits(statistics.median(times)),
                    "least_ms": round_digits(min(times)),
                    "cpu_ms": round_digits(statistics.median(cpu)),
                    "verified": right,
                }
            )
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


def values_of(engine: fr.Engine, dataset: Dataset, strategy: Strategy | str) -> npt.NDArray[np.float64]:
    """[questions, METRICS]"""
    found = zip(engine.search(dataset.queries, DEPTH, strategy=strategy).ids, dataset.queries, strict=True)
    return np.array([score(ids, dataset.relevant[str(query.id)]) for ids, query in found], dtype=np.float64)


def metrics_of(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """The means of `METRICS`."""
    return dict(zip(METRICS, map(round_digits, values.mean(axis=0).tolist()), strict=True))


def places_of(dataset: Dataset) -> npt.NDArray[np.int64]:
    """The number of each question's conversation."""
    spaces = list(dict.fromkeys(query.namespace for query in dataset.queries))
    return np.array([spaces.index(query.namespace) for query in dataset.queries])


def measure_quality(encoder: Encoder) -> list[dict[str, Any]]:
    """The rows of each kind of search, without neighbours and with the loan that half of the conversations chose."""
    dataset = locomo()
    engine = fr.Engine(encoder=encoder, keep_texts=False)
    engine.add(dataset.records)
    place = places_of(dataset)
    chosen_on, held_out = place % 2 == 0, place % 2 == 1
    rows = []
    for kind in ("bm25", "dense", "fused"):
        values = {loan: values_of(engine, dataset, each) for loan, each in strategies_of(kind).items()}
        best = max([loan for loan in values if loan], key=lambda loan: values[loan][chosen_on, 1].mean())
        for loan in ("", best):
            own = values[loan][held_out]
            compared = cluster_bootstrap(own[:, 1], values[""][held_out, 1], place[held_out].tolist())
            rows.append(
                {
                    "part": "quality",
                    "dataset": dataset.name,
                    "kind": kind,
                    "borrows": bool(loan),
                    "loan": loan,
                    "n": int(held_out.sum()),
                    "chosen_on": int(chosen_on.sum()),
                    "metrics": metrics_of(own),
                    "difference": compared.difference,
                    "low": compared.low,
                    "high": compared.high,
                    "encoder": None if kind == "bm25" else describe_encoder(encoder),
                }
            )
    return rows


def variants_of(strategy: Strategy) -> dict[str, tuple[Strategy, tuple[str, ...]]]:
    """By what is left out: a strategy, and the channels that its fusion reads."""
    assert isinstance(strategy.fusion, Linear)
    names = tuple(strategy.fusion.weights)
    cues = tuple(channel.name for channel in strategy.channels if isinstance(channel, Cue))
    alone = tuple(
        replace(channel, neighbours=fr.Neighbours(0))
        if isinstance(channel, (ContextWords, ContextVectors))
        else channel
        for channel in strategy.channels
    )
    left_out = {"": (), **{name: (name,) for name in names}, "cues": cues}
    found = {what: (strategy, tuple(name for name in names if name not in gone)) for what, gone in left_out.items()}
    own = replace(strategy, channels=alone)
    return {
        **found,
        "what stands around": (own, names),
        "both": (own, tuple(name for name in names if name not in cues)),
    }


def ranked_values(
    parts: Sequence[Collected], dataset: Dataset, rows: npt.NDArray[np.bool_], fusion: Linear
) -> npt.NDArray[np.float64]:
    """[questions, METRICS] of the questions in `rows`; 0 elsewhere."""
    values, number = np.zeros((len(rows), len(METRICS))), 0
    for candidates, ids in parts:
        places = best(fusion(candidates), candidates, np.full(len(candidates), DEPTH), DEPTH)[2]
        for own in places:
            if rows[number]:
                hits = [ids[place] if place >= 0 else None for place in own.tolist()]
                values[number] = score(hits, dataset.relevant[str(dataset.queries[number].id)])
            number += 1
    return values


def measure_dialogue(encoder: Encoder) -> list[dict[str, Any]]:
    """The rows of the strategies for dialogues, whole and in parts."""
    dataset = locomo()
    engine = fr.Engine(encoder=encoder)
    engine.add(dataset.records)
    questions = labelled_questions(dataset)
    place = places_of(dataset)
    base = values_of(engine, dataset, BASE)
    rows = []
    for name in DIALOGUES:
        collected: dict[Strategy, list[Collected]] = {}
        for what, (strategy, read) in variants_of(NAMED[name]).items():
            if strategy not in collected:
                collected[strategy] = collect(engine, questions, strategy)
            parts = collected[strategy]
            fusion = strategy.fusion
            assert isinstance(fusion, Linear)
            relative = tuple(own for own in fusion.relative if own in read)
            fusion = Linear({own: fusion.weights[own] for own in read}, relative)
            evidence = Evidence.of(parts, questions, fusion)
            values = np.zeros((len(questions), len(METRICS)))
            weights = []
            for half in (0, 1):
                weights.append(evidence.fit(place % 2 == half))
                values += ranked_values(parts, dataset, place % 2 != half, replace(fusion, weights=weights[-1]))
            each = paired_bootstrap(values[:, 1], base[:, 1])
            groups = cluster_bootstrap(values[:, 1], base[:, 1], place.tolist())
            rows.append(
                {
                    "part": "dialogue",
                    "dataset": dataset.name,
                    "strategy": name,
                    "without": what,
                    "n": len(questions),
                    "n_halves": [int((place % 2 == half).sum()) for half in (0, 1)],
                    "conversations": int(place.max()) + 1,
                    "weights": weights,
                    "metrics": metrics_of(values),
                    "halves": [metrics_of(values[place % 2 == half]) for half in (0, 1)],
                    "to": BASE,
                    "difference": each.difference,
                    "low": min(each.low, groups.low),
                    "high": max(each.high, groups.high),
                    "encoder": describe_encoder(encoder) if strategy.dense else None,
                }
            )
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
    for part, measure in (("quality", measure_quality), ("dialogue", measure_dialogue)):
        if part in options.parts:
            command.say(f"neighbours: {part}")
            command.keep(measure(encoder_of(options)))
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
