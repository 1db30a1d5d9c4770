// The descriptors of a slot: where its posting list lies in each tile, and what it can contribute there. A warp each.
#pragma once

#include "arguments.cuh"

constexpr i32 THREADS = 256;
constexpr i32 WARPS = THREADS / WARP;
constexpr i32 UNROLL = 4;  // loads of a lane in flight

// What a warp keeps of 32 tiles of a list that it streams.
struct Tally {
    i64 maxima[WARP];  // int32 where contributions are
    i32 counts[WARP];
};

// A posting list: `table` is its row in the tables of the epoch, or -1.
struct List {
    i64 first;
    i32 length;
    i32 table;
};

__device__ __forceinline__ i32 lane_index() {
    return static_cast<i32>(threadIdx.x % WARP);
}

__device__ __forceinline__ List list_of(const SegmentRow& row, i64 position) {
    const i64 first = at_global(row.offsets)[position];
    const i64 end = at_global(row.offsets)[position + 1];
    return {first, static_cast<i32>(end - first), at_global(row.rows)[position]};
}

// How many leading indices of [0, count) hold, where none holds behind the first that does not. A warp probes 32 at a
// time: four loads in a row for 100,000 terms, where a binary search takes 17.
template <typename Holds>
__device__ __forceinline__ i32 leading(i32 count, const Holds& holds) {
    i32 low = 0;
    i32 high = count;
    while (low < high) {
        const i32 step = static_cast<i32>((static_cast<u32>(high - low) + WARP - 1) / WARP);
        const i32 probe = low + (lane_index() + 1) * step - 1;
        const i32 held = __popc(__ballot_sync(ALL_LANES, probe < high && holds(probe)));
        high = smaller(low + (held + 1) * step - 1, high);
        low += held * step;
    }
    return low;
}

// The absolute contribution of a posting, which is stored.
template <typename Quantum>
struct Stored {
    using Value = Quantum;
    const Quantum* quanta;

    __device__ __forceinline__ Value operator()(i64 posting, u32) const {
        const Value value = quanta[posting];
        return value < 0 ? -value : value;
    }
};

// The contribution of a posting, computed from the impact class in its word.
struct OfClass {
    using Value = i32;
    const double* saturated;
    double idf;

    __device__ __forceinline__ Value operator()(i64, u32 word) const {
        return static_cast<Value>(quanta_of_class(idf, saturated[word >> DOCUMENT_BITS]));
    }
};

// Calls body(contribution) for the term at `position`, as postings are stored.
template <typename Arguments, typename Body>
__device__ __forceinline__ void with_contributions(
    const Arguments& a, const SegmentRow& row, i64 position, const Body& body) {
    if (a.posting_bytes < 8) {
        body(OfClass{at_global(row.saturated), at_global(row.idf)[position]});
    } else if (a.long_quanta) {
        body(Stored<i64>{at_global(static_cast<const i64*>(row.quanta))});
    } else {
        body(Stored<i32>{at_global(static_cast<const i32*>(row.quanta))});
    }
}

// Streams a list once, 32 tiles at a time. Postings behind these tiles are loaded again for the next; a list that has
// no row in the tables is so short that this is one load in eight at most.
template <typename Contribution>
__device__ __forceinline__ void describe_stream(
    const u32* words,
    const List& list,
    i32 weight,
    i32 tile_bits,
    i32 tiles,
    Descriptor* descriptors,
    Tally& tally,
    const Contribution& contribution) {
    using Value = typename Contribution::Value;
    const i32 lane = lane_index();
    Value* const maxima = reinterpret_cast<Value*>(tally.maxima);
    i32 before = 0;
#pragma unroll 1
    for (i32 group = 0; group < tiles; group += WARP) {
        maxima[lane] = 0;
        tally.counts[lane] = 0;
        __syncwarp();
#pragma unroll 1
        for (i32 next = before; next < list.length; next += WARP * UNROLL) {
            i32 places[UNROLL];
            Value values[UNROLL];
#pragma unroll
            for (i32 i = 0; i < UNROLL; ++i) {
                const i32 index = next + i * WARP + lane;
                places[i] = WARP;
                values[i] = 0;
                if (index < list.length) {
                    const u32 word = words[list.first + index];
                    places[i] = static_cast<i32>((word & DOCUMENT_MASK) >> tile_bits) - group;
                    values[i] = contribution(list.first + index, word);
                }
            }
            bool behind = false;
#pragma unroll
            for (i32 i = 0; i < UNROLL; ++i) {
                if (places[i] < WARP) {
                    atomicAdd(&tally.counts[places[i]], 1);
                    atomicMax(&maxima[places[i]], values[i]);
                } else {
                    behind = true;
                }
            }
            if (__any_sync(ALL_LANES, behind)) {
                break;
            }
        }
        __syncwarp();
        const i32 count = tally.counts[lane];
        const i32 until = warp_prefix_sum(count, lane);
        if (group + lane < tiles) {
            descriptors[group + lane] = {list.first + before + until - count, maxima[lane], count, weight};
        }
        before += __shfl_sync(ALL_LANES, until, WARP - 1);
        __syncwarp();
    }
}

// Writes the descriptors of a slot whose term is at `position`; `list` is empty where it is not there.
template <typename Arguments>
__device__ __forceinline__ void describe_slot(
    const Arguments& a,
    const SegmentRow& row,
    i64 position,
    const List& list,
    i32 weight,
    Descriptor* descriptors,
    Tally& tally) {
    const i32 tiles = static_cast<i32>(row.tiles);
    if (list.length == 0) {
        for (i32 tile = lane_index(); tile < tiles; tile += WARP) {
            descriptors[tile] = {0, 0, 0, weight};
        }
    } else if (list.table >= 0) {
        const i32* const cuts = at_global(row.row_cuts) + list.table * (row.tiles + 1);
        const i64* const maxima = at_global(row.row_maxima) + list.table * row.tiles;
        for (i32 tile = lane_index(); tile < tiles; tile += WARP) {
            const i32 cut = cuts[tile];
            descriptors[tile] = {list.first + cut, maxima[tile], cuts[tile + 1] - cut, weight};
        }
    } else {
        with_contributions(a, row, position, [&](const auto& contribution) {
            const u32* const words = at_global(row.words);
            describe_stream(words, list, weight, a.tile_bits, tiles, descriptors, tally, contribution);
        });
    }
}
