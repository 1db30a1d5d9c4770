#include <algorithm>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "text.hpp"
#include "text_names.hpp"

namespace fanrank::text {

namespace {

// Codes below `dropped` stand for the chunks that a walker found new: its new chunk i has the code ``first_new - i``.
constexpr std::int32_t first_new = -2;

std::size_t index_of(std::int32_t code) { return static_cast<std::size_t>(first_new - code); }
std::int32_t code_of(std::size_t index) { return first_new - static_cast<std::int32_t>(index); }

// The first eight bytes of a term, the first one highest, for sorting.
std::uint64_t head_of(std::string_view term) {
    std::uint64_t head = 0;
    for (std::size_t i = 0; i < 8; ++i) head = head << 8 | (i < term.size() ? static_cast<std::uint8_t>(term[i]) : 0);
    return head;
}

std::size_t bytes_of(std::span<const std::string_view> strings) {
    std::size_t bytes = 0;
    for (std::string_view string : strings) bytes += string.size();
    return bytes;
}

}  // namespace

// A term that has no id yet. UTF-8 sorts as the code points that it stands for.
struct Encoding::Candidate {
    std::uint64_t head;
    std::string_view term;
    // Where its id is to be written.
    std::int32_t* id;

    Candidate(std::string_view candidate, std::int32_t* place)
        : head(head_of(candidate)), term(candidate), id(place) {}
    bool operator<(const Candidate& other) const {
        return head != other.head ? head < other.head : term < other.term;
    }
};

// A block of texts, and where its walker put their codes.
struct Encoding::Part {
    std::size_t first, last;  // texts
    Walker* walker = nullptr;
    std::size_t start = 0, stop = 0;  // of the codes
    bool known = true;                // whether all codes are ids
    std::size_t tokens = 0, before = 0;
};

// What one thread keeps of the blocks that it read.
class Encoding::Walker {
public:
    Walker(const Analysis& analysis, std::size_t bytes)
        : recipe_(analysis.recipe_), tables_(analysis.tables()), multiplier_(analysis.multiplier_),
          chunks(slots(analysis.sizes_, bytes), multiplier_), terms_(slots(analysis.sizes_, bytes), multiplier_) {}

    void read(std::span<const std::string_view> texts, std::vector<std::uint32_t>& counts, Part& part) {
        recipe_.names ? read_by(names_, texts, counts, part) : read_by(block_, texts, counts, part);
    }

    template <class Blocks>
    void read_by(Blocks& block, std::span<const std::string_view> texts, std::vector<std::uint32_t>& counts, Part& part) {
        std::size_t most = Blocks::most(block.fill(texts.subspan(part.first, part.last - part.first)));
        if (room_ < most) {
            room_ = most;
            codes_.reset(new std::int32_t[room_]);
        }
        const Table& spellings = *tables_.spellings;
        std::size_t text = part.first, end = texts[text].size(), size = 0, begin = 0;
        block.scan(multiplier_, [&](std::size_t at, const Key& key) {
            while (at > end) {
                counts[text] = static_cast<std::uint32_t>(size - begin);
                begin = size;
                end += 1 + texts[++text].size();
            }
            std::int32_t code = spellings.find(key);
            if (code == unknown) {
                code = first_new - chunks.number(key);
                part.known = false;
            }
            codes_[size] = code;
            size += code != dropped;
        });
        for (; text < part.last; ++text) {
            counts[text] = static_cast<std::uint32_t>(size - begin);
            begin = size;
        }
        part.walker = this;
        part.start = codes.size();
        codes.insert(codes.end(), codes_.get(), codes_.get() + size);
        part.stop = codes.size();
    }

    // Finds the terms of the new chunks, once all blocks are read.
    void stem() {
        ids.resize(chunks.size());
        std::uint8_t word[longest];
        for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
            std::string_view spelling = chunks[chunk];
            if (is_wide(spelling)) {
                wide.push_back(chunk);
                continue;
            }
            std::size_t size = recipe_.term(spelling, word);
            if (size == 0) {
                ids[chunk] = dropped;
                continue;
            }
            Key key = key_of({reinterpret_cast<const char*>(word), size}, multiplier_);
            ids[chunk] = tables_.terms->find(key);
            if (ids[chunk] == unknown) ids[chunk] = first_new - terms_.number(key);
        }
        term_ids_.resize(terms_.size());
        candidates.reserve(terms_.size());
        for (std::size_t term = 0; term < terms_.size(); ++term) candidates.emplace_back(terms_[term], &term_ids_[term]);
        std::sort(candidates.begin(), candidates.end());
    }

    // Puts the ids of new terms in, once they have some.
    void settle() {
        for (std::int32_t& id : ids) {
            if (id < dropped) id = term_ids_[index_of(id)];
        }
    }

private:
    static std::size_t slots(const Sizes& sizes, std::size_t bytes) {
        return bytes > sizes.share ? sizes.slots : std::min<std::size_t>(sizes.slots, 64);
    }

    const Recipe& recipe_;
    Analysis::Tables tables_;
    std::uint64_t multiplier_;
    Block block_;
    NameBlock names_;
    // The codes of one block, and room for so many.
    std::unique_ptr<std::int32_t[]> codes_;
    std::size_t room_ = 0;

public:
    // The codes of all tokens but dropped ones.
    std::vector<std::int32_t> codes;
    Distinct chunks;
    // Of each new chunk: the id of its term, or `dropped`. Before `settle`, ``first_new - i`` for new term i; after it,
    // ``first_new - i`` for wide chunk i of the write.
    std::vector<std::int32_t> ids;
    // The new chunks that are not all ASCII.
    std::vector<std::size_t> wide;
    // The new terms, sorted.
    std::vector<Candidate> candidates;

private:
    Distinct terms_;
    std::vector<std::int32_t> term_ids_;
};

Encoding::Claim::Claim(Analysis& claimed) : analysis(claimed) {
    if (analysis.writing_.exchange(true)) throw std::runtime_error("another write of this vocabulary is under way");
}

Encoding::~Encoding() = default;

Encoding::Encoding(Analysis& analysis, std::span<const std::string_view> texts, std::size_t threads)
    : claim_(analysis), texts_(texts), counts_(texts.size()) {
    analysis.forget_many();
    cut(threads);
    std::atomic<std::size_t> next = 0;
    run([&](Walker& walker) {
        for (std::size_t part; (part = next.fetch_add(1)) < parts_.size();) walker.read(texts_, counts_, parts_[part]);
        walker.stem();
    });
    for (const auto& walker : walkers_) {
        for (std::size_t chunk : walker->wide) wide_.push_back(walker->chunks[chunk]);
    }
    wide_terms_.resize(wide_.size());
}

// Cuts the texts into blocks and makes a walker for each thread that pays.
void Encoding::cut(std::size_t threads) {
    const Sizes& sizes = claim_.analysis.sizes_;
    std::size_t bytes = bytes_of(texts_);
    threads = std::clamp<std::size_t>(threads, 1, bytes / sizes.share + 1);
    // Several blocks for each thread, so that no thread waits long for the last block.
    std::size_t block = threads > 1 ? std::min(sizes.block, bytes / (4 * threads) + 1) : sizes.block;
    std::size_t size = 0;
    for (std::size_t text = 0, first = 0; text < texts_.size(); ++text) {
        size += texts_[text].size() + 1;
        if (size < block && text + 1 < texts_.size()) continue;
        parts_.push_back({first, text + 1});
        first = text + 1;
        size = 0;
    }
    threads = std::min(threads, std::max<std::size_t>(parts_.size(), 1));
    for (std::size_t thread = 0; thread < threads; ++thread) {
        walkers_.push_back(std::make_unique<Walker>(claim_.analysis, bytes));
    }
}

template <class Body>
void Encoding::run(const Body& body) {
    std::vector<std::exception_ptr> errors(walkers_.size());
    auto work = [&](std::size_t number) {
        try {
            body(*walkers_[number]);
        } catch (...) {
            errors[number] = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    threads.reserve(walkers_.size());
    try {
        for (std::size_t number = 1; number < walkers_.size(); ++number) threads.emplace_back(work, number);
    } catch (const std::system_error&) {
        // The system has no thread left. This one does the work of those that are missing.
    }
    work(0);
    for (std::size_t number = threads.size() + 1; number < walkers_.size(); ++number) work(number);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

void Encoding::answer(std::size_t chunk, std::span<const std::string_view> terms) {
    wide_terms_[chunk].assign(terms.begin(), terms.end());
}

void Encoding::number() {
    std::vector<Candidate> candidates;
    auto merge = [&](std::vector<Candidate>& sorted) {
        auto middle = static_cast<std::ptrdiff_t>(candidates.size());
        candidates.insert(candidates.end(), sorted.begin(), sorted.end());
        std::inplace_merge(candidates.begin(), candidates.begin() + middle, candidates.end());
    };
    for (const auto& walker : walkers_) merge(walker->candidates);
    std::vector<Candidate> wide;
    wide_ids_.resize(wide_.size());
    for (std::size_t chunk = 0; chunk < wide_.size(); ++chunk) {
        wide_ids_[chunk].resize(wide_terms_[chunk].size());
        for (std::size_t i = 0; i < wide_ids_[chunk].size(); ++i) {
            std::int32_t& id = wide_ids_[chunk][i];
            id = claim_.analysis.find(wide_terms_[chunk][i]);
            if (id == unknown) wide.emplace_back(wide_terms_[chunk][i], &id);
        }
    }
    std::sort(wide.begin(), wide.end());
    merge(wide);

    std::size_t size = claim_.analysis.size();
    for (const Candidate& candidate : candidates) {
        if (fresh_.empty() || fresh_.back() != candidate.term) fresh_.push_back(candidate.term);
        *candidate.id = static_cast<std::int32_t>(size + fresh_.size() - 1);
    }
    if (size + fresh_.size() > INT32_MAX) throw std::length_error("a vocabulary is full");

    std::size_t chunk = 0;
    for (const auto& walker : walkers_) {
        walker->settle();
        for (std::size_t own : walker->wide) {
            const auto& ids = wide_ids_[chunk];
            walker->ids[own] = ids.empty() ? dropped : ids.size() == 1 ? ids[0] : code_of(chunk);
            ++chunk;
        }
    }
    std::atomic<std::size_t> next = 0;
    run([&](Walker&) {
        for (std::size_t index; (index = next.fetch_add(1)) < parts_.size();) {
            Part& part = parts_[index];
            part.tokens = part.stop - part.start;
            if (part.known) continue;
            const Walker& own = *part.walker;
            for (std::size_t at = part.start; at < part.stop; ++at) {
                if (own.codes[at] >= 0) continue;
                std::int32_t id = own.ids[index_of(own.codes[at])];
                if (id < 0) part.tokens += (id == dropped ? 0 : wide_ids_[index_of(id)].size()) - 1;
            }
        }
    });
    for (Part& part : parts_) {
        part.before = tokens_;
        tokens_ += part.tokens;
    }
}

void Encoding::write(std::int32_t* terms, std::int32_t* texts) {
    std::atomic<std::size_t> next = 0;
    run([&](Walker&) {
        for (std::size_t index; (index = next.fetch_add(1)) < parts_.size();) {
            const Part& part = parts_[index];
            const Walker& own = *part.walker;
            const std::int32_t* code = own.codes.data() + part.start;
            std::size_t to = part.before;
            if (part.known) std::copy(code, code + part.tokens, terms + to);
            for (std::size_t text = part.first; text < part.last; ++text) {
                auto number = static_cast<std::int32_t>(text);
                if (part.known) {
                    std::fill_n(texts + to, counts_[text], number);
                    to += counts_[text];
                    continue;
                }
                for (const std::int32_t* end = code + counts_[text]; code != end; ++code) {
                    std::int32_t id = *code >= 0 ? *code : own.ids[index_of(*code)];
                    if (id >= 0) {
                        terms[to] = id;
                        texts[to++] = number;
                    } else if (id != dropped) {
                        for (std::int32_t one : wide_ids_[index_of(id)]) {
                            terms[to] = one;
                            texts[to++] = number;
                        }
                    }
                }
            }
        }
    });
}

void Encoding::publish() {
    Analysis& analysis = claim_.analysis;
    std::size_t chunks = 0, bytes = 0;
    for (const auto& walker : walkers_) {
        chunks += walker->chunks.size();
        bytes += walker->chunks.bytes();
    }
    std::lock_guard adding(analysis.adding_);
    Analysis::Tables before = analysis.tables(), tables = before;
    tables.spellings = Analysis::with_room(before.spellings, chunks, bytes);
    tables.terms = Analysis::with_room(before.terms, fresh_.size(), bytes_of(fresh_));
    // Nothing throws from here on.
    auto size = static_cast<std::int32_t>(analysis.size());
    for (std::string_view term : fresh_) tables.terms->add(key_of(term, analysis.multiplier_), size++);
    analysis.size_.store(static_cast<std::size_t>(size), std::memory_order_release);
    for (const auto& walker : walkers_) {
        for (std::size_t chunk = 0; chunk < walker->chunks.size(); ++chunk) {
            std::int32_t id = walker->ids[chunk];
            Key key = walker->chunks.key(chunk);
            if (id < dropped || key.size > longest || tables.spellings->find(key) != unknown) continue;
            tables.spellings->add(key, id);
        }
    }
    if (tables.spellings != before.spellings || tables.terms != before.terms) analysis.become(tables);
}

}  // namespace fanrank::text
