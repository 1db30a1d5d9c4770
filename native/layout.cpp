#include "layout.hpp"

#include <limits>
#include <stdexcept>

#include "neighbours.hpp"
#include "snapshot.hpp"

namespace fanrank::search {

std::unique_ptr<const Layout> make_layout(const Links& links, const std::vector<std::unique_ptr<Part>>& parts,
                                          std::int64_t gap) {
    auto made = std::make_unique<Layout>();
    auto& [own_gap, alone, end, place_of, document_at] = *made;
    const Part& last = *parts.back();
    const std::int64_t documents = last.first + last.segment.arrays.size;
    if (documents * (gap / 2 + 1) > std::numeric_limits<std::int32_t>::max() - 4 * PLACE_BLOCK) {
        throw std::length_error("too many records for queries that borrow from neighbours");
    }
    own_gap = gap;
    place_of.assign(static_cast<std::size_t>(documents), -1);
    document_at.reserve(static_cast<std::size_t>(documents + documents / 4 + 2 * PLACE_BLOCK));
    document_at.assign(static_cast<std::size_t>(gap), -1);
    std::vector<std::int32_t> others;
    const auto take = [&](std::int64_t document) {
        place_of[static_cast<std::size_t>(document)] = static_cast<std::int32_t>(document_at.size());
        document_at.push_back(static_cast<std::int32_t>(document));
    };
    const auto fill_block = [&] {
        while ((static_cast<std::int64_t>(document_at.size()) - gap) % PLACE_BLOCK != 0) document_at.push_back(-1);
        return static_cast<std::int64_t>(document_at.size());
    };
    for (const auto& part : parts) {
        for (std::int64_t position = 0; position < part->segment.arrays.size; ++position) {
            const std::int64_t document = part->first + position;
            if (!part->alive.empty() && part->alive[position] == 0) continue;
            if (links.previous(document) >= 0) continue;
            std::int64_t next = links.following(document);
            if (next < 0) {
                others.push_back(static_cast<std::int32_t>(document));
                continue;
            }
            take(document);
            for (; next >= 0; next = links.following(next)) take(next);
            document_at.insert(document_at.end(), static_cast<std::size_t>(gap), -1);
        }
    }
    alone = fill_block();
    for (const std::int32_t document : others) take(document);
    end = fill_block();
    document_at.insert(document_at.end(), static_cast<std::size_t>(gap), -1);
    for (std::int32_t& place : place_of) {
        if (place < 0) place = static_cast<std::int32_t>(end);
    }
    return made;
}

}  // namespace fanrank::search
