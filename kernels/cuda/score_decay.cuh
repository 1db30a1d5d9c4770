// Scores that fade with age: the float64 operations of engine/index/decay.py, in intrinsics, which are never contracted.
#pragma once

#include "common.cuh"

// As in engine/index/decay.py.
constexpr i32 PART_BITS = 16;
constexpr i32 MAX_TICKS = 900 << PART_BITS;
constexpr i32 FACTOR_BITS = 30;
// Of a float64.
constexpr i32 EXPONENT_BIAS = 1023;
constexpr i32 MANTISSA_BITS = 52;

// How the scores of one query decay.
struct Decay {
    double now;        // seconds
    double rate;       // ticks a second, 0 for a query that does not decay
    const i32* table;  // [1 << PART_BITS] int32

    __device__ __forceinline__ i32 ticks(double time) const {
        const double age = __dmul_rn(__dsub_rn(now, time), rate);
        // The age is positive where it is converted, so the conversion rounds down.
        return age > 0.0 ? (age < MAX_TICKS ? static_cast<i32>(age) : MAX_TICKS) : 0;
    }

    __device__ __forceinline__ double part(i32 ticks) const {
        return static_cast<double>(at_global(table)[ticks & ((1 << PART_BITS) - 1)]);
    }

    // 2**-(half-lives + FACTOR_BITS)
    static __device__ __forceinline__ double power(i32 ticks) {
        const i64 exponent = EXPONENT_BIAS - FACTOR_BITS - (ticks >> PART_BITS);
        return __longlong_as_double(exponent << MANTISSA_BITS);
    }

    // The bits of the decayed score of a document of this time. Positive doubles are ordered as their bits.
    __device__ __forceinline__ i64 bits(i64 sum, double time) const {
        const i32 age = ticks(time);
        return __double_as_longlong(__dmul_rn(__dmul_rn(__ll2double_rn(sum), part(age)), power(age)));
    }

    // A lower bound of the sums that reach `threshold` (bits of a score) in a document of this time or older.
    __device__ __forceinline__ i64 least_sum(i64 threshold, double time) const {
        const i32 age = ticks(time);
        const double quotient = __ddiv_rn(__longlong_as_double(threshold), __dmul_rn(part(age), power(age)));
        // Four roundings, of 2**-53 at most, lie between a sum and this quotient.
        return larger(static_cast<i64>(__dmul_rn(quotient, 1.0 - 0x1p-50)), i64(1));
    }
};

// The decay of a block's query in the block's tile.
struct TileDecay {
    Decay decay;
    const double* times;  // [documents of the tile] float64
    i64 least_sum;        // no sum below it reaches the threshold
};
