// Cuts texts in UTF-8 into chunks.
//
// A chunk is a run of bytes between separators. Separators are the ASCII characters that are neither letters nor digits,
// and the dashes and quotation marks U+2010 to U+2027, which are common. A chunk that is all ASCII is one token. A chunk
// that is not goes through the analyzer, in Python.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "text_table.hpp"

namespace fanrank::text {

// Whether a chunk is not all ASCII.
inline bool is_wide(std::string_view chunk) {
    return std::any_of(chunk.begin(), chunk.end(), [](char byte) { return (byte & '\x80') != 0; });
}

// Overwrites the dashes and quotation marks E2 80 `first` to E2 80 A7 with zeros. What follows a character of a text is
// its zero at least, so three bytes can be read from any byte E2 on that begins a character.
inline void cut_marks(std::uint8_t* bytes, std::size_t size, std::uint8_t first) {
    for (std::uint8_t* at = bytes;;) {
        at = static_cast<std::uint8_t*>(std::memchr(at, 0xE2, static_cast<std::size_t>(bytes + size - at)));
        if (at == nullptr) return;
        if (at[1] == 0x80 && at[2] >= first && at[2] <= 0xA7) at[0] = at[1] = at[2] = 0;
        ++at;
    }
}

// A bit for each of 64 bytes, the first byte lowest: whether it is not 0. No byte may be 1.
inline std::uint64_t nonzeros_of(const std::uint8_t* bytes) {
    std::uint64_t letters = 0;
    for (std::size_t i = 0; i < 8; ++i) {
        std::uint64_t number = load(bytes + 8 * i);
        // The highest bit of each byte that is 0. This is exact, because no byte is 1.
        std::uint64_t zeros = (number - ones) & ~number & highs;
        // The product moves bit 8 j to bit 56 + j, and no two of its sums meet.
        letters |= ((zeros >> 7) * 0x0102040810204080) >> 56 << 8 * i;
    }
    return ~letters;
}

// Several texts, one after another, with ASCII letters in lower case and zeros for separators. The memory serves one
// block after another.
class Block {
public:
    // Returns the number of bytes.
    std::size_t fill(std::span<const std::string_view> texts) {
        std::size_t size = 0;
        for (std::string_view text : texts) size += text.size() + 1;
        lines_ = (size + line - 1) / line;
        if (lines_ * line + padding > capacity_) {
            capacity_ = lines_ * line + padding;
            bytes_.reset(new std::uint8_t[capacity_]);
        }
        std::uint8_t* out = bytes_.get();
        for (std::string_view text : texts) {
            if (!text.empty()) std::memcpy(out, text.data(), text.size());
            out += text.size();
            *out++ = 0;
        }
        std::memset(out, 0, static_cast<std::size_t>(bytes_.get() + lines_ * line + padding - out));
        if (lower(bytes_.get(), size) & 0x80) cut_marks(bytes_.get(), size, 0x90);
        return size;
    }

    // The most chunks that so many bytes of texts give.
    static std::size_t most(std::size_t bytes) { return bytes / 2 + 1; }

    // Calls ``each(start, key)`` for the chunks in order.
    template <class Each>
    void scan(std::uint64_t multiplier, Each&& each) const {
        std::size_t start = 0;
        std::uint64_t inside = 0;  // 1 where the byte before belongs to a chunk
        for (std::size_t number = 0; number < lines_; ++number) {
            std::uint64_t letters = nonzeros_of(bytes_.get() + number * line);
            // A bit for each byte at which a chunk begins, or at which one has ended.
            std::uint64_t edges = letters ^ (letters << 1 | inside);
            bool open = inside != 0;
            inside = letters >> 63;
            while (edges != 0) {
                std::size_t at = number * line + static_cast<std::size_t>(std::countr_zero(edges));
                edges &= edges - 1;
                if (open) {
                    each(start, padded_key(bytes_.get() + start, at - start, multiplier));
                } else {
                    start = at;
                }
                open = !open;
            }
        }
    }

private:
    static constexpr std::size_t line = 64, padding = 8;

    // Returns all bytes joined by or. Compilers make vector instructions of this loop.
    static std::uint8_t lower(std::uint8_t* bytes, std::size_t size) {
        std::uint8_t all = 0;
        for (std::size_t i = 0; i < size; ++i) {
            std::uint8_t byte = bytes[i];
            all |= byte;
            auto low = static_cast<std::uint8_t>(byte | 0x20);
            bool letter = static_cast<std::uint8_t>(low - 'a') < 26;
            bool other = static_cast<std::uint8_t>(byte - '0') < 10 || byte >= 0x80;
            bytes[i] = letter ? low : other ? byte : 0;
        }
        return all;
    }

    std::unique_ptr<std::uint8_t[]> bytes_;
    std::size_t capacity_ = 0, lines_ = 0;
};

}  // namespace fanrank::text
