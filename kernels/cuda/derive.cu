// Contributions of every posting of a segment, bit for bit as BM25.norms and BM25.quanta (engine/index/bm25.py) give them:
// the same IEEE operations in the same order, never contracted.
#include "arguments.cuh"

constexpr i32 THREADS = 256;
constexpr i32 VECTOR = 4;                            // consecutive postings of a thread: one 16-byte load of words
constexpr i32 ROUNDS = 4;                            // of the block over its postings
constexpr i32 BLOCK_POSTINGS = THREADS * VECTOR * ROUNDS;

enum Shape { BM25 = 0, BM25L = 1, BM25_PLUS = 2, DOT = 3 };

struct alignas(16) WordVector {
    u32 value[VECTOR];
};

template <typename Quantum>
struct alignas(16) QuantumVector {
    Quantum value[VECTOR];
};

__device__ __forceinline__ double norm_of(const DeriveArguments& a, i32 length, double average_length) {
    const double relative = __ddiv_rn(static_cast<double>(length), average_length);
    return __dadd_rn(__dadd_rn(1.0, -a.b), __dmul_rn(a.b, relative));
}

__device__ __forceinline__ i64 quanta_of(const DeriveArguments& a, double saturated, double idf) {
    const double k1_plus_1 = __dadd_rn(a.k1, 1.0);
    if (a.shape == BM25L) {
        const double shifted = __dadd_rn(saturated, a.delta);
        saturated = __ddiv_rn(__dmul_rn(k1_plus_1, shifted), __dadd_rn(a.k1, shifted));
    } else if (a.shape == BM25_PLUS) {
        saturated = __dadd_rn(a.delta, saturated);
    }
    const i64 quanta = __double2ll_rn(__dmul_rn(__dmul_rn(idf, saturated), a.scale));
    return a.is_signed ? quanta : larger(quanta, i64(1));
}

__device__ __forceinline__ i64 contribution(const DeriveArguments& a, u32 word, i64 posting, double idf) {
    const u32 document = word & DOCUMENT_MASK;
    const double k1_plus_1 = __dadd_rn(a.k1, 1.0);
    double saturated;
    if (a.fielded) {
        double c = 0.0;
        for (i32 field = 0; field < a.fields; ++field) {
            const i32 frequency =
                a.frequencies ? a.frequencies[field * a.postings + posting] : static_cast<i32>(word >> DOCUMENT_BITS);
            // A field that lacks the term may have norm 0; it adds nothing.
            if (frequency > 0) {
                const double norm =
                    norm_of(a, a.lengths[field * a.documents + document], a.average_lengths[field]);
                c = __dadd_rn(c, __ddiv_rn(__dmul_rn(a.weights[field], static_cast<double>(frequency)), norm));
            }
        }
        saturated =
            a.shape == BM25L ? c : __ddiv_rn(__dmul_rn(c, k1_plus_1), __dadd_rn(a.k1, c));
    } else {
        const double tf = static_cast<double>(a.frequencies ? a.frequencies[posting] : static_cast<i32>(word >> DOCUMENT_BITS));
        if (a.shape == DOT) {
            saturated = __ddiv_rn(tf, a.scale);
        } else {
            const double norm = norm_of(a, a.lengths[document], a.average_lengths[0]);
            saturated = a.shape == BM25L
                            ? __ddiv_rn(tf, norm)
                            : __ddiv_rn(__dmul_rn(tf, k1_plus_1), __dadd_rn(tf, __dmul_rn(a.k1, norm)));
        }
    }
    return quanta_of(a, saturated, idf);
}

// `block_terms` is int64 [2] in shared memory.
template <typename Quantum>
__device__ __forceinline__ void derive(const DeriveArguments& a, i64* block_terms) {
    Quantum* const quanta = static_cast<Quantum*>(a.quanta);
    const i64 block_first = static_cast<i64>(blockIdx.x) * BLOCK_POSTINGS;
    const i64 block_end = smaller(block_first + BLOCK_POSTINGS, a.postings);
    // The terms of the block's first and last posting bound the search of every thread.
    if (threadIdx.x < 2) {
        const i64 posting = threadIdx.x == 0 ? block_first : block_end - 1;
        block_terms[threadIdx.x] = upper_bound(a.offsets, i64(0), a.terms + 1, posting) - 1;
    }
    __syncthreads();
    const i64 first_term = block_terms[0];
    const i64 last_term = block_terms[1];
    const bool aligned = ((reinterpret_cast<u64>(a.words) | reinterpret_cast<u64>(quanta)) & 15) == 0;
    for (i32 round = 0; round < ROUNDS; ++round) {
        const i64 first = block_first + static_cast<i64>(round * THREADS + static_cast<i32>(threadIdx.x)) * VECTOR;
        if (first >= block_end) {
            break;
        }
        const bool whole = aligned && first + VECTOR <= block_end;
        const i32 count = static_cast<i32>(smaller(block_end - first, i64(VECTOR)));
        WordVector words = {};
        if (whole) {
            words = *reinterpret_cast<const WordVector*>(a.words + first);
        } else {
            for (i32 i = 0; i < VECTOR; ++i) {
                if (i < count) {
                    words.value[i] = a.words[first + i];
                }
            }
        }
        i64 term = upper_bound(a.offsets, first_term + 1, last_term + 1, first) - 1;
        i64 term_end = a.offsets[term + 1];
        double idf = a.idf[term];
        QuantumVector<Quantum> result = {};
#pragma unroll
        for (i32 i = 0; i < VECTOR; ++i) {
            if (i < count) {
                const i64 posting = first + i;
                if (posting >= term_end) {
                    do {
                        ++term;
                        term_end = a.offsets[term + 1];
                    } while (posting >= term_end);
                    idf = a.idf[term];
                }
                result.value[i] = static_cast<Quantum>(contribution(a, words.value[i], posting, idf));
            }
        }
        if (whole) {
            *reinterpret_cast<QuantumVector<Quantum>*>(quanta + first) = result;
        } else {
            for (i32 i = 0; i < VECTOR; ++i) {
                if (i < count) {
                    quanta[first + i] = result.value[i];
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) derive_int32(const __grid_constant__ DeriveArguments a) {
    __shared__ i64 block_terms[2];
    derive<i32>(a, block_terms);
}

extern "C" __global__ void __launch_bounds__(256, 1) derive_int64(const __grid_constant__ DeriveArguments a) {
    __shared__ i64 block_terms[2];
    derive<i64>(a, block_terms);
}
