// Cuts texts in UTF-8 into the tokens of the analyzer `agent`, which keeps names whole and in their parts. The rules
// are those of engine/text/agent.py.
//
// A chunk is a run of ASCII letters, digits, underscores and bytes beyond ASCII, with single joints between such runs.
// Most chunks are a word, and a word is one token. A chunk with anything else is marked: it is cut into its tokens
// here, and by the analyzer, in Python, if it is not all ASCII.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text_scan.hpp"
#include "text_table.hpp"

namespace fanrank::text {

// The text without escapes of a terminal. Those that move the cursor leave a space.
std::string remove_escapes(std::string_view text);

// The tokens of a chunk that is all ASCII, one after another with a zero after each. The memory serves one chunk after
// another.
class Parts {
public:
    void cut(std::string_view chunk);

    // Calls ``each(bytes, size)`` for the tokens in order. Eight bytes can be read from each begin.
    template <class Each>
    void visit(Each&& each) const {
        std::size_t begin = 0;
        for (std::size_t end : ends_) {
            each(bytes_.data() + begin, end - begin);
            begin = end + 1;
        }
    }

private:
    void add_path(std::string_view path);
    void add_dotted(std::string_view piece);
    void add_names(std::string_view dotted);
    void add_name(std::string_view name);
    void add_words(std::string_view word);
    void add_whole(std::string_view piece);
    void add_lower(std::string_view word);

    // Room for one more token of at most so many bytes, and its end.
    std::uint8_t* open(std::size_t size);
    void close(std::uint8_t* end);

    static constexpr std::size_t padding = 8;
    std::vector<std::uint8_t> bytes_;
    std::size_t used_ = 0;
    std::vector<std::size_t> ends_;
};

// Several texts, one after another. The memory serves one block after another.
class NameBlock {
public:
    // Returns the number of bytes.
    std::size_t fill(std::span<const std::string_view> texts);

    // The most tokens that so many bytes of texts give. Two words of a letter and a digit with a joint between them
    // give seven for five bytes.
    static std::size_t most(std::size_t bytes) { return 2 * bytes + 16; }

    // Calls ``each(start, key)`` for the tokens in order, and for the chunks that are not all ASCII.
    template <class Each>
    void scan(std::uint64_t multiplier, Each&& each) {
        std::size_t start = 0;
        std::uint64_t inside = 0;  // 1 where the byte before belongs to a chunk
        bool marked = false;       // whether the chunk is marked before this line
        auto finish = [&](std::size_t end) {
            if (!marked) return each(start, padded_key(lowered() + start, end - start, multiplier));
            Key raw = padded_key(texts() + start, end - start, multiplier);
            if (is_wide(raw.view())) return each(start, raw);
            parts_.cut(raw.view());
            parts_.visit([&](const std::uint8_t* bytes, std::size_t size) {
                each(start, padded_key(bytes, size, multiplier));
            });
        };
        for (std::size_t number = 0; number < lines_; ++number) {
            std::uint64_t letters = nonzeros_of(lowered() + number * line);
            std::uint64_t marking = marks_of(marks() + number * line);
            std::uint64_t edges = letters ^ (letters << 1 | inside);
            bool open = inside != 0;
            inside = letters >> 63;
            std::uint64_t from = ~std::uint64_t{0};  // the bits of this line from the chunk's begin on
            while (edges != 0) {
                auto bit = static_cast<std::size_t>(std::countr_zero(edges));
                edges &= edges - 1;
                if (open) {
                    marked |= (marking & from & ((std::uint64_t{1} << bit) - 1)) != 0;
                    finish(number * line + bit);
                } else {
                    start = number * line + bit;
                    from = ~std::uint64_t{0} << bit;
                    marked = false;
                }
                open = !open;
            }
            if (open) marked |= (marking & from) != 0;
        }
    }

private:
    static constexpr std::size_t line = 64, lead = 8, padding = 8;

    // A bit for each of 64 marks. Most lines have none.
    static std::uint64_t marks_of(const std::uint8_t* marks) {
        std::uint64_t any = 0;
        for (std::size_t i = 0; i < line; i += 8) any |= load(marks + i);
        return any == 0 ? 0 : nonzeros_of(marks);
    }

    std::size_t capacity() const { return lead + lines_ * line + padding; }
    std::uint8_t* texts() const { return bytes_.get() + lead; }
    std::uint8_t* kinds() const { return texts() + room_; }
    std::uint8_t* lowered() const { return kinds() + room_; }
    std::uint8_t* marks() const { return lowered() + room_; }

    Parts parts_;
    // The texts, and for each of their bytes its kind, its small letter or 0, and whether it marks a chunk.
    std::unique_ptr<std::uint8_t[]> bytes_;
    std::size_t room_ = 0, lines_ = 0;
};

}  // namespace fanrank::text
