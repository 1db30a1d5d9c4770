"""The oracle itself, against numbers by hand: all other tests lean on it."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

import fanrank.engine.check.oracle
from fanrank.engine.check.oracle import Oracle

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
