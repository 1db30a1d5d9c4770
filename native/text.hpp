// Texts to term ids, for analyzers whose tokens are runs of letters and digits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text_porter.hpp"
#include "text_table.hpp"

namespace fanrank::text {

// A spelling that has no term.
inline constexpr std::int32_t dropped = -1;
// Characters of a token that count. A longer spelling is not remembered.
inline constexpr std::size_t longest = 255;

// What is done with a token that is all ASCII.
struct Recipe {
    Stem stem = Stem::none;
    // Whether digits alone are a term.
    bool numbers = true;
    // Whether names are kept whole and in their parts (text_names.hpp). Else a chunk is a token.
    bool names = false;
    std::vector<std::string> stop_words;

    // Writes the term of a spelling to `word`, which has room for `longest` bytes, and returns its length. A length of 0
    // stands for no term. Stop words are not looked at.
    std::size_t term(std::string_view spelling, std::uint8_t* word) const;
};

// Borders at which the code goes on another way. Tests make them small.
struct Sizes {
    // Of a new table. A power of two.
    std::size_t slots = 1 << 12;
    // Bytes of a new table's longer strings.
    std::size_t room = 1 << 15;
    // Bytes of a block of documents. Its lowered bytes and codes stay in the second-level cache. Threads take blocks in
    // turns.
    std::size_t block = 1 << 15;
    // A call with fewer bytes of documents for each thread takes fewer threads. Starting one takes as long as reading
    // some 20,000 bytes.
    std::size_t share = 1 << 16;
    // Spellings that are remembered. A writer who finds more starts afresh, a reader adds none beyond.
    std::size_t spellings = 1 << 21;
    // What all hashes are multiplied with; 0 for a random number, so that nobody can construct a text whose tokens all
    // meet in one slot.
    std::uint64_t multiplier = 0;
};

// A chunk that is not all ASCII and that no table knows. The analyzer has its terms.
struct Wide {
    // Where its terms belong among all terms, and the number of its text.
    std::size_t at, text;
    std::string chunk;
};

// The ids of the terms of several texts, in order and with repeats. Unknown terms are left out.
struct Queries {
    std::vector<std::int32_t> terms;
    std::vector<std::int64_t> offsets;  // [texts + 1]
    std::vector<Wide> wide;             // in order

    // Puts the ids of the wide chunks in.
    void insert(const std::vector<std::vector<std::int32_t>>& ids);
};

// Everything that one analyzer knows of one vocabulary: the spellings it has met, and the terms.
//
// One writer at a time. Readers (`find`, `size` and `encode`) may run at any time, on any thread.
class Analysis {
public:
    Analysis(Recipe recipe, const Sizes& sizes);

    // Number of terms.
    std::size_t size() const { return size_.load(std::memory_order_acquire); }
    // Number of spellings that are remembered.
    std::size_t spellings() const;
    // The id of a term, or `unknown`.
    std::int32_t find(std::string_view term) const;
    // The ids of the terms of texts in UTF-8.
    Queries encode(std::span<const std::string_view> texts);
    // Whether the analyzer removes escapes of a terminal from texts before it cuts them.
    bool removes_escapes() const { return recipe_.names; }

    // For the writer: numbers new terms in order, from `size()` on.
    void add(std::span<const std::string_view> terms);
    // For the writer: keeps the first `size` terms only.
    void truncate(std::size_t size);

private:
    friend class Encoding;

    struct Tables {
        std::shared_ptr<Table> spellings, terms;
        // Goes up when terms are forgotten. What a reader found out before is then no longer true.
        std::uint64_t epoch = 0;
    };
    // A spelling and the id of its term.
    struct Found {
        std::string spelling;
        std::int32_t id;
    };

    template <class Blocks>
    Queries encode_by(std::span<const std::string_view> texts);
    Tables tables() const;
    void become(const Tables& tables);
    std::unique_ptr<Table> fresh_spellings() const;
    // The table itself or a larger copy: with room for more strings with so many bytes altogether.
    static std::shared_ptr<Table> with_room(const std::shared_ptr<Table>& table, std::size_t strings, std::size_t bytes);
    void remember(const std::vector<Found>& found, std::uint64_t epoch);
    // Forgets the spellings where there are too many.
    void forget_many();

    Recipe recipe_;
    Sizes sizes_;
    std::uint64_t multiplier_;
    std::atomic<std::size_t> size_ = 0;
    // Held while `tables_` is read or replaced.
    mutable std::mutex reading_;
    Tables tables_;
    // Held while strings are added to a table. A reader who cannot have it at once does without.
    mutable std::mutex adding_;
    // Whether an `Encoding` is under way.
    std::atomic<bool> writing_ = false;
};

// One write: texts become term ids, and terms that are new get ids. Steps in order: the constructor, `wide` and `answer`,
// `number`, `write`, `publish`. Nothing is to be seen of the write before `publish`, nor after one that threw.
class Encoding {
public:
    // Reads the texts on at most so many threads. The texts must outlive it. Throws where another write is under way.
    Encoding(Analysis& analysis, std::span<const std::string_view> texts, std::size_t threads);
    ~Encoding();
    Encoding(const Encoding&) = delete;
    Encoding& operator=(const Encoding&) = delete;

    // The chunks that are not all ASCII and that are not known.
    std::span<const std::string_view> wide() const { return wide_; }
    // Takes the terms of such a chunk, as the analyzer gives them.
    void answer(std::size_t chunk, std::span<const std::string_view> terms);

    // Gives new terms their ids: alphabetically, from the size of the vocabulary on.
    void number();
    // The new terms in the order of their ids.
    std::span<const std::string_view> fresh() const { return fresh_; }
    // Number of tokens that have a term.
    std::size_t tokens() const { return tokens_; }
    // Writes the id of each token's term [tokens] and the number of its text [tokens].
    void write(std::int32_t* terms, std::int32_t* texts);
    // Makes the new terms and spellings known.
    void publish();

private:
    class Walker;
    struct Part;
    struct Candidate;
    // Claims the analysis for one write.
    struct Claim {
        explicit Claim(Analysis& analysis);
        ~Claim() { analysis.writing_.store(false); }
        Analysis& analysis;
    };

    void cut(std::size_t threads);
    // Runs the body once for each walker, on threads of their own.
    template <class Body>
    void run(const Body& body);

    Claim claim_;
    std::span<const std::string_view> texts_;
    std::vector<Part> parts_;
    std::vector<std::unique_ptr<Walker>> walkers_;
    // Of each text: how many codes its walker has of it.
    std::vector<std::uint32_t> counts_;
    // Of each wide chunk: its terms, and in the end their ids.
    std::vector<std::string_view> wide_;
    std::vector<std::vector<std::string>> wide_terms_;
    std::vector<std::vector<std::int32_t>> wide_ids_;
    std::vector<std::string_view> fresh_;
    std::size_t tokens_ = 0;
};

}  // namespace fanrank::text
