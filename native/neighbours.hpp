// What a document borrows from its neighbours in a session; engine/index/neighbours.py and engine/plan/borrowing.py
// explain both.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "layout.hpp"
#include "quickselect.hpp"

namespace fanrank::search {

class Part;
struct TermList;

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

    Links() = default;
    ~Links() {
        for (const auto& layout : layouts_) delete layout.load(std::memory_order_acquire);
    }
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;

    // The document before or after this one in its session, or -1.
    std::int64_t previous(std::int64_t document) const {
        const Part& part = part_of(document);
        const std::int32_t position = part.previous[document - part.first];
        return position >= 0 ? part.first + position : joined_before(document);
    }
    std::int64_t following(std::int64_t document) const {
        const Part& part = part_of(document);
        const std::int32_t position = part.following[document - part.first];
        return position >= 0 ? part.first + position : joined_after(document);
    }
    // The same, of one in another part.
    std::int64_t joined_before(std::int64_t document) const { return joined(later_sorted, earlier_of, document); }
    std::int64_t joined_after(std::int64_t document) const { return joined(earlier, later, document); }
    std::size_t part_number(std::int64_t document) const {
        if (parts.size() == 1) return 0;
        const auto after = std::upper_bound(parts.begin(), parts.end(), document,
                                            [](std::int64_t wanted, const Part& part) { return wanted < part.first; });
        // Of parts without documents, which begin where the next one does, the last one has this document.
        return static_cast<std::size_t>(after - parts.begin()) - 1;
    }
    // The layout for windows up to this one, made at the first call. Threads that need it at once may each make it.
    const Layout& layout(std::int64_t window, const std::vector<std::unique_ptr<search::Part>>& of) const {
        auto& kept = layouts_[window <= NARROW ? 0 : 1];
        if (const Layout* known = kept.load(std::memory_order_acquire)) return *known;
        std::unique_ptr<const Layout> made = make_layout(*this, of, window <= NARROW ? NARROW : MAX_WINDOW);
        const Layout* known = nullptr;
        if (kept.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return *made.release();
        return *known;
    }

private:
    const Part& part_of(std::int64_t document) const { return parts[part_number(document)]; }
    static std::int64_t joined(std::span<const std::int64_t> from, std::span<const std::int64_t> to,
                               std::int64_t document) {
        const auto place = std::lower_bound(from.begin(), from.end(), document);
        return place != from.end() && *place == document ? to[place - from.begin()] : -1;
    }

    mutable std::atomic<const Layout*> layouts_[2] = {nullptr, nullptr};
};

// What the queries of a search borrow.
struct Lending {
    const Links* links = nullptr;
    std::span<const std::int64_t> weights;  // [window] in steps of 1/64, by distance
};

// What a query's documents lend: `weights[distance]`, in steps of ``factor / 64``.
struct Loan {
    std::int64_t weights[MAX_WINDOW + 1] = {STEPS};
    std::int64_t window = 0, factor = STEPS;
    bool wide = false;   // whether sums may leave 32 bits
    bool later = false;  // whether own sums are added up first, and lent block by block: faster where most places get some

    // No document's own quanta add up to more than `highest`.
    Loan(std::span<const std::int64_t> lent, double highest) : window(static_cast<std::int64_t>(lent.size())) {
        // In steps of what divides all weights, sums of common queries fit 32 bits.
        for (const std::int64_t each : lent) factor = std::gcd(factor, each);
        std::copy(lent.begin(), lent.end(), weights + 1);
        std::int64_t whole = -(weights[0] /= factor);
        for (std::int64_t distance = 1; distance <= window; ++distance) weights[distance] /= factor;
        for (const std::int64_t each : weights) whole += 2 * each;
        wide = (highest + 1.0) * static_cast<double>(whole) >= 4294967295.0;
    }
};

// A posting by the place of its document.
struct Placed {
    std::int32_t place, quanta;
};

// The postings of a query's term in one part: from `first` on in `LentSums::postings`, or kept nowhere.
struct Run {
    std::size_t term;  // of the query
    const Part* part;
    const TermList* list;
    std::size_t first;
    bool kept;
};

// The borrowed sums of one query's documents by place of a layout. A thread uses its memory again for each query.
struct LentSums {
    std::vector<std::uint32_t> sums;       // [places] in steps of the loan; all 0 before and after a query
    std::vector<std::uint64_t> wide_sums;  // in place of `sums` where they may be larger
    std::vector<std::uint8_t> touched;     // [blocks] whether a sum was added to
    std::vector<std::int32_t> blocks;      // those that were
    std::vector<std::int32_t> sampled;     // places of the shortest lists
    std::vector<Hit> hits;
    bool keeps = false;  // whether postings are kept, for dialogues, of lists of up to so many
    std::int64_t kept_most = 0;
    std::vector<Placed> postings;
    std::vector<Run> runs;
    bool clean = true;  // false: a query ended by an exception

    void prepare(const Layout& layout, bool wide) {
        const std::size_t size = layout.document_at.size(), count = size / PLACE_BLOCK;
        if (!clean) {
            std::fill(sums.begin(), sums.end(), 0);
            std::fill(wide_sums.begin(), wide_sums.end(), 0);
            std::fill(touched.begin(), touched.end(), 0);
        }
        if (sums.size() < size) sums.resize(size, 0);
        if (wide && wide_sums.size() < size) wide_sums.resize(size, 0);
        if (touched.size() < count) touched.resize((count / 8 + 1) * 8, 0);
        if (blocks.size() <= touched.size()) blocks.resize(touched.size() + 1);
        hits.clear();
        sampled.clear();
        postings.clear();
        runs.clear();
        clean = false;
    }
};

// The borrowed sums of a query's documents, where few have one. A thread uses its memory again for each query.
class FewSums {
public:
    // Makes room for so many documents.
    void prepare(std::int64_t documents) {
        std::size_t size = 64;
        shift_ = 64 - 3;
        for (; size < 2 * static_cast<std::size_t>(documents); size *= 2) --shift_;
        documents_.assign(size, -1);
        sums_.resize(size);
    }
    void add(std::int64_t document, std::int64_t steps) {
        const std::size_t place = place_of(document);
        if (documents_[place] < 0) {
            documents_[place] = static_cast<std::int32_t>(document);
            sums_[place] = 0;
        }
        sums_[place] += steps;
    }
    template <class Take>
    void each(Take&& take) const {
        for (std::size_t place = 0; place < documents_.size(); ++place) {
            if (documents_[place] >= 0) take(documents_[place], sums_[place]);
        }
    }

private:
    // Neighbours stand near each other: of a hash table's runs of 8 places one is picked.
    std::size_t place_of(std::int64_t document) const {
        const auto run = static_cast<std::uint64_t>(document >> 3) * 0x9E3779B97F4A7C15U;
        std::size_t place = static_cast<std::size_t>(run >> shift_) * 8 + static_cast<std::size_t>(document & 7);
        const std::size_t last = documents_.size() - 1;
        while (documents_[place] >= 0 && documents_[place] != document) place = (place + 1) & last;
        return place;
    }

    std::vector<std::int32_t> documents_;  // -1: a free place
    std::vector<std::int64_t> sums_;       // in steps
    int shift_ = 0;
};

// Which documents may be hits of a query; null: all.
struct Acceptance {
    virtual bool operator()(std::int64_t document) const = 0;

protected:
    ~Acceptance() = default;
};

}  // namespace fanrank::search
