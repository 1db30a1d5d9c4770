#include "dialogue.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace fanrank::search {

namespace {

// What was read of a document's text; another thread may just be writing it down.
std::int32_t said_of(const CuePart& part, std::int64_t position) {
    return std::atomic_ref<std::int32_t>(const_cast<std::int32_t&>(part.said[position])).load(std::memory_order_relaxed);
}

std::int64_t length_of(const CuePart& part, std::int64_t position) {
    const std::size_t documents = part.said.size();
    std::int64_t length = 0;
    for (std::size_t at = static_cast<std::size_t>(position); at < part.lengths.size(); at += documents) {
        length += part.lengths[at];
    }
    return length;
}

}  // namespace

std::int32_t quanta_of(const Part& part, const TermList& list, std::int64_t posting) {
    const auto& arrays = part.segment.arrays;
    const std::uint32_t impact =
        arrays.wide_classes.empty() ? arrays.classes[posting] : arrays.wide_classes[posting];
    return std::max(static_cast<std::int32_t>(std::lrint(list.idf * part.quanta[impact])), 1);
}

std::int32_t contribution_of(const Part& part, const TermList& list, std::int32_t position) {
    if (list.start == list.end) return 0;
    const auto& arrays = part.segment.arrays;
    const std::int32_t* documents = arrays.documents.data() + list.start;
    const std::int64_t length = list.end - list.start;
    std::int64_t found;
    if (list.skip_table != nullptr) {
        found = list.skip_table->find(documents, position);
        if (found < 0) return 0;
    } else {
        found = std::lower_bound(documents, documents + length, position) - documents;
        if (found == length || documents[found] != position) return 0;
    }
    return quanta_of(part, list, list.start + found);
}

void DialogueScorer::gather(const Layout& layout, std::size_t window, const PlacedSums& own) {
    candidates.clear();
    for (const Hit& hit : own.hits) {
        const std::int32_t place = layout.place_of[hit.document];
        const auto reach = place < layout.alone ? static_cast<std::int32_t>(window) : 0;
        candidates.push_back({place, static_cast<std::int32_t>(hit.document), reach, reach, reach, false, 0, 0.0});
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& one, const Candidate& other) { return one.place < other.place; });
    near_.clear();
    std::int32_t next = 0;
    for (const Candidate& candidate : candidates) {
        next = std::max(next, candidate.place - candidate.reach);
        for (; next <= candidate.place + candidate.reach; ++next) {
            if (own.sums[next] != 0 && layout.document_at[next] >= 0) near_.push_back({next, layout.document_at[next]});
        }
    }
}

// Who says each candidate; where an assistant writes at length only the other turn of the exchange lends.
void DialogueScorer::look_around(const Snapshot& snapshot, const Links& links, const Layout& layout,
                                 const Dialogue& dialogue) {
    for (Candidate& candidate : candidates) {
        if (candidate.place >= layout.alone) continue;
        // The terms and turns of the record's own side, and of the other.
        std::int64_t terms[2] = {}, turns[2] = {};
        for (std::int32_t distance = -static_cast<std::int32_t>(NARROW); distance <= NARROW; ++distance) {
            const std::int32_t near = layout.document_at[candidate.place + distance];
            if (near < 0) continue;
            const std::size_t number = links.part_number(near);
            terms[distance & 1] += length_of(dialogue.parts[number], near - snapshot.parts[number]->first);
            turns[distance & 1] += 1;
        }
        const auto wordy = [&](int side) {
            return turns[side] > 0 && terms[side] >= dialogue.options.wordy * turns[side];
        };
        const auto outwrites = [&](int side) {
            return wordy(side) &&
                   terms[side] * turns[1 - side] >= dialogue.options.times * terms[1 - side] * turns[side];
        };
        const std::size_t number = links.part_number(candidate.document);
        const CuePart& part = dialogue.parts[number];
        const std::int32_t role =
            part.roles.empty() ? -1 : part.roles[candidate.document - snapshot.parts[number]->first];
        const bool told = role != -1;
        candidate.by_assistant = told ? role == dialogue.assistant : outwrites(0);
        if (told ? wordy(candidate.by_assistant ? 0 : 1) : outwrites(0) || outwrites(1)) {
            // An answer's question, a question's answer.
            candidate.before = std::min(candidate.reach, candidate.by_assistant ? 1 : 0);
            candidate.after = std::min(candidate.reach, candidate.by_assistant ? 0 : 1);
        }
    }
}

// Each word counts once, where it counts most.
void DialogueScorer::add_words(std::span<const std::int64_t> around, std::span<const Slot> query) {
    std::size_t first = 0;
    for (Candidate& candidate : candidates) {
        while (first < near_.size() && near_[first].place < candidate.place - candidate.reach) ++first;
        std::size_t last = first;
        while (last < near_.size() && near_[last].place <= candidate.place + candidate.reach) ++last;
        for (std::size_t slot = 0; slot < query.size(); ++slot) {
            std::int64_t most = 0;
            for (std::size_t row = first; row < last; ++row) {
                const std::int32_t offset = near_[row].place - candidate.place;
                if (offset < -candidate.before || offset > candidate.after) continue;
                const std::int64_t steps = offset == 0 ? STEPS : around[std::abs(offset) - 1];
                most = std::max(most, steps * given_[row * query.size() + slot]);
            }
            candidate.words += most * query[slot].weight;
        }
    }
}

void DialogueScorer::fuse(const Snapshot& snapshot, const Links& links, const Layout& layout, const Dialogue& dialogue,
                          std::int64_t text) {
    const auto part_of = [&](std::int64_t document) -> const CuePart& {
        return dialogue.parts[links.part_number(document)];
    };
    const auto position_of = [&](std::int64_t document) {
        return document - snapshot.parts[links.part_number(document)]->first;
    };
    const auto read = [&](std::int64_t document) {
        const std::int32_t value = said_of(part_of(document), position_of(document));
        if (value == 0) unread.push_back(document);
        return value;
    };
    // A record without a neighbour in its session is no turn.
    const auto is_turn = [&](const Candidate& candidate) { return candidate.place < layout.alone; };
    const auto length = [&](std::int64_t document) { return length_of(part_of(document), position_of(document)); };
    const auto value_of = [&](Evidence evidence, const Candidate& candidate) -> double {
        if (evidence == Evidence::words) {
            return static_cast<double>(candidate.words) / static_cast<double>(STEPS) / SCALE;
        }
        if (!is_turn(candidate)) return 0.0;
        switch (evidence) {
            case Evidence::asks:
                return (read(candidate.document) & ASKS) != 0;
            case Evidence::answers: {
                const std::int32_t before = layout.document_at[candidate.place - 1];
                return before >= 0 && (read(before) & ASKS) != 0;
            }
            case Evidence::speaker: {
                const std::int32_t speaker = read(candidate.document) >> SPEAKER_SHIFT;
                const CuePart& part = part_of(candidate.document);
                if (speaker == 0 || part.offsets.empty()) return 0.0;
                const auto named = part.ids.subspan(static_cast<std::size_t>(part.offsets[text]),
                                                    static_cast<std::size_t>(part.offsets[text + 1] - part.offsets[text]));
                return std::find(named.begin(), named.end(), speaker) != named.end();
            }
            case Evidence::told:
                return candidate.by_assistant && dialogue.told[text] != 0;
            default: {
                if (evidence == Evidence::assistant_length && !candidate.by_assistant) return 0.0;
                const auto terms = static_cast<double>(length(candidate.document));
                return terms / (terms + dialogue.options.half_length);
            }
        }
    };
    values_.resize(candidates.size());
    for (const Share& share : dialogue.shares) {
        double high = 0.0;
        for (std::size_t number = 0; number < candidates.size(); ++number) {
            values_[number] = value_of(share.evidence, candidates[number]);
            high = std::max(high, values_[number]);
        }
        const double divisor = share.relative && high > 0.0 ? high : 1.0;
        for (std::size_t number = 0; number < candidates.size(); ++number) {
            candidates[number].score = candidates[number].score + share.weight * (values_[number] / divisor);
        }
    }
}

}  // namespace fanrank::search
