"""The policy auto: words or vectors, each with its own bits; and policies as files, with named errors for others."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hashing import Hashing

import fanrank as fr
from fanrank.engine.errors import ParameterError, PolicyFileError, StorageError
from fanrank.engine.fuse import Boosted
from fanrank.engine.hybrid.strategy import NAMED, Strategy
from fanrank.engine.route.cascade import AUTO, LONGMEMEVAL_THRESHOLDS, Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.confidence import margin
from fanrank.engine.route.policy import (
    FORMAT,
    POLICIES,
    VERSION,
    Answerer,
    answerer_to_dict,
    load,
    policy_of,
    save,
    strategy_of,
)
from fanrank.engine.route.router import LONGMEMEVAL_SYSTEMS, Router

DIMENSION = 4


def memory() -> fr.Engine:
    """Three namespaces: with vectors, without any, and with a vector of a deleted record alone."""
    engine = fr.Engine(encoder=fr.OwnVectors(DIMENSION, "hashing", "1"), analyzer="minimal")
    # BM25 is sure of the first record for the query that has all of its words and one more.
    texts = ["a b c d e f g h i j", "w1 w2 w3 w4 w5 w6 w7 w8 w1 w2 w3 w4", "w1 w2", "w2 w3 w1", "w3"]
    for start in (0, 2):
        for space in ("both", "words", "gone"):
            engine.add(
                fr.Record(
                    f"{space}{n}", texts[n], space, embedding=[1, n, 0, 1] if space == "both" and n != 3 else None
                )
                for n in range(start, min(start + 3, 5) if start else 2)
            )
    engine.add([fr.Record("deleted", "w1", "gone", embedding=[1, 0, 0, 0])])
    engine.delete(["deleted"], namespace="gone")
    # An encoder that encodes texts, which no record above asked for.
    engine.searcher.models.encoder = Hashing(dimension=DIMENSION)  # type: ignore[assignment]
    return engine


QUERIES = [
    *(
        fr.Query(text, namespace=space, k=k)
        for text in ("a b c d e f g h i j w8", "w1 w2", "w3")
        for space in ("both", "words", "gone")
        for k in (1, 30)
    ),
    fr.Query("w1 w2", namespaces=["both", "words"]),
    fr.Query("", namespace="both"),
    fr.Query("nope"),
]


def rows(hits: fr.Hits) -> list[list[tuple[str, float]]]:
    return [[tuple(hit) for hit in row] for row in hits]


def test_each_row_has_the_bits_of_the_strategy_that_its_margin_and_its_vectors_choose() -> None:
    engine, queries = memory(), QUERIES
    hits = engine.search(queries, strategy="auto")
    plain = engine.search(queries)
    deeper = engine.search([fr.Query(q.text, namespace=q.namespace, namespaces=q.namespaces, k=50) for q in queries])
    sure = np.nan_to_num(margin(deeper.scores, deeper.counts.astype(np.int64)), nan=-1.0) >= AUTO.tau
    decisions = hits.decisions or ()
    seen = set()
    for row, (query, decision) in enumerate(zip(queries, decisions, strict=True)):
        lacks = (query.namespaces is None and query.namespace != "both") or not query.text.strip()
        expected = "bm25" if lacks or sure[row] else "recall"
        assert decision.strategy == expected
        assert decision.escalated == (expected == "recall")
        assert ("dense" in decision.skipped) == lacks
        found = rows(plain)[row] if expected == "bm25" else rows(engine.search([query], strategy="recall"))[0]
        assert rows(hits)[row] == found == rows(engine.search([query], strategy="auto"))[0]
        seen.add((expected, bool(lacks)))
    assert seen == {("bm25", True), ("bm25", False), ("recall", False)}


@pytest.mark.parametrize(("vectors", "names"), [(True, ["dialogue", "recall"]), (False, ["dialogue-words", "bm25"])])
@pytest.mark.parametrize(("beside", "texts"), [(3, True), (2, True), (3, False)])
def test_dialogues_have_strategies_of_their_own(vectors: bool, names: list[str], beside: int, texts: bool) -> None:
    # Of five live records so many stand in one session, as does a deleted one.
    engine = fr.Engine(encoder=fr.OwnVectors(2), keep_texts=texts)
    for n, text in enumerate(["w1 w2", "w1", "w3 w1", "w3", "w1 w4", "w1 w2"]):
        session = f"{n}" if beside <= n < 5 else "s"
        engine.add([fr.Record(f"{n}", text, session=session, type="Event", time=86_400.0 * n, embedding=[1, n])])
    engine.delete(["5"])
    own = {"vector": [1, 2]} if vectors else {}
    asked = [
        fr.Query("w1", **own),
        fr.Query("what happened yesterday?", now=3 * 86_400.0, **own),
        fr.Query("w1 w3", **own),
    ]
    hits = engine.search(asked, strategy="auto")
    chosen = names[not (texts and beside == 3)]
    assert [decision.strategy for decision in hits.decisions or ()] == [chosen, names[1], chosen]
    with pytest.raises(fr.errors.QueryError, match="3 dimensions"):
        engine.search([fr.Query("w1", vector=[0, 1, 2])], strategy="auto")
    for row, decision in enumerate(hits.decisions or ()):
        assert vectors or decision.skipped == {"dense": "no vectors to compare"}
        assert rows(hits)[row] == rows(engine.search([asked[row]], strategy=decision.strategy))[0]


@pytest.mark.parametrize("terms", [40, 39])
def test_exchanges_of_long_answers_have_a_strategy_of_their_own(terms: int) -> None:
    engine = fr.Engine(encoder=fr.OwnVectors(2), analyzer="minimal")
    said = enumerate([("user", 2), ("assistant", terms), ("assistant", 40), ("assistant", 400)])
    engine.add(fr.Record(f"{n}", "w1 " * many, session="s", role=role, embedding=[1, n]) for n, (role, many) in said)
    engine.delete(["3"])
    asked = [fr.Query("w1", unit=unit, vector=[1, 2]) for unit in ("exchange", "record")]
    asked.append(fr.Query("w1", unit="exchange"))
    hits = engine.search(asked, strategy="auto")
    chosen = [decision.strategy for decision in hits.decisions or ()]
    assert chosen == ["dialogue-exchanges" if terms == 40 else "dialogue", "dialogue", "dialogue-words"]
    assert rows(hits) == [rows(engine.search([q], strategy=own))[0] for q, own in zip(asked, chosen, strict=True)]


def test_it_is_a_policy_like_the_others() -> None:
    engine = memory()
    assert strategy_of("auto") is AUTO
    assert AUTO.escalate == NAMED["recall"]
    assert AUTO.escalate.fusion == Boosted(alpha=0.6, below=0.5)
    again = strategy_of(json.loads(json.dumps(answerer_to_dict(AUTO))))
    assert again == AUTO
    query = fr.Query("w1 w2 w3", namespace="both", strategy="auto")
    hits = engine.search([query, fr.Query("w1", namespace="both")])
    assert rows(hits)[0] == rows(engine.search([query], strategy=again))[0]
    explained = engine.explain(query, rows(hits)[0][0][0], strategy="auto")
    assert explained.score == rows(hits)[0][0][1]
    by_space = engine.search([fr.Query("w1 w2 w3", namespace="both")], strategy={"both": "auto", "": "bm25"})
    assert rows(by_space)[0] == rows(hits)[0]
    with pytest.raises(fr.errors.ParameterError, match="needs_vectors must be true or false"):
        fr.Cascade(needs_vectors=1)  # type: ignore[arg-type]


def classifier(seed: int = 0, dimension: int = 3) -> Classifier:
    random = np.random.default_rng(seed)
    terms = ("did", "did we", "we", "\ud800 ärger")
    return Classifier(
        ("knowledge-update", "multi-session"),
        terms,
        1.0 + random.random(4),
        random.normal(size=(2, 4 + dimension)) * 10.0 ** random.integers(-300, 99, size=(2, 4 + dimension)),
        random.normal(size=2),
        dimension,
        "some/model",
    )


SOFT = Router(LONGMEMEVAL_SYSTEMS, NAMED["agent_rrf"], classifier(), soft=True)
EVERY: list[Answerer] = [
    Cascade(),
    Cascade(tau=math.inf, taus=LONGMEMEVAL_THRESHOLDS, lexical_types=("temporal-reasoning",), classifier=classifier()),
    Cascade(escalate=SOFT, confidence="entropy"),
    Router(LONGMEMEVAL_SYSTEMS, NAMED["rrf"]),
    SOFT,
    Router({"a": NAMED["rrf"], "b": Strategy("mine")}, NAMED["dense"], soft=True, k=7.0, name="own"),
    Router({}, Strategy("bm25")),
    NAMED["bm25"],
    NAMED["agent_rrf"],
]


@pytest.mark.parametrize("policy", EVERY)
def test_a_file_holds_the_same_bits(tmp_path: Path, policy: Answerer) -> None:
    path, again = tmp_path / "policy.json", tmp_path / "again.json"
    about = {"metric": "hit@5", "skip": 0.1 + 0.2, "types": {"ä\ud800": [1, None, True]}}
    save(path, policy, about)
    found, said = load(path)
    assert type(found) is type(policy)
    assert said == about
    assert found.to_dict() == policy.to_dict()
    if '"labels"' not in path.read_text():  # classifiers are compared below
        assert (found, hash(found)) == (policy, hash(policy))
    assert policy.name in str(policy)
    save(again, found, said)
    assert again.read_bytes() == path.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again.json", "policy.json"]
    if not isinstance(policy, Strategy) and policy.classifier is not None:
        assert not isinstance(found, Strategy)
        texts, vectors = ["Did we, or did we not", ""], np.ones((2, 3))
        before, after = policy.classifier, found.classifier
        assert before.weights.tobytes() == after.weights.tobytes()
        assert before.probabilities(texts, vectors).tobytes() == after.probabilities(texts, vectors).tobytes()


def test_a_policy_by_name() -> None:
    assert policy_of("cascade") == POLICIES["cascade"] == Cascade()
    assert policy_of(SOFT) is SOFT
    for value in ("bm25", None, 3, [], {}, {"kind": "oracle"}, {"kind": ["cascade"]}):
        with pytest.raises(ParameterError, match="policy"):
            policy_of(value)  # type: ignore[arg-type]


def test_saving_takes_the_place_of_what_is_there_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    save(path, Cascade(tau=0.2))
    save(str(path), Cascade(tau=0.3))
    assert load(str(path)) == (Cascade(tau=0.3), {})
    for about in ({"skip": math.nan}, {"policy": object()}, {"skip": np.float32(1)}, [1]):
        with pytest.raises(ParameterError, match="about a policy"):
            save(path, Cascade(tau=0.4), about)  # type: ignore[arg-type]
    assert load(path)[0] == Cascade(tau=0.3)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.json"]


def test_files_that_cannot_be_reached(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(PolicyFileError, match="cannot be read"):
            load(path)
    with pytest.raises(PolicyFileError, match="cannot be written"):
        save(tmp_path / "none" / "policy.json", Cascade())
    (tmp_path / "folder").mkdir()
    with pytest.raises(PolicyFileError, match="cannot be written"):
        save(tmp_path / "folder", Cascade())
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
    assert issubclass(PolicyFileError, StorageError)


class Touch:
    """Unpickling this would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(pickle.dumps(Touch(tmp_path / "touched")))
    with pytest.raises(PolicyFileError, match="not a policy file"):
        load(path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "is not a policy file"),
        (b'{"format": "fanrank-policy", "version": 1, "about": {"x": NaN}}', "NaN is no number of JSON"),
        (b'{"format": "fanrank-policy", "version": 1, "pol', "not JSON"),
        (b'{"format": "other", "version": 1}', "is not a policy file"),
        ({"version": VERSION + 1}, "newer fanrank"),
        ({"version": VERSION + 1, "policy": 3, "more": 1}, "newer fanrank"),
        ({"version": 0}, "damaged: its version"),
        ({"version": True}, "damaged: its version"),
        ({"version": "1"}, "damaged: its version"),
        ({"policy": None}, "damaged: its policy"),
        ({"policy": "cascade"}, "damaged: its policy"),
        ({"policy": NAMED["bm25"].to_dict()}, "damaged: its policy"),
        ({"policy": {"kind": "strategy"}}, "damaged"),
        ({"policy": {"kind": "strategy", "name": "x", "tau": 1}}, "damaged"),
        ({"policy": {"kind": "oracle"}}, "damaged"),
        ({"policy": {"kind": "cascade", "tau": -1}}, "tau must be"),
        ({"policy": {"kind": "cascade", "escalate": {"name": "x", "channels": 3}}}, "channels"),
        ({"about": []}, "damaged"),
        ({"more": 1}, "damaged"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes | dict[str, Any], said: str) -> None:
    path = tmp_path / "policy.json"
    if isinstance(content, dict):
        whole = {"format": FORMAT, "version": VERSION, "policy": Cascade().to_dict(), "about": {}}
        content = json.dumps({**whole, **content}).encode()
    path.write_bytes(content)
    with pytest.raises(PolicyFileError, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)
