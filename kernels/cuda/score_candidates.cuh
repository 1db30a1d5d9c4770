// The candidates of a block: its eligible documents, and the k best of them by radix selection.
#pragma once

#include "score_tile.cuh"

constexpr i32 BINS_PER_LANE = RADIX / WARP;

template <typename Sum>
struct UnsignedOf;
template <>
struct UnsignedOf<i32> {
    using Type = u32;
};
template <>
struct UnsignedOf<i64> {
    using Type = u64;
};

// The documents of the block that are eligible: matched, passing and at or above the threshold.
template <typename Sum, bool SIGNED, bool DECAYS>
struct Eligible {
    const Shared& shared;
    unsigned char* tile_memory;  // sums, allowed, matched
    i32 tile_size;

    // Calls visit(sum, local document) for each, spread over the threads of the block.
    template <typename Visit>
    __device__ __forceinline__ void each(const Visit& visit) const {
        constexpr i32 PER_VECTOR = 16 / static_cast<i32>(sizeof(Sum));
        const i32 thread = static_cast<i32>(threadIdx.x);
        const Sum* const sums = reinterpret_cast<const Sum*>(tile_memory);
        const i32 list_length = shared.state.list_length;
        if (list_length >= 0) {
#pragma unroll 1
            for (i32 i = thread; i < list_length; i += THREADS) {
                const i32 local = shared.reached[i];
                // With this sum the tile's latest document reaches the threshold; this document may be older.
                if (!DECAYS || sums[local] >= static_cast<Sum>(shared.state.threshold)) {
                    visit(sums[local], local);
                }
            }
            return;
        }
        const Sum lowest = static_cast<Sum>(shared.state.threshold);
        const bool restricted = shared.state.restricted;
        const u32* const allowed = reinterpret_cast<const u32*>(sums + tile_size);
        const u32* const matched = allowed + tile_size / 32;
#pragma unroll 1
        for (i32 vector = thread; vector < tile_size / PER_VECTOR; vector += THREADS) {
            const SumVector<Sum> loaded = reinterpret_cast<const SumVector<Sum>*>(sums)[vector];
#pragma unroll
            for (i32 i = 0; i < PER_VECTOR; ++i) {
                const i32 local = vector * PER_VECTOR + i;
                if (loaded.value[i] >= lowest && (!SIGNED || is_set(matched, local)) &&
                    (!restricted || is_set(allowed, local))) {
                    visit(loaded.value[i], local);
                }
            }
        }
    }
};

// The `rank`-th largest (1: the largest) of the keys of the eligible documents. Keys fit `bits` bits; keys(sum, local,
// key) returns whether a document has a key. On return `rank` is the rank among equal keys, `equal` their number. All
// threads of the block call it.
template <typename Key, typename Sum, bool SIGNED, bool DECAYS, typename Keys>
__device__ __forceinline__ Key radix_largest(
    Shared& shared, const Eligible<Sum, SIGNED, DECAYS>& eligible, const Keys& keys, i32 bits, i32& rank, i32& equal) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    Key prefix = 0;
#pragma unroll 1
    for (i32 shift = (bits - 1) / RADIX_BITS * RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
        for (i32 bin = thread; bin < RADIX; bin += THREADS) {
            shared.histogram[bin] = 0;
        }
        __syncthreads();
        eligible.each([&](Sum sum, i32 local) {
            Key key;
            if (keys(sum, local, key) && ((key ^ prefix) >> shift >> RADIX_BITS) == 0) {
                atomicAdd(&shared.histogram[static_cast<i32>((key >> shift) & (RADIX - 1))], 1);
            }
        });
        __syncthreads();
        if (thread < WARP) {
            // Lane 0 holds the highest bins.
            const i32 top = RADIX - 1 - thread * BINS_PER_LANE;
            i32 sum = 0;
#pragma unroll 1
            for (i32 i = 0; i < BINS_PER_LANE; ++i) {
                sum += shared.histogram[top - i];
            }
            i32 above = sum;
#pragma unroll 1
            for (i32 distance = 1; distance < WARP; distance *= 2) {
                const i32 other = __shfl_up_sync(ALL_LANES, above, distance);
                above += thread >= distance ? other : 0;
            }
            above -= sum;
            if (above < rank && rank <= above + sum) {
                i32 bin = top;
                while (above + shared.histogram[bin] < rank) {
                    above += shared.histogram[bin];
                    --bin;
                }
                shared.digit = bin;
                shared.rank = rank - above;
                shared.equal = shared.histogram[bin];
            }
        }
        __syncthreads();
        prefix |= static_cast<Key>(shared.digit) << shift;
        rank = shared.rank;
        equal = shared.equal;
    }
    return prefix;
}

// Emits the k best of the block's `found` eligible documents, and raises the query's threshold to the k-th score. All
// threads of the block call it.
template <typename Sum, bool SIGNED, bool DECAYS>
__device__ __forceinline__ void emit_candidates(
    const ScoreArguments& a, Shared& shared, const Eligible<Sum, SIGNED, DECAYS>& eligible, i32 found) {
    using Unsigned = typename UnsignedOf<Sum>::Type;
    constexpr bool WIDE = sizeof(Sum) == 8;
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 tile_size = eligible.tile_size;
    const Sum base_sum = static_cast<Sum>(shared.state.threshold);
    // Emitted are sums above `kth_sum`, and those equal to it in documents up to `last_tied`.
    Sum kth_sum = base_sum;
    i32 last_tied = tile_size - 1;
    if (found >= shared.state.k) {
        i32 rank = shared.state.k;
        i32 equal = 0;
        const u64 range = static_cast<u64>(shared.state.bound) - static_cast<u64>(shared.state.threshold);
        const i32 range_bits = 64 - __clzll(static_cast<i64>(range | 1));
        const Unsigned above = radix_largest<Unsigned>(
            shared, eligible,
            [=](Sum sum, i32, Unsigned& key) {
                key = static_cast<Unsigned>(sum) - static_cast<Unsigned>(base_sum);
                return true;
            },
            range_bits, rank, equal);
        kth_sum = static_cast<Sum>(static_cast<Unsigned>(base_sum) + above);
        if (thread == 0 && shared.state.query_threshold != nullptr) {
            atomicMax(shared.state.query_threshold, static_cast<i64>(kth_sum));
        }
        if (rank < equal) {
            const u32 kept = radix_largest<u32>(
                shared, eligible,
                [=](Sum sum, i32 local, u32& key) {
                    key = static_cast<u32>(tile_size - 1 - local);
                    return sum == kth_sum;
                },
                a.tile_bits, rank, equal);
            last_tied = tile_size - 1 - static_cast<i32>(kept);
        }
    }
    if (thread == 0) {
        shared.base = shared.state.candidates + atomicAdd(shared.state.count, smaller(found, shared.state.k));
    }
    __syncthreads();
    const i64 base = shared.base;
    const u32 top = ~shared.state.first;
    eligible.each([&](Sum sum, i32 local) {
        if (sum > kth_sum || (sum == kth_sum && local <= last_tied)) {
            const i64 target = base + atomicAdd(&shared.emitted, 1);
            const u32 descending = top - static_cast<u32>(local);
            if (WIDE) {
                a.keys[target] = static_cast<i64>(sum);
                a.documents[target] = descending;
            } else {
                a.keys[target] = static_cast<i64>(static_cast<u64>(static_cast<i64>(sum)) << 32 | descending);
            }
        }
    });
}
