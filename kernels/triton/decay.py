"""Scores that fade with age: `engine.index.decay.decayed_bits`, operation for operation.

Kernels that call this are compiled with ``enable_fp_fusion=False``, as each operation rounds by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...engine.index.decay import FACTOR_BITS, MAX_HALF_LIVES, PART_BITS

_PART_BITS = tl.constexpr(PART_BITS)
_PART = tl.constexpr((1 << PART_BITS) - 1)
_MAX_TICKS = tl.constexpr(float(MAX_HALF_LIVES << PART_BITS))
# Of 2**-FACTOR_BITS, as a float64 holds it.
_EXPONENT = tl.constexpr(1023 - FACTOR_BITS)
_MANTISSA_BITS = tl.constexpr(52)


@triton.jit
def decayed(sums, time, now, rate, table):
    """The bits of the decayed sums, as int64."""
    age = (now - time) * rate
    # Not negative, so that the conversion rounds down.
    ticks = tl.where(age > 0.0, tl.minimum(age, _MAX_TICKS), 0.0).to(tl.int32)
    part = tl.load(table + (ticks & _PART)).to(tl.float64)
    exponent = -(ticks >> _PART_BITS) + _EXPONENT
    power = (exponent.to(tl.int64) << _MANTISSA_BITS).to(tl.float64, bitcast=True)
    return ((sums.to(tl.float64) * part) * power).to(tl.int64, bitcast=True)
