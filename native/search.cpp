#include "search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "threads.hpp"

namespace fanrank::search {

namespace {

thread_local Scratch scratch;
thread_local LentSums lent_sums;
thread_local FewSums few;
thread_local DialogueScorer dialogues;

// One part of the snapshot as the batch reads it.
struct BatchPart {
    std::once_flag once;
    std::vector<TermList> lists;     // [distinct terms]
    std::vector<Accepted> accepted;  // [settings]
    std::vector<std::vector<const Survey*>> surveys;  // what `accepted` points to
};

// Lists are surveyed among the documents that pass a filter once it was used before, and so many pass: one in this.
constexpr std::int64_t SURVEYED_SHARE = 16;

// Places whose sums give a first bound to the k best of those that borrow.
constexpr std::int64_t SAMPLED = 1024;

Accepted accept(const Part& part, std::size_t number, const Setting& setting) {
    const auto& arrays = part.segment.arrays;
    Accepted accepted;
    accepted.high = arrays.size;
    accepted.blocked = part.deleted;
    if (!part.alive.empty()) accepted.alive = part.alive.data();
    if (setting.masks != nullptr && setting.masks->passing[number] < arrays.size) {
        accepted.filter = setting.masks->of_part[number].data();
        accepted.blocked += arrays.size - setting.masks->passing[number];
    }
    const bool whole = arrays.complete && setting.since <= arrays.earliest && arrays.latest <= setting.until;
    if (!setting.ranged || whole) return accepted;
    const auto& times = arrays.times;
    if (arrays.latest < setting.since || setting.until < arrays.earliest) {
        accepted.high = 0;
    } else if (arrays.in_order) {
        accepted.low = std::lower_bound(times.begin(), times.end(), setting.since) - times.begin();
        accepted.high = std::upper_bound(times.begin(), times.end(), setting.until) - times.begin();
        accepted.outside = arrays.size - (accepted.high - accepted.low);
    } else {
        accepted.times = times.data();
        accepted.since = setting.since;
        accepted.until = setting.until;
        accepted.outside = arrays.size;
    }
    return accepted;
}

class Search {
public:
    Search(const Snapshot& of, const Plan& with, const Request& asked, const Answer& out,
           std::vector<std::int64_t>* not_read)
        : snapshot(of),
          plan(with),
          request(asked),
          answer(out),
          unread(not_read),
          parts(new BatchPart[of.parts.size()]) {
        uses.resize(plan.terms.size());
        for (const Slot& slot : plan.slots) ++uses[slot.term];
        postings.resize(queries());
        for (std::size_t query = 0; query < queries(); ++query) {
            for (const Slot& slot : slots(query)) postings[query] += plan.frequencies[slot.term];
        }
    }

    Counted run() {
        if (request.lending != nullptr) {
            run_tasks(static_cast<std::int64_t>(queries()), request.threads, [this](std::int64_t number) {
                const auto query = static_cast<std::size_t>(number);
                request.dialogue == nullptr ? borrow(query) : answer_dialogue(query);
            });
            return counted;
        }
        // A batch of few queries with long lists is shared out by documents, any other one by queries.
        const std::int64_t threads = std::max(request.threads, 1);
        const auto longest = std::max_element(postings.begin(), postings.end());
        const bool splits = threads > 1 && static_cast<std::int64_t>(queries()) < 2 * threads &&
                            longest != postings.end() && *longest >= request.options.shared_postings;
        if (splits) {
            for (std::size_t query = 0; query < queries(); ++query) run_shared(query, threads);
        } else {
            run_tasks(static_cast<std::int64_t>(queries()), request.threads, [this](std::int64_t number) {
                const auto query = static_cast<std::size_t>(number);
                if (!can_have_hits(query)) return write(query, nullptr, nullptr, 0);
                Best best;
                Counted own;
                start(best, scratch, k_of(query), request.options);
                read(query, 0, std::numeric_limits<std::int64_t>::max(), best, own);
                write(query, best);
                add(own);
            });
        }
        return counted;
    }

private:
    std::size_t queries() const { return plan.offsets.size() - 1; }
    std::span<const Slot> slots(std::size_t query) const {
        return std::span(plan.slots).subspan(plan.offsets[query], plan.offsets[query + 1] - plan.offsets[query]);
    }
    const Setting& setting(std::size_t query) const { return request.settings[request.setting[query]]; }
    bool fades(std::size_t query) const { return setting(query).decay.rate > 0.0; }
    std::int64_t k_of(std::size_t query) const { return std::min(request.k[query], snapshot.statistics.documents); }
    bool can_have_hits(std::size_t query) const { return !slots(query).empty() && k_of(query) > 0; }

    // Reads the query's documents in [low, high) of the snapshot.
    void read(std::size_t query, std::int64_t low, std::int64_t high, Best& best, Counted& own) {
        const std::size_t count = snapshot.parts.size();
        const Decay& decay = setting(query).decay;
        const auto highest = static_cast<std::int64_t>(std::ceil(plan.highest[query]));
        for (std::size_t step = 0; step < count; ++step) {
            const std::size_t number = fades(query) ? count - 1 - step : step;
            const Part& part = *snapshot.parts[number];
            const std::int64_t end = part.first + part.segment.arrays.size;
            if (end <= low || high <= part.first) continue;
            if (fades(query) && !request.options.exhaustive && best.count >= best.k &&
                decay.key(highest, snapshot.latest_upto[number]) < best.threshold) {
                break;
            }
            const BatchPart& batch_part = prepared(number);
            Accepted accepted = batch_part.accepted[request.setting[query]];
            if (low > part.first || high < end) {
                const std::int64_t before = accepted.high - accepted.low;
                accepted.low = std::max(accepted.low, low - part.first);
                accepted.high = std::min(accepted.high, high - part.first);
                accepted.outside += before - std::max<std::int64_t>(accepted.high - accepted.low, 0);
            }
            if (accepted.low >= accepted.high) continue;
            score(part, batch_part.lists, slots(query), accepted, decay, request.options, best, scratch, own);
        }
    }

    // The documents that may be hits of a query, by number.
    struct Passing final : Acceptance {
        Passing(Search& with, std::size_t of) : search(with), query(of) {}
        bool operator()(std::int64_t document) const override {
            const std::size_t number = search.request.lending->links->part_number(document);
            const Accepted& accepted = search.prepared(number).accepted[search.request.setting[query]];
            const std::int64_t position = document - search.snapshot.parts[number]->first;
            return position >= accepted.low && position < accepted.high && accepted(position);
        }
        Search& search;
        std::size_t query;
    };

    // Finds the k best of a query whose documents borrow from their neighbours, in no order: `own.hits`.
    void lend(std::size_t query, std::int64_t k, const Layout& layout, LentSums& own, Counted& counts) {
        Loan loan(request.lending->weights, plan.highest[query]);
        loan.later = loan.window > 0 && postings[query] * request.options.later_share >= snapshot.statistics.documents;
        own.keeps = request.dialogue != nullptr;
        own.kept_most = request.options.kept_postings;
        own.prepare(layout, loan.wide);
        for (std::size_t number = 0; number < snapshot.parts.size(); ++number) {
            search::lend(*snapshot.parts[number], prepared(number).lists, slots(query), layout, loan, own, counts);
        }
        sample(query, layout, own);
        const Passing passing(*this, query);
        const bool narrowed = setting(query).masks != nullptr || setting(query).ranged;
        take_best(layout, loan, k, narrowed ? &passing : nullptr, own);
    }

    // Gives `own` places of the query's shortest lists, which come last.
    void sample(std::size_t query, const Layout& layout, LentSums& own) {
        const auto all = slots(query);
        for (auto slot = all.rbegin(); slot != all.rend(); ++slot) {
            for (std::size_t number = 0; number < snapshot.parts.size(); ++number) {
                const Part& part = *snapshot.parts[number];
                const TermList& list = prepared(number).lists[slot->term];
                const std::int64_t room = SAMPLED - static_cast<std::int64_t>(own.sampled.size());
                const std::int32_t* documents = part.segment.arrays.documents.data() + list.start;
                for (std::int64_t at = 0; at < std::min(room, list.end - list.start); ++at) {
                    const std::int32_t place = layout.place_of[static_cast<std::size_t>(part.first + documents[at])];
                    if (place != layout.end) own.sampled.push_back(place);
                }
            }
        }
    }

    // As `lend`, for a query whose postings lend to few documents: it needs no layout, and passes by all others.
    void lend_few(std::size_t query, std::int64_t k, Counted& own) {
        const Links& links = *request.lending->links;
        const std::span<const std::int64_t> weights = request.lending->weights;
        few.prepare(postings[query] * (2 * static_cast<std::int64_t>(weights.size()) + 1));
        for (std::size_t number = 0; number < snapshot.parts.size(); ++number) {
            const Part& part = *snapshot.parts[number];
            const auto& arrays = part.segment.arrays;
            const auto& lists = prepared(number).lists;
            for (const Slot& slot : slots(query)) {
                const TermList& list = lists[slot.term];
                for (std::int64_t posting = list.start; posting < list.end; ++posting) {
                    const std::int32_t position = arrays.documents[posting];
                    if (!part.alive.empty() && part.alive[position] == 0) continue;
                    const std::int64_t quanta = std::int64_t{quanta_of(part, list, posting)} * slot.weight;
                    std::int64_t before = part.first + position, after = before;
                    few.add(before, STEPS * quanta);
                    for (const std::int64_t weight : weights) {
                        if (before >= 0 && (before = links.previous(before)) >= 0) few.add(before, weight * quanta);
                        if (after >= 0 && (after = links.following(after)) >= 0) few.add(after, weight * quanta);
                    }
                }
                own.postings += list.end - list.start;
                const std::size_t wide = arrays.wide_classes.empty() ? 1 : sizeof(arrays.wide_classes[0]);
                own.bytes += (list.end - list.start) * static_cast<std::int64_t>(sizeof(std::int32_t) + wide);
            }
        }
        const Passing passing(*this, query);
        const bool narrowed = setting(query).masks != nullptr || setting(query).ranged;
        auto& hits = lent_sums.hits;
        hits.clear();
        few.each([&](std::int32_t document, std::int64_t steps) {
            if (steps > 0 && (!narrowed || passing(document))) hits.push_back({steps, document});
        });
        if (static_cast<std::int64_t>(hits.size()) <= k) return;
        keep_best(hits.data(), static_cast<std::int64_t>(hits.size()), k);
        hits.resize(static_cast<std::size_t>(k));
    }

    void borrow(std::size_t query) {
        if (!can_have_hits(query)) return write(query, nullptr, nullptr, 0);
        Counted own;
        const auto window = static_cast<std::int64_t>(request.lending->weights.size());
        const Part& last = *snapshot.parts.back();
        const std::int64_t documents = last.first + last.segment.arrays.size;
        if (postings[query] * (2 * window + 1) * request.options.lent_share <= documents) {
            lend_few(query, k_of(query), own);
        } else {
            lend(query, k_of(query), request.lending->links->layout(window, snapshot.parts), lent_sums, own);
        }
        auto& hits = lent_sums.hits;
        std::sort(hits.begin(), hits.end(), [](const Hit& one, const Hit& other) { return one.precedes(other); });
        write(query, nullptr, hits.data(), static_cast<std::int64_t>(hits.size()));
        add(own);
    }

    // Ranks the best of a query whose documents borrow by what stands around them and how they are said.
    void answer_dialogue(std::size_t query) {
        const Dialogue& dialogue = *request.dialogue;
        const std::int64_t depth = std::min(std::max(dialogue.depth, k_of(query)), snapshot.statistics.documents);
        if (!can_have_hits(query) || depth <= 0) return write(query, nullptr, nullptr, 0);
        Counted own;
        const Links& links = *request.lending->links;
        const auto lent = static_cast<std::int64_t>(request.lending->weights.size());
        const Layout& layout = links.layout(std::max(dialogue.window(), lent), snapshot.parts);
        LentSums& sums = lent_sums;
        lend(query, depth, layout, sums, own);
        const std::int64_t row = answer.rows[query], first = row * answer.width;
        DialogueScorer& scorer = dialogues;
        scorer.run({snapshot, links, layout, dialogue, *request.asked}, slots(query), static_cast<std::size_t>(row), sums);
        auto& found = scorer.candidates;
        const std::int64_t kept = std::min(k_of(query), static_cast<std::int64_t>(found.size()));
        std::partial_sort(found.begin(), found.begin() + kept, found.end(), [](const auto& one, const auto& other) {
            return one.score > other.score || (one.score == other.score && one.document < other.document);
        });
        for (std::int64_t place = 0; place < kept; ++place) {
            answer.scores[first + place] = found[place].score;
            answer.documents[first + place] = found[place].document;
        }
        answer.counts[row] = static_cast<std::int32_t>(kept);
        const std::lock_guard<std::mutex> lock(mutex);
        counted.add(own);
        unread->insert(unread->end(), scorer.unread.begin(), scorer.unread.end());
    }

    // Answers a query on several threads. Each reads a stretch of documents; they share the threshold.
    void run_shared(std::size_t query, std::int64_t threads) {
        if (!can_have_hits(query)) return write(query, nullptr, nullptr, 0);
        const Part& last = *snapshot.parts.back();
        const std::int64_t documents = last.first + last.segment.arrays.size;
        const std::int64_t stretches = postings[query] < request.options.shared_postings ? 1 : threads;
        std::atomic<std::int64_t> shared{1};
        std::vector<std::vector<Hit>> hits(static_cast<std::size_t>(stretches));
        run_tasks(stretches, request.threads, [&](std::int64_t number) {
            // The newest first: where scores fade they are the highest.
            const std::int64_t stretch = stretches - 1 - number;
            Best best;
            Counted own;
            start(best, scratch, k_of(query), request.options);
            best.shared = &shared;
            read(query, stretch * documents / stretches, (stretch + 1) * documents / stretches, best, own);
            auto& mine = hits[static_cast<std::size_t>(stretch)];
            for (std::int64_t place = 0; place < best.count; ++place) {
                mine.push_back(fades(query) ? scratch.hits[place]
                                            : Hit{score_of(scratch.keys[place]), document_of(scratch.keys[place])});
            }
            add(own);
        });
        std::vector<Hit> all;
        for (const auto& mine : hits) all.insert(all.end(), mine.begin(), mine.end());
        const std::int64_t kept = std::min<std::int64_t>(k_of(query), static_cast<std::int64_t>(all.size()));
        std::partial_sort(all.begin(), all.begin() + kept, all.end(),
                          [](const Hit& one, const Hit& other) { return one.precedes(other); });
        write(query, nullptr, all.data(), kept);
    }

    const BatchPart& prepared(std::size_t number) {
        BatchPart& batch_part = parts[number];
        std::call_once(batch_part.once, [&] { prepare(number, batch_part); });
        return batch_part;
    }

    void prepare(std::size_t number, BatchPart& batch_part) {
        Part& part = *snapshot.parts[number];
        Segment& segment = part.segment;
        const bool prunes = !request.options.exhaustive && segment.arrays.size >= request.options.pruned_documents;
        batch_part.lists.resize(plan.terms.size());
        for (std::size_t term = 0; term < plan.terms.size(); ++term) {
            const std::int64_t position = segment.locate(plan.terms[term]);
            if (position < 0) continue;
            TermList& list = batch_part.lists[term];
            list.start = segment.arrays.offsets[position];
            list.end = segment.arrays.offsets[position + 1];
            list.idf = plan.idf[term];
            if (request.dialogue != nullptr) list.skip_table = segment.skip_table(position);
            // All lists are read where documents borrow.
            if (request.lending != nullptr) continue;
            list.row = part.dense_row(position, list.idf, uses[term], request.options.dense_uses);
            if (!prunes) continue;
            list.skip_table = segment.skip_table(position);
            list.survey = &segment.survey(*part.reference, position);
            list.upper_bound = part.upper_bound(*list.survey, list.idf);
        }
        batch_part.accepted.reserve(request.settings.size());
        batch_part.surveys.reserve(request.settings.size());
        for (const Setting& each : request.settings) {
            Accepted accepted = accept(part, number, each);
            const bool surveys = prunes && request.lending == nullptr && accepted.filter != nullptr &&
                                 each.masks->uses.load(std::memory_order_relaxed) > 1 &&
                                 each.masks->passing[number] * SURVEYED_SHARE >= segment.arrays.size;
            if (surveys) {
                auto& made = batch_part.surveys.emplace_back(plan.terms.size(), nullptr);
                for (std::size_t term = 0; term < plan.terms.size(); ++term) {
                    const std::int64_t position = segment.locate(plan.terms[term]);
                    if (position >= 0) made[term] = each.masks->survey(number, part, position);
                }
                accepted.surveys = made.data();
            }
            batch_part.accepted.push_back(accepted);
        }
    }

    void write(std::size_t query, Best& best) {
        const std::int64_t k = best.k;
        if (fades(query)) {
            std::int64_t count = best.count;
            if (count > k) {
                keep_best(scratch.hits.data(), count, k);
                count = k;
            }
            std::sort(scratch.hits.begin(), scratch.hits.begin() + count,
                      [](const Hit& one, const Hit& other) { return one.precedes(other); });
            write(query, nullptr, scratch.hits.data(), count);
        } else {
            std::int64_t count = best.count;
            if (count > k) {
                keep_best(scratch.keys.data(), count, k);
                count = k;
            }
            std::sort(scratch.keys.begin(), scratch.keys.begin() + count, std::greater<>());
            write(query, scratch.keys.data(), nullptr, count);
        }
    }

    // Writes `count` hits, best first: packed keys or `hits`.
    void write(std::size_t query, const std::int64_t* packed, const Hit* hits, std::int64_t count) {
        const std::int64_t row = answer.rows[query], first = row * answer.width;
        for (std::int64_t place = 0; place < count; ++place) {
            const std::int64_t key = packed != nullptr ? score_of(packed[place]) : hits[place].key;
            answer.documents[first + place] = packed != nullptr ? document_of(packed[place]) : hits[place].document;
            if (answer.scores == nullptr) {
                answer.quanta[first + place] = key;
            } else {
                const double score = fades(query) ? std::bit_cast<double>(key) : static_cast<double>(key);
                answer.scores[first + place] = score * answer.unit;
            }
        }
        answer.counts[row] = static_cast<std::int32_t>(count);
    }

    void add(const Counted& own) {
        const std::lock_guard<std::mutex> lock(mutex);
        counted.add(own);
    }

    const Snapshot& snapshot;
    const Plan& plan;
    const Request& request;
    const Answer& answer;
    std::vector<std::int64_t>* unread;
    std::unique_ptr<BatchPart[]> parts;
    std::vector<std::int64_t> uses;      // [distinct terms] queries of the batch that hold the term
    std::vector<std::int64_t> postings;  // [queries] of all lists
    std::mutex mutex;
    Counted counted;
};

}  // namespace

const Survey* Masks::survey(std::size_t number, const Part& part, std::int64_t position) const {
    const std::pair key{number, position};
    std::mutex& mutex = short_mutex(this);
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (const auto known = surveys_.find(key); known != surveys_.end()) return &known->second;
        if (surveys_.size() >= most) return nullptr;
    }
    const Survey made = part.segment.survey(*part.reference, position, of_part[number], part.alive);
    const std::lock_guard<std::mutex> lock(mutex);
    return &surveys_.try_emplace(key, made).first->second;
}

std::size_t Masks::surveyed() const {
    const std::lock_guard<std::mutex> lock(short_mutex(this));
    return surveys_.size();
}

Counted search(const Snapshot& snapshot, const Plan& plan, const Request& request, const Answer& answer,
               std::vector<std::int64_t>* unread) {
    for (const Setting& each : request.settings) {
        if (each.masks != nullptr) each.masks->uses.fetch_add(1, std::memory_order_relaxed);
    }
    return Search(snapshot, plan, request, answer, unread).run();
}

}  // namespace fanrank::search
