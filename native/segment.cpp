#include "segment.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace fanrank::search {

namespace {

// Bounds that differ from the current statistics by more than this factor are computed anew.
constexpr double DRIFT = 1.02;
// A margin, relative to a bound, that is larger than the rounding of float32 and of the products.
constexpr double MARGIN = 1e-6;
// A list with this many times fewer postings than there are impact classes is sorted where it is surveyed, not counted
// by impact class.
constexpr std::int64_t SORT_SHARE = 8;
// Terms are looked up in a table over the vocabulary where it has at most this many entries for each term of the
// segment, and the segment has at least so many terms.
constexpr std::int64_t TABLE_SHARE = 8;
constexpr std::size_t TABLE_TERMS = 256;

// The least b with 2**b * divisor >= documents.
int bits_of(std::int64_t documents, std::int64_t divisor) {
    int bits = 0;
    while ((std::max<std::int64_t>(divisor, 1) << bits) < documents) ++bits;
    return bits;
}

}  // namespace

std::vector<double> SegmentArrays::read_times(std::int64_t block, bool timed) {
    constexpr double INFINITE = std::numeric_limits<double>::infinity();
    std::vector<double> before;
    double upto = -INFINITE, last = -INFINITE;
    earliest = INFINITE, latest = -INFINITE;
    complete = in_order = timed;
    for (std::int64_t start = 0; start < size; start += block) {
        if (!timed) upto = INFINITE;
        for (const double time : times.subspan(timed ? start : 0, timed ? std::min(block, size - start) : 0)) {
            if (std::isnan(time)) {
                complete = in_order = false;
                upto = INFINITE;
                continue;
            }
            earliest = std::min(earliest, time);
            latest = std::max(latest, time);
            in_order = in_order && last <= time;
            last = time;
        }
        before.push_back(upto = std::max(upto, latest));
    }
    return before;
}

Reference::Reference(std::span<const double> saturated_now, std::size_t lists)
    : saturated(saturated_now.begin(), saturated_now.end()),
      best_classes(saturated.size()),
      surveys_(new std::atomic<const Survey*>[lists]()) {
    std::iota(best_classes.begin(), best_classes.end(), 0);
    std::stable_sort(best_classes.begin(), best_classes.end(),
                     [this](std::int32_t one, std::int32_t other) { return saturated[one] > saturated[other]; });
}

std::pair<double, double> Reference::factors(std::span<const double> now) const {
    double least = std::numeric_limits<double>::infinity(), largest = 0.0;
    bool any = false;
    for (std::size_t number = 0; number < saturated.size(); ++number) {
        if (saturated[number] > 0.0) {
            const double ratio = now[number] / saturated[number];
            least = std::min(least, ratio);
            largest = std::max(largest, ratio);
            any = true;
        } else if (now[number] != 0.0) {
            return {0.0, std::numeric_limits<double>::infinity()};
        }
    }
    if (!any) return {1.0 - MARGIN, 1.0 + MARGIN};
    return {least * (1.0 - MARGIN), largest * (1.0 + MARGIN)};
}

Segment::Segment(const SegmentArrays& given, const SegmentOptions& constants)
    : arrays(given), options(constants), skip_tables_(new std::atomic<const SkipTable*>[given.terms.size()]()) {
    const auto& terms = arrays.terms;
    if (terms.size() >= TABLE_TERMS &&
        terms.back() < TABLE_SHARE * static_cast<std::int64_t>(terms.size())) {
        position_of_.assign(static_cast<std::size_t>(terms.back()) + 1, -1);
        for (std::size_t position = 0; position < terms.size(); ++position) {
            position_of_[terms[position]] = static_cast<std::int32_t>(position);
        }
    }
    derived_bytes_ = static_cast<std::int64_t>(4 * position_of_.size() + 8 * terms.size());
}

std::int64_t Segment::search(std::int32_t term) const {
    const auto found = std::lower_bound(arrays.terms.begin(), arrays.terms.end(), term);
    return found != arrays.terms.end() && *found == term ? found - arrays.terms.begin() : -1;
}

const SkipTable* Segment::skip_table(std::int64_t position) {
    const std::int64_t length = this->length(position);
    if (length < options.least_postings) return nullptr;
    if (const SkipTable* known = skip_tables_[position].load(std::memory_order_acquire)) return known;

    SkipTable table = options.word_share * length >= arrays.size ? dense_table(position) : sparse_table(position);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const SkipTable* known = skip_tables_[position].load(std::memory_order_relaxed)) return known;
    derived_bytes_.fetch_add(table.bytes, std::memory_order_relaxed);
    stored_.push_back(std::move(table));
    skip_tables_[position].store(&stored_.back(), std::memory_order_release);
    return &stored_.back();
}

SkipTable Segment::dense_table(std::int64_t position) const {
    SkipTable table;
    const std::int64_t words = (arrays.size >> 6) + 1, length = this->length(position);
    table.words.reset(new SkipTable::Word[words]());
    table.bytes = words * static_cast<std::int64_t>(sizeof(SkipTable::Word));
    const std::int32_t* documents = arrays.documents.data() + arrays.offsets[position];
    for (std::int64_t posting = 0; posting < length; ++posting) {
        table.words[documents[posting] >> 6].present |= std::uint64_t{1} << (documents[posting] & 63);
    }
    for (std::int64_t word = 1; word < words; ++word) {
        table.words[word].before = table.words[word - 1].before + std::popcount(table.words[word - 1].present);
    }
    return table;
}

SkipTable Segment::sparse_table(std::int64_t position) const {
    const std::int64_t size = arrays.size, length = this->length(position);
    SkipTable table;
    table.bits = bits_of(options.block_postings * size, length);
    table.group_bits = bits_of(size, options.groups * length);
    const std::int64_t entries = (size >> table.bits) + 2, bytes = (size >> (table.group_bits + 3)) + 1;
    table.entries.reset(new std::int32_t[entries]);
    table.presence.reset(new std::uint8_t[bytes]());
    table.bytes = 4 * entries + bytes;
    const std::int32_t* documents = arrays.documents.data() + arrays.offsets[position];
    std::int64_t block = 0;
    for (std::int64_t posting = 0; posting < length; ++posting) {
        const std::int64_t entered = documents[posting] >> table.bits;
        while (block <= entered) table.entries[block++] = static_cast<std::int32_t>(posting);
        const std::int32_t group = documents[posting] >> table.group_bits;
        table.presence[group >> 3] |= static_cast<std::uint8_t>(1 << (group & 7));
    }
    // Blocks behind the last posting, and the end of the last block.
    while (block < entries) table.entries[block++] = static_cast<std::int32_t>(length);
    return table;
}

std::int64_t Segment::find(std::int64_t position, std::int64_t document) {
    const std::int32_t* documents = arrays.documents.data() + arrays.offsets[position];
    if (const SkipTable* table = skip_table(position)) return table->find(documents, static_cast<std::int32_t>(document));
    const std::int32_t* end = documents + length(position);
    const std::int32_t* found = std::lower_bound(documents, end, document);
    return found != end && *found == document ? found - documents : -1;
}

const Survey& Segment::survey(Reference& reference, std::int64_t position) {
    if (const Survey* known = reference.surveys_[position].load(std::memory_order_acquire)) return *known;
    const Survey made = compute(reference, position, [](std::int32_t) { return true; });
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const Survey* known = reference.surveys_[position].load(std::memory_order_relaxed)) return *known;
    reference.stored_.push_back(made);
    derived_bytes_.fetch_add(sizeof(Survey), std::memory_order_relaxed);
    reference.surveys_[position].store(&reference.stored_.back(), std::memory_order_release);
    return reference.stored_.back();
}

std::shared_ptr<Reference> Segment::reference(std::span<const double> saturated, double& least, double& largest) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (reference_) {
        std::tie(least, largest) = reference_->factors(saturated);
        if (DRIFT * least > 1.0 && largest < DRIFT) return reference_;
    }
    reference_ = std::make_shared<Reference>(saturated, arrays.terms.size());
    std::tie(least, largest) = reference_->factors(saturated);
    return reference_;
}

Survey Segment::survey(const Reference& reference, std::int64_t position, std::span<const std::uint8_t> passes,
                       std::span<const std::uint8_t> alive) const {
    if (alive.empty()) {
        return compute(reference, position, [&](std::int32_t document) { return passes[document] != 0; });
    }
    return compute(reference, position,
                   [&](std::int32_t document) { return passes[document] != 0 && alive[document] != 0; });
}

// `chosen` says whether a document counts.
template <class Chosen>
Survey Segment::compute(const Reference& reference, std::int64_t position, const Chosen& chosen) const {
    Survey survey{};
    const std::int64_t start = arrays.offsets[position], length = this->length(position);
    const std::int64_t number = static_cast<std::int64_t>(reference.saturated.size());
    const auto each = [&](const auto& classes, const auto& take) {
        for (std::int64_t p = start; p < start + length; ++p) {
            if (chosen(arrays.documents[p])) take(classes[p]);
        }
    };
    const auto each_class = [&](const auto& take) {
        arrays.wide_classes.empty() ? each(arrays.classes, take) : each(arrays.wide_classes, take);
    };
    if (SORT_SHARE * length < number) {
        std::vector<double> values;
        values.reserve(length);
        each_class([&](auto impact_class) { values.push_back(reference.saturated[impact_class]); });
        std::sort(values.begin(), values.end(), std::greater<>());
        for (int rank = 0; rank < RANKS; ++rank) {
            if (options.ranks[rank] <= static_cast<std::int64_t>(values.size())) {
                survey.values[rank] = static_cast<float>(values[options.ranks[rank] - 1]);
            }
        }
        return survey;
    }
    std::vector<std::int64_t> counts(number);
    each_class([&](auto impact_class) { ++counts[impact_class]; });
    std::int64_t seen = 0;
    int rank = 0;
    for (const std::int32_t impact_class : reference.best_classes) {
        seen += counts[impact_class];
        while (rank < RANKS && seen >= options.ranks[rank]) {
            survey.values[rank++] = static_cast<float>(reference.saturated[impact_class]);
        }
        if (rank == RANKS || seen == length) break;
    }
    return survey;
}

}  // namespace fanrank::search
