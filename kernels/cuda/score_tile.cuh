// A block's tile: what the block keeps of it in shared memory, and the slots whose postings it adds (score.cu).
#pragma once

#include "arguments.cuh"
#include "score_decay.cuh"

constexpr i32 THREADS = 512;
constexpr i32 WARPS = THREADS / WARP;
constexpr i32 SLOTS = 128;          // posting lists described in shared memory at a time
constexpr i32 UNROLL = 4;           // loads of a lane in flight
constexpr i32 RUN = WARP * UNROLL;  // postings that a warp takes from one list before it looks for its next run
constexpr i32 MAX_REACHED = 2048;   // documents listed as they reach the threshold; with more the tile is scanned
constexpr i32 RADIX_BITS = 8;
constexpr i32 RADIX = 1 << RADIX_BITS;
constexpr i32 VECTOR = 4;  // neighbouring 32-bit words of the sums that a thread reads at once

// Other blocks raise the threshold meanwhile.
__device__ __forceinline__ i64 live_threshold(const ScoreArguments& a, i32 query) {
    return *const_cast<const volatile i64*>(&a.thresholds[query]);
}

// An entry that a block is to score.
struct Turn {
    i64 bound;  // no score of the tile is larger
    i32 query;
    u32 unit;
    i32 tile;
};

// What the block reads again after it added its postings. It lies in shared memory to free registers until then.
struct TileState {
    i64 bound;        // no score of the tile is larger
    i64 threshold;    // scores below it are not emitted
    i64 candidates;   // where the query's room in `keys` begins
    i32 query;
    i32 k;
    u32 first;        // number of the tile's first document
    i32 restricted;   // 1 if a filter or a range leaves documents out
    i32 list_length;  // documents in `Shared::reached`, or -1 where the whole tile is scanned
};

struct Shared {
    TileState state;
    i64 base;          // of the block's room in `keys`
    Turn turns[WARP];  // to be scored one after another
    i32 turn_next;     // the one after that which is scored
    i32 turn_count;    // 0: all turns are taken
    // Slots are read until all postings are added, the histogram is made afterwards.
    union {
        i64 slot_first[SLOTS];  // first posting of the slot in the tile
        i32 histogram[RADIX];
    };
    i32 slot_count[SLOTS];
    i32 slot_weight[SLOTS];
    i32 slot_runs[SLOTS];  // runs of this slot and those before it
    i32 runs;
    i32 reached_count;  // documents at or above the threshold
    i32 emitted;
    i32 digit;  // what `radix_largest` chose
    i32 rank;
    i32 equal;
    i32 total;                 // keys that it counted
    u16 reached[MAX_REACHED];  // documents of the tile, in the order in which they reached the threshold
};

// What contributions are computed from where a posting holds its impact class. It lies in shared memory to free
// registers.
struct ClassFactors {
    const double* saturated;  // [impact_classes] float64
    double idf[SLOTS];        // of the described slots
};

// Neighbouring words of the sums.
template <i32 WORDS>
struct alignas(4 * WORDS) SumVector {
    u32 word[WORDS];
};

__device__ __forceinline__ bool is_set(const u32* bitmap, i32 bit) {
    return (bitmap[bit / 32] >> (bit % 32) & 1) != 0;
}

// The memory of a tile: its sums, and behind them a bitmap of the documents that pass, if some do not, and one of those
// that match, if sums are signed. A wide sum is two words, `tile_size` apart, so that each is added to by a native
// atomic; one of 64 bits would be a loop of compare and swap in shared memory.
template <bool WIDE, bool DECAYS>
struct Tile {
    unsigned char* memory;
    i32 size;

    __device__ __forceinline__ i32* narrow() const {
        return reinterpret_cast<i32*>(memory);
    }

    __device__ __forceinline__ u32* low() const {
        return reinterpret_cast<u32*>(memory);
    }

    __device__ __forceinline__ u32* high() const {
        return low() + size;
    }

    // The scores of the listed documents, where scores decay. They replace the sums.
    __device__ __forceinline__ i64* listed() const {
        return reinterpret_cast<i64*>(memory);
    }

    __device__ __forceinline__ u32* allowed() const {
        const i32 sums = WIDE ? 8 * size : DECAYS ? larger(4 * size, 8 * smaller(size, MAX_REACHED)) : 4 * size;
        return reinterpret_cast<u32*>(memory + sums);
    }

    __device__ __forceinline__ u32* matched() const {
        return allowed() + size / 32;
    }

    // No thread adds any more.
    __device__ __forceinline__ typename IntegerOf<WIDE>::Type sum(i32 local) const {
        if constexpr (WIDE) {
            return static_cast<i64>(static_cast<u64>(high()[local]) << 32 | low()[local]);
        } else {
            return narrow()[local];
        }
    }
};

// Adds in two's complement. The low words carry whenever one of them overflows, so the sum is exact in every order; it
// is complete once all threads have added.
__device__ __forceinline__ void add_halves(u32* low, u32* high, i64 value) {
    const u32 part = static_cast<u32>(value);
    const u32 before = atomicAdd(low, part);
    const u32 rest = static_cast<u32>(static_cast<u64>(value) >> 32) + (before + part < part ? 1u : 0u);
    if (rest != 0) {
        atomicAdd(high, rest);
    }
}

// Warp 0: describes `described` slots of the unit, from its slot `chunk` on, in shared memory.
__device__ __forceinline__ void describe_slots(
    const ScoreArguments& a, Shared& shared, ClassFactors* factors, u32 unit, i32 tile, i32 tiles, i32 chunk, i32 described) {
    const i32 lane = static_cast<i32>(threadIdx.x);
    const Descriptor* const descriptors = a.descriptors + a.unit_descriptors[unit] + tile;
    i32 runs = 0;
#pragma unroll 1
    for (i32 first = 0; first < described; first += WARP) {
        const i32 index = first + lane;
        i32 count = 0;
        if (index < described) {
            const Descriptor& descriptor = descriptors[static_cast<i64>(chunk + index) * tiles];
            count = descriptor.count;
            shared.slot_first[index] = descriptor.first;
            shared.slot_count[index] = count;
            shared.slot_weight[index] = descriptor.weight;
            if (factors != nullptr) {
                factors->idf[index] = a.idf[a.unit_slots[unit] + chunk + index];
            }
        }
        const i32 inclusive = warp_prefix_sum((count + RUN - 1) / RUN, lane);
        shared.slot_runs[index] = runs + inclusive;
        runs += __shfl_sync(ALL_LANES, inclusive, WARP - 1);
    }
    if (lane == 0) {
        shared.runs = runs;
    }
}
