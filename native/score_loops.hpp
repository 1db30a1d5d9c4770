// The loops of score.hpp. `score_generic.cpp` and `score_avx2.cpp` include this file in namespaces of their own, after the
// headers that it needs, so that the loops are compiled for more than one kind of processor.

// Scores whose largest is found at once; a block that cannot enter the k best is passed over. Blocks of 16, 32, 64 and
// 128 took .21, .14, .14 and .09 ms a query on SGD at k 10.
constexpr std::int64_t BLOCK = 128;
// Groups of scores whose maxima give a tile's first threshold, as a multiple of k, and at least.
constexpr std::int64_t GROUPS_PER_K = 4;
constexpr std::int64_t MIN_GROUPS = 256;

// One list of the query in the segment.
template <class Class>
struct List {
    const std::int32_t* documents;  // ascending
    const Class* classes;
    std::int64_t begin, end;  // postings that no tile has read yet
    double idf;
    std::int32_t weight;
    std::int64_t upper_bound;   // all occurrences of the term add at most so many quanta
    std::int64_t suffix_bound;  // this list and all that follow add at most this together
    const SkipTable* skip_table;
    const std::int32_t* row;
    std::int64_t length;
    std::int64_t tile_begin = 0, tile_end = 0;  // postings of the tile

    std::int32_t contribution(const double* quanta, std::int64_t posting) const {
        return std::max(static_cast<std::int32_t>(std::lrint(idf * quanta[classes[posting]])), 1) * weight;
    }
};

// The first place in [low, high) whose document is at least `wanted`, or high.
std::int64_t bisect(const std::int32_t* documents, std::int64_t low, std::int64_t high, std::int64_t wanted) {
    return std::lower_bound(documents + low, documents + high, wanted) - documents;
}

// As `bisect`, by a galloping search from `low`: the step doubles until it has passed the place, as that is mostly near.
std::int64_t seek(const std::int32_t* documents, std::int64_t low, std::int64_t high, std::int64_t wanted) {
    std::int64_t step = 1;
    while (low + step < high && documents[low + step] < wanted) {
        low += step;
        step *= 2;
    }
    return bisect(documents, low, std::min(low + step, high), wanted);
}

// As `bisect`, by a galloping search from `high` back.
std::int64_t seek_back(const std::int32_t* documents, std::int64_t low, std::int64_t high, std::int64_t wanted) {
    std::int64_t step = 1;
    while (high - step >= low && documents[high - step] >= wanted) {
        high -= step;
        step *= 2;
    }
    return bisect(documents, std::max(high - step, low), high, wanted);
}

std::int32_t largest_of(const std::int32_t* scores, std::int64_t count) {
    std::int32_t largest = 0;
    for (std::int64_t d = 0; d < count; ++d) largest = std::max(largest, scores[d]);
    return largest;
}

// A score that at least k of the documents reach: the k-th largest maximum of strided groups; 0 if there are too few.
std::int32_t first_threshold(const std::int32_t* scores, std::int64_t count, std::int32_t* maxima, std::int64_t k) {
    const std::int64_t groups = std::min(std::max(GROUPS_PER_K * k, MIN_GROUPS), count);
    if (groups < k) return 0;
    std::copy(scores, scores + groups, maxima);
    for (std::int64_t start = groups; start < count; start += groups) {
        const std::int64_t width = std::min(groups, count - start);
        for (std::int64_t i = 0; i < width; ++i) maxima[i] = std::max(maxima[i], scores[start + i]);
    }
    return keep_best(maxima, groups, k);
}

// The search of one query in one segment. `Class` is the type of impact classes; `FADES` says whether scores fade.
template <class Class, bool FADES>
class Scorer {
public:
    Scorer(const Part& of, const Class* classes, std::span<const TermList> lists, std::span<const Slot> query,
           const Accepted& documents, const Decay& with, const ScoreOptions& constants, Best& hits, Scratch& memory,
           Counted& counts)
        : part(of),
          quanta(of.quanta.data()),
          accepted(documents),
          decay(with),
          options(constants),
          prunes(!constants.exhaustive && of.segment.arrays.size >= constants.pruned_documents),
          best(hits),
          scratch(memory),
          counted(counts) {
        order(classes, lists, query);
        if (prunes) raise_threshold(lists, query);
    }

    void run() {
        if constexpr (FADES) {
            const std::int64_t tile = options.faded_tile;
            for (std::int64_t high = accepted.high, low; high > accepted.low; high = low) {
                low = std::max(accepted.low, (high - 1) / tile * tile);
                if (!read(low, high)) return;
            }
        } else {
            const std::int64_t tile = options.tile;
            for (std::int64_t low = accepted.low, high; low < accepted.high; low = high) {
                high = std::min((low / tile + 1) * tile, accepted.high);
                if (!read(low, high)) return;
            }
        }
    }

private:
    // Fills `ordered` with the query's lists, the largest upper bound first.
    void order(const Class* classes, std::span<const TermList> lists, std::span<const Slot> query) {
        const auto& arrays = part.segment.arrays;
        for (const Slot& slot : query) {
            const TermList& list = lists[slot.term];
            if (list.start == list.end) continue;
            List<Class> made{.documents = arrays.documents.data() + list.start,
                             .classes = classes + list.start,
                             .begin = 0,
                             .end = list.end - list.start,
                             .idf = list.idf,
                             .weight = slot.weight,
                             .upper_bound = bound_of(list, slot.term) * slot.weight,
                             .suffix_bound = 0,
                             .skip_table = list.skip_table,
                             .row = list.row,
                             .length = list.end - list.start};
            if (accepted.low > 0) made.begin = bisect(made.documents, 0, made.length, accepted.low);
            if (accepted.high < arrays.size) made.end = bisect(made.documents, made.begin, made.length, accepted.high);
            std::size_t place = ordered.size();
            ordered.push_back(made);
            for (; place > 0 && ordered[place - 1].upper_bound < made.upper_bound; --place) {
                ordered[place] = ordered[place - 1];
            }
            ordered[place] = made;
        }
        std::int64_t sum = 0;
        for (std::size_t place = ordered.size(); place-- > 0;) {
            sum += ordered[place].upper_bound;
            ordered[place].suffix_bound = sum;
        }
        essential = ordered.size();
    }

    // What one occurrence of the term adds at most to a document that may be a hit.
    std::int64_t bound_of(const TermList& list, std::int32_t term) const {
        const Survey* survey = accepted.surveys == nullptr ? nullptr : accepted.surveys[term];
        return survey == nullptr ? list.upper_bound : part.upper_bound(*survey, list.idf);
    }

    // Raises the threshold to a score that k documents of the segment reach, by the surveys of the lists.
    void raise_threshold(std::span<const TermList> lists, std::span<const Slot> query) {
        const std::int64_t missed = accepted.outside + (accepted.surveys == nullptr ? accepted.blocked : 0);
        int rank = 0;
        while (rank < RANKS && part.segment.options.ranks[rank] < best.k + missed) ++rank;
        if (rank == RANKS) return;
        std::int64_t reached = 0;
        for (const Slot& slot : query) {
            const TermList& list = lists[slot.term];
            const Survey* survey = accepted.surveys == nullptr ? list.survey : accepted.surveys[slot.term];
            if (survey == nullptr) continue;
            const double contribution = list.idf * (survey->values[rank] * part.least) * SCALE;
            // One quantum less covers the rounding.
            reached = std::max(reached, (static_cast<std::int64_t>(contribution) - 1) * slot.weight);
        }
        if (reached <= 0) return;
        // None of these documents is older than the oldest of the segment.
        if constexpr (FADES) reached = decay.key(reached, part.segment.arrays.earliest);
        best.threshold = std::max(best.threshold, reached);
    }

    std::int64_t suffix_bound(std::size_t place) const {
        return place < ordered.size() ? ordered[place].suffix_bound : 0;
    }

    // Reads the documents in [low, high). Returns whether the search of the segment goes on.
    bool read(std::int64_t low, std::int64_t high) {
        if (best.shared != nullptr) {
            best.threshold = std::max(best.threshold, best.shared->load(std::memory_order_relaxed));
        }
        needed = best.threshold;
        if constexpr (FADES) {
            const std::int64_t block = (high - 1) / part.segment.options.time_block;
            needed = decay.least_total(best.threshold, part.segment.arrays.latest_before[block]);
        }
        if (prunes) {
            while (essential > 0 && suffix_bound(essential - 1) < needed) --essential;
        }
        if (essential == 0) return false;
        std::int64_t taken = take(low, high);
        for (std::size_t place = essential; place < ordered.size() && taken > 0; ++place) {
            counted.lookups += taken;
            // What a document needs after this list.
            taken = look_up(ordered[place], taken, low, at_least(needed - suffix_bound(place + 1)));
        }
        if (taken > 0) keep(taken, low);
        return true;
    }

    static std::int32_t at_least(std::int64_t sum) {
        constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
        return static_cast<std::int32_t>(std::clamp<std::int64_t>(sum, 1, largest));
    }

    // Scores the tile's documents by the essential lists. The scores are 0 before and after, so nothing in between may
    // throw. Returns how many may be hits; they are in `scratch`.
    std::int64_t take(std::int64_t low, std::int64_t high) {
        std::int64_t postings = 0;
        bool dense = false;
        for (std::size_t place = 0; place < essential; ++place) {
            List<Class>& list = ordered[place];
            if (list.row != nullptr) {
                add_row(list.row + low, list.weight, high - low);
                counted.row_entries += high - low;
                counted.bytes += (high - low) * static_cast<std::int64_t>(sizeof(std::int32_t));
                dense = true;
                continue;
            }
            advance(list, low, high);
            if (essential > 1) add(list, low);
            postings += list.tile_end - list.tile_begin;
        }
        if (postings == 0 && !dense) return 0;
        counted.postings += postings;
        counted.bytes += postings * static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(Class));
        const bool scans = dense || (essential > 1 && 100 * postings >= options.scan_percent * (high - low));
        if (scans && !FADES && best.count < best.k) {
            drop(accepted.filter, low, high);
            drop(accepted.alive, low, high);
        }
        if (scans && !FADES && best.count < best.k && accepted.times == nullptr) {
            const std::int32_t reached =
                first_threshold(scratch.scores.data(), high - low, scratch.maxima.data(), best.k);
            best.threshold = std::max<std::int64_t>(best.threshold, reached);
            needed = best.threshold;
        }
        const std::int32_t least = at_least(needed - suffix_bound(essential));
        if (scans) return take_from_scores(high - low, least);
        if (essential == 1) return take_from_list(ordered[0], low, least);
        std::int64_t taken = 0;
        for (std::size_t place = 0; place < essential; ++place) {
            // A list with a dense row does not come here: the tile is scanned then.
            taken = take_from_documents(ordered[place], taken, low, least);
        }
        return taken;
    }

    // Finds the list's postings in the tile. The next tile lies behind it, or before it where scores fade.
    static void advance(List<Class>& list, std::int64_t low, std::int64_t high) {
        if constexpr (FADES) {
            list.tile_begin = list.tile_end = list.end;
            if (list.end > list.begin && list.documents[list.end - 1] >= low) {
                list.tile_begin = list.end = seek_back(list.documents, list.begin, list.end, low);
            }
        } else {
            list.tile_begin = list.begin;
            list.tile_end = list.end;
            if (list.end > list.begin && list.documents[list.end - 1] >= high) {
                list.tile_end = seek(list.documents, list.begin, list.end, high);
            }
            list.begin = list.tile_end;
        }
    }

    void add_row(const std::int32_t* __restrict row, std::int32_t weight, std::int64_t count) {
        std::int32_t* __restrict scores = scratch.scores.data();
        for (std::int64_t d = 0; d < count; ++d) scores[d] += row[d] * weight;
    }

    // Sets the scores of documents that do not pass to 0, which is the score of no hit.
    void drop(const std::uint8_t* passes, std::int64_t low, std::int64_t high) {
        if (passes == nullptr) return;
        std::int32_t* __restrict scores = scratch.scores.data();
        const std::uint8_t* __restrict flags = passes + low;
        for (std::int64_t d = 0; d < high - low; ++d) scores[d] = flags[d] != 0 ? scores[d] : 0;
    }

    void add(const List<Class>& list, std::int64_t low) {
        std::int32_t* scores = scratch.scores.data() - low;
        for (std::int64_t p = list.tile_begin; p < list.tile_end; ++p) {
            scores[list.documents[p]] += list.contribution(quanta, p);
        }
    }

    // Takes all documents whose score is `least` or more. The scores become 0.
    std::int64_t take_from_scores(std::int64_t count, std::int32_t least) {
        std::int32_t* scores = scratch.scores.data();
        std::int32_t *places = scratch.places.data(), *sums = scratch.sums.data();
        std::int64_t taken = 0;
        for (std::int64_t start = 0; start < count; start += BLOCK) {
            const std::int64_t stop = std::min(start + BLOCK, count);
            if (largest_of(scores + start, stop - start) < least) continue;
            for (std::int64_t d = start; d < stop; ++d) {
                places[taken] = static_cast<std::int32_t>(d);
                sums[taken] = scores[d];
                taken += scores[d] >= least;
            }
        }
        std::memset(scores, 0, static_cast<std::size_t>(count) * sizeof(std::int32_t));
        return taken;
    }

    // As `take_from_scores`, of the list's documents alone; `taken` candidates are there already.
    std::int64_t take_from_documents(const List<Class>& list, std::int64_t taken, std::int64_t low,
                                     std::int32_t least) {
        std::int32_t* scores = scratch.scores.data();
        std::int32_t *places = scratch.places.data(), *sums = scratch.sums.data();
        for (std::int64_t p = list.tile_begin; p < list.tile_end; ++p) {
            const std::int32_t place = static_cast<std::int32_t>(list.documents[p] - low);
            const std::int32_t sum = scores[place];
            scores[place] = 0;
            places[taken] = place;
            sums[taken] = sum;
            taken += sum >= least;
        }
        return taken;
    }

    // As `take_from_scores`, of the only essential list: its contributions are the scores.
    std::int64_t take_from_list(const List<Class>& list, std::int64_t low, std::int32_t least) {
        std::int32_t *places = scratch.places.data(), *sums = scratch.sums.data();
        std::int64_t taken = 0;
        for (std::int64_t p = list.tile_begin; p < list.tile_end; ++p) {
            const std::int32_t sum = list.contribution(quanta, p);
            places[taken] = static_cast<std::int32_t>(list.documents[p] - low);
            sums[taken] = sum;
            taken += sum >= least;
        }
        return taken;
    }

    // Adds what the list contributes to the candidates, and drops those below `least`. Returns how many are left.
    std::int64_t look_up(const List<Class>& list, std::int64_t taken, std::int64_t low, std::int32_t least) {
        std::int32_t *places = scratch.places.data(), *sums = scratch.sums.data();
        std::int64_t kept = 0;
        const auto look = [&](auto&& find) {
            for (std::int64_t candidate = 0; candidate < taken; ++candidate) {
                const std::int32_t place = places[candidate];
                const std::int32_t sum = sums[candidate] + find(place);
                places[kept] = place;
                sums[kept] = sum;
                kept += sum >= least;
            }
        };
        if (list.row != nullptr) {
            const std::int32_t* row = list.row + low;
            look([&](std::int32_t place) { return row[place] * list.weight; });
        } else if (list.skip_table != nullptr) {
            // In two steps, as a processor cannot guess which documents a list has: those that it may have are put
            // aside first, and the others are kept or dropped.
            const SkipTable& table = *list.skip_table;
            const auto first = static_cast<std::int32_t>(low);
            std::int32_t *found = scratch.found.data(), *found_sums = scratch.found_sums.data();
            std::int64_t count = 0;
            const auto split = [&](auto&& may_have) {
                for (std::int64_t candidate = 0; candidate < taken; ++candidate) {
                    const std::int32_t place = places[candidate], sum = sums[candidate];
                    const bool present = may_have(first + place);
                    found[count] = place;
                    found_sums[count] = sum;
                    count += present;
                    places[kept] = place;
                    sums[kept] = sum;
                    kept += !present & (sum >= least);
                }
            };
            const auto join = [&](auto&& find) {
                for (std::int64_t candidate = 0; candidate < count; ++candidate) {
                    const std::int32_t place = found[candidate];
                    const std::int32_t sum = found_sums[candidate] + find(first + place);
                    places[kept] = place;
                    sums[kept] = sum;
                    kept += sum >= least;
                }
            };
            if (table.words != nullptr) {
                const SkipTable::Word* words = table.words.get();
                split([&](std::int32_t document) { return words[document >> 6].present >> (document & 63) & 1; });
                join([&](std::int32_t document) { return list.contribution(quanta, table.rank(document)); });
            } else {
                split([&](std::int32_t document) { return table.may_have(document); });
                join([&](std::int32_t document) {
                    const std::int32_t p = table.scan(list.documents, document);
                    return p < 0 ? 0 : list.contribution(quanta, p);
                });
            }
        } else {
            look([&](std::int32_t place) {
                const std::int64_t document = low + place;
                const std::int64_t p = bisect(list.documents, 0, list.length, document);
                return p < list.length && list.documents[p] == document ? list.contribution(quanta, p) : 0;
            });
        }
        return kept;
    }

    // Keeps the candidates that are hits.
    void keep(std::int64_t taken, std::int64_t low) {
        const std::int32_t *places = scratch.places.data(), *sums = scratch.sums.data();
        const double* times = part.segment.arrays.times.empty() ? nullptr : part.segment.arrays.times.data();
        const std::int64_t before = best.count;
        for (std::int64_t candidate = 0; candidate < taken; ++candidate) {
            const std::int64_t document = low + places[candidate];
            std::int64_t key = sums[candidate];
            if constexpr (FADES) {
                key = decay.key(key, times == nullptr ? std::numeric_limits<double>::infinity() : times[document]);
            }
            if (key < best.threshold || !accepted(document)) continue;
            if constexpr (FADES) {
                scratch.hits[best.count++] = {key, part.first + document};
            } else {
                scratch.keys[best.count++] = pack(key, part.first + document);
            }
            // A candidate that comes later in this tile may be an older document, so it need only equal the k-th score.
            if (best.count == best.room) best.threshold = std::max(best.threshold, cut());
        }
        // Also where a cut in between left as many as before: the threshold rose then.
        if (best.count < best.k || best.count == before) return;
        const std::int64_t last = cut();
        // Later tiles hold younger documents: they must beat the k-th score. Where scores fade they hold older ones,
        // which need only equal it.
        best.threshold = std::max(best.threshold, FADES ? last : last + 1);
        if (best.shared != nullptr) {
            std::int64_t known = best.shared->load(std::memory_order_relaxed);
            while (known < last && !best.shared->compare_exchange_weak(known, last, std::memory_order_relaxed)) {
            }
        }
    }

    // Keeps the k best hits; returns the key of the k-th.
    std::int64_t cut() {
        const std::int64_t count = std::exchange(best.count, best.k);
        if constexpr (FADES) {
            return keep_best(scratch.hits.data(), count, best.k).key;
        } else {
            return score_of(keep_best(scratch.keys.data(), count, best.k));
        }
    }

    const Part& part;
    const double* quanta;
    const Accepted& accepted;
    const Decay& decay;
    const ScoreOptions& options;
    const bool prunes;
    Best& best;
    Scratch& scratch;
    Counted& counted;
    std::vector<List<Class>> ordered;
    std::size_t essential = 0;  // how many of `ordered` are read; the rest is looked up
    std::int64_t needed = 1;    // the sum of quanta that a hit of the tile needs
};

void score(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Accepted& accepted,
           const Decay& decay, const ScoreOptions& options, Best& best, Scratch& scratch, Counted& counted) {
    const auto& arrays = part.segment.arrays;
    const auto run = [&](const auto* classes) {
        using Class = std::remove_cvref_t<decltype(*classes)>;
        if (decay.rate > 0.0) {
            Scorer<Class, true>(part, classes, lists, query, accepted, decay, options, best, scratch, counted).run();
        } else {
            Scorer<Class, false>(part, classes, lists, query, accepted, decay, options, best, scratch, counted).run();
        }
    };
    if (arrays.wide_classes.empty()) {
        run(arrays.classes.data());
    } else {
        run(arrays.wide_classes.data());
    }
}
