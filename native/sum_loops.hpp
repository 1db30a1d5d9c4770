// The loops of neighbours.hpp. `score_generic.cpp` and `score_avx2.cpp` include this file as they do score_loops.hpp.

template <class Class>
void place_part(const Part& part, const Class* classes, std::span<const TermList> lists, std::span<const Slot> query,
                const std::int32_t* place_of, std::int32_t* sums, Counted& counted) {
    const std::int32_t* documents = part.segment.arrays.documents.data();
    const double* quanta = part.quanta.data();
    for (const Slot& slot : query) {
        const TermList& list = lists[slot.term];
        const double idf = list.idf;
        for (std::int64_t posting = list.start; posting < list.end; ++posting) {
            const auto value = static_cast<std::int32_t>(std::lrint(idf * quanta[classes[posting]]));
            sums[place_of[documents[posting]]] += std::max(value, 1) * slot.weight;
        }
        counted.postings += list.end - list.start;
        counted.bytes += (list.end - list.start) * static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(Class));
    }
}

void place(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Layout& layout,
           PlacedSums& own, Counted& counted) {
    const auto& arrays = part.segment.arrays;
    const std::int32_t* place_of = layout.place_of.data() + part.first;
    if (arrays.wide_classes.empty()) {
        place_part(part, arrays.classes.data(), lists, query, place_of, own.sums.data(), counted);
    } else {
        place_part(part, arrays.wide_classes.data(), lists, query, place_of, own.sums.data(), counted);
    }
}

// The borrowed sums of a block of places; 0 at empty ones. Returns the largest, and the largest own sum with `highest`.
// Sums that leave `Value` wrap around: `highest` shows it.
template <class Value, std::int64_t WINDOW>
Value sum_block(const std::int32_t* sums, const std::int32_t* document_at, const Value* weights, Value* values,
                std::int32_t& highest) {
    using Bits = std::make_unsigned_t<Value>;
    Value largest = 0;
    std::int32_t own = highest;
    for (std::int64_t place = 0; place < PLACE_BLOCK; ++place) {
        Bits total = static_cast<Bits>(weights[0]) * static_cast<Bits>(sums[place]);
        for (std::int64_t distance = 1; distance <= WINDOW; ++distance) {
            total += static_cast<Bits>(weights[distance]) *
                     (static_cast<Bits>(sums[place - distance]) + static_cast<Bits>(sums[place + distance]));
        }
        values[place] = document_at[place] >= 0 ? static_cast<Value>(total) : 0;
        largest = std::max(largest, values[place]);
        own = std::max(own, sums[place]);
    }
    highest = own;
    return largest;
}

// `best_borrowing` with sums of the type `Value`, divided by `factor`. Returns false where they may leave it.
template <class Value, std::int64_t WINDOW>
bool take_best(const Layout& layout, const Value* weights, std::int64_t factor, std::int64_t k,
               const Acceptance* accepted, PlacedSums& own) {
    const std::int64_t blocks = static_cast<std::int64_t>(own.peaks.size());
    const std::int64_t sessions = (layout.alone - layout.gap) / PLACE_BLOCK;
    Value values[PLACE_BLOCK];
    std::int32_t highest = 0;
    const auto sum = [&](std::int64_t block) {
        const std::int64_t first = layout.gap + block * PLACE_BLOCK;
        const std::int32_t *sums = own.sums.data() + first, *document_at = layout.document_at.data() + first;
        return block < sessions ? sum_block<Value, WINDOW>(sums, document_at, weights, values, highest)
                                : sum_block<Value, 0>(sums, document_at, weights, values, highest);
    };
    for (std::int64_t block = 0; block < blocks; ++block) own.peaks[block] = sum(block);
    std::int64_t whole = weights[0];
    for (std::int64_t distance = 1; distance <= WINDOW; ++distance) whole += 2 * weights[distance];
    if (highest > std::numeric_limits<Value>::max() / whole) return false;
    std::int64_t bound = 1;
    if (accepted == nullptr && k < blocks) {
        own.ranked = own.peaks;
        bound = std::max<std::int64_t>(bound, keep_best(own.ranked.data(), blocks, k));
    }
    const std::size_t room = static_cast<std::size_t>(4 * k) + 2 * PLACE_BLOCK;
    const auto cut = [&] {
        if (static_cast<std::int64_t>(own.hits.size()) <= k) return;
        const Hit last = keep_best(own.hits.data(), static_cast<std::int64_t>(own.hits.size()), k);
        own.hits.resize(static_cast<std::size_t>(k));
        // A later place may hold an earlier document, so it need only equal the k-th sum.
        bound = std::max(bound, last.key);
    };
    for (std::int64_t block = 0; block < blocks; ++block) {
        if (own.peaks[block] < bound) continue;
        sum(block);
        const std::int32_t* document_at = layout.document_at.data() + layout.gap + block * PLACE_BLOCK;
        for (std::int64_t place = 0; place < PLACE_BLOCK; ++place) {
            if (values[place] < bound) continue;
            if (accepted != nullptr && !(*accepted)(document_at[place])) continue;
            own.hits.push_back({values[place], document_at[place]});
        }
        if (own.hits.size() >= room) cut();
    }
    cut();
    for (Hit& hit : own.hits) hit.key *= factor;
    return true;
}

template <std::int64_t WINDOW>
void take_best(const Layout& layout, std::span<const std::int64_t> lent, std::int64_t k, const Acceptance* accepted,
               PlacedSums& own) {
    // In steps of what divides all weights, sums of common queries fit 32 bits.
    std::int64_t factor = STEPS, wide[WINDOW + 1] = {STEPS};
    for (std::size_t distance = 0; distance < lent.size(); ++distance) {
        wide[distance + 1] = lent[distance];
        factor = std::gcd(factor, lent[distance]);
    }
    std::int32_t weights[WINDOW + 1];
    for (std::int64_t distance = 0; distance <= WINDOW; ++distance) {
        weights[distance] = static_cast<std::int32_t>(wide[distance] / factor);
    }
    if (!take_best<std::int32_t, WINDOW>(layout, weights, factor, k, accepted, own)) {
        take_best<std::int64_t, WINDOW>(layout, wide, 1, k, accepted, own);
    }
}

void best_borrowing(const Layout& layout, std::span<const std::int64_t> lent, std::int64_t k,
                    const Acceptance* accepted, PlacedSums& own) {
    switch (lent.size()) {
        case 0: return take_best<0>(layout, lent, k, accepted, own);
        case 1: return take_best<1>(layout, lent, k, accepted, own);
        case 2: return take_best<2>(layout, lent, k, accepted, own);
        case 3:
        case 4: return take_best<4>(layout, lent, k, accepted, own);
        default: return take_best<MAX_WINDOW>(layout, lent, k, accepted, own);
    }
}
