"""Decay of scores: its table and its factor against exact arithmetic, its order, and Recursive Light's own numbers."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.index.decay import (
    FACTOR_BITS,
    MAX_HALF_LIVES,
    PART_BITS,
    TABLE,
    TICKS,
    decay,
    decayed_bits,
    rate_of,
    ticks_of,
)

HOUR = 3600.0
scores = st.integers(1, (1 << 61) - 1)
ages = st.one_of(st.floats(-1e9, 1e12), st.floats(0.0, 1e5), st.just(math.inf), st.just(-math.inf))
half_lives = st.floats(1e-3, 1e10)


def one(score: int, age: float, half_life: float) -> float:
    """The score of one document, asked at 0."""
    bits = decayed_bits(np.array([score]), np.array([-age]), 0.0, rate_of(half_life))
    return float(bits.view(np.float64)[0])


def stated(score: int, time: float, now: float, rate: float) -> int:
    """The definition in Python's own numbers, the product exact before it is rounded once."""
    age = (now - time) * rate
    ticks = 0 if not age > 0.0 else MAX_HALF_LIVES * TICKS if math.isinf(age) else math.floor(age)
    ticks = min(ticks, MAX_HALF_LIVES * TICKS)
    product = float(Fraction(float(score)) * int(TABLE[ticks % TICKS]))
    return int(struct.unpack("<q", struct.pack("<d", math.ldexp(product, -(ticks // TICKS) - 30)))[0])


def test_the_table_is_rounded_exactly() -> None:
    """Powers of 2**(-1 / 65536) as integers of 200 bits, their error far below their distance to a half."""
    bits = 200
    root = 1 << bits - 1
    for _ in range(PART_BITS):
        root = math.isqrt(root << bits)
    power, kept, nearest = 1 << bits, [], 1 << bits
    half = 1 << bits - FACTOR_BITS - 1
    for _ in range(TICKS):
        kept.append(power + half >> bits - FACTOR_BITS)
        nearest = min(nearest, abs(power % (2 * half) - half))
        power = power * root >> bits
    assert TABLE.dtype == np.int32
    assert TABLE.tolist() == kept
    assert nearest * 50_000 > 2 * half


@settings(deadline=None)
@given(st.lists(st.tuples(scores, ages), min_size=1), half_lives, st.floats(-1e9, 2e9))
def test_arrays_follow_the_definition(documents: list[tuple[int, float]], half_life: float, now: float) -> None:
    own = np.array([score for score, _ in documents])
    times = now - np.array([age for _, age in documents])
    rate = rate_of(half_life)
    expected = [stated(score, time, now, rate) for score, time in zip(own.tolist(), times.tolist(), strict=True)]
    assert decayed_bits(own, times, now, rate).tolist() == expected
    assert decay(own, ticks_of(times, now, rate)).view(np.int64).tolist() == expected


def test_every_tick_is_a_step_down() -> None:
    ticks = np.concatenate([np.arange(3 * TICKS), np.arange(-3, 1) + MAX_HALF_LIVES * TICKS])
    found = decay(np.full(len(ticks), (1 << 61) - 1), ticks)
    assert (np.diff(found) < 0.0).all()
    np.testing.assert_array_equal(decay(np.array([1 << 40]), np.array([5 * TICKS])), [float(1 << 35)])
    # Nothing is rounded away at the least of all: it is a normal number.
    assert decay(np.array([1]), np.array([MAX_HALF_LIVES * TICKS]))[0] == 2.0**-MAX_HALF_LIVES


def test_source_numbers() -> None:
    """SPEC C003: λ = .01 an hour halves a score in 69.3 hours. C011: an hour weighs .990, a week .186."""
    half_life = math.log(2.0) / 0.01 * HOUR
    assert round(half_life / HOUR, 1) == 69.3
    quanta = 1 << 40
    hour, week = (one(quanta, hours * HOUR, half_life) / quanta for hours in (1.0, 168.0))
    assert (round(hour, 3), round(week, 3)) == (0.990, 0.186)
    assert hour > 2.0 * week
    for rate, hours in ((0.001, 693.0), (0.1, 6.93)):
        assert one(quanta, hours * HOUR, math.log(2.0) / rate * HOUR) / quanta == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("half_life", [0.0, -1.0, 1e-305, math.inf, math.nan])
def test_what_halves_nothing_is_declined(half_life: float) -> None:
    with pytest.raises(ParameterError, match="half_life"):
        rate_of(half_life)
