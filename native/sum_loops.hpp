// The loops of neighbours.hpp. `score_generic.cpp` and `score_avx2.cpp` include this file as they do score_loops.hpp.

// Groups of places whose largest sums give a query's first bound, and how many places are read for them.
constexpr std::int32_t BOUND_GROUPS = 512;

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

// The largest sum of a block of places, empty ones too.
template <class Value>
[[gnu::always_inline]] inline Value peak_of(const Value* sums) {
    Value largest = 0;
#pragma GCC unroll 1
    for (std::int64_t place = 0; place < PLACE_BLOCK; ++place) largest = std::max(largest, sums[place]);
    return largest;
}

// The borrowed sums of a block of places, of the own ones there and around; 0 at empty ones. Returns the largest.
// Without a branch, so that it runs at vector speed.
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

// A value that k of the values reach, close to the k-th largest; 0 where fewer are above 0. By halves, without a branch for
// each value.
template <class Value>
Value reached_by(const Value* values, std::size_t count, std::int64_t k) {
    Value low = 0, high = 0;
    for (std::size_t at = 0; at < count; ++at) high = std::max(high, values[at]);
    for (const Value close = (high >> 10) + 1; high - low > close;) {
        const Value middle = low + (high - low) / 2;
        Value reach = 0;
        for (std::size_t at = 0; at < count; ++at) reach += values[at] >= middle;
        (static_cast<std::int64_t>(reach) >= k ? low : high) = middle;
    }
    return low;
}

// Takes the k best of one query. `WINDOW` is 0 where postings have lent already.
template <class Value, std::int64_t WINDOW>
class Taking {
public:
    Taking(const Layout& of, const Loan& loan, std::int64_t wanted, const Acceptance* accepts, Value* by_place,
           LentSums& memory)
        : layout(of), k(wanted), accepted(accepts), sums(by_place), own(memory) {
        for (std::int64_t distance = 0; distance <= WINDOW; ++distance) {
            weights[distance] = static_cast<Value>(loan.weights[distance]);
        }
    }

    void run() {
        if (accepted == nullptr) raise_bound();
        if constexpr (WINDOW > 0) {
            Value values[WHOLE_BLOCK];
            // No document stands in the first block.
            for (std::int64_t first = WHOLE_BLOCK; first < layout.alone_end; first += WHOLE_BLOCK) {
                const std::int32_t* document_at = layout.document_at.data() + first;
                const Value largest = first < layout.alone
                                          ? lend_block<Value, WINDOW>(sums + first, document_at, weights, values)
                                          : lend_block<Value, 0>(sums + first, document_at, weights, values);
                if (largest >= bound) take<WHOLE_BLOCK>(document_at, values);
            }
            std::fill_n(sums, layout.document_at.size(), Value{0});
        } else {
            const std::size_t count = list_touched();
            for (std::size_t number = 0; number < count; ++number) {
                const std::int64_t first = own.blocks[number] * PLACE_BLOCK;
                if (peak_of(sums + first) >= bound) take<PLACE_BLOCK>(layout.document_at.data() + first, sums + first);
                std::fill_n(sums + first, PLACE_BLOCK, Value{0});
            }
        }
        cut();
    }

private:
    // Documents of the shortest lists reach the bound: k places of different groups do.
    void raise_bound() {
        Value groups[BOUND_GROUPS] = {};
        for (const std::int32_t place : own.sampled) {
            Value sum = WINDOW > 0 ? weights[0] * sums[place] : sums[place];
            if (WINDOW > 0 && layout.lends(place)) {
                for (std::int64_t distance = 1; distance <= WINDOW; ++distance) {
                    sum += weights[distance] * (sums[place - distance] + sums[place + distance]);
                }
            }
            Value& best = groups[place % BOUND_GROUPS];
            best = std::max(best, sum);
        }
        bound = std::max(bound, reached_by(groups, BOUND_GROUPS, k));
    }

    // Puts the blocks that got a sum into `own.blocks`.
    std::size_t list_touched() {
        std::size_t count = 0;
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
        return count;
    }

    template <std::int64_t BLOCK>
    void take(const std::int32_t* document_at, const Value* values) {
        for (std::int64_t first = 0; first < BLOCK; first += PLACE_BLOCK) {
            const Value least = bound;
            std::uint32_t reach = 0;
#pragma GCC unroll 1
            for (int place = 0; place < PLACE_BLOCK; ++place) {
                reach |= static_cast<std::uint32_t>(values[first + place] >= least) << place;
            }
            for (; reach != 0; reach &= reach - 1) {
                const std::int64_t place = first + std::countr_zero(reach);
                const std::int32_t document = document_at[place];
                if (document < 0 || (accepted != nullptr && !(*accepted)(document))) continue;
                own.hits.push_back({static_cast<std::int64_t>(values[place]), document});
            }
        }
        if (own.hits.size() >= static_cast<std::size_t>(4 * k + BLOCK)) cut();
    }

    void cut() {
        if (static_cast<std::int64_t>(own.hits.size()) <= k) return;
        const Hit last = keep_best(own.hits.data(), static_cast<std::int64_t>(own.hits.size()), k);
        own.hits.resize(static_cast<std::size_t>(k));
        // A later place may hold an earlier document, so it need only equal the k-th sum.
        bound = std::max(bound, static_cast<Value>(last.key));
    }

    const Layout& layout;
    const std::int64_t k;
    const Acceptance* accepted;
    Value* sums;
    LentSums& own;
    Value weights[WINDOW + 1];
    Value bound = 1;  // no hit has less
};

template <class Value>
void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, Value* sums,
               LentSums& own) {
    switch (loan.later ? loan.window : 0) {
        case 0: Taking<Value, 0>(layout, loan, k, accepted, sums, own).run(); break;
        case 1: Taking<Value, 1>(layout, loan, k, accepted, sums, own).run(); break;
        case 2: Taking<Value, 2>(layout, loan, k, accepted, sums, own).run(); break;
        case 3:
        case 4: Taking<Value, 4>(layout, loan, k, accepted, sums, own).run(); break;
        default: Taking<Value, MAX_WINDOW>(layout, loan, k, accepted, sums, own).run(); break;
    }
    for (Hit& hit : own.hits) hit.key *= loan.factor;
}

void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, LentSums& own) {
    if (loan.wide) {
        take_best(layout, loan, k, accepted, own.wide_sums.data(), own);
    } else {
        take_best(layout, loan, k, accepted, own.sums.data(), own);
    }
    own.clean = true;
}
