// What a strategy for dialogues says of its candidates, from their words, those around them and their cues;
// engine/hybrid/context.py explains both, and gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "score.hpp"

namespace fanrank::search {

// What is read of a record's text, in one number: 0 where nobody has read it yet; else 1, plus 2 where it asks, plus 4
// times the number of its speaker, from 1 on.
constexpr std::int32_t ASKS = 2, SPEAKER_SHIFT = 2;

// The columns of a part that cues are read from.
struct CuePart {
    std::span<const std::int32_t> said;     // [documents]
    std::span<const std::int32_t> lengths;  // [fields, documents]
    std::span<const std::int32_t> roles;    // [documents] codes; empty: no record has one
    // The speakers that each text names: those of text q are ``ids[offsets[q]:offsets[q + 1]]``. Empty: none.
    std::span<const std::int64_t> offsets;
    std::span<const std::int32_t> ids;
};

enum class Evidence { words, asks, answers, length, speaker, assistant_length, told };

// One channel as its fusion reads it: ``weight * score``, divided by the query's largest score where `relative`.
struct Share {
    Evidence evidence;
    double weight;
    bool relative;
};

// `context.HALF_LENGTH` and so on.
struct CueOptions {
    double half_length;
    std::int64_t wordy, times;
};

struct Dialogue {
    std::int64_t depth = 0;                 // candidates of a query
    std::span<const std::int64_t> around;   // [window] what words around count, in steps by distance
    std::vector<Share> shares;
    std::vector<CuePart> parts;
    std::span<const std::uint8_t> told;  // [texts] whether each asks what an assistant told
    std::int32_t assistant = -2;  // the code of the role
    CueOptions options{};

    std::int64_t window() const { return std::max<std::int64_t>(static_cast<std::int64_t>(around.size()), NARROW); }
};

// The contribution of a list's posting, in quanta.
std::int32_t quanta_of(const Part& part, const TermList& list, std::int64_t posting);

// A posting's contribution to a document, in quanta; 0: the list has no such posting.
std::int32_t contribution_of(const Part& part, const TermList& list, std::int32_t position);

// Scores one query's candidates.
class DialogueScorer {
public:
    // `lists_of(part number)` are the lists of the distinct terms of the batch.
    template <class Lists>
    void run(const Snapshot& snapshot, const Links& links, const Layout& layout, const Dialogue& dialogue,
             std::span<const Slot> query, std::int64_t text, PlacedSums& own, Lists&& lists_of) {
        gather(layout, dialogue.around.size(), own);
        look_around(snapshot, links, layout, dialogue);
        given_.assign(near_.size() * query.size(), 0);
        for (std::size_t row = 0; row < near_.size(); ++row) {
            const std::int64_t document = near_[row].document;
            const std::size_t number = links.part_number(document);
            const Part& part = *snapshot.parts[number];
            const std::span<const TermList> lists = lists_of(number);
            // What the lists that were read left of the document's own sum: at 0 no other list has it.
            std::int32_t left = own.sums[near_[row].place];
            for (std::size_t slot = 0; slot < query.size() && left > 0; ++slot) {
                const std::int32_t found = contribution_of(part, lists[query[slot].term],
                                                           static_cast<std::int32_t>(document - part.first));
                given_[row * query.size() + slot] = found;
                left -= found * query[slot].weight;
            }
        }
        add_words(dialogue.around, query);
        fuse(snapshot, links, layout, dialogue, text);
    }

    struct Candidate {
        std::int32_t place, document;
        std::int32_t reach;  // places before and after it that may lend: none without a session
        std::int32_t before, after;  // how many of them do
        bool by_assistant;
        std::int64_t words;  // in steps
        double score;
    };
    std::vector<Candidate> candidates;
    std::vector<std::int64_t> unread;  // documents whose texts must be read first

private:
    struct Near {
        std::int32_t place, document;
    };
    void gather(const Layout& layout, std::size_t window, const PlacedSums& own);
    void look_around(const Snapshot& snapshot, const Links& links, const Layout& layout, const Dialogue& dialogue);
    void add_words(std::span<const std::int64_t> around, std::span<const Slot> query);
    void fuse(const Snapshot& snapshot, const Links& links, const Layout& layout, const Dialogue& dialogue,
              std::int64_t text);

    std::vector<Near> near_;  // documents near a candidate that have a word of the query, by place
    std::vector<std::int32_t> given_;  // [near, terms] what each term adds to each
    std::vector<double> values_;
};

}  // namespace fanrank::search
