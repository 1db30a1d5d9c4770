// The k best of each query's candidates, best first. Two methods give the same rows: blocks sort in shared memory, or
// warps keep sorted lists in registers. Every slot begins as the sentinel, so a stale key never wins (SPEC A050).
#include "arguments.cuh"

constexpr i32 BITONIC_THREADS = 256;
constexpr i32 WARP_THREADS = 128;
constexpr i32 WARPS = WARP_THREADS / WARP;
constexpr i32 QUEUE = 2 * WARP;  // keys above the threshold that wait to be merged, a warp
constexpr i32 UNROLL = 4;        // candidates of a lane in flight

// score << 32 | (2**32 - 1 - document)
struct NarrowKey {
    i64 key;

    static __device__ __forceinline__ NarrowKey sentinel() { return {LOWEST_I64}; }
    static __device__ __forceinline__ NarrowKey load(const SelectArguments& a, i64 index) { return {a.keys[index]}; }
    __device__ __forceinline__ bool above(const NarrowKey& other) const { return key > other.key; }
    // This key if `chosen`, else the other.
    __device__ __forceinline__ NarrowKey or_else(const NarrowKey& other, bool chosen) const {
        return {chosen ? key : other.key};
    }
    __device__ __forceinline__ NarrowKey of_lane(i32 distance) const {
        return {__shfl_xor_sync(ALL_LANES, key, distance)};
    }
    __device__ __forceinline__ NarrowKey from_lane(i32 lane) const { return {__shfl_sync(ALL_LANES, key, lane)}; }
    __device__ __forceinline__ i64 score() const { return key >> 32; }
    __device__ __forceinline__ i64 document() const { return ~static_cast<u32>(key); }
};

struct WideKey {
    i64 sum;
    u32 descending;  // 2**32 - 1 - document

    static __device__ __forceinline__ WideKey sentinel() { return {LOWEST_I64, 0}; }
    static __device__ __forceinline__ WideKey load(const SelectArguments& a, i64 index) {
        return {a.keys[index], a.documents[index]};
    }
    __device__ __forceinline__ bool above(const WideKey& other) const {
        return sum > other.sum || (sum == other.sum && descending > other.descending);
    }
    __device__ __forceinline__ WideKey or_else(const WideKey& other, bool chosen) const {
        return {chosen ? sum : other.sum, chosen ? descending : other.descending};
    }
    __device__ __forceinline__ WideKey of_lane(i32 distance) const {
        return {__shfl_xor_sync(ALL_LANES, sum, distance), __shfl_xor_sync(ALL_LANES, descending, distance)};
    }
    __device__ __forceinline__ WideKey from_lane(i32 lane) const {
        return {__shfl_sync(ALL_LANES, sum, lane), __shfl_sync(ALL_LANES, descending, lane)};
    }
    __device__ __forceinline__ i64 score() const { return sum; }
    __device__ __forceinline__ i64 document() const { return ~descending; }
};

template <typename Key>
__device__ __forceinline__ void write_row(const SelectArguments& a, i64 query, i32 column, bool real, const Key& key) {
    a.answer_scores[query * a.width + column] = real ? key.score() : 0;
    a.answer_documents[query * a.width + column] = real ? key.document() : -1;
}

// Sorts `size` (a power of two) keys in shared memory, best first. All threads of the block call it.
template <typename Key>
__device__ __forceinline__ void sort_shared(Key* slots, i32 size) {
    for (i32 length = 2; length <= size; length *= 2) {
        for (i32 distance = length / 2; distance > 0; distance /= 2) {
            for (i32 pair = static_cast<i32>(threadIdx.x); pair < size / 2; pair += BITONIC_THREADS) {
                const i32 left = 2 * pair - (pair & (distance - 1));
                const Key a = slots[left];
                const Key b = slots[left + distance];
                if ((left & length) == 0 ? b.above(a) : a.above(b)) {
                    slots[left] = b;
                    slots[left + distance] = a;
                }
            }
            __syncthreads();
        }
    }
}

// `slots`, the dynamic shared memory, holds the best keys so far, sorted, in as many slots as the power of two at or above k. Behind them lie the
// survivors: `waiting` keys above the threshold that are not sorted yet.
template <typename Key>
__device__ __forceinline__ void select_bitonic(const SelectArguments& a, i32& waiting) {
    FANRANK_DYNAMIC_SHARED(dynamic);
    Key* const slots = reinterpret_cast<Key*>(dynamic);
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i64 query = blockIdx.x;
    if (a.query_wide[query] != a.wide) {
        return;
    }
    const i32 k = smaller(a.query_k[query], a.slots / 2);
    const i32 count = k > 0 ? a.counts[query] : 0;
    const i64 first = a.candidate_offset[query];
    i32 best = 1;
    while (best < k) {
        best *= 2;
    }
    for (i32 i = thread; i < best; i += BITONIC_THREADS) {
        slots[i] = Key::sentinel();
    }
    if (thread == 0) {
        waiting = 0;
    }
    __syncthreads();
    Key threshold = Key::sentinel();
    i32 survivors = 0;
    for (i32 start = 0; start < count; start += BITONIC_THREADS) {
        bool survives = false;
        if (count - start > thread) {
            const Key key = Key::load(a, first + start + thread);
            survives = key.above(threshold);
            if (survives) {
                slots[best + atomicAdd(&waiting, 1)] = key;
            }
        }
        survivors += __syncthreads_count(survives);
        const bool finished = count - start <= BITONIC_THREADS;
        if (survivors > 0 && (finished || best + survivors > a.slots - BITONIC_THREADS)) {
            i32 size = best;
            while (size < best + survivors) {
                size *= 2;
            }
            for (i32 i = best + survivors + thread; i < size; i += BITONIC_THREADS) {
                slots[i] = Key::sentinel();
            }
            if (thread == 0) {
                waiting = 0;
            }
            __syncthreads();
            sort_shared(slots, size);
            threshold = slots[k - 1];
            survivors = 0;
        }
    }
    const i32 hits = smaller(k, count);
    for (i32 column = thread; column < a.width; column += BITONIC_THREADS) {
        const bool real = column < hits;
        write_row(a, query, column, real, real ? slots[column] : Key::sentinel());
    }
    if (thread == 0) {
        a.answer_counts[query] = hits;
    }
}

// A list of ITEMS * 32 keys in the registers of a warp, best first. Key i * 32 + lane is `items[i]` of that lane.
template <typename Key, i32 ITEMS>
struct WarpList {
    static constexpr i32 SIZE = ITEMS * WARP;
    Key items[ITEMS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (i32 i = 0; i < ITEMS; ++i) {
            items[i] = Key::sentinel();
        }
    }

    // Sorts a bitonic list.
    __device__ __forceinline__ void sort_bitonic() {
#pragma unroll
        for (i32 distance = ITEMS / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (i32 i = 0; i < ITEMS; ++i) {
                if ((i & distance) == 0) {
                    const bool swapped = items[i + distance].above(items[i]);
                    const Key better = items[i + distance].or_else(items[i], swapped);
                    items[i + distance] = items[i].or_else(items[i + distance], swapped);
                    items[i] = better;
                }
            }
        }
        const i32 lane = static_cast<i32>(threadIdx.x % WARP);
#pragma unroll 1
        for (i32 distance = WARP / 2; distance > 0; distance /= 2) {
            const bool left = (lane & distance) == 0;
#pragma unroll
            for (i32 i = 0; i < ITEMS; ++i) {
                const Key other = items[i].of_lane(distance);
                items[i] = other.or_else(items[i], left ? other.above(items[i]) : items[i].above(other));
            }
        }
    }

    // Merges one key a lane; the worst 32 of all are dropped.
    __device__ __forceinline__ void merge(Key key) {
        const i32 lane = static_cast<i32>(threadIdx.x % WARP);
        // The keys are sorted worst first. The better of each pair with the list's end then leaves a bitonic list.
#pragma unroll 1
        for (i32 length = 2; length <= WARP; length *= 2) {
#pragma unroll 1
            for (i32 distance = length / 2; distance > 0; distance /= 2) {
                const Key other = key.of_lane(distance);
                const bool ascending = (lane & length) == 0 || length == WARP;
                const bool left = (lane & distance) == 0;
                key = other.or_else(key, left == ascending ? key.above(other) : other.above(key));
            }
        }
        items[ITEMS - 1] = key.or_else(items[ITEMS - 1], key.above(items[ITEMS - 1]));
        sort_bitonic();
    }
};

// `queue` is [WARPS][QUEUE]; `lists`, the dynamic shared memory, is [WARPS / 2][ITEMS * 32].
template <typename Key, i32 ITEMS>
__device__ __forceinline__ void select_warp(const SelectArguments& a, Key* queue) {
    FANRANK_DYNAMIC_SHARED(dynamic);
    Key* const lists = reinterpret_cast<Key*>(dynamic);
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 lane = thread % WARP;
    const i32 warp = thread / WARP;
    const i64 query = blockIdx.x;
    if (a.query_wide[query] != a.wide) {
        return;
    }
    const i32 k = smaller(a.query_k[query], ITEMS * WARP);
    const i32 count = k > 0 ? a.counts[query] : 0;
    const i64 first = a.candidate_offset[query];
    Key* const warp_queue = queue + warp * QUEUE;
    WarpList<Key, ITEMS> best;
    best.clear();
    Key threshold = Key::sentinel();
    i32 queued = 0;
#pragma unroll 1
    for (i64 start = warp * WARP; start < count; start += WARP_THREADS * UNROLL) {
        Key fresh[UNROLL];
#pragma unroll
        for (i32 i = 0; i < UNROLL; ++i) {
            const i64 index = start + i * WARP_THREADS + lane;
            fresh[i] = index < count ? Key::load(a, first + index) : Key::sentinel();
        }
#pragma unroll 1
        for (i32 i = 0; i < UNROLL; ++i) {
            const bool survives = fresh[0].above(threshold);
            const u32 ballot = __ballot_sync(ALL_LANES, survives);
            if (survives) {
                warp_queue[queued + __popc(ballot & ((1u << lane) - 1))] = fresh[0];
            }
            queued += __popc(ballot);
            __syncwarp();
            if (queued >= WARP) {
                const Key key = warp_queue[lane];
                const Key later = warp_queue[WARP + lane];
                __syncwarp();
                warp_queue[lane] = later;
                queued -= WARP;
                __syncwarp();
                best.merge(key);
                threshold = best.items[ITEMS - 1].from_lane(WARP - 1);
            }
            // Shifted, not indexed by i: an unrolled loop would hold the long code of the merge four times.
            fresh[0] = fresh[1];
            fresh[1] = fresh[2];
            fresh[2] = fresh[3];
        }
    }
    if (queued > 0) {
        best.merge(lane < queued ? warp_queue[lane] : Key::sentinel());
    }
#pragma unroll 1
    for (i32 half = WARPS / 2; half > 0; half /= 2) {
        if (warp >= half && warp < 2 * half) {
#pragma unroll
            for (i32 i = 0; i < ITEMS; ++i) {
                lists[(warp - half) * best.SIZE + i * WARP + lane] = best.items[i];
            }
        }
        __syncthreads();
        if (warp < half) {
#pragma unroll
            for (i32 i = 0; i < ITEMS; ++i) {
                const Key other = lists[(warp + 1) * best.SIZE - 1 - (i * WARP + lane)];
                best.items[i] = other.or_else(best.items[i], other.above(best.items[i]));
            }
            best.sort_bitonic();
        }
        __syncthreads();
    }
    const i32 hits = smaller(k, count);
    if (warp == 0) {
#pragma unroll
        for (i32 i = 0; i < ITEMS; ++i) {
            const i32 column = i * WARP + lane;
            if (column < a.width) {
                write_row(a, query, column, column < hits, best.items[i]);
            }
        }
    }
    for (i32 column = best.SIZE + thread; column < a.width; column += WARP_THREADS) {
        write_row(a, query, column, false, Key::sentinel());
    }
    if (thread == 0) {
        a.answer_counts[query] = hits;
    }
}

extern "C" __global__ void __launch_bounds__(256) select_bitonic_narrow(const __grid_constant__ SelectArguments a) {
    __shared__ i32 waiting;
    select_bitonic<NarrowKey>(a, waiting);
}

extern "C" __global__ void __launch_bounds__(256) select_bitonic_wide(const __grid_constant__ SelectArguments a) {
    __shared__ i32 waiting;
    select_bitonic<WideKey>(a, waiting);
}

extern "C" __global__ void __launch_bounds__(128, 1) select_warp_narrow_32(const __grid_constant__ SelectArguments a) {
    __shared__ NarrowKey queue[WARPS * QUEUE];
    select_warp<NarrowKey, 1>(a, queue);
}

extern "C" __global__ void __launch_bounds__(128, 1) select_warp_narrow_128(const __grid_constant__ SelectArguments a) {
    __shared__ NarrowKey queue[WARPS * QUEUE];
    select_warp<NarrowKey, 4>(a, queue);
}

extern "C" __global__ void __launch_bounds__(128, 1) select_warp_wide_32(const __grid_constant__ SelectArguments a) {
    __shared__ WideKey queue[WARPS * QUEUE];
    select_warp<WideKey, 1>(a, queue);
}

extern "C" __global__ void __launch_bounds__(128, 1) select_warp_wide_128(const __grid_constant__ SelectArguments a) {
    __shared__ WideKey queue[WARPS * QUEUE];
    select_warp<WideKey, 4>(a, queue);
}
