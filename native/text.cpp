#include "text.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

#include "text_names.hpp"

namespace fanrank::text {

std::size_t Recipe::term(std::string_view spelling, std::uint8_t* word) const {
    auto is_letter = [](char byte) { return byte >= 'a' && byte <= 'z'; };
    if (!numbers && std::none_of(spelling.begin(), spelling.end(), is_letter)) return 0;
    std::size_t size = std::min(spelling.size(), longest);
    std::memcpy(word, spelling.data(), size);
    // A whole stays as it is. Only the names have tokens with joints.
    auto is_plain = [&](char byte) { return is_letter(byte) || (byte >= '0' && byte <= '9'); };
    if (names && !std::all_of(spelling.begin(), spelling.end(), is_plain)) return size;
    return text::stem(stem, word, size);
}

void Queries::insert(const std::vector<std::vector<std::int32_t>>& ids) {
    std::vector<std::int32_t> joined;
    std::size_t from = 0, number = 0;
    for (std::size_t text = 0; text + 1 < offsets.size(); ++text) {
        auto stop = static_cast<std::size_t>(offsets[text + 1]);
        for (; number < wide.size() && wide[number].text == text; ++number) {
            joined.insert(joined.end(), terms.begin() + static_cast<std::ptrdiff_t>(from),
                          terms.begin() + static_cast<std::ptrdiff_t>(wide[number].at));
            joined.insert(joined.end(), ids[number].begin(), ids[number].end());
            from = wide[number].at;
        }
        joined.insert(joined.end(), terms.begin() + static_cast<std::ptrdiff_t>(from),
                      terms.begin() + static_cast<std::ptrdiff_t>(stop));
        from = stop;
        offsets[text + 1] = static_cast<std::int64_t>(joined.size());
    }
    terms = std::move(joined);
    wide.clear();
}

Analysis::Analysis(Recipe recipe, const Sizes& sizes)
    : recipe_(std::move(recipe)), sizes_(sizes), multiplier_(sizes.multiplier) {
    if (multiplier_ == 0) {
        std::random_device device;
        multiplier_ = (std::uint64_t{device()} << 32 | device()) | 1 | std::uint64_t{1} << 63;
    }
    tables_ = {fresh_spellings(), std::make_unique<Table>(sizes_.slots, sizes_.room, multiplier_), 0};
}

std::unique_ptr<Table> Analysis::fresh_spellings() const {
    auto table = std::make_unique<Table>(sizes_.slots, sizes_.room, multiplier_);
    for (const std::string& word : recipe_.stop_words) {
        if (!table->fits(1, word.size())) table = table->copy(INT32_MAX, 1, word.size());
        Key key = key_of(word, multiplier_);
        if (table->find(key) == unknown) table->add(key, dropped);
    }
    return table;
}

Analysis::Tables Analysis::tables() const {
    std::lock_guard lock(reading_);
    return tables_;
}

void Analysis::become(const Tables& tables) {
    Tables before;  // let go after the lock
    std::lock_guard lock(reading_);
    before = std::exchange(tables_, tables);
}

std::shared_ptr<Table> Analysis::with_room(const std::shared_ptr<Table>& table, std::size_t strings, std::size_t bytes) {
    return table->fits(strings, bytes) ? table : std::shared_ptr<Table>(table->copy(INT32_MAX, strings, bytes));
}

std::size_t Analysis::spellings() const {
    std::lock_guard lock(adding_);
    return tables().spellings->size() - recipe_.stop_words.size();
}

std::int32_t Analysis::find(std::string_view term) const {
    return tables().terms->find(key_of(term, multiplier_));
}

Queries Analysis::encode(std::span<const std::string_view> texts) {
    return recipe_.names ? encode_by<NameBlock>(texts) : encode_by<Block>(texts);
}

template <class Blocks>
Queries Analysis::encode_by(std::span<const std::string_view> texts) {
    Tables tables = this->tables();
    const Table& spellings = *tables.spellings;
    Blocks block;
    block.fill(texts);
    Queries queries;
    std::size_t bytes = 0;
    for (std::string_view text : texts) bytes += text.size();
    queries.terms.reserve(bytes / 4);
    queries.offsets.reserve(texts.size() + 1);
    queries.offsets.push_back(0);
    std::vector<Found> found;
    std::size_t text = 0, end = texts.empty() ? 0 : texts[0].size();
    auto finish = [&] {
        queries.offsets.push_back(static_cast<std::int64_t>(queries.terms.size()));
        if (++text < texts.size()) end += 1 + texts[text].size();
    };
    block.scan(multiplier_, [&](std::size_t start, const Key& key) {
        while (start > end) finish();
        std::int32_t code = spellings.find(key);
        if (code == unknown) {
            std::string_view chunk = key.view();
            if (is_wide(chunk)) {
                queries.wide.push_back({queries.terms.size(), text, std::string(chunk)});
                return;
            }
            std::uint8_t word[longest];
            std::size_t length = recipe_.term(chunk, word);
            if (length == 0) return;
            code = tables.terms->find(key_of({reinterpret_cast<const char*>(word), length}, multiplier_));
            if (code == unknown) return;
            if (chunk.size() <= longest) found.push_back({std::string(chunk), code});
        }
        if (code != dropped) queries.terms.push_back(code);
    });
    while (text < texts.size()) finish();
    if (!found.empty()) remember(found, tables.epoch);
    return queries;
}

void Analysis::remember(const std::vector<Found>& found, std::uint64_t epoch) {
    std::unique_lock adding(adding_, std::try_to_lock);
    if (!adding.owns_lock()) return;
    Tables tables = this->tables();
    // Terms were forgotten since: their ids may soon be those of other terms.
    if (tables.epoch != epoch) return;
    std::size_t bytes = 0;
    for (const Found& one : found) bytes += one.spelling.size();
    if (tables.spellings->size() - recipe_.stop_words.size() + found.size() > sizes_.spellings) return;
    std::shared_ptr<Table> spellings = with_room(tables.spellings, found.size(), bytes);
    for (const Found& one : found) {
        Key key = key_of(one.spelling, multiplier_);
        if (spellings->find(key) == unknown) spellings->add(key, one.id);
    }
    if (spellings != tables.spellings) become({spellings, tables.terms, epoch});
}

void Analysis::forget_many() {
    std::lock_guard adding(adding_);
    Tables tables = this->tables();
    if (tables.spellings->size() - recipe_.stop_words.size() <= sizes_.spellings) return;
    become({fresh_spellings(), tables.terms, tables.epoch});
}

void Analysis::add(std::span<const std::string_view> terms) {
    std::lock_guard adding(adding_);
    Tables tables = this->tables();
    std::size_t bytes = 0, size = this->size();
    for (std::string_view term : terms) bytes += term.size();
    if (size + terms.size() > INT32_MAX) throw std::length_error("a vocabulary is full");
    std::shared_ptr<Table> table = with_room(tables.terms, terms.size(), bytes);
    for (std::string_view term : terms) table->add(key_of(term, multiplier_), static_cast<std::int32_t>(size++));
    size_.store(size, std::memory_order_release);
    if (table != tables.terms) become({tables.spellings, table, tables.epoch});
}

void Analysis::truncate(std::size_t size) {
    std::lock_guard adding(adding_);
    if (size >= this->size()) return;
    Tables tables = this->tables();
    auto limit = static_cast<std::int32_t>(size);
    Tables shorter{tables.spellings->copy(limit, 0, 0), tables.terms->copy(limit, 0, 0), tables.epoch + 1};
    size_.store(size, std::memory_order_release);
    become(shorter);
}

}  // namespace fanrank::text
