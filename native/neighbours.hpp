// What a document borrows from its neighbours in a session; engine/index/neighbours.py and engine/plan/borrowing.py
// explain both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "quickselect.hpp"

namespace fanrank::search {

// Steps of a quantum: `neighbours.STEPS`.
constexpr std::int64_t STEPS = 64;
constexpr std::size_t MAX_WINDOW = 8;  // `neighbours.MAX_WINDOW`

// The links of a snapshot's live documents: within its parts, and the joins between them.
struct Links {
    struct Part {
        std::int64_t first = 0;
        std::span<const std::int32_t> previous, following;  // positions in the part, or -1
    };
    std::vector<Part> parts;
    std::span<const std::int64_t> earlier, later;            // joins, `earlier` ascending
    std::span<const std::int64_t> later_sorted, earlier_of;  // the same joins, `later` ascending

    // The document before or after this one in its session, or -1.
    std::int64_t previous(std::int64_t document) const {
        const Part& part = part_of(document);
        const std::int32_t position = part.previous[document - part.first];
        return position >= 0 ? part.first + position : joined(later_sorted, earlier_of, document);
    }
    std::int64_t following(std::int64_t document) const {
        const Part& part = part_of(document);
        const std::int32_t position = part.following[document - part.first];
        return position >= 0 ? part.first + position : joined(earlier, later, document);
    }
    std::size_t part_number(std::int64_t document) const {
        if (parts.size() == 1) return 0;
        const auto after = std::upper_bound(parts.begin(), parts.end(), document,
                                            [](std::int64_t wanted, const Part& part) { return wanted < part.first; });
        // Of parts without documents, which begin where the next one does, the last one has this document.
        return static_cast<std::size_t>(after - parts.begin()) - 1;
    }

private:
    const Part& part_of(std::int64_t document) const { return parts[part_number(document)]; }
    static std::int64_t joined(std::span<const std::int64_t> from, std::span<const std::int64_t> to,
                               std::int64_t document) {
        const auto place = std::lower_bound(from.begin(), from.end(), document);
        return place != from.end() && *place == document ? to[place - from.begin()] : -1;
    }
};

// What the queries of a search borrow.
struct Lending {
    const Links* links = nullptr;
    std::span<const std::int64_t> weights;  // [window] in steps of 1/64, by distance

    // The steps of a document's sum for each quantum, where it and all of its neighbours have as many.
    std::int64_t whole_weight() const {
        std::int64_t total = STEPS;
        for (const std::int64_t weight : weights) total += 2 * weight;
        return total;
    }
};

// The own sums of one query's documents, and the largest of each block of `BORROWING_BLOCK`. A thread uses its memory
// again for each query.
struct OwnSums {
    std::vector<std::int32_t> sums, maxima;
    std::vector<std::uint32_t> seen;  // [documents] the last query that summed the document up
    std::uint32_t query = 0;

    void prepare(std::int64_t documents);
};

// Seeds are looked for in blocks of so many documents, and come in so many classes of their own sums.
constexpr std::int64_t BORROWING_BLOCK = 16;
constexpr std::int64_t SEED_CLASSES = 64;

// The k best documents by sums in steps, best first, from all own sums. `accepted` says which documents may be hits.
//
// A hit's sum is at most the whole weight times the largest own sum near it. So a document that k hits are better than
// cannot be near a hit unless its own sum is a share of theirs: only what lies near other documents, the seeds, is
// summed up. Those with the largest own sums come first, as they raise that share soonest: on SGD, in the order of
// documents, a window of 2 by .35 took .98 ms a query.
template <class Accept>
std::vector<Hit> best_borrowing(const Lending& lending, std::int64_t documents, std::int64_t k, OwnSums& own,
                                Accept&& accepted) {
    const Links& links = *lending.links;
    const std::int64_t whole = lending.whole_weight();
    const std::int32_t* sums = own.sums.data();
    std::vector<Hit> hits;  // a heap whose front is the last of the hits, once there are k
    std::int64_t least = 1;
    const auto precedes = [](const Hit& one, const Hit& other) { return one.precedes(other); };
    const auto take = [&](std::int64_t document, std::int64_t total) {
        const Hit found{total, document};
        const bool full = static_cast<std::int64_t>(hits.size()) == k;
        if (full && !found.precedes(hits.front())) return;
        std::uint32_t& seen = own.seen[static_cast<std::size_t>(document)];
        if (seen == own.query) return;
        seen = own.query;
        if (!accepted(document)) return;
        if (full) {
            std::pop_heap(hits.begin(), hits.end(), precedes);
            hits.pop_back();
        }
        hits.push_back(found);
        std::push_heap(hits.begin(), hits.end(), precedes);
        if (static_cast<std::int64_t>(hits.size()) == k) least = (hits.front().key + whole - 1) / whole;
    };
    // The documents up to two windows before and after a seed, and their sums: those of the windows are summed up by
    // them. What is beyond the session's ends adds 0.
    const std::int64_t window = static_cast<std::int64_t>(lending.weights.size());
    std::int64_t near[4 * MAX_WINDOW + 1], values[4 * MAX_WINDOW + 1];
    const auto sum_near = [&](std::int64_t seed) {
        std::int64_t before = seed, after = seed;
        near[2 * window] = seed;
        values[2 * window] = sums[seed];
        for (std::int64_t distance = 1; distance <= 2 * window; ++distance) {
            if (before >= 0) before = links.previous(before);
            if (after >= 0) after = links.following(after);
            near[2 * window - distance] = before;
            near[2 * window + distance] = after;
            values[2 * window - distance] = before >= 0 ? sums[before] : 0;
            values[2 * window + distance] = after >= 0 ? sums[after] : 0;
        }
        for (std::int64_t place = window; place <= 3 * window; ++place) {
            if (near[place] < 0) continue;
            std::int64_t total = STEPS * values[place];
            for (std::int64_t distance = 1; distance <= window; ++distance) {
                total += lending.weights[distance - 1] * (values[place - distance] + values[place + distance]);
            }
            take(near[place], total);
        }
    };
    const auto each_seed = [&](std::int64_t block, auto&& visit) {
        const std::int64_t stop = std::min((block + 1) * BORROWING_BLOCK, documents);
        for (std::int64_t seed = block * BORROWING_BLOCK; seed < stop; ++seed) {
            if (sums[seed] >= least) visit(seed);
        }
    };
    const std::int64_t blocks = (documents + BORROWING_BLOCK - 1) / BORROWING_BLOCK;
    std::int32_t first = 1;
    if (k < blocks) {
        std::vector<std::int32_t> ranked(own.maxima.begin(), own.maxima.begin() + blocks);
        first = std::max(keep_best(ranked.data(), blocks, k), 1);
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
        if (own.maxima[block] >= first) each_seed(block, sum_near);
    }
    // The other seeds, put into classes by their own sums: the largest come first.
    std::vector<std::int64_t> seeds;
    const std::int64_t lowest = least;
    std::int64_t counts[SEED_CLASSES + 1] = {};
    const auto class_of = [&](std::int64_t seed) {
        return SEED_CLASSES - 1 - (sums[seed] - lowest) * SEED_CLASSES / std::max<std::int64_t>(first - lowest, 1);
    };
    for (std::int64_t block = 0; block < blocks; ++block) {
        if (own.maxima[block] >= first || own.maxima[block] < lowest) continue;
        each_seed(block, [&](std::int64_t seed) {
            seeds.push_back(seed);
            ++counts[class_of(seed) + 1];
        });
    }
    for (std::int64_t number = 0; number < SEED_CLASSES; ++number) counts[number + 1] += counts[number];
    std::vector<std::int64_t> ordered(seeds.size());
    for (const std::int64_t seed : seeds) ordered[counts[class_of(seed)]++] = seed;
    for (const std::int64_t seed : ordered) {
        if (sums[seed] >= least) sum_near(seed);
    }
    std::sort(hits.begin(), hits.end(), precedes);
    return hits;
}

}  // namespace fanrank::search
