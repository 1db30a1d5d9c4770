// One namespace at one moment as searches read it, and the plan of a batch over it.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "segment.hpp"

namespace fanrank::search {

constexpr double SCALE = 262144.0;  // quanta of a score of 1; `bm25.SCALE`

// One segment of a snapshot, with what its statistics make of it. The arrays are kept alive by whoever makes it.
class Part {
public:
    // `saturated` are the contributions of impact classes without the idf (`BM25.saturated`).
    Part(Segment& segment, std::int64_t first, std::span<const double> saturated);

    Segment& segment;
    const std::int64_t first;              // number of the segment's first document in the snapshot
    std::vector<double> quanta;            // `saturated` in quanta: the product with the idf is a contribution
    std::span<const std::uint8_t> alive;   // [documents]; empty: no document is deleted
    std::int64_t deleted = 0;
    std::span<const std::int64_t> deleted_terms;        // positions, ascending
    std::span<const std::int64_t> deleted_frequencies;  // how many deleted documents have each
    std::shared_ptr<Reference> reference;
    double least = 1.0, largest = 1.0;  // factors between the contributions of this moment and the reference

    // Counts `uses` more uses of the list at this position; returns its dense row if it has one, else null. A dense row
    // holds one contribution for each document. It is filled once a list was used `wanted` times.
    const std::int32_t* dense_row(std::int64_t position, double idf, std::int64_t uses, std::int64_t wanted);
    std::int64_t dense_bytes() const;
    // No document of those that were surveyed gets more quanta from one occurrence of a term with this idf.
    std::int64_t upper_bound(const Survey& survey, double idf) const {
        // One quantum more covers the rounding.
        return static_cast<std::int64_t>(std::ceil(idf * (survey.values[0] * largest) * SCALE)) + 1;
    }

private:
    struct Row {
        std::int64_t position;
        std::int64_t uses;
        std::unique_ptr<std::int32_t[]> values;
    };
    std::vector<Row> rows_;
    std::mutex& mutex_ = short_mutex(this);
};

enum class Method { lucene, robertson_floor0, bm25l, bm25plus, dot };

struct Statistics {
    Method method = Method::lucene;
    bool counts_once = false;  // a repeated term of a query counts once (`query_tf="unique"`)
    double k1 = 1.2;
    double delta = 0.0;
    std::int64_t documents = 0;
    std::int64_t largest_frequency = 0;  // read by `dot` alone
};

// A term of a query: the number of a distinct term of the batch, and how often the query holds it, or its weight.
struct Slot {
    std::int32_t term;
    std::int32_t weight;
};

// The terms of a batch, numbered; `engine/plan/plan.py` explains the fields.
struct Plan {
    std::vector<std::int32_t> terms;
    std::vector<std::int64_t> frequencies;
    std::vector<double> idf;
    std::vector<std::int64_t> offsets;  // [queries + 1] into slots
    std::vector<Slot> slots;            // of each query, longest list first
    std::vector<double> highest;        // [queries] no document's contributions add up to more quanta
    // Whether a sum of contributions may leave int32: then `search` must not be called.
    bool large = false;
    // The largest sum of one term's weights in a query that exceeds int32; 0: none does.
    std::int64_t overflow = 0;
};

class Snapshot {
public:
    std::vector<std::unique_ptr<Part>> parts;
    std::span<const std::int32_t> counts;  // document frequencies by term; empty: they are added up from the parts
    Statistics statistics;
    std::vector<double> latest_upto;  // [parts] the latest time in each part and all older ones; inf: a record has none

    std::int64_t document_frequency(std::int32_t term) const;
    double idf(std::int64_t document_frequency) const;
    // An upper bound, in quanta, of every contribution of a term with this idf.
    double bound(double idf) const;
    // `weights` is empty: each term counts once for each time it occurs.
    Plan plan(std::span<const std::int32_t> terms, std::span<const std::int64_t> offsets,
              std::span<const std::int64_t> weights) const;
};

}  // namespace fanrank::search
