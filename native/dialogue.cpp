#include "dialogue.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
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

// A posting's contribution to a document, in quanta; 0: the list has no such posting.
static std::int32_t contribution_of(const Part& part, const TermList& list, std::int32_t position) {
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

bool Dialogue::reads_texts() const {
    return std::any_of(shares.begin(), shares.end(), [](const Share& share) {
        return share.evidence == Evidence::asks || share.evidence == Evidence::answers ||
               share.evidence == Evidence::speaker;
    });
}

std::atomic<std::uint32_t>* Dialogue::cues(const Layout& layout) const {
    std::call_once(once_, [&] { cues_.reset(new std::atomic<std::uint32_t>[layout.document_at.size()]()); });
    return cues_.get();
}

void DialogueScorer::run(const Talk& talk, std::span<const Slot> query, std::size_t text, LentSums& own) {
    unread.clear();
    gather(talk, own);
    add_words(talk, query, own);
    fuse(talk, text);
}

void DialogueScorer::gather(const Talk& talk, const LentSums& own) {
    const Layout& layout = talk.layout;
    candidates.clear();
    std::atomic<std::uint32_t>* known = talk.dialogue.cues(layout);
    for (const Hit& hit : own.hits) {
        const std::int32_t place = layout.place_of[hit.document];
        std::uint64_t cues = known[place].load(std::memory_order_relaxed);
        if (cues == 0) {
            cues = cues_of(talk, place);
            if (cues <= 0xFFFFFFFF && (cues & cue::KNOWN) != 0) {
                known[place].store(static_cast<std::uint32_t>(cues), std::memory_order_relaxed);
            }
        }
        const auto reach = static_cast<std::int32_t>((cues & cue::TURN) != 0 ? talk.dialogue.around.size() : 0);
        std::int32_t before = reach, after = reach;
        if ((cues & cue::NARROW) != 0) {
            // An answer's question, a question's answer.
            const bool answers = (cues & cue::BY_ASSISTANT) != 0;
            before = std::min(reach, answers ? 1 : 0);
            after = std::min(reach, answers ? 0 : 1);
        }
        candidates.push_back({place, static_cast<std::int32_t>(hit.document), before, after, cues, 0, 0.0});
    }
}

// Who says what stands at a place, and whether an assistant writes at length there: then only the other turn of the
// exchange lends. `KNOWN` is not set where a text must be read first.
std::uint64_t DialogueScorer::cues_of(const Talk& talk, std::int32_t place) {
    const auto& [snapshot, links, layout, dialogue, asked] = talk;
    const auto part_of = [&](std::int64_t document) -> const CuePart& {
        return dialogue.parts[links.part_number(document)];
    };
    const auto position_of = [&](std::int64_t document) {
        return document - snapshot.parts[links.part_number(document)]->first;
    };
    const std::int32_t document = layout.document_at[place];
    const auto length = static_cast<std::uint64_t>(length_of(part_of(document), position_of(document)));
    std::uint64_t found = length << cue::LENGTH_SHIFT | cue::KNOWN;
    // A record without a neighbour in its session is no turn.
    if (!layout.is_turn(place)) return found;
    found |= cue::TURN;
    // The terms and turns of the record's own side, and of the other.
    std::int64_t terms[2] = {}, turns[2] = {};
    for (std::int32_t distance = -static_cast<std::int32_t>(NARROW); distance <= NARROW; ++distance) {
        const std::int32_t near = layout.document_at[place + distance];
        if (near < 0) continue;
        terms[distance & 1] += length_of(part_of(near), position_of(near));
        turns[distance & 1] += 1;
    }
    const auto wordy = [&](int side) {
        return turns[side] > 0 && terms[side] >= dialogue.options.wordy * turns[side];
    };
    const auto outwrites = [&](int side) {
        return wordy(side) && terms[side] * turns[1 - side] >= dialogue.options.times * terms[1 - side] * turns[side];
    };
    const CuePart& part = part_of(document);
    const std::int32_t role = part.roles.empty() ? -1 : part.roles[position_of(document)];
    const bool told = role != -1;
    const bool by_assistant = told ? role == dialogue.assistant : outwrites(0);
    if (by_assistant) found |= cue::BY_ASSISTANT;
    if (told ? wordy(by_assistant ? 0 : 1) : outwrites(0) || outwrites(1)) found |= cue::NARROW;
    if (!dialogue.reads_texts()) return found;
    const auto asks = [&](std::int64_t other) {
        const std::int32_t said = said_of(part_of(other), position_of(other));
        if (said == 0) {
            unread.push_back(other);
            found &= ~cue::KNOWN;
        }
        return (said & ASKS) != 0;
    };
    if (asks(document)) found |= cue::ASKS;
    const std::int32_t before = layout.document_at[place - 1];
    if (before >= 0 && asks(before)) found |= cue::ANSWERS;
    return found;
}

// Each word counts once, where it counts most.
void DialogueScorer::add_words(const Talk& talk, std::span<const Slot> query, LentSums& own) {
    const Layout& layout = talk.layout;
    const std::span<const std::int64_t> around = talk.dialogue.around;
    const auto window = static_cast<std::int32_t>(around.size());
    const std::size_t terms = query.size();
    most_.assign(candidates.size() * terms, 0);
    if (near_.size() < layout.document_at.size() / 64 + 2) near_.resize(layout.document_at.size() / 64 + 2, 0);
    if (picked_.size() < own.postings.size() + 1) picked_.resize(own.postings.size() + 1);
    // Nothing throws from here on, as what is marked must be 0 again. The sums are 0 by now: in their place stand the
    // numbers of candidates, from 1 on.
    std::uint32_t* number_at = own.sums.data();
    const std::uint64_t width = (std::uint64_t{2} << (2 * window)) - 1;
    std::size_t lowest = near_.size(), highest = 0;
    for (std::size_t number = 0; number < candidates.size(); ++number) {
        const std::int32_t place = candidates[number].place;
        number_at[place] = static_cast<std::uint32_t>(number + 1);
        const auto first = static_cast<std::size_t>(place - window);
        near_[first / 64] |= width << (first % 64);
        if (first % 64 != 0) near_[first / 64 + 1] |= width >> (64 - first % 64);
        lowest = std::min(lowest, first / 64);
        highest = std::max(highest, first / 64 + 1);
    }
    const auto give = [&](std::int32_t place, std::size_t term, std::int64_t quanta) {
        const auto raise = [&](std::uint32_t number, std::int64_t steps) {
            std::int64_t& most = most_[(number - 1) * terms + term];
            most = std::max(most, steps * quanta);
        };
        if (const std::uint32_t number = number_at[place]) raise(number, STEPS);
        for (std::int32_t distance = 1; distance <= window; ++distance) {
            const std::uint32_t earlier = number_at[place - distance], later = number_at[place + distance];
            if (earlier != 0 && candidates[earlier - 1].after >= distance) raise(earlier, around[distance - 1]);
            if (later != 0 && candidates[later - 1].before >= distance) raise(later, around[distance - 1]);
        }
    };
    for (const Run& run : own.runs) {
        const std::int64_t count = run.list->end - run.list->start;
        if (run.kept) {
            // Few are near a candidate, and a processor cannot guess which: those are put aside first.
            Placed* found = picked_.data();
            for (const Placed& each : std::span(own.postings).subspan(run.first, static_cast<std::size_t>(count))) {
                *found = each;
                found += near_[static_cast<std::uint32_t>(each.place) / 64] >> (each.place % 64) & 1;
            }
            for (const Placed* each = picked_.data(); each != found; ++each) give(each->place, run.term, each->quanta);
            continue;
        }
        for (std::size_t word = lowest; word <= highest && word < near_.size(); ++word) {
            for (std::uint64_t bits = near_[word]; bits != 0; bits &= bits - 1) {
                const auto place = static_cast<std::int32_t>(64 * word + std::countr_zero(bits));
                const std::int64_t position = layout.document_at[place] - run.part->first;
                if (layout.document_at[place] < 0 || position < 0 || position >= run.part->segment.arrays.size) continue;
                const std::int32_t quanta = contribution_of(*run.part, *run.list, static_cast<std::int32_t>(position));
                if (quanta > 0) give(place, run.term, quanta);
            }
        }
    }
    for (std::size_t number = 0; number < candidates.size(); ++number) {
        Candidate& candidate = candidates[number];
        for (std::size_t term = 0; term < terms; ++term) candidate.words += most_[number * terms + term] * query[term].weight;
        number_at[candidate.place] = 0;
        const auto first = static_cast<std::size_t>(candidate.place - window);
        near_[first / 64] = near_[first / 64 + 1] = 0;
    }
}

void DialogueScorer::fuse(const Talk& talk, std::size_t text) {
    const auto& [snapshot, links, layout, dialogue, asked] = talk;
    const auto flag = [](std::uint64_t bit) {
        return [bit](const Candidate& candidate) -> double { return (candidate.cues & bit) != 0; };
    };
    const auto length = [&](std::uint64_t needed) {
        return [&, needed](const Candidate& candidate) {
            const auto terms = static_cast<double>(candidate.cues >> cue::LENGTH_SHIFT);
            return (candidate.cues & needed) == needed ? terms / (terms + dialogue.options.half_length) : 0.0;
        };
    };
    const auto is_named = [&](const Candidate& candidate) -> double {
        const std::size_t number = links.part_number(candidate.document);
        const auto& [offsets, ids] = asked.speakers[number];
        if (offsets.empty() || (candidate.cues & cue::TURN) == 0) return 0.0;
        const std::int32_t speaker =
            said_of(dialogue.parts[number], candidate.document - snapshot.parts[number]->first) >> SPEAKER_SHIFT;
        const auto named = ids.subspan(static_cast<std::size_t>(offsets[text]),
                                       static_cast<std::size_t>(offsets[text + 1] - offsets[text]));
        return speaker != 0 && std::find(named.begin(), named.end(), speaker) != named.end();
    };
    values_.resize(candidates.size());
    for (const Share& share : dialogue.shares) {
        const auto add = [&](const auto& value_of) {
            double high = 0.0;
            for (std::size_t number = 0; number < candidates.size(); ++number) {
                values_[number] = value_of(candidates[number]);
                high = std::max(high, values_[number]);
            }
            // What is 0 for all changes no score.
            if (high == 0.0) return;
            const double divisor = share.relative ? high : 1.0;
            for (std::size_t number = 0; number < candidates.size(); ++number) {
                candidates[number].score = candidates[number].score + share.weight * (values_[number] / divisor);
            }
        };
        switch (share.evidence) {
            case Evidence::words:
                add([](const Candidate& candidate) {
                    return static_cast<double>(candidate.words) / static_cast<double>(STEPS) / SCALE;
                });
                break;
            case Evidence::asks: add(flag(cue::ASKS)); break;
            case Evidence::answers: add(flag(cue::ANSWERS)); break;
            case Evidence::length: add(length(cue::TURN)); break;
            case Evidence::assistant_length: add(length(cue::BY_ASSISTANT)); break;
            case Evidence::told:
                if (asked.told[text] != 0) add(flag(cue::BY_ASSISTANT));
                break;
            case Evidence::speaker:
                if (!asked.speakers.empty()) add(is_named);
                break;
        }
    }
}

}  // namespace fanrank::search
