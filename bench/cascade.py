"""Deciding per query, measured on LoCoMo, as rows: ``python -m bench.cascade``.

Appends rows to ``bench/results/cascade.jsonl`` and prints them as tables. There is one set of rows for each preset and
unit. The unit says what a session's vectors stand for: ``whole`` has one of the session's text, as the first source had
it; ``turns`` has one a turn. The rows hold: the static systems; the cascade's sweep over thresholds with skip share,
metric and measured milliseconds; a cascade batch against its parts; cross-validated cascades by type; routers; the
grids of noise and labels; bootstrap differences; and ``recall`` beside other strategies by category.

Every time is the wall-clock time of real searches. Queries are encoded each time, and the compared systems take turns.
``ms`` is the time a question with all questions in one batch, ``ms_fanout`` (of every fifth question) with 20 a call.
Only vectors of records are cached. A repetition encodes about 80,000 queries; ``--repetitions 0`` gives no times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.engine.engine import Engine
from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.evaluate.encoders import DEFAULT_ENCODER, describe_encoder, open_encoder
from fanrank.engine.evaluate.presets import LOADERS, Preset, find_preset
from fanrank.engine.evaluate.protocol import (
    TAUS_A087,
    Evaluation,
    default_depth,
    engine_of,
    prepare_dataset,
    rank,
    warm_up,
)
from fanrank.engine.evaluate.tables import table
from fanrank.engine.hybrid.strategy import Strategy
from fanrank.engine.records.query import Query
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.policy import Answerer, strategy_of
from fanrank.engine.tune.command import LABELS, draw_questions, render_tuned
from fanrank.engine.tune.measure import labelled_questions
from fanrank.engine.tune.tuner import SYSTEMS, tune

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import RESULTS, data_folder
from .harness.routing import (
    NOISE,
    Measured,
    cascade_folds,
    cascade_sweep,
    corrupt_texts,
    differences,
    learning_curve,
    noise_grid,
    router_of,
    routers,
    splits,
)
from .hybrid import versions

PRESETS = ("agentir", "default")
UNITS = {"whole": False, "turns": True}
"""The units: whether a session has a vector for each turn."""
ESCALATED = ("agent_rrf", "fused")
METRIC = "hit@5"
FANOUT = 20
SAMPLED = 5
"""Fan-outs take one question of this many."""
K = 10
HELD_OUT = 1000
"""Draws of the learning curve. With AgentIR's 100 the spread between draws is about .03, more than the learned gain."""
PARTS = ("static", "sweep", "parts", "folds", "routers", "noise", "curve", "tune", "recall")

Floats = npt.NDArray[np.float64]


class Bench:
    """One preset and unit: the questions, and two engines over the same records.

    `quick` takes query vectors from the cache, for results that are only scored. `timed` encodes every query.
    """

    def __init__(self, preset: str, unit: str, encoder: str, embeddings: Path, **reading: Any) -> None:
        self.preset: Preset = find_preset(preset, "locomo")
        path = data_folder() / "locomo" / "locomo10.json"
        options = {**self.preset.reading, "passages": UNITS[unit], **reading}
        self.dataset: Dataset = LOADERS["locomo"](path, **options)
        self.quick: Engine = engine_of(self.dataset, self.preset, encoder=open_encoder(encoder, embeddings))
        self.timed: Engine = engine_of(
            self.dataset, self.preset, encoder=open_encoder(encoder, embeddings, queries=False)
        )

    def asked(self, answerer: Answerer, places: Sequence[int] | None = None, types: str = "none") -> Dataset:
        """The questions as this answerer needs them: all, or those at `places`."""
        whole = prepare_dataset(self.dataset, answerer, types)
        if places is None:
            return whole
        queries = [whole.queries[place] for place in places]
        return replace(whole, queries=queries, relevant={str(q.id): whole.relevant[str(q.id)] for q in queries})

    def rank(
        self, answerer: Answerer, places: Sequence[int] | None = None, types: str = "none", timed: bool = False
    ) -> Evaluation:
        engine = self.timed if timed else self.quick
        asked = self.asked(answerer, places, types)
        return rank(engine, asked, k=default_depth(self.dataset), complete=self.preset.complete, strategy=answerer)

    def milliseconds(self, answerers: Mapping[str, Answerer], repetitions: int) -> dict[str, dict[str, float]]:
        """``ms`` and ``ms_fanout`` of each answerer: medians over repetitions, in which the answerers take turns."""
        spent: dict[str, dict[str, list[float]]] = {name: {"ms": [], "ms_fanout": []} for name in answerers}
        asked = {name: self.asked(answerer) for name, answerer in answerers.items()} if repetitions else {}
        for name, dataset in asked.items():
            warm_up(self.timed, dataset, answerers[name], K)
        for _ in range(repetitions):
            for name, dataset in asked.items():
                for column, queries, batch in (
                    ("ms", dataset.queries, None),
                    ("ms_fanout", dataset.queries[::SAMPLED], FANOUT),
                ):
                    seconds = _seconds(self.timed, queries, answerers[name], batch)
                    spent[name][column].append(1e3 * seconds / len(queries))
        return {
            name: {column: statistics.median(times) for column, times in columns.items() if times}
            for name, columns in spent.items()
        }


def _seconds(engine: Engine, queries: Sequence[Query], answerer: Answerer, batch: int | None = None) -> float:
    size = batch or max(len(queries), 1)
    started = time.perf_counter()
    for start in range(0, len(queries), size):
        engine.search(queries[start : start + size], K, strategy=answerer)
    return time.perf_counter() - started


def measure_systems(bench: Bench, found: Mapping[str, Evaluation], repetitions: int) -> dict[str, Any]:
    """Every system on all questions; ``agent_rrf`` also with the true types, which a user does not have (X07)."""
    answerers: dict[str, Answerer] = {name: strategy_of(name) for name in found}
    times = bench.milliseconds(answerers, repetitions)
    rows = {name: {**_select_metrics(evaluation), **times[name]} for name, evaluation in found.items()}
    rows["agent_rrf, true types"] = _select_metrics(bench.rank(strategy_of("agent_rrf"), types="oracle"))
    return {"systems": rows}


def _select_metrics(found: Evaluation) -> dict[str, float]:
    return {name: value for name, value in found.metrics().items() if name in ("hit@1", "hit@5", "hit@10", "mrr")}


def sweep(bench: Bench, measured: Measured, escalated: str, repetitions: int) -> dict[str, Any]:
    """The cascade, run at each threshold: skip, metric and time.

    `as_composed` says whether each question has the value of the system that its margin selects.
    """
    cascades = {tau: Cascade(tau, escalate=Strategy.of(escalated)) for tau in TAUS_A087}
    times = bench.milliseconds({str(tau): cascade for tau, cascade in cascades.items()}, repetitions)
    rows = []
    for tau, expected in zip(TAUS_A087, cascade_sweep(measured, escalated), strict=True):
        found = bench.rank(cascades[tau])
        chosen = np.where(measured.confidence >= tau, measured.column("bm25"), measured.column(escalated))
        rows.append(
            {
                "tau": tau,
                "skip": found.skip,
                "skip_percent": round(100.0 * (found.skip or 0.0), 1),
                METRIC: found.metrics()[METRIC],
                "hit@1": found.metrics()["hit@1"],
                **times[str(tau)],
                "as_composed": bool(np.array_equal(found.values[METRIC], chosen)) and found.skip == expected["skip"],
            }
        )
    return {"escalated": escalated, "rows": rows}


def parts(bench: Bench, escalated: str, repetitions: int) -> dict[str, Any]:
    """A cascade's batch at the default threshold, against BM25 on all plus the escalated strategy on the escalated.

    Once with queries encoded, and once with their vectors given, which shows the work without the encoder.
    """
    cascade = Cascade(escalate=Strategy.of(escalated))
    plain = bench.asked(cascade).queries
    vectors = bench.quick.encoder.queries([query.text for query in plain]) if bench.quick.encoder is not None else []
    given = [replace(query, vector=vector) for query, vector in zip(plain, vectors, strict=True)]
    decisions = bench.timed.search(given, K, strategy=cascade).decisions or ()
    rows = {}
    for name, queries in (("encoded", plain), ("vectors given", given)):
        hard = [query for query, decision in zip(queries, decisions, strict=True) if decision.escalated]
        spent: dict[str, list[float]] = {"cascade": [], "bm25": [], "escalated": []}
        for repetition in range(repetitions + 1):
            for part, asked, answerer in (
                ("cascade", queries, cascade),
                ("bm25", queries, Strategy("bm25")),
                ("escalated", hard, cascade.escalate),
            ):
                seconds = _seconds(bench.timed, asked, answerer)
                if repetition:  # the first one derives lazy arrays
                    spent[part].append(1e3 * seconds)
        ms = {part: statistics.median(times) for part, times in spent.items()}
        rows[name] = {**ms, "ratio": ms["cascade"] / (ms["bm25"] + ms["escalated"])}
    return {"escalated": escalated, "queries": len(plain), "escalations": len(hard), "batch_ms": rows}


def folds(bench: Bench, measured: Measured, escalated: str, repetitions: int) -> dict[str, Any]:
    """Cross-validated cascades by type (A089). Each fold's cascade runs on the questions of its fold.

    ``composed`` takes the values of the escalated system without types. The run gives it the predicted types.
    """
    rows = []
    for number, fold in enumerate(cascade_folds(measured, escalated)):
        places = fold.places.tolist()
        row: dict[str, Any] = {"fold": number, "n": len(places), "accuracy": fold.accuracy, "taus": fold.taus}
        single = replace(fold.cascade(escalated), taus=None, classifier=None)
        for name, policy in (("by_type", fold.cascade(escalated)), ("single", single)):
            found = bench.rank(policy, places)
            row[name] = {METRIC: found.metrics()[METRIC], "skip": found.skip}
            if repetitions:
                seconds = _seconds(bench.timed, bench.asked(policy, places).queries, policy)
                row[name]["ms"] = 1e3 * seconds / len(places)
        row["composed"] = {"by_type": fold.value, "single": fold.value_single}
        rows.append(row)
    return {
        "escalated": escalated,
        "folds": rows,
        "mean": {
            name: {
                column: {
                    "mean": statistics.mean(row[name][column] for row in rows),
                    "deviation": statistics.pstdev(row[name][column] for row in rows),
                }
                for column in rows[0][name]
            }
            for name in ("by_type", "single")
        },
    }


def measure_routers(bench: Bench, measured: Measured, repetitions: int) -> dict[str, Any]:
    """A table like Table 10 with LoCoMo's categories as types, and the measured time of the routers by words."""
    columns: dict[str, Floats] = {name: np.zeros(len(measured)) for name in ("router", "soft")}
    seconds = dict.fromkeys(columns, 0.0)
    for train, test in splits(len(measured)):
        places = test.tolist()
        for name in columns:
            policy = router_of(measured, train, soft=name == "soft")
            columns[name][test] = bench.rank(policy, places).values[METRIC]
            if repetitions:
                seconds[name] += _seconds(bench.timed, bench.asked(policy, places).queries, policy)
    found = routers(measured, soft=columns["soft"])
    values = found.pop("values")
    best = found["best_static"]
    names = [name for name in values if name not in (best, *measured.values)]
    return {
        **found,
        "ms": {name: 1e3 * spent / len(measured) for name, spent in seconds.items() if spent},
        "as_composed": bool(np.array_equal(columns["router"], values["router-tfidf"])),
        "differences": differences(values, [(name, best) for name in names], measured.clusters),
    }


def noise(bench: Bench, measured: Measured) -> dict[str, Any]:
    """The grid of corrupted questions (A100), and the metrics of the systems and the cascade on these questions."""
    searched = []
    for level in NOISE:
        texts = corrupt_texts(measured.texts, level)
        queries = [replace(query, text=text) for query, text in zip(bench.dataset.queries, texts, strict=True)]
        row: dict[str, Any] = {"noise": level}
        for name in ("bm25", *ESCALATED):
            answerer = strategy_of(name)
            noisy = prepare_dataset(replace(bench.dataset, queries=queries), answerer, "none")
            row[name] = rank(
                bench.quick, noisy, k=default_depth(noisy), complete=bench.preset.complete, strategy=answerer
            ).metrics()[METRIC]
        cascade = Cascade(escalate=Strategy.of("fused"))
        noisy = replace(bench.dataset, queries=queries)
        found = rank(bench.quick, noisy, k=default_depth(noisy), complete=bench.preset.complete, strategy=cascade)
        row |= {"cascade": found.metrics()[METRIC], "skip": found.skip}
        searched.append(row)
    return {"grid": noise_grid(measured), "searched": searched}


def measure_tuning(bench: Bench, repetitions: int) -> dict[str, Any]:
    """The result of `fanrank tune` on 50 labelled questions, and its gain on the others."""
    dataset = bench.asked(strategy_of("agent_rrf"))
    few, others = draw_questions(labelled_questions(dataset), LABELS, 0)
    found = tune(bench.timed, few, metric=METRIC, held_out=others, repeats=max(repetitions, 1)).to_dict()
    return {"labels": len(few), "source": bench.dataset.name, **found}


def recall(bench: Bench, repetitions: int) -> dict[str, Any]:
    """``recall`` beside BM25 and fused evidence, by category."""
    answerers = {name: strategy_of(name) for name in ("bm25", "fused", "recall")}
    found = {name: bench.rank(answerer) for name, answerer in answerers.items()}
    values = {name: evaluation.values[METRIC] for name, evaluation in found.items()}
    clusters = [bench.dataset.clusters[str(query.id)] for query in bench.dataset.queries]
    return {
        "systems": {name: _select_metrics(evaluation) for name, evaluation in found.items()},
        "categories": {name: evaluation.per_category() for name, evaluation in found.items()},
        "ms": bench.milliseconds(answerers, repetitions),
        "differences": differences(values, [("recall", "bm25"), ("recall", "fused")], clusters),
    }


def measure(
    preset: str, unit: str, encoder: str, embeddings: Path, wanted: Sequence[str], repetitions: int
) -> Iterator[dict[str, Any]]:
    """The rows of one preset and unit."""
    bench = Bench(preset, unit, encoder, embeddings)
    assert bench.quick.encoder is not None
    found = {name: bench.rank(strategy_of(name)) for name in SYSTEMS}
    texts = [query.text for query in bench.dataset.queries]
    vectors = bench.quick.encoder.queries(texts)
    measured = Measured.of(found, METRIC, vectors=vectors, model=bench.quick.encoder.name)
    works: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("static", lambda: measure_systems(bench, found, repetitions))
    ]
    for name in ESCALATED:
        works += [
            ("sweep", lambda name=name: sweep(bench, measured, name, repetitions)),
            ("parts", lambda name=name: parts(bench, name, max(repetitions, 1))),
            ("folds", lambda name=name: folds(bench, measured, name, repetitions)),
        ]
    works += [
        ("routers", lambda: measure_routers(bench, measured, repetitions)),
        ("noise", lambda: noise(bench, measured)),
        ("curve", lambda: {"held_out": HELD_OUT, "rows": learning_curve(measured, held_out=HELD_OUT)}),
        ("tune", lambda: measure_tuning(bench, repetitions)),
        ("recall", lambda: recall(Bench(preset, unit, encoder, embeddings, events=True), repetitions)),
    ]
    for part, work in works:
        if part not in wanted:
            continue
        row: dict[str, Any] = {"part": part, "preset": preset, "unit": unit, "n": len(measured), "metric": METRIC}
        try:
            row |= {**work(), "backend": bench.timed.backend.name, "encoder": describe_encoder(bench.timed.encoder)}
        except FanrankError as error:
            row["error"] = str(error)
        yield row


def render(row: Mapping[str, Any]) -> str:
    """A row as text."""
    title = f"{row['part']}, {row['preset']}, {row['unit']}, n = {row['n']:,}"
    if "error" in row:
        return f"{title}: {row['error']}"
    title += f", escalating to {row['escalated']}" if "escalated" in row else ""
    shown = _TABLES[row["part"]](row)
    return "\n".join([title, *shown])


_DIGITS = {"skip_percent": 1, "captured": 0, "ms": 2, "ms_fanout": 2, "cascade": 1, "bm25": 1, "escalated": 1}
"""Of what is no share."""


def _cells(row: Mapping[str, Any], columns: Sequence[str], digits: Mapping[str, int] = _DIGITS) -> list[str]:
    values = (row.get(column) for column in columns)
    return ["" if v is None else f"{v:.{digits.get(c, 4)}f}" for c, v in zip(columns, values, strict=True)]


def _static_table(row: Mapping[str, Any]) -> list[str]:
    head = ["hit@1", "hit@5", "hit@10", "mrr", "ms", "ms_fanout"]
    return [table(["", *head], ([name, *_cells(own, head)] for name, own in row["systems"].items()))]


def _sweep_table(row: Mapping[str, Any]) -> list[str]:
    head = ["skip_percent", METRIC, "hit@1", "ms", "ms_fanout"]
    return [table(["tau", *head], ([f"{own['tau']:.2f}", *_cells(own, head)] for own in row["rows"]))]


def _parts_table(row: Mapping[str, Any]) -> list[str]:
    head = ["cascade", "bm25", "escalated", "ratio"]
    return [table(["ms of a batch", *head], ([name, *_cells(own, head)] for name, own in row["batch_ms"].items()))]


def _folds_table(row: Mapping[str, Any]) -> list[str]:
    head = [METRIC, "ms", "skip"]
    lines = [
        [str(own["fold"]), *_cells(own, ["accuracy"]), *_cells(own["by_type"], head), *_cells(own["single"], head)]
        for own in row["folds"]
    ]
    for what in ("mean", "deviation"):
        means = [{column: own[what] for column, own in row["mean"][name].items()} for name in ("by_type", "single")]
        lines.append([what, "", *_cells(means[0], head), *_cells(means[1], head)])
    return [table(["fold", "clf", *head, f"single {METRIC}", "ms", "skip"], lines)]


def _routers_table(row: Mapping[str, Any]) -> list[str]:
    rows = ([name, *_cells(own, ["value", "captured", "accuracy"])] for name, own in row["rows"].items())
    milliseconds = "".join(f"; {name} {own:.2f} ms" for name, own in row["ms"].items())
    return [
        table([f"best static {row['best_static']}", METRIC, "captured %", "clf"], rows),
        f"the oracle's gap: {100.0 * row['gap']:.2f} points; best by type: {row['table']}{milliseconds}",
        _differences_table(row["differences"]),
    ]


def _differences_table(rows: Sequence[Mapping[str, Any]]) -> str:
    ends = ("difference", "low", "high")
    lines = ([f"{r['first']} - {r['second']}", *(f"{100 * r[e]:+.2f}" for e in ends), f"{r['p']:.4f}"] for r in rows)
    return table(["difference", "points", "low", "high", "p"], lines)


def _noise_table(row: Mapping[str, Any]) -> list[str]:
    heads = [["accuracy", "value"], ["bm25", *ESCALATED, "cascade", "skip"]]
    return [
        table(["noise", *head], ([f"{own['noise']:.2f}", *_cells(own, head, {})] for own in rows))
        for head, rows in zip(heads, (row["grid"], row["searched"]), strict=True)
    ]


def _curve_table(row: Mapping[str, Any]) -> list[str]:
    head = ["accuracy", "value", "deviation", "static", "oracle"]
    return [table(["labels", *head], ([str(own["labels"]), *_cells(own, head)] for own in row["rows"]))]


def _recall_table(row: Mapping[str, Any]) -> list[str]:
    categories = row["categories"]
    names = list(categories)
    lines = (
        [label, str(own["n"]), *(cell for name in names for cell in _cells(categories[name][label], [METRIC]))]
        for label, own in categories[names[0]].items()
    )
    return [table([METRIC, "n", *names], lines), _differences_table(row["differences"])]


_TABLES: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "static": _static_table,
    "sweep": _sweep_table,
    "parts": _parts_table,
    "folds": _folds_table,
    "routers": _routers_table,
    "noise": _noise_table,
    "curve": _curve_table,
    "tune": lambda row: [render_tuned(row)],
    "recall": _recall_table,
}


def main() -> None:
    """Run the chosen presets and units."""
    parser = argparse.ArgumentParser(prog="python -m bench.cascade", description=__doc__)
    parser.add_argument("--presets", default=",".join(PRESETS), help=f"some of {', '.join(PRESETS)}")
    parser.add_argument("--units", default=",".join(UNITS), help=f"some of {', '.join(UNITS)}")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--encoder", default=DEFAULT_ENCODER)
    parser.add_argument("--embeddings", type=Path, help="a file that keeps vectors; without it they are made anew")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    if options.encoder == DEFAULT_ENCODER:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    shared = {"machine": machine(), "versions": versions(), "commit": commit(), "code": code_of("cascade")}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        embeddings = options.embeddings or Path(folder) / "vectors.db"
        for preset in options.presets.split(","):
            for unit in options.units.split(","):
                chosen = options.parts.split(",")
                for row in measure(preset, unit, options.encoder, embeddings, chosen, options.repetitions):
                    print(render(row), end="\n\n", flush=True)
                    with (RESULTS / "cascade.jsonl").open("a", encoding="utf-8") as handle:
                        line = {"bench": "cascade", "dataset": "locomo", **row, **shared, "date": now()}
                        handle.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
