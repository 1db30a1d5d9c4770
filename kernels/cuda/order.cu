// The tiles of each query that can hold a hit, best bounds first. A block a query.
#include "arguments.cuh"
#include "score_decay.cuh"

constexpr i32 THREADS = 256;
constexpr i32 WARPS = THREADS / WARP;
constexpr i32 UNROLL = 4;
constexpr i32 CLASSES = THREADS;   // of bounds, between the least and the best
constexpr i32 ENTRIES = 1024;      // sorted at a time: 17 million documents in tiles of 2^14

struct Shared {
    Entry entries[ENTRIES];
    i64 best[WARPS];
    i64 least[WARPS];
    i32 classes[CLASSES];
    i32 sums[WARPS];
    i32 count;
};

// The word of a bitmap with the bits of documents in [from, to) alone.
__device__ __forceinline__ u32 word_between(const u32* filter, i32 word, i32 from, i32 to) {
    u32 bits = filter[word];
    if (word == from >> 5) {
        bits &= ~0u << (from & 31);
    }
    if (word == (to - 1) >> 5) {
        bits &= ~0u >> (31 - ((to - 1) & 31));
    }
    return bits;
}

// Whether any bit of [from, to) is set, where lanes have each their own range and `asked` says which ask. Each looks at
// the first words of its own; what that leaves open the whole warp reads, one range after the other.
__device__ __forceinline__ bool any_passes(const u32* filter, i32 from, i32 to, bool asked) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    u32 found = 0;
#pragma unroll
    for (i32 i = 0; i < UNROLL; ++i) {
        const i32 word = (from >> 5) + i;
        if (asked && word <= (to - 1) >> 5) {
            found |= word_between(filter, word, from, to);
        }
    }
    u32 open = __ballot_sync(ALL_LANES, asked && found == 0 && (from >> 5) + UNROLL <= (to - 1) >> 5);
    while (open != 0) {
        const i32 owner = __ffs(static_cast<i32>(open)) - 1;
        open &= open - 1;
        const i32 first = __shfl_sync(ALL_LANES, from, owner);
        const i32 end = __shfl_sync(ALL_LANES, to, owner);
        const i32 last = (end - 1) >> 5;
        u32 bits = 0;
        for (i32 next = (first >> 5) + UNROLL; next <= last; next += WARP * UNROLL) {
#pragma unroll
            for (i32 i = 0; i < UNROLL; ++i) {
                const i32 word = next + i * WARP + lane;
                if (word <= last) {
                    bits |= word_between(filter, word, first, end);
                }
            }
            if (__any_sync(ALL_LANES, bits != 0)) {
                break;
            }
        }
        if (__any_sync(ALL_LANES, bits != 0) && lane == owner) {
            found = 1;
        }
    }
    return found != 0;
}

// Lists those of 32 tiles of a unit that can hold a hit in `shared.entries`; returns whether the lane's does. All lanes of
// a warp call it.
template <bool DECAYS>
__device__ __forceinline__ bool list_tiles(
    const OrderArguments& a, Shared& shared, i32 unit, i32 group, i64 threshold, const Decay& decay) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    // Of the unit all at once; the row follows.
    const SegmentRow& row = a.segments[a.unit_segment[unit]];
    const i32 low = a.unit_low[unit];
    const i32 high = a.unit_high[unit];
    const i64 slots = a.unit_slots[unit + 1] - a.unit_slots[unit];
    const i64 described = a.unit_descriptors[unit];
    const u32* const filter = at_address<u32>(a.unit_filter[unit]);
    const i32 tiles = static_cast<i32>(row.tiles);
    const i32 tile = group * WARP + lane;
    const i32 from = larger(low, tile << a.tile_bits);
    const i32 to = smaller(high, (tile + 1) << a.tile_bits);
    bool kept = tile < tiles && from < to;
    // `described` is never negative; looked at here, it is loaded before the row, not after it.
    const i64 looked = kept && described >= 0 ? slots : 0;
    const Descriptor* const descriptors = a.descriptors + described + tile;
    i64 bound = 0;
    i32 postings = 0;
#pragma unroll 4
    for (i64 slot = 0; slot < looked; ++slot) {
        const Descriptor& descriptor = descriptors[slot * tiles];
        bound += descriptor.maximum * descriptor.weight;
        postings |= descriptor.count;
    }
    if constexpr (DECAYS) {
        if (postings != 0 && decay.rate != 0.0) {
            bound = decay.bits(bound, at_global(row.latest)[tile]);
        }
    }
    kept = postings != 0 && bound >= threshold;
    if (filter != nullptr) {
        kept = any_passes(filter, from, to, kept);
    }
    const u32 ballot = __ballot_sync(ALL_LANES, kept);
    i32 place = 0;
    if (lane == 0 && ballot != 0) {
        place = atomicAdd(&shared.count, __popc(ballot));
    }
    place = __shfl_sync(ALL_LANES, place, 0) + __popc(ballot & ((1u << lane) - 1));
    if (kept) {
        shared.entries[place] = {bound, unit, tile};
    }
    return kept;
}

// A counting sort of the `count` listed entries by classes of their bounds, into `entries`. All threads of the block call
// it, after a barrier; the list is empty afterwards.
__device__ __forceinline__ void sort_entries(Shared& shared, i32 count, Entry* entries) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 lane = thread % WARP;
    const i32 warp = thread / WARP;
    i64 best = 0;
    i64 least = ~LOWEST_I64;
    for (i32 i = thread; i < count; i += THREADS) {
        best = larger(best, shared.entries[i].bound);
        least = smaller(least, shared.entries[i].bound);
    }
    best = warp_largest(best);
    least = -warp_largest(-least);
    if (lane == 0) {
        shared.best[warp] = best;
        shared.least[warp] = least;
    }
    shared.classes[thread] = 0;
    __syncthreads();
    for (i32 i = 0; i < WARPS; ++i) {
        best = larger(best, shared.best[i]);
        least = smaller(least, shared.least[i]);
    }
    // Rounding decides nothing but the order.
    const float scale = best > least ? (CLASSES - 0.01f) / static_cast<float>(best - least) : 0.0f;
    const auto class_of = [&](i32 i) {
        const float below = static_cast<float>(best - shared.entries[i].bound);
        return smaller(static_cast<i32>(below * scale), CLASSES - 1);
    };
    for (i32 i = thread; i < count; i += THREADS) {
        atomicAdd(&shared.classes[class_of(i)], 1);
    }
    __syncthreads();
    // Where each class begins.
    const i32 own = shared.classes[thread];
    i32 until = warp_prefix_sum(own, lane);
    if (lane == WARP - 1) {
        shared.sums[warp] = until;
    }
    __syncthreads();
    for (i32 i = 0; i < warp; ++i) {
        until += shared.sums[i];
    }
    shared.classes[thread] = until - own;
    if (thread == 0) {
        shared.count = 0;
    }
    __syncthreads();
    for (i32 i = thread; i < count; i += THREADS) {
        entries[atomicAdd(&shared.classes[class_of(i)], 1)] = shared.entries[i];
    }
    __syncthreads();
}

template <bool DECAYS>
__device__ __forceinline__ void order(const OrderArguments& a, Shared& shared) {
    const i64 query = blockIdx.x;
    const i32 thread = static_cast<i32>(threadIdx.x);
    // All at once, before any of them is looked at: one load in a row, not four.
    const bool own = (a.query_wide[query] != 0) == (a.wide != 0);
    const i32 k = a.query_k[query];
    const i32 first_unit = a.query_units[query];
    const i32 end_unit = a.query_units[query + 1];
    const i64 threshold = a.thresholds[query];
    Entry* const entries = a.entries + a.entry_offset[query];
    Decay decay = {0.0, 0.0, nullptr};
    if constexpr (DECAYS) {
        decay = {a.query_now[query], a.query_rate[query], a.decay_table};
    }
    // Those groups that a unit lacks cost two loads. A query that has no entries has no turns either: behind a branch,
    // the compiler would load what only follows it.
    const i64 turns = static_cast<i64>((end_unit - first_unit) * (own && k > 0)) << a.group_bits;
    i32 listed = 0;
    i32 written = 0;
    if (thread == 0) {
        shared.count = 0;
    }
    __syncthreads();
    for (i64 round = 0; round < turns; round += WARPS) {
        const i64 turn = round + thread / WARP;
        bool kept = false;
        if (turn < turns) {
            const i32 unit = first_unit + static_cast<i32>(turn >> a.group_bits);
            const i32 group = static_cast<i32>(turn & ((1 << a.group_bits) - 1));
            kept = list_tiles<DECAYS>(a, shared, unit, group, threshold, decay);
        }
        listed += __syncthreads_count(kept);
        if (listed > ENTRIES - THREADS || round + WARPS >= turns) {
            sort_entries(shared, listed, entries + written);
            written += listed;
            listed = 0;
        }
    }
    if (thread == 0) {
        a.entry_counts[query] = written;
        atomicMax(a.progress, static_cast<i64>(written));
    }
}

extern "C" __global__ void __launch_bounds__(256, 4) order_plain(const __grid_constant__ OrderArguments a) {
    __shared__ Shared shared;
    order<false>(a, shared);
}

extern "C" __global__ void __launch_bounds__(256, 4) order_decayed(const __grid_constant__ OrderArguments a) {
    __shared__ Shared shared;
    order<true>(a, shared);
}
