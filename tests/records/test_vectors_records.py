"""Vectors, passages and weights of a record and of a query: made unit once, kept bit for bit, refused by name."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.records.record import Record
from fanrank.engine.storage.row_codec import decode, encode
from fanrank.engine.vectors.vectors import UNIT, unit_rows

rows = st.integers(1, 40).flatmap(
    lambda d: st.lists(
        st.lists(st.floats(-1e4, 1e4, width=32), min_size=d, max_size=d).filter(lambda row: max(map(abs, row)) > 1e-6),
        min_size=1,
        max_size=4,
    )
)


@given(rows)
@settings(max_examples=150)
def test_what_is_normalised_once_keeps_its_bits(given_rows: list[list[float]]) -> None:
    once = unit_rows(given_rows)
    for row, found in zip(given_rows, once.tolist(), strict=True):
        length = math.sqrt(math.fsum(x * x for x in row))
        assert all(abs(x / length - y) <= max(abs(y) * 2.0**-10, 2.0**-24) for x, y in zip(row, found, strict=True))
        assert abs(math.sqrt(math.fsum(y * y for y in found)) - 1.0) <= UNIT
    for again in (once, once.astype(np.float64), once.tolist(), np.asfortranarray(once)):
        assert unit_rows(again).tobytes() == once.tobytes()
    record = Record("a", "x", embedding=given_rows)
    assert record.embedding.tobytes() == once.tobytes()
    assert not record.embedding.flags.writeable
    back = decode("", encode(record))
    assert (back.embedding.tobytes(), back.embedding.shape, back.embedding.dtype) == (
        once.tobytes(),
        once.shape,
        np.float16,
    )
    assert not back.embedding.flags.writeable
    assert dataclasses.replace(back, namespace="n").embedding.tobytes() == once.tobytes()
    query = fr.Query("x", vector=given_rows[0])
    assert query.vector.tobytes() == once[0].tobytes()
    assert query.vector.shape == (1, len(given_rows[0]))
    assert dataclasses.replace(query, k=3).vector.tobytes() == once[0].tobytes()


def test_halves_of_another_length_are_made_unit() -> None:
    np.testing.assert_array_equal(unit_rows(np.array([3, 4], dtype=np.float16)), np.array([[0.6, 0.8]], np.float16))
    np.testing.assert_array_equal(unit_rows([[3, 4], [0, 1]]), np.array([[0.6, 0.8], [0, 1]], np.float16))
    assert unit_rows([70_000.0, 0.0]).tolist() == [[1.0, 0.0]]  # beyond float16
    assert unit_rows([2**70, 0]).tolist() == [[1.0, 0.0]]
    # Exact in its first components alone.
    row = [0.0] * 16 + [0.1, 1.0]
    assert unit_rows(row).tolist() == [np.float16(np.array(row) / math.sqrt(1.01)).tolist()]


def test_a_record_in_itself() -> None:
    record = Record("a", "x", passages=["one", "two"], embedding=[[1, 0], [0, 2]], weights={"x": np.float32(0.5)})
    assert record.passages == ("one", "two")
    assert record.weights == {"x": 0.5}
    assert type(record.weights["x"]) is float
    assert record == Record("a", "x", passages=("one", "two"), weights={"x": 0.5})
    assert "embedding" not in repr(record)
    assert decode("", encode(record)) == record
    assert repr(decode("", encode(record))) == repr(record)
    mapped = Record.from_dict({"id": "a", "text": "x", "passages": ["p"], "embedding": [3, 4], "weights": {}})
    assert (mapped.passages, mapped.weights, mapped.embedding.tolist()) == (("p",), {}, unit_rows([3, 4]).tolist())
    assert decode("", encode(mapped)).weights == {}
    nothing = Record.from_dict({"id": "a", "text": "x", "passages": None, "embedding": None, "weights": None})
    assert nothing == Record("a", "x")
    query = fr.Query("x", vector=[1.0], model="m", weights={"x": 2}, type="multi-hop")
    assert (query.model, query.weights, query.type) == ("m", {"x": 2.0}, "multi-hop")
    assert query == fr.Query("x", model="m", weights={"x": 2}, type="multi-hop")
    assert "vector" not in repr(query)


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"passages": []}, "no passages"),
        ({"passages": "text"}, "'passages' must be a sequence of strings, not str"),
        ({"passages": 7}, "'passages' must be a sequence of strings, not int"),
        ({"passages": ["a", 7]}, "passage 1 must be a string, not int"),
        ({"embedding": [1.0, NAN]}, "'embedding' holds a value that is not finite"),
        ({"embedding": [[1.0, 0.0], [0.0, math.inf]]}, "'embedding' holds a value that is not finite"),
        ({"embedding": [0.0, 0.0]}, "'embedding' has length 0, which is no direction"),
        ({"embedding": []}, "'embedding' must have from 1 to"),
        ({"embedding": np.zeros((0, 3))}, "'embedding' has no row"),
        ({"embedding": 7.0}, "'embedding' must be rows of numbers"),
        ({"embedding": np.ones((1, 2, 3))}, "'embedding' must be rows of numbers"),
        ({"embedding": [[1.0], [1.0, 2.0]]}, "'embedding' must be numbers, all rows of one length"),
        ({"embedding": "words"}, "'embedding' must be numbers"),
        ({"embedding": [1j, 1]}, "'embedding' must be"),
        ({"embedding": [[1.0], [2.0]], "passages": ["a"]}, "'embedding' must have a row for each of 1 passages, not 2"),
        ({"weights": [("a", 1)]}, "'weights' must map terms to numbers, not list"),
        ({"weights": {7: 1.0}}, "'weights' must have strings as terms, not 7"),
        ({"weights": {"a": NAN}}, "'weights' must be finite and 0 or more, not nan as that of 'a'"),
        ({"weights": {"a": -0.5}}, "'weights' must be finite and 0 or more, not -0.5"),
        ({"weights": {"a": 10**400}}, "'weights' must be finite"),
        ({"weights": {"a": True}}, "'weights' must map terms to numbers, not 'a' to True"),
        ({"weights": {"a": "1"}}, "'weights' must map terms to numbers"),
        ({"weights": {"\ud800": 1.0}}, "'weights' must have terms without lone surrogates"),
    ],
)
def test_bad_records_and_queries(values: dict[str, Any], match: str) -> None:
    with pytest.raises(fr.errors.RecordError, match=f"id 'm7': {match}"):
        Record("m7", "x", **values)
    asked = {"vector" if name == "embedding" else name: value for name, value in values.items()}
    if "passages" not in asked:
        with pytest.raises(fr.errors.QueryError, match="a query's " + match.replace("embedding", "vector")):
            fr.Query("x", **asked)


def test_bad_queries() -> None:
    with pytest.raises(fr.errors.QueryError, match="'vector' must be one vector, not 2"):
        fr.Query("x", vector=[[1.0], [1.0]])
    for name in ("model", "type"):
        with pytest.raises(fr.errors.QueryError, match=f"'{name}' must be a string, not int"):
            fr.Query("x", **{name: 7})  # type: ignore[arg-type]
