#include "snapshot.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fanrank::search {

namespace {

constexpr std::int64_t INT32_LARGEST = std::numeric_limits<std::int32_t>::max();

// The number of each term among the distinct terms, by vocabulary id; -1 between two plans.
thread_local std::vector<std::int32_t> number_of;

// Forgets the numbers of these terms when it goes, also where memory ran out.
struct Forget {
    const std::vector<std::int32_t>& terms;
    std::vector<std::int32_t>& numbers;
    ~Forget() {
        for (const std::int32_t term : terms) numbers[term] = -1;
    }
};

}  // namespace

Part::Part(Segment& of, std::int64_t first_document, std::span<const double> saturated)
    : segment(of), first(first_document), quanta(saturated.size()) {
    // SCALE is a power of two, so this product rounds nothing, and the later one with the idf gives the same bits as
    // idf * saturated * SCALE.
    for (std::size_t number = 0; number < quanta.size(); ++number) {
        quanta[number] = saturated[number] * SCALE;
    }
    reference = segment.reference(saturated, least, largest);
}

const std::int32_t* Part::dense_row(std::int64_t position, double idf, std::int64_t uses, std::int64_t wanted) {
    if (segment.length(position) < segment.options.dense_least) return nullptr;
    const auto find = [&] {
        return std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.position == position; });
    };
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto row = find();
        if (row == rows_.end()) row = rows_.insert(rows_.end(), Row{position, 0, nullptr});
        row->uses += uses;
        if (row->values != nullptr || row->uses < wanted) return row->values.get();
    }
    // Filled without the lock, which a fork would leave held in the child.
    const auto& arrays = segment.arrays;
    std::unique_ptr<std::int32_t[]> values(new std::int32_t[arrays.size]());
    for (std::int64_t p = arrays.offsets[position]; p < arrays.offsets[position + 1]; ++p) {
        const double value = idf * quanta[arrays.wide_classes.empty() ? arrays.classes[p] : arrays.wide_classes[p]];
        values[arrays.documents[p]] = std::max(static_cast<std::int32_t>(std::lrint(value)), 1);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto row = find();
    if (row->values == nullptr) row->values = std::move(values);
    return row->values.get();
}

std::int64_t Part::dense_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::int64_t bytes = 0;
    for (const Row& row : rows_) bytes += row.values == nullptr ? 0 : 4 * segment.arrays.size;
    return bytes;
}

std::int64_t Snapshot::document_frequency(std::int32_t term) const {
    if (!counts.empty()) return static_cast<std::size_t>(term) < counts.size() ? counts[term] : 0;
    std::int64_t total = 0;
    for (const auto& part : parts) {
        const std::int64_t position = part->segment.locate(term);
        if (position < 0) continue;
        total += part->segment.length(position);
        const auto& gone = part->deleted_terms;
        const auto found = std::lower_bound(gone.begin(), gone.end(), position);
        if (found != gone.end() && *found == position) total -= part->deleted_frequencies[found - gone.begin()];
    }
    return total;
}

// The same operations in the same order as `BM25._raw_idf`, and the logarithm of the same library.
double Snapshot::idf(std::int64_t document_frequency) const {
    const double n = static_cast<double>(document_frequency);
    const double documents = static_cast<double>(statistics.documents);
    switch (statistics.method) {
        case Method::lucene:
            return std::log(1.0 + (documents - n + 0.5) / (n + 0.5));
        case Method::robertson_floor0:
            return std::max(0.0, std::log((documents - n + 0.5) / (n + 0.5)));
        case Method::bm25l:
            return std::log((documents + 1.0) / (n + 0.5));
        case Method::bm25plus:
            return std::log((documents + 1.0) / n);
        case Method::dot:
            return 1.0;
    }
    return 0.0;
}

double Snapshot::bound(double idf) const {
    if (statistics.method == Method::dot) return std::abs(idf) * static_cast<double>(statistics.largest_frequency);
    const double added = statistics.method == Method::bm25plus ? statistics.delta : 0.0;
    return std::abs(idf) * (statistics.k1 + 1.0 + added) * SCALE + 1.0;
}

Plan Snapshot::plan(std::span<const std::int32_t> terms, std::span<const std::int64_t> offsets,
                    std::span<const std::int64_t> weights) const {
    // One look-up of the thread's own vector, not one for each token.
    std::vector<std::int32_t>& numbers = number_of;
    Plan plan;
    const std::int64_t queries = static_cast<std::int64_t>(offsets.size()) - 1;
    std::int32_t largest = -1;
    for (const std::int32_t term : terms) largest = std::max(largest, term);
    if (numbers.size() < static_cast<std::size_t>(largest) + 1) {
        numbers.resize(static_cast<std::size_t>(largest) + 1, -1);
    }
    std::vector<std::int32_t> distinct;
    distinct.reserve(terms.size());
    const Forget forget{distinct, numbers};
    for (const std::int32_t term : terms) {
        if (numbers[term] >= 0) continue;
        numbers[term] = 0;
        distinct.push_back(term);
    }
    std::sort(distinct.begin(), distinct.end());
    for (const std::int32_t term : distinct) {
        const std::int64_t frequency = document_frequency(term);
        // A term that no live document holds matches nothing.
        numbers[term] = frequency == 0 ? -1 : static_cast<std::int32_t>(plan.terms.size());
        if (frequency == 0) continue;
        plan.terms.push_back(term);
        plan.frequencies.push_back(frequency);
    }
    plan.idf.reserve(plan.terms.size());
    std::vector<double> bounds;
    bounds.reserve(plan.terms.size());
    for (const std::int64_t frequency : plan.frequencies) {
        plan.idf.push_back(idf(frequency));
        bounds.push_back(bound(plan.idf.back()));
    }

    plan.offsets.reserve(offsets.size());
    plan.offsets.push_back(0);
    plan.slots.reserve(terms.size());
    struct Occurrence {
        std::int32_t term;
        std::int64_t weight;
    };
    std::vector<Occurrence> found;
    const bool once = statistics.counts_once && weights.empty();
    for (std::int64_t query = 0; query < queries; ++query) {
        found.clear();
        for (std::int64_t token = offsets[query]; token < offsets[query + 1]; ++token) {
            const std::int32_t number = numbers[terms[token]];
            if (number >= 0) found.push_back({number, weights.empty() ? 1 : weights[token]});
        }
        std::sort(found.begin(), found.end(), [&](const Occurrence& one, const Occurrence& other) {
            const std::int64_t mine = plan.frequencies[one.term], theirs = plan.frequencies[other.term];
            return mine != theirs ? mine > theirs : one.term < other.term;
        });
        double highest = 0.0;
        for (std::size_t start = 0; start < found.size();) {
            const std::int32_t term = found[start].term;
            std::int64_t weight = 0;
            for (; start < found.size() && found[start].term == term; ++start) weight += found[start].weight;
            if (once) weight = 1;
            if (weight > INT32_LARGEST) {
                plan.overflow = std::max(plan.overflow, weight);
                weight = INT32_LARGEST;
            }
            highest += bounds[term] * static_cast<double>(weight);
            plan.slots.push_back({term, static_cast<std::int32_t>(weight)});
        }
        plan.highest.push_back(highest);
        plan.large |= highest >= static_cast<double>(INT32_LARGEST);
        plan.offsets.push_back(static_cast<std::int64_t>(plan.slots.size()));
    }
    return plan;
}

}  // namespace fanrank::search
