// The loops of neighbours.hpp. `score_generic.cpp` and `score_avx2.cpp` include this file as they do score_loops.hpp.

// `TOUCHES`: whether blocks that got a sum are marked.
template <class Class, class Value, std::int64_t WINDOW, bool TOUCHES>
void lend_part(const Part& part, const Class* classes, std::span<const TermList> lists, std::span<const Slot> query,
               const Layout& layout, const Value* weights, Value* sums, LentSums& own, Counted& counted) {
    const std::int32_t* documents = part.segment.arrays.documents.data();
    const std::int32_t* place_of = layout.place_of.data() + part.first;
    const double* quanta = part.quanta.data();
    std::uint8_t* touched = own.touched.data();
    const auto alone = static_cast<std::uint32_t>(layout.alone);
    const auto alone_count = static_cast<std::uint32_t>(layout.alone_end - layout.alone);
    Value factors[WINDOW + 1];
    for (std::size_t number = 0; number < query.size(); ++number) {
        const TermList& list = lists[query[number].term];
        if (list.start == list.end) continue;
        const std::int64_t end = list.end, count = list.end - list.start;
        const double idf = list.idf;
        for (std::int64_t distance = 0; distance <= WINDOW; ++distance) {
            factors[distance] = weights[distance] * static_cast<Value>(query[number].weight);
        }
        const std::size_t before = own.postings.size();
        const bool kept = own.keeps && count <= own.kept_most;
        if (own.keeps) own.runs.push_back({number, &part, &list, before, kept});
        if (kept) own.postings.resize(before + static_cast<std::size_t>(count));
        Placed* placed = kept ? own.postings.data() + before : nullptr;
        for (std::int64_t posting = list.start; posting < end; ++posting) {
            const auto value = std::max(static_cast<std::int32_t>(std::lrint(idf * quanta[classes[posting]])), 1);
            const std::int32_t place = place_of[documents[posting]];
            Value* at = sums + place;
            at[0] += factors[0] * static_cast<Value>(value);
            // As `Layout::lends`.
            if (static_cast<std::uint32_t>(place) - alone >= alone_count) {
                for (std::int64_t distance = 1; distance <= WINDOW; ++distance) {
                    const Value lent = factors[distance] * static_cast<Value>(value);
                    at[-distance] += lent;
                    at[distance] += lent;
                }
            }
            if constexpr (TOUCHES) {
                touched[static_cast<std::uint32_t>(place - static_cast<std::int32_t>(WINDOW)) / PLACE_BLOCK] = 1;
                touched[static_cast<std::uint32_t>(place + static_cast<std::int32_t>(WINDOW)) / PLACE_BLOCK] = 1;
            }
            if (placed != nullptr) *placed++ = {place, value};
        }
        counted.postings += count;
        counted.bytes += count * static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(Class));
    }
}

template <class Value, std::int64_t WINDOW, bool TOUCHES = true>
void lend_part(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Layout& layout,
               const Value* weights, Value* sums, LentSums& own, Counted& counted) {
    const auto& arrays = part.segment.arrays;
    if (arrays.wide_classes.empty()) {
        lend_part<std::uint16_t, Value, WINDOW, TOUCHES>(part, arrays.classes.data(), lists, query, layout, weights,
                                                         sums, own, counted);
    } else {
        lend_part<std::uint32_t, Value, WINDOW, TOUCHES>(part, arrays.wide_classes.data(), lists, query, layout,
                                                         weights, sums, own, counted);
    }
}

template <class Value>
void lend_part(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Layout& layout,
               const Loan& loan, Value* sums, LentSums& own, Counted& counted) {
    Value weights[MAX_WINDOW + 1];
    for (std::int64_t distance = 0; distance <= MAX_WINDOW; ++distance) {
        weights[distance] = static_cast<Value>(loan.weights[distance]);
    }
    if (loan.later) {
        weights[0] = 1;
        return lend_part<Value, 0, false>(part, lists, query, layout, weights, sums, own, counted);
    }
    switch (loan.window) {
        case 0: return lend_part<Value, 0>(part, lists, query, layout, weights, sums, own, counted);
        case 1: return lend_part<Value, 1>(part, lists, query, layout, weights, sums, own, counted);
        case 2: return lend_part<Value, 2>(part, lists, query, layout, weights, sums, own, counted);
        case 3:
        case 4: return lend_part<Value, 4>(part, lists, query, layout, weights, sums, own, counted);
        default: return lend_part<Value, MAX_WINDOW>(part, lists, query, layout, weights, sums, own, counted);
    }
}

void lend(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Layout& layout,
          const Loan& loan, LentSums& own, Counted& counted) {
    if (loan.wide) {
        lend_part(part, lists, query, layout, loan, own.wide_sums.data(), own, counted);
    } else {
        lend_part(part, lists, query, layout, loan, own.sums.data(), own, counted);
    }
}

// The largest sum of a document in a block of places; a bit of `there` for each place says whether it holds one. Without
// a branch, so that it runs at vector speed.
template <class Value>
Value peak_of(const Value* sums, std::uint32_t there) {
    Value largest = 0;
#pragma GCC unroll 1
    for (std::uint32_t place = 0; place < PLACE_BLOCK; ++place) {
        largest = std::max(largest, sums[place] & (Value{0} - static_cast<Value>(there >> place & 1)));
    }
    return largest;
}

// The borrowed sums of a block of places, of the own ones there and around; 0 at empty ones. Returns the largest.
// Without a branch, as `peak_of`.
template <class Value, std::int64_t WINDOW>
Value lend_block(const Value* sums, const std::int32_t* document_at, const Value* weights, Value* __restrict values) {
    Value largest = 0;
    for (std::int64_t place = 0; place < WHOLE_BLOCK; ++place) {
        Value total = weights[0] * sums[place];
        for (std::int64_t distance = 1; distance <= WINDOW; ++distance) {
            total += weights[distance] * (sums[place - distance] + sums[place + distance]);
        }
        values[place] = total & ~static_cast<Value>(document_at[place] >> 31);
        largest = std::max(largest, values[place]);
    }
    return largest;
}

// `WINDOW` is 0 where postings have lent already.
template <class Value, std::int64_t WINDOW>
void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, Value* sums,
               LentSums& own) {
    constexpr bool LATER = WINDOW > 0;
    constexpr std::int64_t BLOCK = LATER ? WHOLE_BLOCK : PLACE_BLOCK;
    const std::int32_t* document_at = layout.document_at.data();
    Value weights[WINDOW + 1], values[BLOCK];
    for (std::int64_t distance = 0; distance <= WINDOW; ++distance) {
        weights[distance] = static_cast<Value>(loan.weights[distance]);
    }
    const auto lend = [&](std::int64_t first) {
        return first < layout.alone ? lend_block<Value, WINDOW>(sums + first, document_at + first, weights, values)
                                    : lend_block<Value, 0>(sums + first, document_at + first, weights, values);
    };
    std::size_t count = 0;
    if constexpr (LATER) {
        // No document stands in the first block.
        count = static_cast<std::size_t>(layout.alone_end / BLOCK - 1);
        for (std::size_t number = 0; number < count; ++number) {
            own.peaks[number] = static_cast<std::int64_t>(lend(static_cast<std::int64_t>(number + 1) * BLOCK));
        }
    } else {
        for (std::size_t chunk = 0; chunk < own.touched.size(); chunk += sizeof(std::uint64_t)) {
            std::uint64_t touched;
            std::memcpy(&touched, &own.touched[chunk], sizeof(touched));
            if (touched == 0) continue;
            for (std::size_t block = chunk; block < chunk + sizeof(touched); ++block) {
                own.blocks[count] = static_cast<std::int32_t>(block);
                count += own.touched[block];
            }
            std::memset(&own.touched[chunk], 0, sizeof(touched));
        }
        for (std::size_t number = 0; number < count; ++number) {
            const std::int32_t block = own.blocks[number];
            own.peaks[number] = static_cast<std::int64_t>(peak_of(sums + block * BLOCK, layout.held[block]));
        }
    }
    // k blocks reach the k-th largest peak.
    std::int64_t bound = 1;
    if (accepted == nullptr && k < static_cast<std::int64_t>(count)) {
        const std::size_t groups = std::min(count, static_cast<std::size_t>(std::max(2 * k, MIN_GROUPS)));
        own.ranked.assign(own.peaks.begin(), own.peaks.begin() + groups);
        for (std::size_t start = groups; start < count; start += groups) {
            for (std::size_t at = 0; at < std::min(groups, count - start); ++at) {
                own.ranked[at] = std::max(own.ranked[at], own.peaks[start + at]);
            }
        }
        bound = std::max(bound, keep_best(own.ranked.data(), static_cast<std::int64_t>(groups), k));
    }
    const std::size_t room = static_cast<std::size_t>(4 * k + BLOCK);
    const auto cut = [&] {
        if (static_cast<std::int64_t>(own.hits.size()) <= k) return;
        const Hit last = keep_best(own.hits.data(), static_cast<std::int64_t>(own.hits.size()), k);
        own.hits.resize(static_cast<std::size_t>(k));
        // A later place may hold an earlier document, so it need only equal the k-th sum.
        bound = std::max(bound, last.key);
    };
    for (std::size_t number = 0; number < count; ++number) {
        const std::int64_t first = LATER ? static_cast<std::int64_t>(number + 1) * BLOCK : own.blocks[number] * BLOCK;
        if (own.peaks[number] >= bound) {
            const Value* found = sums + first;
            if constexpr (LATER) {
                lend(first);
                found = values;
            }
            for (std::int64_t place = 0; place < BLOCK; ++place) {
                const std::int32_t document = document_at[first + place];
                if (static_cast<std::int64_t>(found[place]) < bound || document < 0) continue;
                if (accepted != nullptr && !(*accepted)(document)) continue;
                own.hits.push_back({static_cast<std::int64_t>(found[place]), document});
            }
            if (own.hits.size() >= room) cut();
        }
        if constexpr (!LATER) std::fill_n(sums + first, BLOCK, Value{0});
    }
    if constexpr (LATER) std::fill_n(sums, layout.document_at.size(), Value{0});
    cut();
    for (Hit& hit : own.hits) hit.key *= loan.factor;
}

template <class Value>
void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, Value* sums,
               LentSums& own) {
    switch (loan.later ? loan.window : 0) {
        case 0: return take_best<Value, 0>(layout, loan, k, accepted, sums, own);
        case 1: return take_best<Value, 1>(layout, loan, k, accepted, sums, own);
        case 2: return take_best<Value, 2>(layout, loan, k, accepted, sums, own);
        case 3:
        case 4: return take_best<Value, 4>(layout, loan, k, accepted, sums, own);
        default: return take_best<Value, MAX_WINDOW>(layout, loan, k, accepted, sums, own);
    }
}

void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, LentSums& own) {
    if (loan.wide) {
        take_best(layout, loan, k, accepted, own.wide_sums.data(), own);
    } else {
        take_best(layout, loan, k, accepted, own.sums.data(), own);
    }
    own.clean = true;
}
