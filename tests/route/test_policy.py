"""Policies as files: the same bits back, and named errors for every other file."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanrank.engine.errors import ParameterError, PolicyFileError, StorageError
from fanrank.engine.hybrid.strategy import NAMED, Strategy
from fanrank.engine.route.cascade import LONGMEMEVAL_THRESHOLDS, Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.policy import FORMAT, POLICIES, VERSION, Answerer, load, policy_of, save
from fanrank.engine.route.router import LONGMEMEVAL_SYSTEMS, Router


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
