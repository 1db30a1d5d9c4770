// What each kernel takes, as one structure passed by value. `arguments.py` reads this file and makes the same structures
// in Python, so a field is written down here alone: its C++ type, its name, its shape and dtype.
//
// S segments, T tiles of a segment, L posting lists, U units, Q queries, P postings; others as kernels/work.py has them.
// A pointer may be null where its comment says so.
#pragma once

#include "common.cuh"

struct DeriveArguments {
    i32 shape;                      // a value of `Shape` (derive.cu)
    i32 fielded;                    // 1: fields are weighted and added before they saturate
    i32 is_signed;                  // 1: contributions below one quantum are kept
    i32 fields;                     // F
    double k1;                      // BM25's k1
    double b;                       // BM25's b
    double delta;                   // of BM25L and BM25+
    double scale;                   // quanta a unit of score
    const double* weights;          // [F] float64
    const double* average_lengths;  // [F] float64
    const u32* words;               // [P] uint32, document | frequency << DOCUMENT_BITS
    const i32* frequencies;         // [F, P] int32, or null where the words hold them
    const i64* offsets;             // [terms + 1] int64, the first posting of each term
    const i32* lengths;             // [F, documents] int32
    const double* idf;              // [terms] float64
    i64 postings;                   // P
    i64 terms;                      // terms of the segment
    i64 documents;                  // documents of the segment
    void* quanta;                   // [P] int32 or int64, as the kernel's name says; written
};

struct CutArguments {
    i32 tile_bits;              // a tile is 1 << tile_bits documents
    i32 max_tiles;              // of any segment
    i32 border_groups;          // ceil((max_tiles + 1) / 32)
    i32 long_quanta;            // 1: quanta are int64
    i32 posting_bytes;          // 8, 6 or 4
    i64 lists;                  // L
    const i64* words_of;        // [S] int64, address of uint32 [P]
    const i64* quanta_of;       // [S] int64, address of int32 or int64 [P]; of 6 bytes a posting uint16 [P], the impact classes
    const i64* saturated_of;    // [S] int64, address of float64 [impact_classes]; null at 8 bytes a posting
    const double* list_idf;     // [L] float64; null at 8 bytes a posting
    const i32* sizes;           // [S] int32, documents
    const i32* list_segment;    // [L] int32
    const i64* list_start;      // [L] int64, first posting
    const i32* list_length;     // [L] int32, 0 for a list that does not exist
    const i64* list_cuts;       // [L] int64, the list's row in `cuts` and `maxima`
    i32* cuts;                  // [cuts] int32, postings before each tile border; written by cut_borders
    i64* maxima;                // [cuts] int64, largest absolute contribution in each tile; written by cut_maxima
};

struct ScoreArguments {
    i64 block_base;             // number of the first block; the others follow it, where scores decay they precede it
    i32 tile_bits;              // a tile is 1 << tile_bits documents
    i32 options;                // KEEP_THRESHOLDS, UNIT_MAJOR (score_tile.cuh)
    i32 segments;               // S
    const i64* words_of;        // [S] int64, address of uint32 [P]
    const i64* quanta_of;       // [S] int64, address of int32 or int64 [P]; of 6 bytes a posting uint16 [P], the impact classes
    const i32* sizes;           // [S] int32, documents
    const i64* firsts;          // [S] int64, number of the first document
    const i64* block_offset;    // [S + 1] int64
    const i32* unit_offset;     // [S + 1] int32
    const i64* list_start;      // [L] int64, first posting
    const i32* list_length;     // [L] int32, 0 for a list that does not exist
    const i64* list_cuts;       // [L] int64, the list's row in `cuts` and `maxima`
    const i32* unit_query;      // [U] int32
    const i64* unit_slots;      // [U + 1] int64
    const i64* unit_filter;     // [U] int64, address of uint32 [ceil(documents / 32)], or 0
    const i32* unit_low;        // [U] int32, first document of the segment that counts
    const i32* unit_high;       // [U] int32, the document after the last that counts
    const i32* slot_list;       // [slots] int32
    const i32* slot_weight;     // [slots] int32, at least 1
    const i32* query_k;         // [Q] int32
    const u8* query_wide;       // [Q] uint8, 1: only the wide kernels score this query
    const i64* candidate_offset;  // [Q + 1] int64
    const i32* cuts;            // [cuts] int32
    const i64* maxima;          // [cuts] int64
    i64* thresholds;            // [Q] int64, raised
    i32* counts;                // [Q] int32, candidates emitted; raised
    i64* keys;                  // [candidates] int64, written
    u32* documents;             // [candidates] uint32, written by wide kernels; null for narrow ones
    const i64* times_of;        // [S] int64, address of float64 [documents]; null where nothing decays, as the next four
    const i64* latest_of;       // [S] int64, address of float64 [T]
    const double* query_now;    // [Q] float64, seconds
    const double* query_rate;   // [Q] float64, ticks a second, 0 for a query that does not decay
    const i32* decay_table;     // [1 << PART_BITS] int32
    const i64* saturated_of;    // [S] int64, address of float64 [impact_classes]; null at 8 bytes a posting
    const double* list_idf;     // [L] float64; null at 8 bytes a posting
    u8* global_sums;            // [blocks, stride] uint8, the tiles of score_narrow_global; else null
    i64 stride;                 // bytes of a block in `global_sums`
};

struct SelectArguments {
    i32 slots;                    // keys that the dynamic shared memory of select_bitonic holds
    i32 width;                    // columns of the answer
    const i32* query_k;           // [Q] int32
    const u8* query_wide;         // [Q] uint8
    const i64* candidate_offset;  // [Q + 1] int64
    const i32* counts;            // [Q] int32, candidates of the query
    const i64* keys;              // [candidates] int64
    const u32* documents;         // [candidates] uint32; null for narrow kernels
    i64* answer_scores;           // [Q, width] int64, written
    i64* answer_documents;        // [Q, width] int64, written
    i32* answer_counts;           // [Q] int32, written
};

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
