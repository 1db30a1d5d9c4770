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

// The own sums of one query's documents as far as they are known. A thread uses its memory again for each query.
class OwnSums {
public:
    void prepare(std::int64_t documents) {
        if (known_.size() < static_cast<std::size_t>(documents)) known_.resize(static_cast<std::size_t>(documents), -1);
    }
    // -1: it is not known.
    std::int32_t of(std::int64_t document) const { return known_[static_cast<std::size_t>(document)]; }
    void set(std::int64_t document, std::int32_t sum) {
        if (of(document) < 0) touched_.push_back(document);
        known_[static_cast<std::size_t>(document)] = sum;
    }
    void forget() {
        for (const std::int64_t document : touched_) known_[static_cast<std::size_t>(document)] = -1;
        touched_.clear();
    }

private:
    std::vector<std::int32_t> known_;
    std::vector<std::int64_t> touched_;
};

// The k best documents by sums in steps. The seeds are all documents whose own sums are `least` or more, and `own` has
// them; `look_up` gives the own sum of any other. `accepted` says which documents may be hits, `reached` is a sum that k
// of them have, or 0.
template <class LookUp, class Accept>
std::vector<Hit> best_borrowing(const Lending& lending, std::span<const std::int64_t> seeds, std::int64_t least,
                                std::int64_t reached, std::int64_t k, OwnSums& own, LookUp&& look_up,
                                Accept&& accepted) {
    const Links& links = *lending.links;
    const std::size_t window = lending.weights.size();
    // Each document near a seed, once.
    std::vector<std::int64_t> near;
    near.reserve(seeds.size() * (2 * window + 1));
    for (const std::int64_t seed : seeds) {
        near.push_back(seed);
        std::int64_t before = seed, after = seed;
        for (std::size_t distance = 0; distance < window; ++distance) {
            if (before >= 0) before = links.previous(before);
            if (after >= 0) after = links.following(after);
            if (before >= 0) near.push_back(before);
            if (after >= 0) near.push_back(after);
        }
    }
    std::sort(near.begin(), near.end());
    near.erase(std::unique(near.begin(), near.end()), near.end());
    // The sum of a document, in which an own sum that is not known counts as `unknown(document)`.
    const auto sum_of = [&](std::int64_t document, auto&& unknown) {
        const auto part = [&](std::int64_t other, std::int64_t weight) {
            if (other < 0) return std::int64_t{0};
            const std::int32_t sum = own.of(other);
            return weight * (sum >= 0 ? sum : unknown(other));
        };
        std::int64_t total = part(document, STEPS), before = document, after = document;
        for (const std::int64_t weight : lending.weights) {
            if (before >= 0) before = links.previous(before);
            if (after >= 0) after = links.following(after);
            total += part(before, weight) + part(after, weight);
        }
        return total;
    };
    std::vector<Hit> bounds, hits;
    for (const std::int64_t document : near) {
        if (!accepted(document)) continue;
        const std::int64_t bound = sum_of(document, [&](std::int64_t) { return least - 1; });
        if (bound >= reached) bounds.push_back({bound, document});
    }
    const auto precedes = [](const Hit& one, const Hit& other) { return one.precedes(other); };
    // The best bounds first: once k sums are above the next bound, the others need not be looked up.
    std::sort(bounds.begin(), bounds.end(), precedes);
    for (const Hit& candidate : bounds) {
        const bool full = static_cast<std::int64_t>(hits.size()) == k;
        if (full && candidate.key < hits.front().key) break;
        const Hit found{sum_of(candidate.document,
                               [&](std::int64_t other) {
                                   const std::int32_t sum = look_up(other);
                                   own.set(other, sum);
                                   return static_cast<std::int64_t>(sum);
                               }),
                        candidate.document};
        if (found.key <= 0 || (full && !found.precedes(hits.front()))) continue;
        // A heap whose front is the last of the hits.
        if (full) {
            std::pop_heap(hits.begin(), hits.end(), precedes);
            hits.pop_back();
        }
        hits.push_back(found);
        std::push_heap(hits.begin(), hits.end(), precedes);
    }
    std::sort(hits.begin(), hits.end(), precedes);
    return hits;
}

}  // namespace fanrank::search
