// The loops of `sum`. `score_generic.cpp` and `score_avx2.cpp` include this file as they do score_loops.hpp.

template <class Class>
void sum_part(const Part& part, const Class* classes, std::span<const TermList> lists, std::span<const Slot> query,
              const ScoreOptions& options, OwnSums& own, Counted& counted) {
    const auto& arrays = part.segment.arrays;
    std::vector<std::int64_t> read(query.size(), 0);  // postings of each list that earlier tiles have read
    for (std::int64_t low = 0; low < arrays.size; low += options.tile) {
        const std::int64_t high = std::min(low + options.tile, arrays.size);
        std::int32_t* __restrict sums = own.sums.data() + part.first + low;
        std::memset(sums, 0, static_cast<std::size_t>(high - low) * sizeof(std::int32_t));
        for (std::size_t place = 0; place < query.size(); ++place) {
            const TermList& list = lists[query[place].term];
            const std::int32_t weight = query[place].weight;
            if (list.row != nullptr) {
                const std::int32_t* __restrict row = list.row + low;
                for (std::int64_t d = 0; d < high - low; ++d) sums[d] += row[d] * weight;
                counted.row_entries += high - low;
                counted.bytes += (high - low) * static_cast<std::int64_t>(sizeof(std::int32_t));
                continue;
            }
            const std::int32_t* found = arrays.documents.data() + list.start;
            const Class* own_classes = classes + list.start;
            const std::int64_t begin = read[place], length = list.end - list.start;
            std::int64_t posting = begin;
            for (; posting < length && found[posting] < high; ++posting) {
                const double contribution = list.idf * part.quanta[own_classes[posting]];
                sums[found[posting] - low] += std::max(static_cast<std::int32_t>(std::lrint(contribution)), 1) * weight;
            }
            read[place] = posting;
            counted.postings += posting - begin;
            counted.bytes += (posting - begin) * static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(Class));
        }
        if (part.alive.empty()) continue;
        for (std::int64_t d = 0; d < high - low; ++d) sums[d] = part.alive[low + d] != 0 ? sums[d] : 0;
    }
}

void sum(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const ScoreOptions& options,
         OwnSums& own, Counted& counted) {
    const auto& arrays = part.segment.arrays;
    if (arrays.wide_classes.empty()) {
        sum_part(part, arrays.classes.data(), lists, query, options, own, counted);
    } else {
        sum_part(part, arrays.wide_classes.data(), lists, query, options, own, counted);
    }
    // A block may begin in an earlier part.
    const std::int64_t end = part.first + arrays.size;
    for (std::int64_t low = part.first; low < end;) {
        const std::int64_t block = low / BORROWING_BLOCK, high = std::min((block + 1) * BORROWING_BLOCK, end);
        const std::int32_t largest = largest_of(own.sums.data() + low, high - low);
        std::int32_t& maximum = own.maxima[static_cast<std::size_t>(block)];
        maximum = low % BORROWING_BLOCK == 0 ? largest : std::max(maximum, largest);
        low = high;
    }
}
