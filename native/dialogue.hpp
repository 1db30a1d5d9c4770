// What a strategy for dialogues says of its candidates, from their words, those around them and their cues;
// engine/hybrid/context.py explains both, and gives the same bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
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

// What cues say of the document at a place whatever is asked: bits, and its length from `LENGTH_SHIFT` on.
namespace cue {
constexpr std::uint64_t KNOWN = 1, TURN = 2, BY_ASSISTANT = 4, NARROW = 8, ASKS = 16, ANSWERS = 32;
constexpr int LENGTH_SHIFT = 8;
}  // namespace cue

// A strategy over one snapshot.
class Dialogue {
public:
    std::int64_t depth = 0;                 // candidates of a query
    std::span<const std::int64_t> around;   // [window] what words around count, in steps by distance
    std::vector<Share> shares;
    std::vector<CuePart> parts;
    std::int32_t assistant = -2;  // the code of the role
    CueOptions options{};

    std::int64_t window() const { return std::max<std::int64_t>(static_cast<std::int64_t>(around.size()), NARROW); }
    bool reads_texts() const;
    // The cues of each place as far as they are known, else 0. Those of a layout are worked out when a query needs them.
    std::atomic<std::uint32_t>* cues(const Layout& layout) const;

private:
    mutable std::once_flag once_;
    mutable std::unique_ptr<std::atomic<std::uint32_t>[]> cues_;
};

// What the texts of a batch ask of cues.
struct Asked {
    // The speakers that each text names in a part: those of text q are ``ids[offsets[q]:offsets[q + 1]]``. Empty: none.
    struct Speakers {
        std::span<const std::int64_t> offsets;
        std::span<const std::int32_t> ids;
    };
    std::span<const std::uint8_t> told;  // [texts] whether each asks what an assistant told
    std::vector<Speakers> speakers;      // [parts], or empty: no text names any
};

// What one query is scored over.
struct Talk {
    const Snapshot& snapshot;
    const Links& links;
    const Layout& layout;
    const Dialogue& dialogue;
    const Asked& asked;
};

// The contribution of a list's posting, in quanta.
std::int32_t quanta_of(const Part& part, const TermList& list, std::int64_t posting);

// Scores one query's candidates.
class DialogueScorer {
public:
    // Scores the hits of `own`, by the postings that it kept.
    void run(const Talk& talk, std::span<const Slot> query, std::size_t text, LentSums& own);

    struct Candidate {
        std::int32_t place, document;
        std::int32_t before, after;  // how many places before and after it lend
        std::uint64_t cues;
        std::int64_t words;  // in steps
        double score;
    };
    std::vector<Candidate> candidates;
    std::vector<std::int64_t> unread;  // documents whose texts must be read first

private:
    void gather(const Talk& talk, const LentSums& own);
    std::uint64_t cues_of(const Talk& talk, std::int32_t place);
    void add_words(const Talk& talk, std::span<const Slot> query, LentSums& own);
    void fuse(const Talk& talk, std::size_t text);

    std::vector<std::uint64_t> near_;  // a bit a place: whether a candidate is near; all 0 before and after a query
    std::vector<std::int64_t> most_;   // [candidates, terms] the most that each term gives each, in steps
    std::vector<Placed> picked_;
    std::vector<double> values_;
};

}  // namespace fanrank::search
