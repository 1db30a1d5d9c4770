// Types and small tools that the kernels share. Nothing is included: NVRTC has no standard headers.
#pragma once

using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using u16 = unsigned short;
using u8 = unsigned char;

// The dynamic shared memory of a block, 16-byte aligned. The host build hands it out through a function.
#ifdef FANRANK_CUDA_HOST
#define FANRANK_DYNAMIC_SHARED(name) unsigned char* const name = fanrank_dynamic_shared()
#else
#define FANRANK_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

constexpr i32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// A posting is document | frequency << DOCUMENT_BITS.
constexpr i32 DOCUMENT_BITS = 20;
constexpr u32 DOCUMENT_MASK = (1u << DOCUMENT_BITS) - 1;

constexpr i64 LOWEST_I64 = -0x7fffffffffffffffll - 1;

// The integers of 32 or 64 bits.
template <bool LONG>
struct IntegerOf {
    using Type = i32;
    using Unsigned = u32;
};
template <>
struct IntegerOf<true> {
    using Type = i64;
    using Unsigned = u64;
};

template <typename T>
__device__ __forceinline__ T smaller(T a, T b) {
    return a < b ? a : b;
}

template <typename T>
__device__ __forceinline__ T larger(T a, T b) {
    return a > b ? a : b;
}

// The pointer, known to the compiler to lie in global memory: loads through one that was itself loaded are generic
// otherwise, which takes a test of the address each.
template <typename T>
__device__ __forceinline__ T* at_global(T* pointer) {
#ifndef FANRANK_CUDA_HOST
    __builtin_assume(__isGlobal(pointer));
#endif
    return pointer;
}

// What a 64-bit integer of a Work tensor points to.
template <typename T>
__device__ __forceinline__ const T* at_address(i64 address) {
    return at_global(reinterpret_cast<const T*>(static_cast<u64>(address)));
}

// The first index in [low, high) of ascending `values` with values[index] > value, or high.
template <typename T, typename Index>
__device__ __forceinline__ Index upper_bound(const T* values, Index low, Index high, T value) {
    while (low < high) {
        const Index middle = low + (high - low) / 2;
        if (values[middle] <= value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// As BM25.quanta (engine/index/bm25.py) where contributions are at least one quantum, of 2**-18.
__device__ __forceinline__ i64 quanta_of_class(double idf, double saturated) {
    return larger(__double2ll_rn(__dmul_rn(__dmul_rn(idf, saturated), 0x1p18)), i64(1));
}

__device__ __forceinline__ i64 warp_sum(i64 value) {
    for (i32 distance = WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

// The values of this lane and those before it, added up. A loop, as the registers of `score` do not hold it unrolled.
__device__ __forceinline__ i32 warp_prefix_sum(i32 value, i32 lane) {
#pragma unroll 1
    for (i32 distance = 1; distance < WARP; distance *= 2) {
        const i32 other = __shfl_up_sync(ALL_LANES, value, distance);
        value += lane >= distance ? other : 0;
    }
    return value;
}

__device__ __forceinline__ i64 warp_largest(i64 value) {
    for (i32 distance = WARP / 2; distance > 0; distance /= 2) {
        value = larger(value, __shfl_xor_sync(ALL_LANES, value, distance));
    }
    return value;
}
