// The k best of a row of keys.
#pragma once

#include <cstdint>
#include <utility>

namespace fanrank::search {

// A hit while its query is answered. The order is the larger key, then the smaller document.
struct Hit {
    std::int64_t key;       // a sum of quanta, or the bits of a decayed score
    std::int64_t document;  // number in the snapshot

    bool precedes(const Hit& other) const {
        return key > other.key || (key == other.key && document < other.document);
    }
};

// A score and a document in one number: the larger comes first.
inline std::int64_t pack(std::int64_t score, std::int64_t document) {
    return (score << 32) + (std::int64_t{0xFFFFFFFF} - document);
}
inline std::int64_t score_of(std::int64_t packed) { return packed >> 32; }
inline std::int64_t document_of(std::int64_t packed) { return std::int64_t{0xFFFFFFFF} - (packed & 0xFFFFFFFF); }

inline bool comes_first(std::int64_t one, std::int64_t other) { return one > other; }
inline bool comes_first(std::int32_t one, std::int32_t other) { return one > other; }
inline bool comes_first(const Hit& one, const Hit& other) { return one.precedes(other); }

// Moves the k best of `count` keys to the front; returns the last of them in order. 0 < k <= count.
template <class Key>
Key keep_best(Key* keys, std::int64_t count, std::int64_t k) {
    std::int64_t low = 0, high = count - 1;
    while (low < high) {
        const Key pivot = keys[(low + high) >> 1];
        std::int64_t i = low, j = high;
        while (i <= j) {
            while (comes_first(keys[i], pivot)) ++i;
            while (comes_first(pivot, keys[j])) --j;
            if (i <= j) std::swap(keys[i++], keys[j--]);
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break;
        }
    }
    return keys[k - 1];
}

}  // namespace fanrank::search
