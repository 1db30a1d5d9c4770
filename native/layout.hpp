// The live documents of a snapshot, session after session: neighbours stand at neighbouring places.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace fanrank::search {

struct Links;
class Part;

// Places are read in blocks of so many.
constexpr std::int64_t PLACE_BLOCK = 64;

// Behind each session stand `gap` empty places, so that no window reaches from one session into another. Documents
// without neighbours stand behind all sessions, without gaps. Empty places fill both stretches to whole blocks.
struct Layout {
    std::int64_t gap = 0;
    std::int64_t alone = 0;  // the first place of the documents without neighbours
    std::int64_t end = 0;    // behind all places
    std::vector<std::int32_t> place_of;     // [documents] of a deleted one `end`
    std::vector<std::int32_t> document_at;  // [end + gap] or -1

    std::int64_t bytes() const {
        return static_cast<std::int64_t>(4 * (place_of.size() + document_at.size()));
    }
};

// Throws std::length_error where places would leave int32.
std::unique_ptr<const Layout> make_layout(const Links& links, const std::vector<std::unique_ptr<Part>>& parts,
                                          std::int64_t gap);

}  // namespace fanrank::search
