"""The bench's study beside `evaluate`, and evaluations under a strategy."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.benches import load
from support.evaluations import Letters, Scripted, write_locomo

from fanrank.engine.evaluate import Dataset, Evaluation, evaluate, paired_bootstrap, rank, render, study_strategies
from fanrank.engine.fuse.candidates import Candidates, Channel
from fanrank.engine.hybrid.strategy import Strategy
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record

(bench,) = load("study")
DENSE = ("dense-early", "dense-late", "dense-top3", "dense-lse10", "dense-lme10")


def conversations(shape: Sequence[tuple[int, list[set[int]]]], turns: int = 9) -> Dataset:
    """Conversations of (sessions, the gold sessions of each question); session s has turns + s turns."""
    records, queries, relevant, categories, clusters = [], [], {}, {}, {}
    for number, (sessions, golds) in enumerate(shape):
        space = f"c{number}"
        records += [Record(f"D{s}", "", space, passages=["x"] * (turns + s)) for s in range(sessions)]
        for position, gold in enumerate(golds):
            name = f"{space}:{position}"
            queries.append(Query("", id=name, namespace=space))
            relevant[name] = {f"D{session}": 1 for session in sorted(gold)}
            categories[name] = "odd" if position % 2 else "even"
            clusters[name] = space
    return Dataset("toy", records, queries, relevant, categories, clusters)


def evidence(dataset: Dataset, seed: int, names: Sequence[str] = ("bm25", *DENSE), steps: int = 5) -> Candidates:
    """Scores in few steps, so that there are ties; BM25 lists only what is above 0, ranks are over all sessions."""
    members = dataset.members()
    sizes = [len(members[query.namespace]) for query in dataset.queries]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    total = int(offsets[-1])
    random = np.random.default_rng(seed)
    everywhere = np.ones(total, dtype=bool)
    channels = {
        name: Channel.of(random.integers(0, steps, total) / steps, everywhere, everywhere, offsets) for name in names
    }
    return Candidates(
        offsets,
        np.concatenate([np.arange(size) for size in sizes]),
        channels,
        np.full(len(sizes), np.nan),
        np.full(total, np.nan),
        np.full(total, np.nan),
        (None,) * len(sizes),
    )


def test_lengths_are_those_of_the_longest_gold_session() -> None:
    # Sessions of 5, 6, 7, … turns; the bins end at 7, 15, 25.
    golds = [{0}, {2}, {0, 3}, {10}, {0, 11}, {20}, {21}, {1, 30}]
    dataset = conversations([(31, golds), (31, [{4}])], turns=5)
    found = bench.study_conversations(dataset, evidence(dataset, 2), resamples=50)
    assert {name: row["n"] for name, row in found["lengths"].items()} == {"1-7": 2, "8-15": 3, "16-25": 2, "26+": 2}
    shorter = conversations([(3, [{0}]), (3, [{1}])], turns=30)
    assert list(bench.study_conversations(shorter, evidence(shorter, 2), resamples=50)["lengths"]) == ["26+"]


def test_a_complete_protocol_makes_the_strategy_complete() -> None:
    dataset = conversations([(4, [{3}])])
    searcher = Scripted({"c0:0": [("D2", 0.5), ("D0", -0.25)]})
    found = rank(searcher, dataset, k=4, complete=True, strategy=Strategy.of("dense-late"))
    # A cosine below 0 is evidence all the same: what has none stands behind it.
    assert found.ranked == {"c0:0": ["D2", "D0", "D1", "D3"]}
    assert found.stages == {"bm25": 3.0, "dense": 1.0}
    as_it_is = rank(searcher, dataset, k=4, complete=False, strategy=Strategy.of("dense-late"))
    assert as_it_is.ranked == {"c0:0": ["D2", "D0"]}
    lexical = rank(searcher, dataset, k=4, complete=True, strategy=Strategy.of("bm25"))
    assert lexical.ranked == {"c0:0": ["D2", "D1", "D3", "D0"]}
    assert [(s.name, s.complete, s.depth) for s in searcher.asked] == [
        ("dense-late", True, None),
        ("dense-late", False, 100),
        ("bm25", False, 100),
    ]


def test_study_of_strategies() -> None:
    dataset = conversations([(12, [{n % 12} for n in range(30)])])
    evaluations: dict[str, Evaluation] = {}
    for number, name in enumerate(("bm25", "dense", "rrf")):
        random = np.random.default_rng(number)
        lists = {
            str(query.id): [(f"D{d}", float(12 - place)) for place, d in enumerate(random.permutation(12))]
            for query in dataset.queries
        }
        evaluations[name] = rank(Scripted(lists), dataset, k=12, complete=False)
    found = study_strategies(evaluations, resamples=300, seed=5)
    assert json.loads(json.dumps(found)) == found
    assert (found["n"], found["metric"]) == (30, "ndcg@10")
    columns = {name: evaluation.values["ndcg@10"] for name, evaluation in evaluations.items()}
    assert [(row["first"], row["second"]) for row in found["differences"]] == [
        ("dense", "bm25"),
        ("rrf", "bm25"),
        ("rrf", "dense"),
    ]
    for row in found["differences"]:
        made = paired_bootstrap(columns[row["first"]], columns[row["second"]], resamples=300, seed=5)
        assert (row["difference"], row["low"], row["high"], row["p"]) == (made.difference, made.low, made.high, made.p)
    for name, evaluation in evaluations.items():
        assert found["systems"][name] == evaluation.metrics()
        assert found["stages_ms"][name] == {"bm25": 3.0, "dense": 1.0}
    assert "rrf - dense" in render(found)


def test_study_of_a_file(tmp_path: Path) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    found = bench.study("locomo", file, preset="opsem", encoder=Letters(), embeddings=tmp_path / "vectors.db")
    assert json.loads(json.dumps(found)) == found
    assert (found["n"], found["clusters"], found["preset"]) == (6, 2, "opsem")
    assert found["encoder"] == {"name": "letters", "version": "1"}
    for name in ("bm25", "dense-early", "dense-late", "dense-top3", "rrf"):
        alone = evaluate("locomo", file, preset="opsem", encoder=Letters(), strategy=name)["metrics"]
        for metric, value in found["systems"][name].items():
            assert value == alone[metric], (name, metric)
    # It reads the captions of pictures, too.
    assert found["systems"]["bm25"]["hit@1"] == pytest.approx(2 / 3)
    assert found["systems"]["bm25-stronger"]["hit@1"] == 1.0
