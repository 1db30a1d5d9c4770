"""JSON by orjson is what JSON by json is: the same values, the same bits, and what only json takes."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanrank.server.encoding import decode, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def bits(value: Any) -> Any:
    """The value with its floats as bytes, so that 0.0 and -0.0, and 1 and 1.0, differ."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list):
        return [bits(each) for each in value]
    return {name: bits(each) for name, each in value.items()} if isinstance(value, dict) else (type(value), value)


@given(values)
@example("\ud800")
@example({"\ud800": [1 << 64, -(1 << 63) - 1]})
@example([math.pi, 5e-324, 1.7976931348623157e308, -0.0, 2**53 + 1.0, 0.1 + 0.2])
@settings(max_examples=100, deadline=None)
def test_a_value_keeps_its_bits(value: Any) -> None:
    written = encode(value)
    assert bits(json.loads(written)) == bits(value)
    again = decode(written)
    assert again is None or bits(again[0]) == bits(value)


@given(st.integers(0, 1 << 64).map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr))
@example("18446744073709551615")
@example("18446744073709551616")
@example("-9223372036854775809")
@example("-99999999999999999999")
@example("0.30000000000000004")
@example("0.00012345678901234567")
@example("123456789012345678901e5")
@example("9007199254740993.0")
@settings(max_examples=100, deadline=None)
def test_a_number_is_read_as_json_reads_it(text: str) -> None:
    found = decode(text.encode())
    assert found is None or bits(found[0]) == bits(json.loads(text))


def test_most_texts_are_read_by_orjson() -> None:
    body = {"k": 10, "queries": ["where is Ana", {"text": "ünï\u2028", "vector": [0.0012345678901234567, -1e-9]}]}
    assert decode(json.dumps(body).encode()) == (body,)


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"1e999", b'"\\ud800"', b'"\xff"', b"1" + b"0" * 30, b"[" * 5_000])
def test_what_orjson_refuses_is_left_to_json(text: bytes) -> None:
    assert decode(text) is None
