// The live documents of a snapshot, session after session: neighbours stand at neighbouring places.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace fanrank::search {

struct Links;
class Part;

constexpr std::int64_t MAX_WINDOW = 8;  // `neighbours.MAX_WINDOW`
constexpr std::int64_t NARROW = 4;      // a window up to here needs a narrower gap between sessions

// Places are read in blocks of so many, where only those that got a sum are.
constexpr std::int64_t PLACE_BLOCK = 16;
// And where all are: the first documents, and those without neighbours, begin such a block.
constexpr std::int64_t WHOLE_BLOCK = 64;

// Behind each session stand `gap` empty places, so that no window reaches from one session into another. Documents
// without neighbours stand together, without gaps.
struct Layout {
    std::int64_t gap = 0;
    std::int64_t alone = 0, alone_end = 0;  // the places of the documents without neighbours
    std::int64_t end = 0;                   // behind all places; a window around it reaches none of them
    std::vector<std::int32_t> place_of;     // [documents] of a deleted one `end`
    std::vector<std::int32_t> document_at;  // [whole blocks] or -1

    // Whether what stands at this place may have neighbours.
    bool lends(std::int32_t place) const {
        return static_cast<std::uint32_t>(place - alone) >= static_cast<std::uint32_t>(alone_end - alone);
    }
    // Whether the document at this place has a neighbour.
    bool is_turn(std::int32_t place) const {
        return lends(place) && (document_at[place - 1] >= 0 || document_at[place + 1] >= 0);
    }

    std::int64_t bytes() const {
        return static_cast<std::int64_t>(4 * (place_of.size() + document_at.size()));
    }
};

// Throws std::length_error where places would leave int32.
std::unique_ptr<const Layout> make_layout(const Links& links, const std::vector<std::unique_ptr<Part>>& parts,
                                          std::int64_t gap);

}  // namespace fanrank::search
