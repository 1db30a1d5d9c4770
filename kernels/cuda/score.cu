// Scores one (tile, unit) a block: integer sums in shared memory, then the block's k best leave as candidates.
//
// The kernels differ in types alone, so that each has only the registers that it needs. Narrow kernels add in int32, wide
// ones in int64. Of a query that decays, the complete sums become the bits of positive doubles, which are ordered as
// integers. A posting's contribution is read (8 bytes a posting), or computed from its impact class, which lies beside
// its word (6 bytes) or in it (4 bytes).
#include "score_candidates.cuh"

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

__device__ __forceinline__ KindFactors* block_factors() {
    __shared__ KindFactors factors;
    return &factors;
}

// `tile_memory` holds the sums of the tile and the bitmaps behind them: dynamic shared memory, or the block's part of
// global memory. `a` is a copy: through a reference score_narrow_4 spills 16 bytes on sm_90.
template <typename Sum, typename Quantum, bool SIGNED, bool DECAYS, i32 BYTES>
__device__ __forceinline__ void score(const ScoreArguments a, unsigned char* tile_memory) {
    static_assert(!DECAYS || (sizeof(Sum) == 8 && !SIGNED), "a decayed score is the bits of a positive double");
    static_assert(BYTES == 8 || !SIGNED, "a contribution computed from an impact class is at least one quantum");
    constexpr bool WIDE = sizeof(Sum) == 8;
    constexpr i32 PER_VECTOR = 16 / static_cast<i32>(sizeof(Sum));
    Shared& shared = block_shared();
    TileDecay* tile_decay = nullptr;
    KindFactors* factors = nullptr;
    if constexpr (DECAYS) {
        tile_decay = block_decay();
    }
    if constexpr (BYTES < 8) {
        factors = block_factors();
    }
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 lane = thread % WARP;
    const i32 warp = thread / WARP;

    const auto [segment, tile, unit] = locate(a, DECAYS ? a.block_base - blockIdx.x : a.block_base + blockIdx.x);
    const i32 query = a.unit_query[unit];
    const i32 k = a.query_k[query];
    if ((a.query_wide[query] != 0) != WIDE || k <= 0) {
        return;
    }
    const i32 tile_size = 1 << a.tile_bits;
    const i32 tile_first = tile << a.tile_bits;
    const i32 tile_documents = smaller(tile_size, a.sizes[segment] - tile_first);
    const i32 low = larger(a.unit_low[unit] - tile_first, 0);
    const i32 high = smaller(a.unit_high[unit] - tile_first, tile_documents);
    if (low >= high) {
        return;
    }

    Sum* const sums = reinterpret_cast<Sum*>(tile_memory);                              // [tile_size]
    u32* const allowed = reinterpret_cast<u32*>(tile_memory + sizeof(Sum) * tile_size);  // [tile_size / 32] if restricted
    u32* const matched = allowed + tile_size / 32;                                      // [tile_size / 32] if SIGNED
    const u32* const filter = at_address<u32>(a.unit_filter[unit]);
    const bool restricted = filter != nullptr || low > 0 || high < tile_documents;

    // What this thread saw of the tile; then its warp, then the block.
    i64 thread_bound = 0;
    i32 thread_postings = 0;
    i32 thread_passing = 0;
    const i64 first_slot = a.unit_slots[unit];
    const i32 slots = static_cast<i32>(a.unit_slots[unit + 1] - first_slot);
#pragma unroll 1
    for (i32 slot = thread; slot < slots; slot += THREADS) {
        describe_slot(a, shared, factors, first_slot + slot, tile, slot, thread_bound, thread_postings);
    }
    if (restricted) {
#pragma unroll 1
        for (i32 word = thread; word < tile_size / 32; word += THREADS) {
            const i32 from = larger(low - word * 32, 0);
            const i32 to = smaller(high - word * 32, 32);
            u32 bits = 0;
            if (from < to) {
                bits = filter != nullptr ? filter[(tile_first >> 5) + word] : ~0u;
                bits &= (~0u << from) & (~0u >> (32 - to));
            }
            allowed[word] = bits;
            thread_passing |= bits != 0;
        }
    } else {
        thread_passing = 1;
    }
    thread_bound = warp_sum(thread_bound);
    const bool warp_postings = __any_sync(ALL_LANES, thread_postings != 0);
    const bool warp_passing = __any_sync(ALL_LANES, thread_passing != 0);
    if (lane == 0) {
        shared.bound[warp] = thread_bound;
        shared.postings[warp] = warp_postings;
        shared.passing[warp] = warp_passing;
    }
    if (thread == 0) {
        // Other blocks raise the threshold meanwhile. An older value is lower, so it excludes no hit.
        shared.threshold = *const_cast<const volatile i64*>(&a.thresholds[query]);
        shared.reached_count = 0;
        shared.emitted = 0;
    }
    __syncthreads();
    i64 bound = 0;
    i32 postings = 0;
    i32 passing = 0;
#pragma unroll 1
    for (i32 i = 0; i < WARPS; ++i) {
        bound += shared.bound[i];
        postings |= shared.postings[i];
        passing |= shared.passing[i];
    }
    // A sum lies in [-bound, bound], so this threshold fits `Sum`.
    const i64 threshold = larger(shared.threshold, SIGNED ? -bound : i64(1));
    i64 least_sum = threshold;
    if constexpr (DECAYS) {
        const Decay decay = {a.query_now[query], a.query_rate[query], a.decay_table};
        if (decay.rate != 0.0) {
            const double latest = at_address<double>(a.latest_of[segment])[tile];
            bound = decay.bits(bound, latest);
            least_sum = decay.least_sum(threshold, latest);
        }
        if (thread == 0) {
            *tile_decay = {decay, at_address<double>(a.times_of[segment]) + tile_first, least_sum};
        }
    }
    if (postings == 0 || passing == 0 || bound < threshold) {
        return;
    }

    if (thread == 0) {
        if constexpr (BYTES < 8) {
            factors->impact_classes = at_address<u16>(a.quanta_of[segment]);
            factors->saturated = at_address<double>(a.saturated_of[segment]);
        }
        shared.state.bound = bound;
        shared.state.threshold = threshold;
        shared.state.candidates = a.candidate_offset[query];
        shared.state.count = a.counts + query;
        shared.state.query_threshold = a.options & KEEP_THRESHOLDS ? nullptr : a.thresholds + query;
        shared.state.k = k;
        shared.state.restricted = restricted;
        shared.state.first = static_cast<u32>(a.firsts[segment]) + static_cast<u32>(tile_first);
    }

    SumVector<Sum>* const vectors = reinterpret_cast<SumVector<Sum>*>(sums);
    for (i32 vector = thread; vector < tile_size / PER_VECTOR; vector += THREADS) {
        vectors[vector] = SumVector<Sum>{};
    }
    if (SIGNED) {
        for (i32 word = thread; word < tile_size / 32; word += THREADS) {
            matched[word] = 0;
        }
    }

    const u32* const words = at_address<u32>(a.words_of[segment]);
    const Quantum* const quanta = at_address<Quantum>(a.quanta_of[segment]);
    const u32 tile_mask = static_cast<u32>(tile_size - 1);
#pragma unroll 1
    for (i32 chunk = 0; chunk < slots; chunk += SLOTS) {
        const i32 described = smaller(slots - chunk, SLOTS);
        if (chunk > 0) {
            __syncthreads();
            if (thread < described) {
                i64 unused_bound = 0;
                i32 unused_postings = 0;
                const i64 next = first_slot + chunk + thread;
                describe_slot(a, shared, factors, next, tile, thread, unused_bound, unused_postings);
            }
            __syncthreads();
        }
        if (warp == 0) {
            sum_runs(shared, described);
        }
        __syncthreads();
        const i32 runs = shared.runs;
#pragma unroll 1
        for (i32 run = warp; run < runs; run += WARPS) {
            add_run<Sum, Quantum, SIGNED, BYTES>(
                shared, factors, sums, allowed, matched, words, quanta, run, described, tile_mask,
                static_cast<Sum>(least_sum));
        }
    }
    __syncthreads();

    // All that follows is for the block's eligible documents alone.
    if (!SIGNED && shared.reached_count == 0) {
        return;
    }
    if (thread == 0) {
        shared.state.list_length = SIGNED || shared.reached_count > MAX_REACHED ? -1 : shared.reached_count;
    }
    if constexpr (DECAYS) {
        if (tile_decay->decay.rate != 0.0) {
            decay_sums(shared, *tile_decay, sums, tile_size, shared.reached_count);
        }
        // All threads have read how many may reach the threshold. Those that do reach it are counted below.
        __syncthreads();
        if (thread == 0) {
            shared.reached_count = 0;
        }
    }
    __syncthreads();
    const Eligible<Sum, SIGNED, DECAYS> eligible = {shared, tile_memory, tile_size};
    if (SIGNED || DECAYS) {
        i32 count = 0;
        eligible.each([&](Sum, i32) { ++count; });
        count = static_cast<i32>(warp_sum(count));
        if (lane == 0 && count > 0) {
            atomicAdd(&shared.reached_count, count);
        }
        __syncthreads();
        if (shared.reached_count == 0) {
            return;
        }
    }
    emit_candidates(a, shared, eligible, shared.reached_count);
}

// `score` with the tile in dynamic shared memory.
template <typename Sum, typename Quantum, bool SIGNED, bool DECAYS, i32 BYTES>
__device__ __forceinline__ void score_in_shared(const ScoreArguments& a) {
    FANRANK_DYNAMIC_SHARED(dynamic);
    score<Sum, Quantum, SIGNED, DECAYS, BYTES>(a, dynamic);
}

// On sm_90 three blocks of 64 KiB of sums fit an SM, if each thread makes do with 40 registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define FANRANK_NARROW_BLOCKS 3
#else
#define FANRANK_NARROW_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(512, FANRANK_NARROW_BLOCKS) score_narrow(
    const __grid_constant__ ScoreArguments a) {
    score_in_shared<i32, i32, false, false, 8>(a);
}

// The tile of a block in global memory, to measure what shared memory is worth. In the registers of three blocks this
// kernel spills, and so does `score_narrow_6`.
extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_global(const __grid_constant__ ScoreArguments a) {
    score<i32, i32, false, false, 8>(a, a.global_sums + blockIdx.x * a.stride);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_6(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i32, i32, false, false, 6>(a);
}

extern "C" __global__ void __launch_bounds__(512, FANRANK_NARROW_BLOCKS) score_narrow_4(
    const __grid_constant__ ScoreArguments a) {
    score_in_shared<i32, i32, false, false, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_6(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, false, false, 6>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_4(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, false, false, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_decayed_6(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, false, true, 6>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_decayed_4(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, false, true, 4>(a);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_signed(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i32, i32, true, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, false, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_signed(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, true, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_long(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i64, false, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_long_signed(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i64, true, false, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_decayed(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i32, false, true, 8>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_long_decayed(const __grid_constant__ ScoreArguments a) {
    score_in_shared<i64, i64, false, true, 8>(a);
}
