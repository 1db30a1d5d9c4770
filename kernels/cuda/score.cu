// Scores the entries of a launch: a block takes turns, adds the postings of each tile to integer sums in shared memory,
// and the tile's k best leave as candidates.
//
// The grid is persistent: as many blocks as the device holds, or as there are turns. The kernels differ in types alone,
// so that each has only the registers that it needs. Narrow kernels add in int32, wide ones in two halves of 32 bits. Of
// a query that decays, a document's complete sum becomes the bits of a positive double, which are ordered as integers. A
// posting's contribution is read (8 bytes a posting), or computed from the impact class in its word (4 bytes).
#include "score_candidates.cuh"

// Chunks of turns that a block takes if all take the same number.
constexpr u32 CHUNKS = 8;

// The shared memory of a block. A kernel that does not call one of these has no such memory. They are no templates: the
// host build could not poison what a template declares.
__device__ __forceinline__ Shared& block_shared() {
    __shared__ Shared shared;
    return shared;
}

__device__ __forceinline__ TileDecay* block_decay() {
    __shared__ TileDecay tile_decay;
    return &tile_decay;
}

__device__ __forceinline__ ClassFactors* block_factors() {
    __shared__ ClassFactors factors;
    return &factors;
}

// Warp 0: takes turns until some of them are entries that can hold a hit, and notes these in shared memory; none once
// all turns are taken. Turn t stands for entry t / Q of query t % Q, so each query's best tile comes first. A lane looks
// at a turn.
__device__ __forceinline__ void take_turns(const ScoreArguments& a, Shared& shared) {
    const i32 lane = static_cast<i32>(threadIdx.x);
    // Turns fit 31 bits (kernels/cuda/verbs.py); a division of 64 would be a call.
    const u32 queries = static_cast<u32>(a.queries);
    const u32 total = static_cast<u32>(a.progress[0]) * queries;
    // Few turns are taken one by one, so that they fill the device; of many a block takes 32 with one atomic addition.
    const u32 chunk = larger(smaller(total / (gridDim.x * CHUNKS), u32(WARP)), 1u);
    u64 first = 0;
    u32 alive_lanes = 0;
    do {
        if (lane == 0) {
            first = atomicAdd(reinterpret_cast<u64*>(&a.progress[1]), u64(chunk));
        }
        first = __shfl_sync(ALL_LANES, first, 0);
        Turn turn = {0, 0, 0, 0};
        bool alive = false;
        if (lane < static_cast<i32>(chunk) && first + lane < total) {
            const u32 number = static_cast<u32>(first) + lane;
            const i32 rank = static_cast<i32>(number / queries);
            turn.query = static_cast<i32>(number % queries);
            if (rank < a.entry_counts[turn.query]) {
                const Entry& entry = a.entries[a.entry_offset[turn.query] + rank];
                turn.bound = entry.bound;
                turn.unit = static_cast<u32>(entry.unit);
                turn.tile = entry.tile;
                alive = turn.bound >= live_threshold(a, turn.query);
            }
        }
        alive_lanes = __ballot_sync(ALL_LANES, alive);
        if (alive) {
            shared.turns[__popc(alive_lanes & ((1u << lane) - 1))] = turn;
        }
    } while (alive_lanes == 0 && first < total);
    if (lane == 0) {
        shared.turn_count = __popc(alive_lanes);
    }
}

// Adds up to RUN postings of a described slot to the sums: a lane's next UNROLL. Where sums are narrow and positive,
// lists the documents whose sum reaches `least_sum`; where they are signed, marks the documents that match.
template <bool WIDE, typename Quantum, bool SIGNED, bool DECAYS, i32 BYTES>
__device__ __forceinline__ void add_run(
    Shared& shared,
    const ClassFactors* factors,
    const Tile<WIDE, DECAYS>& tile,
    const u32* words,
    const Quantum* quanta,
    i32 run,
    i32 described,
    i32 least_sum) {
    using Value = typename IntegerOf<WIDE>::Type;
    const i32 lane = static_cast<i32>(threadIdx.x) % WARP;
    const i32 slot = upper_bound(shared.slot_runs, 0, described, run);
    const i32 begin = (run - (slot > 0 ? shared.slot_runs[slot - 1] : 0)) * RUN;
    const i32 count = shared.slot_count[slot] - begin;
    const i64 first = shared.slot_first[slot] + begin;
    const Value weight = shared.slot_weight[slot];
    const u32 tile_mask = static_cast<u32>(tile.size - 1);
    // At 4 bytes a posting half as many loads are in flight: the registers of three blocks do not hold more.
    constexpr i32 LOADS = BYTES == 4 && UNROLL % 2 == 0 ? UNROLL / 2 : UNROLL;
#pragma unroll 1
    for (i32 part = 0; part < UNROLL; part += LOADS) {
        u32 locals[LOADS];
        Value values[LOADS];
#pragma unroll
        for (i32 i = 0; i < LOADS; ++i) {
            const i32 index = (part + i) * WARP + lane;
            if (index < count) {
                locals[i] = words[first + index];
                if constexpr (BYTES == 8) {
                    values[i] = static_cast<Value>(quanta[first + index]);
                }
            }
        }
#pragma unroll
        for (i32 i = 0; i < LOADS; ++i) {
            if ((part + i) * WARP + lane < count) {
                const u32 local = locals[i] & tile_mask;
                Value value;
                if constexpr (BYTES == 8) {
                    value = values[i];
                } else {
                    // Read last: it lies in the first-level cache, and takes two registers.
                    const u32 impact_class = locals[i] >> DOCUMENT_BITS;
                    value = static_cast<Value>(quanta_of_class(factors->idf[slot], at_global(factors->saturated)[impact_class]));
                }
                value *= weight;
                if constexpr (WIDE) {
                    add_halves(tile.low() + local, tile.high() + local, value);
                } else {
                    const i32 before = atomicAdd(tile.narrow() + local, value);
                    // Contributions are positive, so a document reaches the threshold once.
                    if (!SIGNED && before < least_sum && before + value >= least_sum) {
                        if (!shared.state.restricted || is_set(tile.allowed(), static_cast<i32>(local))) {
                            const i32 position = atomicAdd(&shared.reached_count, 1);
                            if (position < MAX_REACHED) {
                                shared.reached[position] = static_cast<u16>(local);
                            }
                        }
                    }
                }
                if constexpr (SIGNED) {
                    atomicOr(&tile.matched()[local / 32], 1u << (local % 32));
                }
            }
        }
    }
}

// Scores one entry. All threads of the block call it; none of them reads what the turn before left in shared memory.
template <bool WIDE, typename Quantum, bool SIGNED, bool DECAYS, i32 BYTES>
__device__ __forceinline__ void score_turn(
    const ScoreArguments& a,
    Shared& shared,
    TileDecay* tile_decay,
    ClassFactors* factors,
    const Tile<WIDE, DECAYS>& tile,
    const Turn& turn) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 warp = thread / WARP;
    const u32 unit = turn.unit;
    const SegmentRow& row = a.segments[a.unit_segment[unit]];
    const i32 tile_first = turn.tile << a.tile_bits;
    const i32 tile_documents = smaller(tile.size, static_cast<i32>(row.size) - tile_first);
    const i32 low = larger(a.unit_low[unit] - tile_first, 0);
    const i32 high = smaller(a.unit_high[unit] - tile_first, tile_documents);
    const u32* const filter = at_address<u32>(a.unit_filter[unit]);
    const bool restricted = filter != nullptr || low > 0 || high < tile_documents;
    const i32 slots = static_cast<i32>(a.unit_slots[unit + 1] - a.unit_slots[unit]);

    if (warp == 0) {
        describe_slots(a, shared, factors, unit, turn.tile, static_cast<i32>(row.tiles), 0, smaller(slots, SLOTS));
    } else if (thread == WARP) {
        // An older threshold is lower, so it excludes no hit. A sum lies in [-bound, bound], so the other one fits it.
        const i64 threshold = larger(live_threshold(a, turn.query), SIGNED ? -turn.bound : i64(1));
        if constexpr (BYTES < 8) {
            factors->saturated = row.saturated;
        }
        shared.state.bound = turn.bound;
        shared.state.threshold = threshold;
        shared.state.candidates = a.candidate_offset[turn.query];
        shared.state.query = turn.query;
        shared.state.k = a.query_k[turn.query];
        shared.state.first = static_cast<u32>(row.first) + static_cast<u32>(tile_first);
        shared.state.restricted = restricted;
        shared.reached_count = 0;
        shared.emitted = 0;
        if constexpr (DECAYS) {
            tile_decay->decay = {a.query_now[turn.query], a.query_rate[turn.query], a.decay_table};
            tile_decay->times = row.times + tile_first;
            // The bound reaches the threshold, or the tile is skipped, so this sum is no larger than that of the bound.
            tile_decay->least_sum = tile_decay->decay.rate != 0.0
                ? tile_decay->decay.least_sum(threshold, at_global(row.latest)[turn.tile])
                : threshold;
        }
    }
    // A wide sum's halves lie side by side as two tiles.
    SumVector<VECTOR>* const vectors = reinterpret_cast<SumVector<VECTOR>*>(tile.low());
    for (i32 vector = thread; vector < (WIDE ? 2 : 1) * tile.size / VECTOR; vector += THREADS) {
        vectors[vector] = SumVector<VECTOR>{};
    }
    if (restricted) {
#pragma unroll 1
        for (i32 word = thread; word < tile.size / 32; word += THREADS) {
            const i32 from = larger(low - word * 32, 0);
            const i32 to = smaller(high - word * 32, 32);
            u32 bits = 0;
            if (from < to) {
                bits = filter != nullptr ? filter[(tile_first >> 5) + word] : ~0u;
                bits &= (~0u << from) & (~0u >> (32 - to));
            }
            tile.allowed()[word] = bits;
        }
    }
    if (SIGNED) {
        for (i32 word = thread; word < tile.size / 32; word += THREADS) {
            tile.matched()[word] = 0;
        }
    }
    __syncthreads();
    // One thread has read the threshold, so all take the same way.
    if (shared.state.bound < shared.state.threshold) {
        return;
    }

    i32 least_sum = 0;
    if constexpr (!WIDE) {
        least_sum = static_cast<i32>(DECAYS ? tile_decay->least_sum : shared.state.threshold);
    }
    const u32* const words = at_global(row.words);
    const Quantum* const quanta = at_global(static_cast<const Quantum*>(row.quanta));
#pragma unroll 1
    for (i32 chunk = 0; chunk < slots; chunk += SLOTS) {
        const i32 described = smaller(slots - chunk, SLOTS);
        if (chunk > 0) {
            __syncthreads();
            if (warp == 0) {
                describe_slots(
                    a, shared, factors, unit, turn.tile, static_cast<i32>(row.tiles), chunk, described);
            }
            __syncthreads();
        }
        const i32 runs = shared.runs;
#pragma unroll 1
        for (i32 run = warp; run < runs; run += WARPS) {
            add_run<WIDE, Quantum, SIGNED, DECAYS, BYTES>(
                shared, factors, tile, words, quanta, run, described, least_sum);
        }
    }
    __syncthreads();

    constexpr bool LISTED = !WIDE && !SIGNED;
    const i32 reached = shared.reached_count;
    if (LISTED && reached == 0) {
        return;
    }
    if (thread == 0) {
        // The k-th best of a full list bounds that of the tile. Once decayed, a list replaces the sums.
        const bool read = reached <= MAX_REACHED || (!DECAYS && shared.state.k <= MAX_REACHED);
        shared.state.list_length = LISTED && read ? smaller(reached, MAX_REACHED) : -1;
    }
    const Eligible<WIDE, SIGNED, DECAYS> eligible = {shared, tile_decay, tile};
    if (DECAYS && LISTED && reached <= MAX_REACHED) {
        eligible.decay_listed(reached);
    } else {
        __syncthreads();
    }
    emit_candidates(a, shared, eligible);
}

// The kernel of a block. Its dynamic shared memory holds the sums of the tile, and bitmaps behind them.
template <bool WIDE, typename Quantum, bool SIGNED, bool DECAYS, i32 BYTES>
__device__ __forceinline__ void score(const ScoreArguments& a) {
    FANRANK_DYNAMIC_SHARED(tile_memory);
    static_assert(!DECAYS || !SIGNED, "a decayed score is the bits of a positive double");
    static_assert(BYTES == 8 || !SIGNED, "a contribution computed from an impact class is at least one quantum");
    static_assert(WIDE || sizeof(Quantum) == 4, "sums of 32 bits hold no contributions of 64");
    Shared& shared = block_shared();
    TileDecay* tile_decay = nullptr;
    ClassFactors* factors = nullptr;
    if constexpr (DECAYS) {
        tile_decay = block_decay();
    }
    if constexpr (BYTES < 8) {
        factors = block_factors();
    }
    const Tile<WIDE, DECAYS> tile = {tile_memory, 1 << a.tile_bits};
    if (threadIdx.x == 0) {
        shared.turn_next = 0;
        shared.turn_count = 0;
    }
    __syncthreads();
    // Its state lies in shared memory: a counter in a register is spilled by the kernels of decayed scores.
    for (;;) {
        if (threadIdx.x < WARP) {
            i32 next = shared.turn_next;
            const bool taken = next < shared.turn_count;
            __syncwarp();
            if (!taken) {
                take_turns(a, shared);
                next = 0;
            }
            if (threadIdx.x == 0) {
                shared.turn_next = next + 1;
            }
        }
        // Here all threads have left the turn before.
        __syncthreads();
        if (shared.turn_count == 0) {
            return;
        }
        score_turn<WIDE, Quantum, SIGNED, DECAYS, BYTES>(
            a, shared, tile_decay, factors, tile, shared.turns[shared.turn_next - 1]);
    }
}

// With 228 KiB of shared memory a multiprocessor holds three tiles of 64 KiB of sums, if each thread makes do with 40
// registers. Others hold two tiles (kernels/cuda/verbs.py).
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030)
#define FANRANK_NARROW_BLOCKS 3
#else
#define FANRANK_NARROW_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(512, FANRANK_NARROW_BLOCKS) score_narrow(
    const __grid_constant__ ScoreArguments a) {
    score<false, i32, false, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, FANRANK_NARROW_BLOCKS) score_narrow_4(
    const __grid_constant__ ScoreArguments a) {
    score<false, i32, false, false, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_signed(const __grid_constant__ ScoreArguments a) {
    score<false, i32, true, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_decayed(const __grid_constant__ ScoreArguments a) {
    score<false, i32, false, true, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_decayed_4(const __grid_constant__ ScoreArguments a) {
    score<false, i32, false, true, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_wide(const __grid_constant__ ScoreArguments a) {
    score<true, i32, false, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_wide_4(const __grid_constant__ ScoreArguments a) {
    score<true, i32, false, false, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_wide_signed(const __grid_constant__ ScoreArguments a) {
    score<true, i32, true, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_wide_decayed(const __grid_constant__ ScoreArguments a) {
    score<true, i32, false, true, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_wide_decayed_4(const __grid_constant__ ScoreArguments a) {
    score<true, i32, false, true, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_long(const __grid_constant__ ScoreArguments a) {
    score<true, i64, false, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_long_signed(const __grid_constant__ ScoreArguments a) {
    score<true, i64, true, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_long_decayed(const __grid_constant__ ScoreArguments a) {
    score<true, i64, false, true, 8>(a);
}
