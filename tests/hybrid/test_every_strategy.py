"""Every strategy and policy: a query has the same bits alone, in a batch, on every backend and after a restart."""

import operator
import random
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.few import FEW, each
from support.hashing import Hashing

import fanrank as fr
from fanrank.engine.hybrid.strategy import NAMED, Conversation, Dense, Graph, Lexical, Strategy, Temporal
from fanrank.engine.recall.conversation import PageRank
from fanrank.engine.recall.optimizer import Optimizer
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.router import Router
from fanrank.strategies import ScoreRRF

pytestmark = pytest.mark.usefixtures("small_borders")

DAY = 86_400.0
NOW = 100 * DAY
WORDS = ("tea", "rain", "boat", "red", "wind", "ana", "bob", "prefer", "deploy", "error?")
SPOKEN = (*WORDS, "unknown", "yesterday", "recently", "when did", "who is")

CLASSIFIER = Classifier(("drink", "sky"), ("rain", "tea"), np.ones(2), np.array([[0.0, 2.0], [2.0, 0.0]]), np.zeros(2))
ROUTES = {"drink": NAMED["dense"], "sky": NAMED["rrf"]}
EVERY_CHANNEL = (Lexical(), Dense(), Graph(), Temporal(newest_first=True), Conversation(PageRank(window=9, overlap=1)))
WAYS: dict[str, Any] = {
    **{name: own for name, own in NAMED.items() if "hnsw" not in name},
    "again": replace(NAMED["softcentroid-fused"], depth=5, search_again=True),
    "all": Strategy(
        "all", EVERY_CHANNEL, ScoreRRF(), optimizer=Optimizer(triggers="words", filters=True, widen_below=2)
    ),
    "auto": "auto",
    "cascade": Cascade(0.2),
    "entropy": Cascade(0.6, confidence="entropy", depth=10, escalate=NAMED["rrf"]),
    "router": Router(ROUTES, NAMED["bm25"], CLASSIFIER),
    "soft": Router(ROUTES, NAMED["bm25"], CLASSIFIER, soft=True),
}
# Sums of exponentials, which backends add up in orders of their own.
NEARLY = ("dense-lse10", "dense-lme10")
# One for each kind of work that a device does.
DEVICES = ("dense-top3", "dense-lme10", "dense-int8", "sparse", "rm3", "again", "decay", "recall", "dialogue", "auto")
READS_TEXTS = ("rm3", "dialogue", "dialogue-words", "auto")


def records(size: int) -> list[fr.Record]:
    """Of few words, so that scores tie; some without words, vectors or times, some with two passages."""
    draw = random.Random(7)
    made = []
    for number in range(size):
        text = " ".join(draw.choices(WORDS, k=draw.randrange(6)))
        who = draw.choice([None, "ana", "bob"])
        made.append(
            fr.Record(
                f"r{number}",
                text,
                passages=[text, draw.choice(WORDS)] if text and number % 5 == 0 else None,
                session=f"s{number % 4}",
                role=draw.choice(["user", "assistant"]),
                type=draw.choice([None, "Fact", "Preference", "Event", "Entity"]),
                time=None if number % 9 == 0 else NOW - draw.choice([0.5, 1, 10, 10, 40]) * DAY,
                importance=draw.choice([None, 0.5, 1.0]),
                weights={draw.choice(WORDS): draw.choice([0.5, 1.25])},
                entities=None if who is None else [who],
                relations=[fr.Relation(who, "bob", "reports-to", confidence=0.9)] if who == "ana" else None,
            )
        )
    return made


def fill(engine: fr.Engine, size: int = 70) -> fr.Engine:
    """Written in parts, some of it deleted."""
    made = records(size)
    for start in range(0, size, 30):
        engine.add(made[start : start + 30])
    engine.delete([f"r{number}" for number in range(3, size, 11)])
    return engine


@cache
def memory(backend: str, size: int = 70) -> fr.Engine:
    try:
        return fill(fr.Engine(encoder=Hashing(dimension=8), analyzer="minimal", backend=backend), size)
    except fr.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def queries(count: int) -> list[fr.Query]:
    draw = random.Random(count)
    made = [
        fr.Query(
            " ".join(draw.choices(SPOKEN, k=draw.randrange(1, 4))),
            now=NOW,
            k=draw.choice([None, None, 0, 3, 40]),
            weights=draw.choice([{}, {"tea": 1.0, "rain": 0.25}]),
            filter=draw.choice([None, None, {"session": "s1"}]),
            since=draw.choice([None, None, NOW - 20 * DAY]),
            type=draw.choice([None, None, "sky", "multi-session"]),
        )
        for _ in range(count - 2)
    ]
    return [*made, fr.Query("", now=NOW), made[0]]


def rows(hits: fr.Hits) -> list[Any]:
    """What each query was answered, and why so; without the times that it took."""
    decisions = hits.decisions or (None,) * len(hits)
    return [(list(row), own and replace(own, milliseconds=0.0)) for row, own in zip(hits, decisions, strict=True)]


@pytest.mark.parametrize("name", each(WAYS))
def test_a_query_is_answered_alone_as_in_a_batch(name: str) -> None:
    engine, asked = memory("numpy"), queries(14)
    together = rows(engine.search(asked, 6, strategy=WAYS[name]))
    assert any(hits for hits, _ in together)
    assert together == [rows(engine.search([query], 6, strategy=WAYS[name]))[0] for query in asked]


@pytest.mark.parametrize(
    ("backend", "names", "size"),
    [
        ("native", tuple(name for name in WAYS if name in FEW), 70),
        ("cuda-host", ("dense-int8", "sparse", "again", "auto"), 20),
        pytest.param("native", tuple(WAYS), 70, marks=pytest.mark.extended),
        pytest.param("cuda-host", DEVICES, 25, marks=pytest.mark.extended),
        *(pytest.param(name, tuple(WAYS), 70, marks=pytest.mark.gpu) for name in ("cuda", "triton")),
    ],
)
def test_every_backend_gives_the_same_bits(backend: str, names: tuple[str, ...], size: int) -> None:
    asked = queries(5)
    one, other = memory("numpy", size), memory(backend, size)
    for name in names:
        first, second = (engine.search(asked, 6, strategy=WAYS[name]) for engine in (one, other))
        if name in NEARLY:
            for own, theirs in zip(first, second, strict=True):
                assert dict(theirs) == pytest.approx(dict(own), rel=0.0, abs=1e-6), name
        else:
            assert rows(first) == rows(second), name
            assert first.documents.tobytes() == second.documents.tobytes(), name


@pytest.mark.parametrize("name", [pytest.param("fused", marks=pytest.mark.extended), "again"])
def test_the_interpreter_of_triton_gives_the_same_bits(name: str) -> None:
    # With vectors of their own: the interpreter cannot work beside the thread that encodes.
    asked = [replace(query, vector=[1.0, *range(7)]) for query in queries(4)]
    one, other = (memory(backend, 12).search(asked, 6, strategy=WAYS[name]) for backend in ("numpy", "triton"))
    assert rows(one) == rows(other)


def test_a_directory_and_a_saved_memory_answer_as_before(tmp_path: Path) -> None:
    how: dict[str, Any] = {"encoder": Hashing(dimension=8), "analyzer": "minimal"}
    engine, asked = memory("numpy"), queries(8)
    with fr.Engine.open(tmp_path / "memory", **how) as stored:
        fill(stored)
    engine.save(tmp_path / "saved")
    with fr.Engine.open(tmp_path / "memory", encoder=how["encoder"]) as opened:
        loaded = fr.Engine.load(tmp_path / "saved", encoder=how["encoder"])
        for name, way in ((name, way) for name, way in WAYS.items() if name in FEW):
            wanted = rows(engine.search(asked, 6, strategy=way))
            assert rows(opened.search(asked, 6, strategy=way)) == wanted, name
            # A saved memory has no texts.
            feedback = way.feedback if isinstance(way, Strategy) else None
            if name not in READS_TEXTS and not (feedback and feedback.needs_sentences):
                assert rows(loaded.search(asked, 6, strategy=way)) == wanted, name


@pytest.mark.parametrize("name", each(name for name, way in WAYS.items() if getattr(way, "fusion", None) is not None))
def test_an_explanation_adds_up_to_the_score(name: str) -> None:
    engine = memory("numpy")
    hits = engine.search(queries(5), 5, strategy=WAYS[name])
    for position, row in enumerate(hits):
        for record, score in row:
            explained = hits.explain(position, record)
            assert isinstance(explained, fr.reports.FusedExplanation)
            assert explained.score == score
            if name != "decay":  # whose one channel is told as BM25 scores it, unfaded
                assert reduce(operator.add, [share.share for share in explained.channels]) == score
            if name in ("rrf", "agent_rrf", "fused", "minmax"):
                own = next(share for share in explained.channels if share.channel == "bm25")
                lexical = explained.lexical
                assert own.score == (lexical.score if lexical.matched and lexical.passed else 0.0)
            assert str(WAYS[name]).split(":")[0] in str(explained)
