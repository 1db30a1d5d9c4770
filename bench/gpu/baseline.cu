// The pipeline of the AgentIR paper (SPEC A045 to A051), for comparison only: float32 atomics into a matrix of batch x
// documents, then one block a query that selects from its row. Sums depend on the order of the atomics.
#include "common.cuh"

struct BaselineArguments {
    i32 max_terms;              // columns of `terms`
    double k1;                  // BM25's k1
    double b;                   // BM25's b
    double average_length;      // of a document
    i64 document_count;         // columns of `scores`
    const i32* terms;           // [batch, max_terms] int32, -1 where a query has fewer
    const i32* multiplicities;  // [batch, max_terms] int32
    const i64* offsets;         // [terms + 1] int64
    const i32* documents;       // [P] int32
    const i32* frequencies;     // [P] int32
    const i32* lengths;         // [documents] int32
    const float* idf;           // [terms] float32
    float* scores;              // [batch, documents] float32, zero at first; raised
};

constexpr i32 SCORE_THREADS = 128;

extern "C" __global__ void __launch_bounds__(128) baseline_score(const __grid_constant__ BaselineArguments a) {
    const i64 cell = static_cast<i64>(blockIdx.x) * a.max_terms + blockIdx.y;
    const i32 term = a.terms[cell];
    if (term < 0) {
        return;
    }
    const float k1 = static_cast<float>(a.k1);
    const float b = static_cast<float>(a.b);
    const float scale = static_cast<float>(a.multiplicities[cell]) * a.idf[term] * (k1 + 1.0f);
    const float per_length = b / static_cast<float>(a.average_length);
    float* const row = a.scores + blockIdx.x * a.document_count;
    for (i64 posting = a.offsets[term] + threadIdx.x; posting < a.offsets[term + 1]; posting += SCORE_THREADS) {
        const i32 document = a.documents[posting];
        const float tf = static_cast<float>(a.frequencies[posting]);
        const float norm = 1.0f - b + per_length * static_cast<float>(a.lengths[document]);
        atomicAdd(&row[document], scale * tf / (tf + k1 * norm));
    }
}

struct Candidate {
    float score;
    i32 document;
};

__device__ __forceinline__ bool above(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && static_cast<u32>(a.document) < static_cast<u32>(b.document));
}

__device__ __forceinline__ Candidate sentinel() {
    return {-__int_as_float(0x7f800000), -1};
}

// `slots` is [K_MAX][THREADS]: column t is thread t's best of its strided scan, best first.
template <i32 K_MAX, i32 THREADS>
__device__ __forceinline__ void scan_row(Candidate* slots, i32 k, i64 document_count, const float* row) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    for (i32 i = 0; i < K_MAX; ++i) {
        slots[i * THREADS + thread] = sentinel();
    }
    for (i64 document = thread; document < document_count; document += THREADS) {
        const Candidate fresh = {row[document], static_cast<i32>(document)};
        if (fresh.score > 0.0f && above(fresh, slots[(k - 1) * THREADS + thread])) {
            i32 rank = k - 1;
            while (rank > 0 && above(fresh, slots[(rank - 1) * THREADS + thread])) {
                slots[rank * THREADS + thread] = slots[(rank - 1) * THREADS + thread];
                --rank;
            }
            slots[rank * THREADS + thread] = fresh;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void write_best(const Candidate& best, i64 cell, float* out_scores, i64* out_documents) {
    out_scores[cell] = best.document < 0 ? 0.0f : best.score;
    out_documents[cell] = best.document;
}

// Merge A: thread 0 looks through all slots k times.
template <i32 K_MAX, i32 THREADS>
__device__ __forceinline__ void merge_naive(Candidate* slots, i32 k, float* out_scores, i64* out_documents) {
    if (threadIdx.x != 0) {
        return;
    }
    for (i32 rank = 0; rank < k; ++rank) {
        i32 best = 0;
        for (i32 i = 1; i < K_MAX * THREADS; ++i) {
            if (above(slots[i], slots[best])) {
                best = i;
            }
        }
        write_best(slots[best], static_cast<i64>(blockIdx.x) * k + rank, out_scores, out_documents);
        slots[best] = sentinel();
    }
}

// Merge B: each round, the best of each warp by shuffles, then the best of the warps by thread 0.
template <i32 K_MAX, i32 THREADS>
__device__ __forceinline__ void merge_warps(
    Candidate* slots, Candidate* leaders, i32* owners, i32 k, float* out_scores, i64* out_documents) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    i32 head = 0;
    for (i32 rank = 0; rank < k; ++rank) {
        Candidate best = head < K_MAX ? slots[head * THREADS + thread] : sentinel();
        i32 owner = thread;
        for (i32 distance = WARP / 2; distance > 0; distance /= 2) {
            const Candidate other = {
                __shfl_xor_sync(ALL_LANES, best.score, distance), __shfl_xor_sync(ALL_LANES, best.document, distance)};
            const i32 other_owner = __shfl_xor_sync(ALL_LANES, owner, distance);
            if (above(other, best)) {
                best = other;
                owner = other_owner;
            }
        }
        if (thread % WARP == 0) {
            leaders[thread / WARP] = best;
            owners[thread / WARP] = owner;
        }
        __syncthreads();
        if (thread == 0) {
            i32 winner = 0;
            for (i32 i = 1; i < THREADS / WARP; ++i) {
                if (above(leaders[i], leaders[winner])) {
                    winner = i;
                }
            }
            write_best(leaders[winner], static_cast<i64>(blockIdx.x) * k + rank, out_scores, out_documents);
            owners[0] = owners[winner];
        }
        __syncthreads();
        if (owners[0] == thread) {
            ++head;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(128) baseline_select_naive_32(
    i32 k, i64 document_count, const float* scores, float* out_scores, i64* out_documents) {
    __shared__ Candidate slots[32 * 128];
    scan_row<32, 128>(slots, k, document_count, scores + blockIdx.x * document_count);
    merge_naive<32, 128>(slots, k, out_scores, out_documents);
}

extern "C" __global__ void __launch_bounds__(128) baseline_select_warp_32(
    i32 k, i64 document_count, const float* scores, float* out_scores, i64* out_documents) {
    __shared__ Candidate slots[32 * 128];
    __shared__ Candidate leaders[128 / WARP];
    __shared__ i32 owners[128 / WARP];
    scan_row<32, 128>(slots, k, document_count, scores + blockIdx.x * document_count);
    merge_warps<32, 128>(slots, leaders, owners, k, out_scores, out_documents);
}

extern "C" __global__ void __launch_bounds__(32) baseline_select_naive_128(
    i32 k, i64 document_count, const float* scores, float* out_scores, i64* out_documents) {
    __shared__ Candidate slots[128 * 32];
    scan_row<128, 32>(slots, k, document_count, scores + blockIdx.x * document_count);
    merge_naive<128, 32>(slots, k, out_scores, out_documents);
}

extern "C" __global__ void __launch_bounds__(32) baseline_select_warp_128(
    i32 k, i64 document_count, const float* scores, float* out_scores, i64* out_documents) {
    __shared__ Candidate slots[128 * 32];
    __shared__ Candidate leaders[32 / WARP];
    __shared__ i32 owners[32 / WARP];
    scan_row<128, 32>(slots, k, document_count, scores + blockIdx.x * document_count);
    merge_warps<128, 32>(slots, leaders, owners, k, out_scores, out_documents);
}
