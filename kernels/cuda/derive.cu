// Contributions of every posting of a segment, bit for bit as BM25.norms and BM25.quanta (engine/index/bm25.py) give them:
// the same IEEE operations in the same order, never contracted.
#include "common.cuh"

constexpr i32 THREADS = 256;
constexpr i32 VECTOR = 4;                            // consecutive postings of a thread: one 16-byte load of words
constexpr i32 ROUNDS = 4;                            // of the block over its postings
constexpr i32 BLOCK_POSTINGS = THREADS * VECTOR * ROUNDS;

enum Shape { BM25 = 0, BM25L = 1, BM25_PLUS = 2, DOT = 3 };

struct Formula {
    i32 shape;
    i32 fielded;
    i32 is_signed;
    i32 fields;
    double k1;
    double b;
    double delta;
    double scale;
    const double* weights;          // [fields]
    const double* average_lengths;  // [fields]
};

struct alignas(16) Words {
    u32 value[VECTOR];
};

template <typename Quantum>
struct alignas(16) Quanta {
    Quantum value[VECTOR];
};

__device__ __forceinline__ double norm_of(const Formula& formula, i32 length, double average_length) {
    const double relative = __ddiv_rn(static_cast<double>(length), average_length);
    return __dadd_rn(__dadd_rn(1.0, -formula.b), __dmul_rn(formula.b, relative));
}

__device__ __forceinline__ i64 quanta_of(const Formula& formula, double saturated, double idf) {
    const double k1_plus_1 = __dadd_rn(formula.k1, 1.0);
    if (formula.shape == BM25L) {
        const double shifted = __dadd_rn(saturated, formula.delta);
        saturated = __ddiv_rn(__dmul_rn(k1_plus_1, shifted), __dadd_rn(formula.k1, shifted));
    } else if (formula.shape == BM25_PLUS) {
        saturated = __dadd_rn(formula.delta, saturated);
    }
    const i64 quanta = __double2ll_rn(__dmul_rn(__dmul_rn(idf, saturated), formula.scale));
    return formula.is_signed ? quanta : larger(quanta, i64(1));
}

__device__ __forceinline__ i64 contribution(
    const Formula& formula,
    u32 word,
    const i32* frequencies,  // [fields, postings] or null
    const i32* lengths,      // [fields, documents]
    i64 posting,
    i64 postings,
    i64 documents,
    double idf) {
    const u32 document = word & DOCUMENT_MASK;
    const double k1_plus_1 = __dadd_rn(formula.k1, 1.0);
    double saturated;
    if (formula.fielded) {
        double c = 0.0;
        for (i32 field = 0; field < formula.fields; ++field) {
            const i32 frequency =
                frequencies ? frequencies[field * postings + posting] : static_cast<i32>(word >> DOCUMENT_BITS);
            // A field that lacks the term may have norm 0; it adds nothing.
            if (frequency > 0) {
                const double norm =
                    norm_of(formula, lengths[field * documents + document], formula.average_lengths[field]);
                c = __dadd_rn(c, __ddiv_rn(__dmul_rn(formula.weights[field], static_cast<double>(frequency)), norm));
            }
        }
        saturated =
            formula.shape == BM25L ? c : __ddiv_rn(__dmul_rn(c, k1_plus_1), __dadd_rn(formula.k1, c));
    } else {
        const double tf = static_cast<double>(frequencies ? frequencies[posting] : static_cast<i32>(word >> DOCUMENT_BITS));
        if (formula.shape == DOT) {
            saturated = __ddiv_rn(tf, formula.scale);
        } else {
            const double norm = norm_of(formula, lengths[document], formula.average_lengths[0]);
            saturated = formula.shape == BM25L
                            ? __ddiv_rn(tf, norm)
                            : __ddiv_rn(__dmul_rn(tf, k1_plus_1), __dadd_rn(tf, __dmul_rn(formula.k1, norm)));
        }
    }
    return quanta_of(formula, saturated, idf);
}

template <typename Quantum>
__device__ void derive(
    const Formula& formula,
    i64* block_terms,  // shared [2]
    const u32* words,
    const i32* frequencies,
    const i64* offsets,
    const i32* lengths,
    const double* idf,
    i64 postings,
    i64 terms,
    i64 documents,
    Quantum* quanta) {
    const i64 block_first = static_cast<i64>(blockIdx.x) * BLOCK_POSTINGS;
    const i64 block_end = smaller(block_first + BLOCK_POSTINGS, postings);
    // The block's terms are bounded once; its threads then search among these few alone.
    if (threadIdx.x < 2) {
        const i64 posting = threadIdx.x == 0 ? block_first : block_end - 1;
        block_terms[threadIdx.x] = upper_bound(offsets, i64(0), terms + 1, posting) - 1;
    }
    __syncthreads();
    const i64 first_term = block_terms[0];
    const i64 last_term = block_terms[1];
    const bool aligned = ((reinterpret_cast<u64>(words) | reinterpret_cast<u64>(quanta)) & 15) == 0;
    for (i32 round = 0; round < ROUNDS; ++round) {
        const i64 first = block_first + static_cast<i64>(round * THREADS + static_cast<i32>(threadIdx.x)) * VECTOR;
        if (first >= block_end) {
            break;
        }
        const bool whole = aligned && first + VECTOR <= block_end;
        const i32 count = static_cast<i32>(smaller(block_end - first, i64(VECTOR)));
        Words own = {};
        if (whole) {
            own = *reinterpret_cast<const Words*>(words + first);
        } else {
            for (i32 i = 0; i < VECTOR; ++i) {
                if (i < count) {
                    own.value[i] = words[first + i];
                }
            }
        }
        i64 term = upper_bound(offsets, first_term + 1, last_term + 1, first) - 1;
        i64 term_end = offsets[term + 1];
        double term_idf = idf[term];
        Quanta<Quantum> result = {};
#pragma unroll
        for (i32 i = 0; i < VECTOR; ++i) {
            if (i < count) {
                const i64 posting = first + i;
                if (posting >= term_end) {
                    do {
                        ++term;
                        term_end = offsets[term + 1];
                    } while (posting >= term_end);
                    term_idf = idf[term];
                }
                result.value[i] = static_cast<Quantum>(contribution(
                    formula, own.value[i], frequencies, lengths, posting, postings, documents, term_idf));
            }
        }
        if (whole) {
            *reinterpret_cast<Quanta<Quantum>*>(quanta + first) = result;
        } else {
            for (i32 i = 0; i < VECTOR; ++i) {
                if (i < count) {
                    quanta[first + i] = result.value[i];
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) derive_int32(
    i32 shape,
    i32 fielded,
    i32 is_signed,
    i32 fields,
    double k1,
    double b,
    double delta,
    double scale,
    const double* weights,
    const double* average_lengths,
    const u32* words,
    const i32* frequencies,
    const i64* offsets,
    const i32* lengths,
    const double* idf,
    i64 postings,
    i64 terms,
    i64 documents,
    i32* quanta) {
    __shared__ i64 block_terms[2];
    const Formula formula = {shape, fielded, is_signed, fields, k1, b, delta, scale, weights, average_lengths};
    derive<i32>(formula, block_terms, words, frequencies, offsets, lengths, idf, postings, terms, documents, quanta);
}

extern "C" __global__ void __launch_bounds__(256, 1) derive_int64(
    i32 shape,
    i32 fielded,
    i32 is_signed,
    i32 fields,
    double k1,
    double b,
    double delta,
    double scale,
    const double* weights,
    const double* average_lengths,
    const u32* words,
    const i32* frequencies,
    const i64* offsets,
    const i32* lengths,
    const double* idf,
    i64 postings,
    i64 terms,
    i64 documents,
    i64* quanta) {
    __shared__ i64 block_terms[2];
    const Formula formula = {shape, fielded, is_signed, fields, k1, b, delta, scale, weights, average_lengths};
    derive<i64>(formula, block_terms, words, frequencies, offsets, lengths, idf, postings, terms, documents, quanta);
}
