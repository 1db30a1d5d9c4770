// One query scored over one segment, reading as few postings as will do.
//
// This is MaxScore (A017). The query's lists are ordered by their upper bounds, the largest first. The last ones, which
// together cannot reach the score that a hit needs, are the non-essential lists: they are not read, but looked up for
// the documents that the essential lists in front of them find. The score that a hit needs is the threshold. The best
// postings of each list (`Survey`) give a first threshold before any posting is read, and it rises from tile to tile.
//
// A query whose scores fade goes from the newest tile to the oldest. Its threshold is a decayed score; for each tile it
// is turned into the sum of quanta that the tile's youngest document would need.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "decay.hpp"
#include "neighbours.hpp"
#include "quickselect.hpp"
#include "snapshot.hpp"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FANRANK_AVX2
#endif

namespace fanrank::search {

// The constants at which a search goes on another way; cpu_fallback/native.py explains them.
struct ScoreOptions {
    std::int64_t tile;
    std::int64_t faded_tile;
    std::int64_t scan_percent;
    std::int64_t pruned_documents;
    std::int64_t room;
    std::int64_t least_room;
    std::int64_t dense_uses;
    std::int64_t shared_postings;  // with fewer, one thread answers a query
    std::int64_t lent_share;       // documents a place that is lent to, from which on few places are
    std::int64_t later_share;      // documents a posting, up to which own sums are added up first
    std::int64_t kept_postings;    // longer lists are not kept for dialogues: documents are looked up in them
    bool exhaustive;
};

struct Counted {
    std::int64_t postings = 0;     // read from lists
    std::int64_t row_entries = 0;  // read from dense rows
    std::int64_t lookups = 0;      // documents looked up in lists
    std::int64_t bytes = 0;        // of postings and row entries

    void add(const Counted& other) {
        postings += other.postings;
        row_entries += other.row_entries;
        lookups += other.lookups;
        bytes += other.bytes;
    }
};

// One distinct term of a batch in one segment.
struct TermList {
    std::int64_t start = 0, end = 0;  // postings; equal where the segment lacks the term
    double idf = 0.0;
    std::int64_t upper_bound = 0;         // one occurrence of the term adds at most so many quanta
    const SkipTable* skip_table = nullptr;
    const std::int32_t* row = nullptr;    // dense row
    const Survey* survey = nullptr;
};

// Which documents of a segment may be hits of a query.
struct Accepted {
    const std::uint8_t* filter = nullptr;  // [documents]; null: every document passes
    const std::uint8_t* alive = nullptr;   // the same
    const double* times = nullptr;         // null: documents outside [since, until] lie outside [low, high)
    double since = 0.0, until = 0.0;
    std::int64_t low = 0, high = 0;  // only documents in [low, high)
    std::int64_t blocked = 0;        // so many documents of the segment are deleted or do not pass the filter, at most
    std::int64_t outside = 0;        // and so many lie outside [low, high), or may lie outside [since, until]
    const Survey* const* surveys = nullptr;  // [distinct terms] of the documents that are not blocked; null: not known

    bool operator()(std::int64_t document) const {
        return (filter == nullptr || filter[document] != 0) && (alive == nullptr || alive[document] != 0) &&
               (times == nullptr || (times[document] >= since && times[document] <= until));
    }
};

// What a search of one query carries from segment to segment: its best hits so far, in no order.
struct Best {
    std::int64_t k = 0;
    std::int64_t count = 0;
    std::int64_t threshold = 1;  // a document with a lower score (or key, where scores fade) is no hit
    std::int64_t room = 0;
    // A score that k documents reach, found by any of the threads that share the query. Null: one thread answers it.
    std::atomic<std::int64_t>* shared = nullptr;
};

// Memory that a thread uses again for each query. The scores are all 0 between two tiles.
struct Scratch {
    std::vector<std::int32_t> scores, maxima, places, sums, found, found_sums;
    std::vector<std::int64_t> keys;
    std::vector<Hit> hits;

    void prepare(std::int64_t tile, std::int64_t room);
};

// Sets the room of `best` for its k.
void start(Best& best, Scratch& scratch, std::int64_t k, const ScoreOptions& options);

// Scores one query over one segment. `lists` are those of all distinct terms of the batch. The answer is in
// `scratch.keys` (packed), or in `scratch.hits` where scores fade.
void score(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Accepted& accepted,
           const Decay& decay, const ScoreOptions& options, Best& best, Scratch& scratch, Counted& counted);

// Adds what the lists of one query give to the live documents of one segment, and lends it to those around.
void lend(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Layout& layout,
          const Loan& loan, LentSums& own, Counted& counted);

// The k best documents by sums in steps, in no order; `own.hits` gets them, and all sums are 0 again.
//
// The largest sum of each block of places that holds any is found first. k blocks reach the k-th largest of these, so
// only blocks that do are looked through. Where not all documents may be hits, the bound is what k of those reach that
// were seen so far.
void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, LentSums& own);

}  // namespace fanrank::search
