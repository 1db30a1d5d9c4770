"""The menu of strategies beside BM25 and ``fused``, on each set that is there: ``python -m bench.strategies``.

Appends to ``bench/results/quality.jsonl`` one row a set, with part ``strategies``. It holds the means of `METRICS` for
every one of them, over all questions, over the half that reports, and by category; the differences to
`BASELINES` with paired bootstraps, over questions and over conversations; and for ``auto`` the thresholds that lose
nothing on the half that tunes.

Conversations are parted into halves in turn, by their names in order; questions of a set without conversations too. A
set is a function of `SETS`, from the data folder to a `Dataset`. Those whose data is not there are left out, by name.
"""

import gzip
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.engine.engine import Engine
from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate import cluster_bootstrap, load_beir, load_locomo, load_longmemeval, paired_bootstrap
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.evaluate.encoders import describe_encoder
from fanrank.engine.evaluate.protocol import Evaluation, prepare_dataset, rank
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.index.profiles import PROFILES, default_profile
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record
from fanrank.engine.route.cascade import AUTO
from fanrank.engine.route.policy import MENU, POLICIES, strategy_of

from .harness.asked import SETS as ASKED
from .harness.command import Command, among
from .harness.paths import data_folder
from .harness.typed import SETS as TYPED
from .harness.typed import locomo_turns
from .harness.vectors import add_encoder, encoder_of, versions

METRICS = ("hit@1", "hit@5", "ndcg@10")
BASELINES = ("bm25", "fused")
PART = "strategies"
TAUS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.01)
DEPTH = 20
"""Hits of a list: the metrics read 10, and a question's own record may be among them."""
RESAMPLES = 1_000
SYSTEMS = (*NAMED, *POLICIES)
PAPERS = ("rrf", "cascade")
"""What docs/figures.md shows beside the menu; `fanrank published` measures the others where their papers do."""


def assistant_chats(folder: Path) -> Dataset:
    """Chats of a user with an assistant that answers at length, with a record a turn and its role."""
    records: list[Record] = []
    queries: list[Query] = []
    relevant: dict[str, dict[str, int]] = {}
    categories: dict[str, str] = {}
    clusters: dict[str, str] = {}
    for turn in _lines(folder / "assistant_chats" / "turns.jsonl.gz"):
        own = {"id": turn["id"], "text": turn["text"], "namespace": turn["chat"]}
        records.append(Record(**own, session=turn["session"], role=turn["role"]))
    for asked in _lines(folder / "assistant_chats" / "questions.jsonl.gz"):
        queries.append(Query(asked["text"], namespace=asked["chat"], id=asked["id"]))
        relevant[asked["id"]] = dict.fromkeys(asked["relevant"], 1)
        categories[asked["id"]], clusters[asked["id"]] = asked["kind"], asked["chat"]
    return Dataset("assistant-chats", records, queries, relevant, categories, clusters)


def without_roles(dataset: Dataset) -> Dataset:
    """The same, of records whose roles nobody told."""
    return replace(
        dataset, name=f"{dataset.name}-roleless", records=[replace(record, role=None) for record in dataset.records]
    )


def _lines(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def locomo_sessions(folder: Path) -> Dataset:
    """LoCoMo with a record a session, whose turns are its passages."""
    return replace(load_locomo(folder / "locomo" / "locomo10.json"), name="locomo-sessions")


def longmemeval(folder: Path) -> Dataset:
    """Three haystacks of LongMemEval with a record a session: 26 questions, too few to tell systems apart."""
    return load_longmemeval(folder / "longmemeval_subset" / "longmemeval_s_3haystacks.json")


SETS: dict[str, Callable[[Path], Dataset]] = {
    "locomo-turns": lambda folder: replace(locomo_turns(folder), name="locomo-turns"),
    "assistant-chats": assistant_chats,
    "assistant-chats-roleless": lambda folder: without_roles(assistant_chats(folder)),
    "locomo-sessions": locomo_sessions,
    "longmemeval": longmemeval,
    "scifact": lambda folder: load_beir(folder / "scifact"),
    "cranfield": lambda folder: load_beir(folder / "cranfield"),
    **TYPED,
    **ASKED,
}
"""The sets by name. Another one is a function of the same form."""


def halves(dataset: Dataset) -> npt.NDArray[np.bool_]:
    """[questions] whether each is of the half that tunes; the others report."""
    names = [str(query.id) for query in dataset.queries]
    units = [dataset.clusters.get(name, name) for name in names]
    # A few large clusters would leave halves of different kinds, so three haystacks are parted by question.
    if len(set(units)) < 4:
        units = names
    place = {unit: number for number, unit in enumerate(sorted(set(units)))}
    return np.array([place[unit] % 2 == 0 for unit in units], dtype=np.bool_)


def safe_taus(found: Mapping[str, Evaluation], tuning: npt.NDArray[np.bool_]) -> list[dict[str, float]]:
    """For each threshold of ``auto``: the share of skipped questions, and how far each metric is above the baselines.

    ``least`` is the smallest of these differences to the better baseline, over the metrics, on the half that tunes.
    """
    full, plain, confidence = found[AUTO.escalate.name], found["bm25"], found["bm25"].confidence
    rows = []
    for tau in TAUS:
        skipped = np.nan_to_num(confidence, nan=-1.0) >= tau
        gains = {}
        for metric in METRICS:
            mixed = np.where(skipped, plain.values[metric], full.values[metric])[tuning].mean()
            gains[metric] = float(mixed - max(found[name].values[metric][tuning].mean() for name in BASELINES))
        rows.append({"tau": tau, "skip": float(skipped[tuning].mean()), "least": min(gains.values()), **gains})
    return rows


def compare(dataset: Dataset, system: Evaluation, other: Evaluation, among: Iterable[int]) -> dict[str, Any]:
    """Differences of two systems over these questions, by metric: bootstraps over questions and over conversations."""
    places = list(among)
    names = [str(dataset.queries[place].id) for place in places]
    clusters = [dataset.clusters.get(name) for name in names]
    result: dict[str, Any] = {}
    for metric in METRICS:
        mine, theirs = system.values[metric][places], other.values[metric][places]
        each = paired_bootstrap(mine, theirs, resamples=RESAMPLES)
        result[metric] = {"difference": each.difference, "low": each.low, "high": each.high}
        if None not in clusters and len(set(clusters)) > 3:
            groups = cluster_bootstrap(mine, theirs, clusters, resamples=RESAMPLES)
            result[metric] |= {"cluster_low": groups.low, "cluster_high": groups.high}
    return result


def measure(
    dataset: Dataset, profile: str, model: Any, systems: Sequence[str], progress: Callable[[str], None]
) -> dict[str, Any]:
    """The row of a set: every system's means, halves, categories and differences."""
    row = PROFILES[profile]
    # Feedback on sentences reads the texts of hits.
    engine = Engine.from_records(dataset.records, profile=profile, encoder=model)
    found: dict[str, Evaluation] = {}
    errors: dict[str, str] = {}
    for name in dict.fromkeys((*BASELINES, AUTO.escalate.name, *systems)):
        started = time.perf_counter()
        answerer = strategy_of(name)
        try:
            asked = prepare_dataset(dataset, answerer, "none", encoder=model)
            found[name] = rank(engine, asked, k=DEPTH, complete=False, strategy=answerer)
        except FanrankError as error:
            errors[name] = str(error)
        progress(f"{dataset.name}: {name}, {time.perf_counter() - started:.1f} s{' (left out)' * (name in errors)}")
    tuning = halves(dataset)
    report = np.flatnonzero(~tuning).tolist()
    table: dict[str, Any] = {}
    for name, one in found.items():
        means = {metric: float(one.values[metric].mean()) for metric in METRICS}
        categories = {
            kind: {"n": values["n"], **{metric: values[metric] for metric in METRICS}}
            for kind, values in one.per_category().items()
        }
        table[name] = {
            **means,
            **({} if one.skip is None else {"skip": one.skip}),
            "report": {metric: float(one.values[metric][report].mean()) for metric in METRICS},
            "categories": categories,
            "to": {
                other: {
                    "all": compare(dataset, one, found[other], range(len(tuning))),
                    "report": compare(dataset, one, found[other], report),
                }
                for other in BASELINES
                if other != name
            },
        }
    return {
        "part": PART,
        "dataset": dataset.name,
        "n": len(dataset.queries),
        "n_report": len(report),
        "conversations": len(set(dataset.clusters.values())),
        "documents": len(dataset.records),
        "profile": {"name": profile, "method": row.method, "k1": row.k1, "b": row.b},
        "analyzer": engine.analyzer.name,
        "encoder": describe_encoder(model),
        "systems": table,
        "left_out": errors,
        "taus": safe_taus(found, tuning),
        "tau": AUTO.tau,
    }


def losses(row: Mapping[str, Any], name: str = "auto") -> list[str]:
    """Where a system is below a baseline by more than chance: the interval of a metric lies below 0, all questions."""
    found = []
    for other, parts in row["systems"][name]["to"].items():
        for metric, test in parts["all"].items():
            high = max(test["high"], test.get("cluster_high", test["high"]))
            if high < 0.0:
                found.append(f"{metric} {100 * test['difference']:+.1f} to {other}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every set whose data is present."""
    command = Command("strategies", "The menu of strategies beside BM25 and fused.", "quality", "quality")
    command.add("--sets", type=among(SETS), default=tuple(SETS))
    command.add("--systems", type=among(SYSTEMS), default=(*MENU, *PAPERS), help="default: the menu, rrf and cascade")
    command.add("--profile", choices=list(PROFILES), default=default_profile())
    add_encoder(command)
    options = command.parse(arguments)
    command.common |= {"versions": versions()}
    for name in options.sets:
        started = time.perf_counter()
        try:
            dataset = SETS[name](data_folder())
            row = measure(dataset, options.profile, encoder_of(options), options.systems, command.say)
        except (FanrankError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        command.keep([{**row, "seconds": time.perf_counter() - started}])
        if "auto" in row["systems"]:
            print(f"{name}: auto loses {'; '.join(losses(row)) or 'nothing'}", file=sys.stderr)
        if safe := [entry["tau"] for entry in row["taus"] if entry["least"] >= 0.0]:
            print(f"{name}: {safe[0]:g} is the least threshold without a loss where it is tuned", file=sys.stderr)
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
