// Porter's algorithm (1980) on words in lower case. Sources: A025, A026.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanrank::text {

// What is done with a word before it becomes a term.
enum class Stem {
    none,
    // Step 1 of the algorithm as published: plurals, -ed and -ing, final y.
    step_one,
    // The whole algorithm, with the extensions of NLTK or of Martin Porter's own programs.
    nltk,
    martin,
};

// Replaces `word[:size]` by its stem and returns the length of the stem, which is at most `size`.
// Letters beyond a to z are consonants that equal only themselves. Bytes of UTF-8 are no letters: a word beyond ASCII
// is given as code points.
std::size_t stem(Stem kind, std::uint8_t* word, std::size_t size);
std::size_t stem(Stem kind, char32_t* word, std::size_t size);

}  // namespace fanrank::text
