// A block's tile: where it lies, what the block keeps of it in shared memory, and the addition of its postings.
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

// Values of `ScoreArguments::options`. They leave out an optimisation, to measure it; the answer is the same.
constexpr i32 KEEP_THRESHOLDS = 1;  // no tile raises its query's threshold
constexpr i32 UNIT_MAJOR = 2;       // blocks go through the tiles of one unit before the next unit

// Where a block works.
struct Position {
    i32 segment;
    i32 tile;
    i32 unit;
};

// What the block reads again after it added its postings. It lies in shared memory to free registers until then.
struct TileState {
    i64 bound;        // no score of the tile is larger
    i64 threshold;    // scores below it are not emitted
    i64 candidates;   // where the query's room in `keys` begins
    i32* count;       // candidates of the query
    i64* query_threshold;  // null if this tile must not raise it
    i32 k;
    u32 first;        // number of the tile's first document
    i32 restricted;   // 1 if a filter or a range leaves documents out
    i32 list_length;  // documents in `Shared::reached`, or -1 where the whole tile is scanned
};

struct Shared {
    TileState state;
    i64 threshold;
    i64 base;               // of the block's room in `keys`
    i64 bound[WARPS];
    i32 postings[WARPS];    // not 0 where a warp saw postings
    i32 passing[WARPS];     // not 0 where a warp saw a document that may be returned
    i64 slot_first[SLOTS];  // first posting of the slot in the tile
    i32 slot_count[SLOTS];
    i32 slot_weight[SLOTS];
    i32 slot_runs[SLOTS];   // runs of this slot and those before it
    i32 runs;
    i32 reached_count;      // documents at or above the threshold
    i32 emitted;
    i32 digit;              // what `radix_largest` chose
    i32 rank;
    i32 equal;
    i32 histogram[RADIX];
    u16 reached[MAX_REACHED];  // documents of the tile, in the order in which they reached the threshold
};

// What contributions are computed from where a posting holds its impact class. It lies in shared memory to free
// registers.
struct KindFactors {
    const u16* impact_classes;         // [P] uint16, at 6 bytes a posting
    const double* saturated;  // [impact_classes] float64
    double idf[SLOTS];        // of the described slots
};

// Neighbouring 16 bytes of the sums.
template <typename Sum>
struct alignas(16) SumVector {
    Sum value[16 / sizeof(Sum)];
};

__device__ __forceinline__ bool is_set(const u32* bitmap, i32 bit) {
    return (bitmap[bit / 32] >> (bit % 32) & 1) != 0;
}

__device__ __forceinline__ i32 add_shared(i32* target, i32 value) {
    return atomicAdd(target, value);
}

__device__ __forceinline__ i64 add_shared(i64* target, i64 value) {
    return static_cast<i64>(atomicAdd(reinterpret_cast<u64*>(target), static_cast<u64>(value)));
}

__device__ __forceinline__ Position locate(const ScoreArguments& a, i64 block) {
    const i32 segment = upper_bound(a.block_offset, 0, a.segments, block) - 1;
    const i32 first_unit = a.unit_offset[segment];
    const i32 units = a.unit_offset[segment + 1] - first_unit;
    const i64 index = block - a.block_offset[segment];
    if (a.options & UNIT_MAJOR) {
        const i64 tiles = (a.block_offset[segment + 1] - a.block_offset[segment]) / units;
        return {segment, static_cast<i32>(index % tiles), first_unit + static_cast<i32>(index / tiles)};
    }
    // A division of 32 bits takes a fraction of the time of one of 64.
    if (index >> 32 == 0) {
        const u32 divisor = static_cast<u32>(units);
        return {
            segment,
            static_cast<i32>(static_cast<u32>(index) / divisor),
            first_unit + static_cast<i32>(static_cast<u32>(index) % divisor)};
    }
    return {segment, static_cast<i32>(index / units), first_unit + static_cast<i32>(index % units)};
}

// Adds the slot's part of the tile to (bound, postings). If `index` is below SLOTS, describes it there in shared memory.
__device__ __forceinline__ void describe_slot(
    const ScoreArguments& a,
    Shared& shared,
    KindFactors* factors,
    i64 slot,
    i32 tile,
    i32 index,
    i64& bound,
    i32& postings) {
    const i32 list = a.slot_list[slot];
    const i32 weight = a.slot_weight[slot];
    i32 count = 0;
    i64 first = 0;
    // A list that does not exist has no other entries to read.
    if (a.list_length[list] > 0) {
        const i64 row = a.list_cuts[list] + tile;
        const i32 begin = a.cuts[row];
        count = a.cuts[row + 1] - begin;
        first = a.list_start[list] + begin;
        bound += weight * a.maxima[row];
        postings |= count;
    }
    if (index < SLOTS) {
        shared.slot_first[index] = first;
        shared.slot_count[index] = count;
        shared.slot_weight[index] = weight;
        if (factors != nullptr) {
            factors->idf[index] = a.list_idf[list];
        }
    }
}

// Warp 0: inclusive sums of the runs of the first `slots` described slots.
__device__ __forceinline__ void sum_runs(Shared& shared, i32 slots) {
    constexpr i32 PER_LANE = SLOTS / WARP;
    const i32 lane = static_cast<i32>(threadIdx.x);
    i32 inclusive[PER_LANE];
    i32 sum = 0;
#pragma unroll
    for (i32 i = 0; i < PER_LANE; ++i) {
        const i32 slot = lane * PER_LANE + i;
        sum += slot < slots ? (shared.slot_count[slot] + RUN - 1) / RUN : 0;
        inclusive[i] = sum;
    }
    i32 before = sum;
    for (i32 distance = 1; distance < WARP; distance *= 2) {
        const i32 other = __shfl_up_sync(ALL_LANES, before, distance);
        before += lane >= distance ? other : 0;
    }
    before -= sum;
#pragma unroll
    for (i32 i = 0; i < PER_LANE; ++i) {
        shared.slot_runs[lane * PER_LANE + i] = before + inclusive[i];
    }
    if (lane == WARP - 1) {
        shared.runs = before + sum;
    }
}

// Adds up to RUN postings of a described slot to the sums: a lane's next UNROLL. Lists the documents whose sum reaches
// `least_sum`, or marks them in `matched` where sums are signed.
template <typename Sum, typename Quantum, bool SIGNED, i32 BYTES>
__device__ __forceinline__ void add_run(
    Shared& shared,
    const KindFactors* factors,
    Sum* sums,           // [tile_size]
    const u32* allowed,  // [tile_size / 32]
    u32* matched,        // [tile_size / 32]
    const u32* words,
    const Quantum* quanta,
    i32 run,
    i32 described,
    u32 tile_mask,
    Sum least_sum) {
    const i32 lane = static_cast<i32>(threadIdx.x) % WARP;
    const i32 slot = upper_bound(shared.slot_runs, 0, described, run);
    const i32 begin = (run - (slot > 0 ? shared.slot_runs[slot - 1] : 0)) * RUN;
    const i32 count = shared.slot_count[slot] - begin;
    const i64 first = shared.slot_first[slot] + begin;
    const Sum weight = static_cast<Sum>(shared.slot_weight[slot]);
    // At 4 bytes a posting half as many loads are in flight: the registers of three blocks do not hold more.
    constexpr i32 LOADS = BYTES == 4 && UNROLL % 2 == 0 ? UNROLL / 2 : UNROLL;
#pragma unroll 1
    for (i32 part = 0; part < UNROLL; part += LOADS) {
        u32 locals[LOADS];
        Sum values[LOADS];
#pragma unroll
        for (i32 i = 0; i < LOADS; ++i) {
            const i32 index = (part + i) * WARP + lane;
            if (index < count) {
                locals[i] = words[first + index];
                if constexpr (BYTES == 8) {
                    values[i] = static_cast<Sum>(quanta[first + index]);
                } else if constexpr (BYTES == 6) {
                    // A document's place in its tile takes less than 16 bits.
                    locals[i] = (locals[i] & tile_mask) | static_cast<u32>(factors->impact_classes[first + index]) << 16;
                }
            }
        }
#pragma unroll
        for (i32 i = 0; i < LOADS; ++i) {
            if ((part + i) * WARP + lane < count) {
                const u32 local = locals[i] & tile_mask;
                Sum value;
                if constexpr (BYTES == 8) {
                    value = values[i];
                } else {
                    // Read last: it lies in the first-level cache, and takes two registers.
                    const u32 impact_class = locals[i] >> (BYTES == 6 ? 16 : DOCUMENT_BITS);
                    value = static_cast<Sum>(quanta_of_class(factors->idf[slot], factors->saturated[impact_class]));
                }
                value *= weight;
                const Sum before = add_shared(&sums[local], value);
                if (SIGNED) {
                    atomicOr(&matched[local / 32], 1u << (local % 32));
                } else if (before < least_sum && before + value >= least_sum) {
                    // Contributions are positive, so a document reaches the threshold once.
                    if (!shared.state.restricted || is_set(allowed, static_cast<i32>(local))) {
                        const i32 position = atomicAdd(&shared.reached_count, 1);
                        if (position < MAX_REACHED) {
                            shared.reached[position] = static_cast<u16>(local);
                        }
                    }
                }
            }
        }
    }
}

// Replaces every sum that may reach the threshold by the bits of its decayed score. Where the tile will be scanned, the
// other sums become 0. All threads of the block call it.
__device__ __forceinline__ void decay_sums(
    const Shared& shared, const TileDecay& tile_decay, i64* sums, i32 tile_size, i32 reached_count) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    const Decay decay = tile_decay.decay;
    const double* const times = tile_decay.times;
    if (reached_count <= MAX_REACHED) {
#pragma unroll 1
        for (i32 i = thread; i < reached_count; i += THREADS) {
            const i32 local = shared.reached[i];
            sums[local] = decay.bits(sums[local], times[local]);
        }
        return;
    }
    const i64 least_sum = tile_decay.least_sum;
#pragma unroll 1
    for (i32 local = thread; local < tile_size; local += THREADS) {
        const i64 sum = sums[local];
        sums[local] = sum >= least_sum ? decay.bits(sum, times[local]) : 0;
    }
}
