"""The oracle by hand; `check` over real and made corpora, and that it sees a path that is broken."""

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
import fanrank.engine.check.oracle
from fanrank.cpu_fallback import neighbours
from fanrank.cpu_fallback import search as numpy_search
from fanrank.cpu_fallback.dense import NumpyDense
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.check import STRATEGIES, check
from fanrank.engine.check.oracle import Oracle, VectorOracle, WeightOracle, reciprocal_ranks
from fanrank.engine.fuse import RRF
from fanrank.engine.index import learned
from fanrank.engine.plan.device_options import FAMILY, DeviceOptions
from fanrank.engine.plan.options import EXECUTIONS

PATHS = [
    "batch, auto",
    "batch, exhaustive",
    "batch, pruned",
    "batch, 2 threads",
    "one by one",
    "terms reversed",
    "grown in 7 pieces",
    "saved and loaded",
]
WAYS = ["batch", "one by one", "grown in 7 pieces", "saved and loaded"]
BORROWED_WAYS = [f"batch, {execution}" for execution in EXECUTIONS] + WAYS[1:]
PATHS += [f"neighbours, {way}" for way in BORROWED_WAYS]
PATHS += [f"{strategy}, {way}" for strategy in STRATEGIES for way in WAYS]

Search = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]


def corpus(count: int = 70) -> list[fr.Record]:
    return [fr.Record(f"r{n}", f"tea w{n % 7} w{n % 5}", namespace="n" if n % 10 == 9 else "") for n in range(count)]


QUERIES = [fr.Query("tea w3"), fr.Query("w1 w2 w2"), fr.Query("nothing"), fr.Query("tea", namespace="n", k=3)]


def break_search(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[np.ndarray, np.ndarray], None], when: Callable[..., bool]
) -> None:
    plain: Search = numpy_search.search_numpy

    def spoiled(plans: Any, batch: int, k: int, *, threads: int, execution: str, **rest: Any) -> Any:
        scores, documents, counts = plain(plans, batch, k, threads=threads, execution=execution, **rest)
        if when(batch=batch, threads=threads, execution=execution):
            spoil(scores, documents)
        return scores, documents, counts

    monkeypatch.setattr(numpy_search, "search_numpy", spoiled)


def one_quantum(scores: np.ndarray, documents: np.ndarray) -> None:
    scores[0, 0] += 1


def swap(scores: np.ndarray, documents: np.ndarray) -> None:
    documents[0, :2] = documents[0, 1::-1].copy()


def test_it_finds_no_difference_and_has_its_shape() -> None:
    found = check(corpus(), QUERIES, corpus="made", k=20, backend="numpy", analyzer="minimal")
    assert json.loads(json.dumps(found)) == found
    assert list(found) == ["corpus", "queries", "roads", "differences"]
    assert (found["corpus"], found["queries"], found["differences"]) == ("made", 4, 0)
    assert found["roads"] == [{"name": f"numpy: {path}", "queries": 4, "differences": 0} for path in PATHS]


@pytest.mark.parametrize(
    ("path", "spoil", "when"),
    [
        ("batch, pruned", one_quantum, lambda execution, **_: execution == "pruned"),
        ("batch, exhaustive", swap, lambda execution, **_: execution == "exhaustive"),
        ("batch, 2 threads", one_quantum, lambda threads, **_: threads == 2),
    ],
)
def test_it_names_the_road_that_differs(
    monkeypatch: pytest.MonkeyPatch, path: str, spoil: Callable[..., None], when: Callable[..., bool]
) -> None:
    break_search(monkeypatch, spoil, when)
    asked = [QUERIES[0], QUERIES[2]]  # the second has no hit to spoil
    found = check(corpus(), asked, corpus="made", k=20, backend="numpy")
    assert found["differences"] == 1
    assert {row["name"]: row["differences"] for row in found["roads"] if row["differences"]} == {f"numpy: {path}": 1}


def ways(*strategies: str) -> set[str]:
    return {f"{strategy}, {way}" for strategy in strategies for way in WAYS}


def off_cosines(patch: pytest.MonkeyPatch) -> set[str]:
    plain = NumpyDense.best

    def off(self: NumpyDense, *arguments: Any, **options: Any) -> Any:
        scores, documents, counts = plain(self, *arguments, **options)
        return np.nextafter(scores, 2.0) if arguments[-1] == "exact" else scores, documents, counts

    patch.setattr(NumpyDense, "best", off)
    # All cosines move together, so that the ranks, and what is fused of them, stay.
    return ways("dense")


def off_fusion(patch: pytest.MonkeyPatch) -> set[str]:
    patch.setattr(RRF, "_worth", lambda *_: 1.0 + 2.0**-52)
    return ways("rrf")


def off_weights(patch: pytest.MonkeyPatch) -> set[str]:
    patch.setattr(learned, "quantize", lambda weight, step: math.floor(weight / step))
    return ways("sparse")


def off_neighbours(patch: pytest.MonkeyPatch) -> set[str]:
    plain = neighbours.borrowed_sums
    patch.setattr(neighbours, "borrowed_sums", lambda own, around, lent: plain(own, around[:, :2], lent[:1]))
    return {f"neighbours, {way}" for way in BORROWED_WAYS}


@pytest.mark.parametrize("plant", [off_cosines, off_fusion, off_weights, off_neighbours])
def test_it_sees_the_last_bit_and_names_the_ways(
    plant: Callable[[pytest.MonkeyPatch], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plant(monkeypatch)
    found = check(corpus(), QUERIES, corpus="made", k=20, backend="numpy")["roads"]
    assert {row["name"].removeprefix("numpy: ") for row in found if row["differences"]} == expected


def test_the_plain_answers_of_strategies_by_hand() -> None:
    rows = [[[0.5, 0.5]], [], [[0.0, 1.0], [0.75, -0.25]], [[0.5, 0.5]]]
    assert VectorOracle(rows).search([0.5, 0.25], 9) == [(0, 0.375), (3, 0.375), (2, 0.3125)]
    assert VectorOracle(rows).search([-0.5, 0.0], 1) == [(2, 0.0)]
    assert VectorOracle(rows).search(None, 9) == []
    # Codes: 127 and 64 (63.5, to even) of .5 / 127; 127 and -42 (42.33) of .75 / 127.
    codes = VectorOracle(rows, int8=True)
    assert codes.score([0.5, 0.25], 2) == (127 * 127 - 64 * 42) * (0.5 / 127) * (0.75 / 127)
    assert (codes.score([0.5, 0.25], 1), codes.search([0.5, 0.25], 1)[0][0]) == (None, 0)
    weights = WeightOracle([{"tea": 1.0, "pot": 2.0**-12}, {"pot": 1.5 * 2.0**-10}, {}])
    assert weights.search({"tea": 0.5, "pot": 2.0}, 9) == [(0, 0.5), (1, 2 * 2.0**-9)]
    assert weights.search({"tea": 2.0**-11}, 9) == []
    assert reciprocal_ranks([[7, 3], [3, 5]], 2) == [(3, 1 / 62 + 1 / 61), (7, 1 / 61)]


def test_what_takes_long_is_cut_and_counts_what_it_asked() -> None:
    found = check(corpus(), [fr.Query(f"w{n % 5}") for n in range(51)], corpus="made", backend="numpy")
    assert {row["name"].removeprefix("numpy: "): row["queries"] for row in found["roads"]} == {
        path: 51 if path in PATHS[:8] and path != "one by one" else 50 for path in PATHS
    }


def test_every_usable_backend_is_checked() -> None:
    found = check(corpus(10), QUERIES, corpus="made")
    names = {row["name"].split(":")[0] for row in found["roads"]}
    assert names == {status.name for status in backend.statuses() if status.usable and not status.by_name}
    assert found["differences"] == 0


@pytest.mark.parametrize("options", [{"method": "robertson"}, {"fields": {"text": 2.0}}, {"query_tf": "unique"}])
def test_it_follows_the_engines_options(options: dict[str, Any]) -> None:
    assert check(corpus(), QUERIES, corpus="made", backend="numpy", **options)["differences"] == 0


def test_options_of_a_device_are_checked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fr.errors.ParameterError, match="tile_bits is an option of one backend; name the backend"):
        check(corpus(10), QUERIES, corpus="made", device=DeviceOptions(tile_bits=6))
    with pytest.raises(fr.errors.ParameterError, match="backend 'numpy' has no option select"):
        check(corpus(10), QUERIES, corpus="made", backend="numpy", device=DeviceOptions(select="bitonic"))
    status = next(status for status in backend.statuses() if status.name == "cuda-host")
    if not status.usable:
        pytest.skip(status.reason)
    chosen, made = [], backend.choose

    def choose(*asked: Any, **options: Any) -> backend.Backend:
        chosen.append(options.get("options", FAMILY))
        return made(*asked, **options)

    monkeypatch.setattr(backend, "choose", choose)
    own = DeviceOptions(posting_bytes=4, tile_bits=6)
    found = check(corpus(10), QUERIES, corpus="made", k=5, backend="cuda-host", device=own)
    assert found["differences"] == 0
    # Of the engine that holds all, the one that grows and the one that is loaded.
    assert chosen.count(own) == 3


DOCUMENTS = [[["cat", "cat", "dog"]], [["fish"]], [["dog", "dog", "fish", "fish"]], [[]]]


def test_it_imports_nothing_of_the_engine() -> None:
    tree = ast.parse(Path(fanrank.engine.check.oracle.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"__future__", "math", "collections", "collections.abc"}


def test_scores_by_hand() -> None:
    plain = Oracle(DOCUMENTS)
    dog = math.log(1 + 2.5 / 2.5)  # 4 documents, 2 with "dog"
    first = dog * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / 2))
    third = dog * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 2))
    assert plain.contribution("dog", 0) == pytest.approx(first, rel=1e-15)
    assert plain.search(["dog"], 5) == [(2, round(third * 2**18)), (0, round(first * 2**18))]
    assert plain.search_float(["dog"], 1) == [(2, pytest.approx(third))]
    assert plain.search(["dog", "dog", "bird"], 1) == [(2, 2 * round(third * 2**18))]
    assert Oracle(DOCUMENTS, query_tf="unique").search(["dog", "dog"], 1) == [(2, round(third * 2**18))]
    assert plain.search(["dog"], 5, passing=[True, True, False, True]) == [(0, round(first * 2**18))]
    assert plain.search(["bird"], 5) == plain.search([], 5) == plain.search(["dog"], 0) == []
    assert plain.score(["dog"], 1) is None


def test_ties_go_to_the_older_document() -> None:
    plain = Oracle([[["a"]]] * 4 + [[["a", "a"]]], b=0.0)
    assert [document for document, _ in plain.search(["a"], 5)] == [4, 0, 1, 2, 3]
    assert [document for document, _ in plain.search_float(["a"], 5)] == [4, 0, 1, 2, 3]


def test_a_term_in_every_document() -> None:
    documents = [[["t"]], [["t", "u"]]]
    # N 2, n 2: robertson idf ln(.5 / 2.5); okapi takes a quarter of the mean of that and ln(1.5 / 1.5).
    assert Oracle(documents, method="robertson").idf("t") == pytest.approx(math.log(0.2))
    assert Oracle(documents, method="okapi").idf("t") == pytest.approx(0.25 * math.log(0.2) / 2)
    assert Oracle(documents, method="robertson_floor0").idf("t") == 0.0
    assert Oracle(documents, method="robertson_floor0").quanta("t", 0) == 1
    assert Oracle(documents, method="robertson").quanta("t", 0) < 0
    # It matches all the same, and is ranked by what it is worth.
    assert [document for document, _ in Oracle(documents, method="robertson").search(["t"], 5)] == [1, 0]


def test_fields_by_hand() -> None:
    plain = Oracle([[["a"], ["b", "b"]], [["c"], []]], weights=(1.0, 3.0))
    c = 3.0 * 2 / (0.25 + 0.75 * 2 / 1)
    assert plain.contribution("b", 0) == pytest.approx(math.log(2) * c * 2.2 / (1.2 + c))
