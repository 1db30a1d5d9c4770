"""Learned term weights as a model's library gives them, a matrix of any format (SPEC A105)."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fanrank.engine.encoders.sparse import weights_of
from fanrank.engine.errors import ParameterError
from fanrank.engine.records.record import Record

WEIGHTS = st.one_of(st.just(0.0), st.floats(0.0, 1e6, width=32))


def plain(matrix: Any, names: list[str]) -> list[dict[str, float]]:
    rows = np.asarray(matrix).tolist()
    return [{names[column]: float(value) for column, value in enumerate(row) if value > 0} for row in rows]


def forms(matrix: np.ndarray) -> dict[str, Any]:
    """The matrix in every format that needs no library of its own; `tests/extended` has those of SciPy."""
    tensor = torch.from_numpy(matrix)
    return {
        "numpy": matrix,
        "list": matrix.tolist(),
        "tensor": tensor,
        "with a gradient": tensor.clone().requires_grad_(),
        "coo": tensor.to_sparse(),
        "csr": tensor.to_sparse_csr(),
        "csc": tensor.to_sparse_csc(),
    }


@settings(max_examples=25, deadline=None)
@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=WEIGHTS))
@pytest.mark.filterwarnings("ignore:.*beta state:UserWarning")
def test_every_format_gives_the_same_weights(matrix: np.ndarray) -> None:
    names = [f"term {column}" for column in range(matrix.shape[1])]
    for name, form in forms(matrix).items():
        wanted = plain(matrix, [*map(str, range(matrix.shape[1]))])
        assert [list(row.items()) for row in weights_of(form)] == [list(row.items()) for row in wanted], name
        assert weights_of(form, names) == plain(matrix, names), name


def test_entries_held_twice_are_summed() -> None:
    values, at = [1.5, 2.0, 0.25, 0.0], [[0, 1, 0, 1], [2, 0, 2, 1]]
    assert weights_of(torch.sparse_coo_tensor(at, values, (2, 3), check_invariants=True)) == [{"2": 1.75}, {"0": 2.0}]


def test_numbers_of_other_types() -> None:
    assert weights_of(torch.tensor([[0.5, 0.0]], dtype=torch.bfloat16)) == [{"0": 0.5}]
    assert weights_of(np.array([[3, 0]])) == [{"0": 3.0}]
    assert weights_of(np.array([[False, True]])) == [{"1": 1.0}]
    assert weights_of(np.zeros((2, 0))) == [{}, {}]
    assert weights_of(np.zeros((0, 4))) == []


def test_rows_look_like_dictionaries() -> None:
    first, second, third = weights_of(np.array([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), ["a", "b", "c"])
    assert (first, len(first), list(first)) == ({"a": 1.5, "c": 2.0}, 2, ["a", "c"])
    assert repr(first) == "{'a': 1.5, 'c': 2.0}"
    assert (first["c"], first.get("b"), first.get("d"), "b" in second, "a" in second) == (2.0, None, None, True, False)
    assert not third
    for copied in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert copied == first
        assert type(copied) is dict
    record = Record("r", "", weights=first)
    assert record.weights is first
    assert record == Record("r", "", weights={"a": 1.5, "c": 2.0})


def test_rows_share_one_copy_that_the_caller_cannot_change() -> None:
    for matrix in (np.ones((200, 50), dtype=np.float32), torch.ones(200, 50), torch.ones(200, 50).to_sparse()):
        rows = weights_of(matrix)
        (held,) = {id(own.matrix): own.matrix for own in rows}.values()  # type: ignore[attr-defined]
        assert held.columns.nbytes + held.values.nbytes == 8 * 10_000
        (matrix.values() if isinstance(matrix, torch.Tensor) and matrix.is_sparse else matrix)[:] = 7.0
        assert rows[3]["4"] == 1.0
    assert weights_of(np.ones((1, 1)))[0].matrix.values.dtype == np.float64  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_none_is_named(bad: float) -> None:
    for form in forms(np.array([[1.0, 0.0, 2.0], [0.0, bad, 1.0]])).values():
        with pytest.raises(ParameterError, match=r"row 1, column 1: a weight must be finite and 0 or more"):
            weights_of(form)
        with pytest.raises(ParameterError, match=r"row 1, column 1 \('b'\)"):
            weights_of(form, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("matrix", "names", "message"),
    [
        ([1.0, 2.0], None, r"shape \(2,\)"),
        ([[1.0], [2.0, 3.0]], None, "rows of one length"),
        ([["a"]], None, "numbers"),
        (np.array([[1j]]), None, "real numbers"),
        ([[1.0, 2.0]], ["a"], "2 columns, but there are 1 names"),
        ([[1.0, 2.0]], ["a", "a"], "no two alike"),
        ([[1.0, 2.0]], ["a", 1], "strings"),
        ([[1.0, 2.0]], ["a", "\ud800"], "lone surrogate"),
    ],
)
def test_matrices_that_are_none(matrix: Any, names: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        weights_of(matrix, names)
