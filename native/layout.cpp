#include "layout.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "neighbours.hpp"
#include "snapshot.hpp"

namespace fanrank::search {

std::unique_ptr<const Layout> make_layout(const Links& links, const std::vector<std::unique_ptr<Part>>& parts,
                                          std::int64_t gap) {
    auto made = std::make_unique<Layout>();
    auto& [own_gap, alone, alone_end, end, place_of, document_at] = *made;
    const Part& last = *parts.back();
    const std::int64_t documents = last.first + last.segment.arrays.size;
    if (documents * (gap / 2 + 1) > std::numeric_limits<std::int32_t>::max() - 4 * WHOLE_BLOCK) {
        throw std::length_error("too many records for queries that borrow from neighbours");
    }
    own_gap = gap;
    place_of.assign(static_cast<std::size_t>(documents), 0);
    // As wide as memories with short sessions need it; grown where there are more of them.
    document_at.assign(static_cast<std::size_t>(documents + documents / 4 + 4 * WHOLE_BLOCK), -1);
    std::vector<std::int32_t> others;
    std::int64_t place = WHOLE_BLOCK, taken = 0;
    const auto make_room = [&] {
        const auto needed = static_cast<std::size_t>(place + (documents - taken) + 2 * PLACE_BLOCK + 4 * MAX_WINDOW);
        if (document_at.size() >= needed) return;
        document_at.resize(needed + needed / 2, -1);
    };
    // Takes `count` documents that stand one after another.
    const auto take = [&](std::int64_t document, std::int64_t count) {
        std::int32_t* places = &place_of[static_cast<std::size_t>(document)];
        std::int32_t* documents_there = &document_at[static_cast<std::size_t>(place)];
        if (count == 1) {  // sessions that are written at the same time
            *places = static_cast<std::int32_t>(place);
            *documents_there = static_cast<std::int32_t>(document);
        } else {
            std::iota(places, places + count, static_cast<std::int32_t>(place));
            std::iota(documents_there, documents_there + count, static_cast<std::int32_t>(document));
        }
        place += count;
        taken += count;
    };
    const auto fill_block = [&] { return place = (place + WHOLE_BLOCK - 1) / WHOLE_BLOCK * WHOLE_BLOCK; };
    for (std::size_t number = 0; number < parts.size(); ++number) {
        const auto& alive = parts[number]->alive;
        const std::int64_t first = links.parts[number].first;
        const auto& previous = links.parts[number].previous;
        for (std::size_t position = 0; position < previous.size(); ++position) {
            if (previous[position] >= 0 || (!alive.empty() && alive[position] == 0)) continue;
            std::int64_t document = first + static_cast<std::int64_t>(position);
            if (links.joined_before(document) >= 0) continue;
            if (links.parts[number].following[position] < 0 && links.joined_after(document) < 0) {
                others.push_back(static_cast<std::int32_t>(document));
                continue;
            }
            make_room();
            for (const Links::Part* part = &links.parts[number]; document >= 0;) {
                const std::int32_t* following = part->following.data();
                const auto start = static_cast<std::int32_t>(document - part->first);
                std::int32_t at = start;
                while (following[at] == at + 1) ++at;
                take(document, at + 1 - start);
                document = following[at] >= 0 ? part->first + following[at] : links.joined_after(part->first + at);
                if (following[at] < 0 && document >= 0) part = &links.parts[links.part_number(document)];
            }
            place += gap;
        }
    }
    alone = fill_block();
    make_room();
    for (const std::int32_t document : others) take(document, 1);
    alone_end = fill_block();
    end = place + MAX_WINDOW;
    document_at.resize(static_cast<std::size_t>((end + MAX_WINDOW) / PLACE_BLOCK + 1) * PLACE_BLOCK, -1);
    for (const auto& part : parts) {
        for (std::size_t position = 0; position < part->alive.size(); ++position) {
            if (part->alive[position] == 0) {
                place_of[static_cast<std::size_t>(part->first) + position] = static_cast<std::int32_t>(end);
            }
        }
    }
    return made;
}

}  // namespace fanrank::search
