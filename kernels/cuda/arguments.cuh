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

// A row of `Work.segments`; the fields are `SEGMENT_FIELDS` of kernels/work.py.
struct SegmentRow {
    const u32* words;         // [P] uint32, document | frequency << DOCUMENT_BITS
    const void* quanta;       // [P] int32 or int64; null at 4 bytes a posting
    const double* saturated;  // [impact classes] float64; null at 8 bytes a posting
    const double* idf;        // [terms] float64; null at 8 bytes a posting
    const i32* terms;         // [terms] int32 vocabulary ids, ascending
    const i64* offsets;       // [terms + 1] int64, the first posting of each term
    const i32* rows;          // [terms] int32, the term's row in the next two, or -1
    const i32* row_cuts;      // [rows, tiles + 1] int32, postings before each tile border
    const i64* row_maxima;    // [rows, tiles] int64, largest absolute contribution in each tile
    const u32* alive;         // [ceil(size / 32)] uint32, a bitmap of the live documents; null: all are
    const double* times;      // [size] float64 seconds, +inf without a time; null where nothing decays
    const double* latest;     // [tiles] float64, the latest time of each tile; null where nothing decays
    i64 term_count;           // terms
    i64 size;                 // documents
    i64 first;                // number of the first document
    i64 tiles;                // tiles of the segment
    i64 tile_offset;          // tiles of the segments before it in the table
};

// A slot in a tile.
struct Descriptor {
    i64 first;    // first posting
    i64 maximum;  // largest absolute contribution
    i32 count;    // postings
    i32 weight;   // at least 1
};

// A tile that is to be scored.
struct Entry {
    i64 bound;  // no score of the tile is larger
    i32 unit;   // of the query
    i32 tile;   // of the unit's segment
};

struct TabulateArguments {
    i32 tile_bits;              // a tile is 1 << tile_bits documents
    i32 tiles;                  // T
    i32 posting_bytes;          // 8 or 4
    i32 long_quanta;            // 1: contributions are int64
    i64 lists;                  // L
    const SegmentRow* segment;  // [1]
    const i32* terms;           // [L] int32, position of each list's term among the segment's
    i32* cuts;                  // [L, T + 1] int32, postings of the list before each tile border; written
    i64* maxima;                // [L, T] int64, largest absolute contribution of the list in each tile; written
};

struct DescribeArguments {
    i32 tile_bits;                // a tile is 1 << tile_bits documents
    i32 posting_bytes;            // 8 or 4
    i32 long_quanta;              // 1: contributions are int64
    i32 is_signed;                // 1: scores may be 0 or negative
    i64 slots;                    // slots of all units
    i64 queries;                  // Q
    const SegmentRow* segments;   // [S]
    const i32* unit_segment;      // [U] int32
    const i64* unit_slots;        // [U + 1] int64
    const i64* unit_descriptors;  // [U] int64
    const i32* slot_unit;         // [slots] int32
    const i32* slot_position;     // [slots] int32, position of the term among the segment's terms, or -1
    const i32* slot_weight;       // [slots] int32, at least 1
    Descriptor* descriptors;      // [descriptors], written
    double* idf;                  // [slots] float64, written; null at 8 bytes a posting
    i64* progress;                // [2] int64, 0 is written, as to the next but one
    i64* thresholds;              // [Q] int64, the lowest score that counts is written
    i32* counts;                  // [Q] int32
};

struct PlanArguments {
    i32 tile_bits;               // a tile is 1 << tile_bits documents
    i32 posting_bytes;           // 8 or 4
    i32 long_quanta;             // 1: contributions are int64
    i32 is_signed;               // 1: scores may be 0 or negative
    i32 k;                       // of every query
    i32 segment_blocks;          // blocks of a segment
    i64 segment_count;           // S
    i64 term_count;              // terms of the batch
    i64 queries;                 // Q
    i64 tiles;                   // entries of a query
    i64 candidates;              // candidates of a query
    double widest;               // largest contribution, where a query may be wide; negative: long_quanta says whether it is
    const i64* terms;            // [terms] int64 vocabulary ids
    const i64* offsets;          // [Q + 1] int64, the first term of each query
    const i32* weights;          // [terms] int32, at least 1; null: 1
    const SegmentRow* segments;  // [S]
    i32* query_units;            // [Q + 1] int32, written, as all that follow
    i32* query_k;                // [Q] int32
    u8* query_wide;              // [Q] uint8
    i64* candidate_offset;       // [Q + 1] int64
    i64* entry_offset;           // [Q + 1] int64
    i32* unit_segment;           // [U] int32
    i64* unit_filter;            // [U] int64
    i32* unit_low;               // [U] int32
    i32* unit_high;              // [U] int32
    i64* unit_slots;             // [U + 1] int64
    i64* unit_descriptors;       // [U] int64
    Descriptor* descriptors;     // [descriptors]
    double* idf;                 // [slots] float64; null at 8 bytes a posting
    i64* progress;               // [2] int64
    i64* thresholds;             // [Q] int64
    i32* counts;                 // [Q] int32
};

struct OrderArguments {
    i32 tile_bits;                  // a tile is 1 << tile_bits documents
    i32 wide;                       // of the launch: queries of the other width have no entries
    i32 group_bits;                 // a unit has at most 1 << group_bits groups of 32 tiles
    const SegmentRow* segments;     // [S]
    const i32* query_units;         // [Q + 1] int32
    const i32* query_k;             // [Q] int32
    const u8* query_wide;           // [Q] uint8
    const double* query_now;        // [Q] float64 seconds; null where nothing decays, as the next two
    const double* query_rate;       // [Q] float64 ticks a second, 0 for a query that does not decay
    const i32* decay_table;         // [1 << PART_BITS] int32
    const i64* entry_offset;        // [Q + 1] int64
    const i32* unit_segment;        // [U] int32
    const i64* unit_filter;         // [U] int64, address of uint32 [ceil(documents / 32)], or 0
    const i32* unit_low;            // [U] int32, first document of the segment that counts
    const i32* unit_high;           // [U] int32, the document after the last that counts
    const i64* unit_slots;          // [U + 1] int64
    const i64* unit_descriptors;    // [U] int64
    const Descriptor* descriptors;  // [descriptors]
    const i64* thresholds;          // [Q] int64, as the launch began with them
    Entry* entries;                 // [entries], written, as the next two
    i32* entry_counts;              // [Q] int32
    i64* progress;                  // [2] int64, the first raised to the most entries of a query
};

struct ScoreArguments {
    i32 tile_bits;                // a tile is 1 << tile_bits documents
    i32 queries;                  // Q
    const SegmentRow* segments;   // [S]
    const i32* query_k;           // [Q] int32
    const double* query_now;      // [Q] float64, seconds; null where nothing decays, as the next
    const double* query_rate;     // [Q] float64, ticks a second, 0 for a query that does not decay
    const i32* decay_table;       // [1 << PART_BITS] int32; null where nothing decays
    const i64* candidate_offset;  // [Q + 1] int64
    const i64* entry_offset;      // [Q + 1] int64
    const i32* unit_segment;      // [U] int32
    const i64* unit_filter;       // [U] int64, address of uint32 [ceil(documents / 32)], or 0
    const i32* unit_low;          // [U] int32, first document of the segment that counts
    const i32* unit_high;         // [U] int32, the document after the last that counts
    const i64* unit_slots;        // [U + 1] int64
    const i64* unit_descriptors;  // [U] int64, slot i has tile t at unit_descriptors[u] + i * tiles + t
    const Descriptor* descriptors;  // [descriptors]
    const Entry* entries;         // [entries]
    const i32* entry_counts;      // [Q] int32
    const double* idf;            // [slots] float64; null at 8 bytes a posting
    i64* progress;                // [2] int64, most entries of a query; turns taken, raised
    i64* thresholds;              // [Q] int64, raised
    i32* counts;                  // [Q] int32, candidates emitted; raised
    i64* keys;                    // [candidates] int64, written
    u32* documents;               // [candidates] uint32, written where keys are long; else null
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
    i32 wide;                     // of the launch: rows of the other width are left alone
};
