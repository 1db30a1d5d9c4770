"""Learned term weights (SPEC A105, A108)."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import tiny_models

from fanrank.engine.encoders.sparse import SparseSentenceEncoder, weights_of
from fanrank.engine.errors import EncoderError, MissingExtraError, ParameterError
from fanrank.engine.records.record import Record

WEIGHTS = st.one_of(st.just(0.0), st.floats(0.0, 1e6, width=32))


def plain(matrix: Any, names: list[str] | None = None) -> list[dict[str, float]]:
    found = []
    for row in np.asarray(matrix).tolist():
        named = {str(column) if names is None else names[column]: value for column, value in enumerate(row)}
        found.append({name: float(value) for name, value in named.items() if value > 0})
    return found


def forms(matrix: np.ndarray) -> dict[str, Any]:
    """The matrix in every format that a caller may have."""
    scipy = pytest.importorskip("scipy.sparse")
    torch = pytest.importorskip("torch")
    found: dict[str, Any] = {"numpy": matrix, "list": matrix.tolist()}
    for name in ("csr", "csc", "coo", "lil", "dok", "bsr"):
        found[name] = getattr(scipy, f"{name}_matrix")(matrix)
        found[f"{name} array"] = getattr(scipy, f"{name}_array")(matrix)
    tensor = torch.from_numpy(matrix)
    found |= {"tensor": tensor, "grad": tensor.clone().requires_grad_(), "tensor coo": tensor.to_sparse()}
    if matrix.size:
        found |= {"tensor csr": tensor.to_sparse_csr(), "tensor csc": tensor.to_sparse_csc()}
    return found


@settings(max_examples=25, deadline=None)
@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=WEIGHTS))
@pytest.mark.filterwarnings("ignore:.*beta state:UserWarning")
def test_every_format_gives_the_same_weights(matrix: np.ndarray) -> None:
    wanted = plain(matrix)
    names = [f"term {column}" for column in range(matrix.shape[1])]
    for name, form in forms(matrix).items():
        found = weights_of(form)
        assert found == wanted, name
        assert [list(row) for row in found] == [list(row) for row in wanted], name
        assert weights_of(form, names) == plain(matrix, names), name


def test_entries_held_twice_are_summed_and_the_callers_matrix_stays() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    torch = pytest.importorskip("torch")
    values, at = [1.5, 2.0, 0.25, 0.0], [[0, 1, 0, 1], [2, 0, 2, 1]]
    for form in (
        scipy.coo_matrix((values, at), shape=(2, 3)),
        torch.sparse_coo_tensor(at, values, (2, 3), check_invariants=True),
    ):
        assert weights_of(form) == [{"2": 1.75}, {"0": 2.0}]
    csr = scipy.csr_matrix((np.array(values), np.array([2, 2, 0, 1]), np.array([0, 2, 4])), shape=(2, 3))
    assert weights_of(csr) == [{"2": 3.5}, {"0": 0.25}]
    assert csr.nnz == 4


def test_numbers_of_other_types() -> None:
    torch = pytest.importorskip("torch")
    assert weights_of(torch.tensor([[0.5, 0.0]], dtype=torch.bfloat16)) == [{"0": 0.5}]
    assert weights_of(np.array([[3, 0]])) == [{"0": 3.0}]
    assert weights_of(np.array([[False, True]])) == [{"1": 1.0}]
    assert weights_of(np.zeros((2, 0))) == [{}, {}]
    assert weights_of(np.zeros((0, 4))) == []


def test_rows_look_like_dictionaries() -> None:
    first, second, third = weights_of(np.array([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), ["a", "b", "c"])
    assert (first, len(first), list(first), repr(first)) == (
        {"a": 1.5, "c": 2.0},
        2,
        ["a", "c"],
        "{'a': 1.5, 'c': 2.0}",
    )
    assert (first["c"], first.get("b"), first.get("d"), "b" in second, "a" in second) == (2.0, None, None, True, False)
    assert not third
    for copied in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert copied == first
        assert type(copied) is dict
    record = Record("r", "", weights=first)
    assert record.weights is first
    assert record == Record("r", "", weights={"a": 1.5, "c": 2.0})


def test_rows_share_one_copy_of_the_matrix() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    torch = pytest.importorskip("torch")
    made = np.ones((200, 50), dtype=np.float32)
    for matrix in (
        made,
        scipy.csr_matrix(made),
        torch.from_numpy(made.copy()),
        torch.from_numpy(made.copy()).to_sparse(),
    ):
        rows = weights_of(matrix)
        arrays = {id(own.matrix): own.matrix for own in rows}  # type: ignore[attr-defined]
        (held,) = arrays.values()
        assert held.columns.nbytes + held.values.nbytes == 8 * 10_000
        # What the caller does to the matrix afterwards does not reach the rows.
        (
            matrix.data
            if scipy.issparse(matrix)
            else matrix.values()
            if matrix is not made and matrix.is_sparse
            else matrix
        )[:] = 7.0
        assert rows[3]["4"] == 1.0
        made[:] = 1.0
    assert weights_of(np.ones((1, 1)))[0].matrix.values.dtype == np.float64  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_none_is_named(bad: float) -> None:
    matrix = np.array([[1.0, 0.0, 2.0], [0.0, bad, 1.0]])
    for name, form in forms(matrix).items():
        with pytest.raises(ParameterError, match=r"row 1, column 1: a weight must be finite and 0 or more"):
            weights_of(form)
        with pytest.raises(ParameterError, match=r"row 1, column 1 \('b'\)"):
            weights_of(form, ["a", "b", "c"])
        assert name


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    return tiny_models.transformer(tmp_path_factory.mktemp("models") / "splade", "BertForMaskedLM")


def test_splade_is_the_largest_log_of_the_logits(folder: Path) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["tea", "the billing job failed again: error 4711, key expired", "ana prefers teas", "", "job " * 40]
    encoder = SparseSentenceEncoder(folder, max_length=16, batch_size=2, device="cpu")
    found = encoder.documents(texts)
    assert [len(row) > 0 for row in found] == [True] * 5
    for text, row in zip(texts, found, strict=True):
        tokens = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokens).logits[0].double().numpy()
        wanted = {}
        for number in range(logits.shape[1]):
            largest = max(float(position[number]) for position in logits)
            if largest > 1e-6:
                wanted[tokenizer.convert_ids_to_tokens(number)] = math.log1p(largest)
        assert row.keys() == wanted.keys()
        assert row == pytest.approx(wanted, abs=1e-5)
    queries = encoder.queries(texts)
    assert queries[1] == pytest.approx(found[1], abs=1e-5)
    assert encoder.documents([]) == encoder.queries([]) == []


def test_a_sparse_model_has_name_version_and_limits(folder: Path, tmp_path: Path) -> None:
    encoder = SparseSentenceEncoder(folder, max_length=16)
    again = SparseSentenceEncoder(folder, max_length=16, batch_size=1, name="mine")
    assert (encoder.name, again.name) == ("splade", "mine")
    assert encoder.version == again.version
    other = tiny_models.transformer(tmp_path / "splade", "BertForMaskedLM", seed=1)
    versions = {encoder.version, SparseSentenceEncoder(folder, max_length=17).version}
    assert len(versions | {SparseSentenceEncoder(other, max_length=16).version}) == 3
    with pytest.raises(ParameterError, match="at most 64"):
        SparseSentenceEncoder(folder)
    with pytest.raises(EncoderError, match="put it in a list"):
        encoder.documents("tea")
    from sentence_transformers import SparseEncoder

    held = SparseSentenceEncoder(SparseEncoder(str(folder)), max_length=16, name="held")
    assert (held.name, held.version) == ("held", encoder.version)


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"fanrank\[dense\]"):
        SparseSentenceEncoder("naver/splade-cocondenser-ensembledistil")
