// One segment as searches read it: its posting lists, and what is worked out for a list when a query first needs it.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "threads.hpp"

namespace fanrank::search {

constexpr int RANKS = 4;

// The constants at which a segment goes on another way; engine/index/native.py explains them.
struct SegmentOptions {
    std::int64_t ranks[RANKS];
    std::int64_t block_postings;
    std::int64_t groups;
    std::int64_t least_postings;
    std::int64_t word_share;  // a list with one in so many documents is dense
    std::int64_t time_block;
    std::int64_t dense_least;  // postings from which on a list may be kept as a dense row
};

// The arrays of `engine/index/segment.py`. Whoever makes a segment keeps them alive.
struct SegmentArrays {
    std::span<const std::int32_t> terms;
    std::span<const std::int64_t> offsets;
    std::span<const std::int32_t> documents;
    std::span<const std::uint16_t> classes;       // one of the two is empty
    std::span<const std::uint32_t> wide_classes;
    std::span<const double> times;          // empty: no record has a time
    std::span<const double> latest_before;  // [blocks of `time_block` documents]
    std::int64_t size = 0;
    double earliest = 0.0, latest = 0.0;  // of all times; inf and -inf: there are none
    bool complete = false;                // every record has a time
    bool in_order = false;                // and none is before its predecessor's

    // Sets the four above, and returns the latest time up to the end of each block; inf where a record has none.
    std::vector<double> read_times(std::int64_t block, bool timed);
};

// Where single documents stand in a long list. A dense list has a bit for each document and counts the bits before each
// word. Any other list is cut into blocks of 2**bits documents; entry b is the first posting of block b or of a later
// block. A group is 2**group_bits documents and has one bit, which says whether the list has any of them.
struct SkipTable {
    struct Word {
        std::uint64_t present;  // bit d: the list has document 64 * w + d
        std::int64_t before;    // postings of earlier words
    };

    // Whether the list may have the document. Exact for a dense list.
    bool may_have(std::int32_t document) const {
        if (words != nullptr) return words[document >> 6].present >> (document & 63) & 1;
        const std::int32_t group = document >> group_bits;
        return presence[group >> 3] >> (group & 7) & 1;
    }
    // The posting of a document in the list with these documents, or -1.
    std::int32_t find(const std::int32_t* documents, std::int32_t document) const {
        if (!may_have(document)) return -1;
        if (words != nullptr) return rank(document);
        return scan(documents, document);
    }
    // The posting of a document that a dense list has.
    std::int32_t rank(std::int32_t document) const {
        const Word& word = words[document >> 6];
        const std::uint64_t earlier = word.present & ((std::uint64_t{1} << (document & 63)) - 1);
        return static_cast<std::int32_t>(word.before + std::popcount(earlier));
    }
    // As `find`, in a list that is not dense.
    std::int32_t scan(const std::int32_t* documents, std::int32_t document) const {
        const std::int32_t block = document >> bits, stop = entries[block + 1];
        std::int32_t posting = entries[block];
        while (posting < stop && documents[posting] < document) ++posting;
        return posting < stop && documents[posting] == document ? posting : -1;
    }

    std::unique_ptr<Word[]> words;  // null: the list is not dense
    int bits = 0;
    int group_bits = 0;
    std::unique_ptr<std::int32_t[]> entries;
    std::unique_ptr<std::uint8_t[]> presence;
    std::int64_t bytes = 0;
};

// The saturated frequencies of the postings of some ranks in a list, by the reference statistics; 0 beyond its length.
struct Survey {
    float values[RANKS];
};

// What impact classes contribute by the statistics of one moment, and the surveys of the lists by it.
class Reference {
public:
    Reference(std::span<const double> saturated, std::size_t lists);
    // The factors (least, largest) between what impact classes contribute now and by the reference, with a margin.
    std::pair<double, double> factors(std::span<const double> saturated) const;

    std::vector<double> saturated;
    std::vector<std::int32_t> best_classes;  // the impact classes, largest contribution first

private:
    friend class Segment;
    std::unique_ptr<std::atomic<const Survey*>[]> surveys_;
    std::deque<Survey> stored_;
};

class Segment {
public:
    Segment(const SegmentArrays& arrays, const SegmentOptions& options);

    const SegmentArrays arrays;
    const SegmentOptions options;

    // The position of a term in `arrays.terms`, or -1.
    std::int64_t locate(std::int32_t term) const {
        if (!position_of_.empty()) {
            return static_cast<std::size_t>(term) < position_of_.size() ? position_of_[term] : -1;
        }
        return search(term);
    }
    std::int64_t length(std::int64_t position) const { return arrays.offsets[position + 1] - arrays.offsets[position]; }

    // The skip table of the list at this position, made at the first call; null for a short list.
    const SkipTable* skip_table(std::int64_t position);
    // The posting of a document in the list at this position, from the list's first one, or -1.
    std::int64_t find(std::int64_t position, std::int64_t document);
    // The survey of the list at this position, made at the first call.
    const Survey& survey(Reference& reference, std::int64_t position);
    // As `survey`, among the documents that pass and are alive (empty: all are). Nothing is kept.
    Survey survey(const Reference& reference, std::int64_t position, std::span<const std::uint8_t> passes,
                  std::span<const std::uint8_t> alive) const;
    // A reference that is close to these statistics, and the factors between the two.
    std::shared_ptr<Reference> reference(std::span<const double> saturated, double& least, double& largest);
    // Bytes of what was worked out so far.
    std::int64_t derived_bytes() const { return derived_bytes_.load(std::memory_order_relaxed); }

private:
    std::int64_t search(std::int32_t term) const;
    SkipTable dense_table(std::int64_t position) const;
    SkipTable sparse_table(std::int64_t position) const;
    template <class Chosen>
    Survey compute(const Reference& reference, std::int64_t position, const Chosen& chosen) const;

    std::vector<std::int32_t> position_of_;  // by term; empty where a binary search serves
    std::unique_ptr<std::atomic<const SkipTable*>[]> skip_tables_;
    std::deque<SkipTable> stored_;
    std::shared_ptr<Reference> reference_;
    std::mutex& mutex_ = short_mutex(this);
    std::atomic<std::int64_t> derived_bytes_{0};
};

}  // namespace fanrank::search
