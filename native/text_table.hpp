// Hash tables from strings of bytes to numbers.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace fanrank::text {

// Not in the table.
inline constexpr std::int32_t unknown = INT32_MIN;

// Eight bytes as one number, the first byte lowest.
inline std::uint64_t load(const std::uint8_t* bytes) {
    std::uint64_t number = 0;
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(&number, bytes, 8);
    } else {
        for (int i = 0; i < 8; ++i) number |= std::uint64_t{bytes[i]} << 8 * i;
    }
    return number;
}

inline constexpr std::uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;

// A string, and the number under which a table looks it up. A string of one to eight bytes without a zero is its own
// number (`whole`). The number of any other is a hash.
struct Key {
    std::uint64_t number;
    const std::uint8_t* bytes;
    std::uint32_t size;
    bool whole;

    std::string_view view() const { return {reinterpret_cast<const char*>(bytes), size}; }
};

// The hash of a string of more than eight bytes. The last eight bytes are read as one number, which may overlap the
// number before it.
inline std::uint64_t hash_of(const std::uint8_t* bytes, std::size_t size, std::uint64_t multiplier) {
    std::uint64_t hash = size;
    for (std::size_t at = 0; at + 8 < size; at += 8) {
        hash = (hash ^ load(bytes + at)) * multiplier;
        hash ^= hash >> 32;
    }
    hash = (hash ^ load(bytes + size - 8)) * multiplier;
    hash ^= hash >> 32;
    return std::max<std::uint64_t>(hash, 1);
}

// The key of a string without zeros, with at least eight readable bytes from its begin on.
inline Key padded_key(const std::uint8_t* bytes, std::size_t size, std::uint64_t multiplier) {
    if (size <= 8) return {load(bytes) & (~std::uint64_t{0} >> (64 - 8 * size)), bytes, std::uint32_t(size), true};
    return {hash_of(bytes, size, multiplier), bytes, std::uint32_t(size), false};
}

// The key of any string.
inline Key key_of(std::string_view string, std::uint64_t multiplier) {
    auto bytes = reinterpret_cast<const std::uint8_t*>(string.data());
    auto size = static_cast<std::uint32_t>(string.size());
    if (size > 8) return {hash_of(bytes, size, multiplier), bytes, size, false};
    std::uint64_t number = 0;
    bool whole = size > 0;
    for (std::uint32_t i = 0; i < size; ++i) {
        number |= std::uint64_t{bytes[i]} << 8 * i;
        whole = whole && bytes[i] != 0;
    }
    return {whole ? number : std::max<std::uint64_t>((number ^ size) * multiplier, 1), bytes, size, whole};
}

// Whether two strings are equal. Most have 9 to 16 bytes, where a call of memcmp takes longer than this.
inline bool same(std::string_view one, std::string_view other) {
    if (one.size() != other.size()) return false;
    if (one.size() <= 8) return one == other;
    auto a = reinterpret_cast<const std::uint8_t*>(one.data()), b = reinterpret_cast<const std::uint8_t*>(other.data());
    std::size_t last = one.size() - 8;
    for (std::size_t at = 0; at < last; at += 8) {
        if (load(a + at) != load(b + at)) return false;
    }
    return load(a + last) == load(b + last);
}

// Strings and their codes. One writer at a time; readers need no lock and may run at any time.
//
// A slot holds the number of a key (0: free) and ``place << 32 | code``. The place is where the string's bytes stand in
// the arena, or `whole_place`. Slots and bytes are written once. A writer stores the key last, with release, and a
// reader loads it with acquire. So who sees the key also sees the code and the bytes. A table that is full is copied to
// a larger one.
class Table {
public:
    Table(std::size_t slots, std::size_t room, std::uint64_t multiplier)
        : multiplier_(multiplier), mask_(slots - 1), shift_(64 - std::bit_width(slots - 1)),
          slots_(new Slot[slots]()), room_(room), arena_(new std::uint8_t[room]) {}

    std::uint64_t multiplier() const { return multiplier_; }
    // Number of strings. For the writer.
    std::size_t size() const { return size_; }

    std::int32_t find(const Key& key) const {
        for (std::size_t at = first(key);; at = (at + 1) & mask_) {
            std::uint64_t number = slots_[at].key.load(std::memory_order_acquire);
            if (number == key.number) {
                std::uint64_t entry = slots_[at].entry.load(std::memory_order_relaxed);
                if (key.whole ? entry >> 32 == whole_place : same(entry >> 32, key)) return code_of(entry);
            } else if (number == 0) {
                return unknown;
            }
        }
    }

    // Whether so many more strings, with so many bytes altogether, have room.
    bool fits(std::size_t strings, std::size_t bytes) const {
        return 8 * (size_ + strings) <= fill * (mask_ + 1) && used_ + bytes + head_size * strings <= room_;
    }

    // Adds a string that the table lacks and has room for.
    void add(const Key& key, std::int32_t code) noexcept {
        std::uint64_t place = whole_place;
        if (!key.whole) {
            place = used_ / align;
            std::memcpy(arena_.get() + used_, &key.size, sizeof key.size);
            if (key.size > 0) std::memcpy(arena_.get() + used_ + sizeof key.size, key.bytes, key.size);
            used_ += step(key.size);
        }
        put(key.number, place << 32 | static_cast<std::uint32_t>(code));
        ++size_;
    }

    // A table of the strings whose codes are below `limit`, with room for more strings with so many bytes altogether.
    std::unique_ptr<Table> copy(std::int32_t limit, std::size_t strings, std::size_t bytes) const {
        std::size_t slots = mask_ + 1, room = room_;
        while (8 * (size_ + strings) > fill * slots) slots *= 2;
        while (used_ + bytes + head_size * strings > room) room *= 2;
        if (room / align >= whole_place) throw std::length_error("a table of strings is full");
        auto larger = std::make_unique<Table>(slots, room, multiplier_);
        for (std::size_t at = 0; at <= mask_; ++at) {
            std::uint64_t number = slots_[at].key.load(std::memory_order_relaxed);
            std::uint64_t entry = slots_[at].entry.load(std::memory_order_relaxed);
            if (number == 0 || code_of(entry) >= limit) continue;
            bool whole = entry >> 32 == whole_place;
            const std::uint8_t* head = arena_.get() + (whole ? 0 : (entry >> 32) * align);
            larger->add({number, head + sizeof(std::uint32_t), whole ? 0 : size_at(head), whole}, code_of(entry));
        }
        return larger;
    }

private:
    struct Slot {
        std::atomic<std::uint64_t> key, entry;
    };

    static constexpr std::uint64_t whole_place = 0xFFFFFFFF;
    static constexpr std::size_t fill = 5;  // at most this many strings for every eight slots
    static constexpr std::size_t align = 4;
    static constexpr std::size_t head_size = 2 * align;  // the length, and what is lost where the next string begins

    static std::int32_t code_of(std::uint64_t entry) {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(entry));
    }
    static std::uint32_t size_at(const std::uint8_t* head) {
        std::uint32_t size;
        std::memcpy(&size, head, sizeof size);
        return size;
    }
    static std::string_view view_at(const std::uint8_t* head) {
        return {reinterpret_cast<const char*>(head) + sizeof(std::uint32_t), size_at(head)};
    }
    static std::size_t step(std::size_t size) { return (sizeof(std::uint32_t) + size + align - 1) / align * align; }

    std::size_t first(const Key& key) const { return (key.number * multiplier_) >> shift_; }

    bool same(std::uint64_t place, const Key& key) const {
        if (place == whole_place) return false;
        const std::uint8_t* head = arena_.get() + place * align;
        return text::same(view_at(head), key.view());
    }

    void put(std::uint64_t number, std::uint64_t entry) noexcept {
        std::size_t at = (number * multiplier_) >> shift_;
        while (slots_[at].key.load(std::memory_order_relaxed) != 0) at = (at + 1) & mask_;
        slots_[at].entry.store(entry, std::memory_order_relaxed);
        slots_[at].key.store(number, std::memory_order_release);
    }

    std::uint64_t multiplier_;
    std::size_t mask_;
    int shift_;
    std::unique_ptr<Slot[]> slots_;
    std::size_t size_ = 0;
    std::size_t room_, used_ = 0;
    std::unique_ptr<std::uint8_t[]> arena_;
};

// Distinct strings, numbered from 0 on as they come. For one thread.
class Distinct {
public:
    Distinct(std::size_t slots, std::uint64_t multiplier)
        : multiplier_(multiplier), slots_(slots), shift_(64 - std::bit_width(slots - 1)) {}

    std::size_t size() const { return places_.size(); }
    // At least the bytes of all strings.
    std::size_t bytes() const { return arena_.size(); }
    std::string_view operator[](std::size_t number) const { return view(places_[number]); }
    Key key(std::size_t number) const { return key_of((*this)[number], multiplier_); }

    std::int32_t number(const Key& key) {
        std::size_t at = (key.number * multiplier_) >> shift_;
        for (; slots_[at].key != 0; at = (at + 1) & (slots_.size() - 1)) {
            const Slot& slot = slots_[at];
            if (slot.key == key.number && slot.whole == key.whole && (key.whole || same(view(slot.place), key.view()))) {
                return static_cast<std::int32_t>(slot.number);
            }
        }
        return add(key, at);
    }

private:
    struct Slot {
        std::uint64_t key = 0;
        std::uint32_t place = 0;
        std::uint32_t number : 31 = 0;
        std::uint32_t whole : 1 = 0;
    };

    std::string_view view(std::uint32_t place) const {
        std::uint32_t size;
        std::memcpy(&size, arena_.data() + place, sizeof size);
        return {reinterpret_cast<const char*>(arena_.data()) + place + sizeof size, size};
    }

    std::int32_t add(const Key& key, std::size_t at) {
        if (arena_.size() + key.size > UINT32_MAX - 8 || places_.size() == INT32_MAX) {
            throw std::length_error("too many new words for one call");
        }
        auto place = static_cast<std::uint32_t>(arena_.size());
        auto number = static_cast<std::uint32_t>(places_.size());
        auto size = reinterpret_cast<const std::uint8_t*>(&key.size);
        places_.push_back(place);
        arena_.insert(arena_.end(), size, size + sizeof key.size);
        arena_.insert(arena_.end(), key.bytes, key.bytes + key.size);
        slots_[at] = {key.number, place, number, key.whole};
        if (8 * places_.size() > 5 * slots_.size()) grow();
        return static_cast<std::int32_t>(number);
    }

    void grow() {
        std::vector<Slot> larger(2 * slots_.size());
        --shift_;
        for (const Slot& slot : slots_) {
            if (slot.key == 0) continue;
            std::size_t at = (slot.key * multiplier_) >> shift_;
            while (larger[at].key != 0) at = (at + 1) & (larger.size() - 1);
            larger[at] = slot;
        }
        slots_ = std::move(larger);
    }

    std::uint64_t multiplier_;
    std::vector<Slot> slots_;
    int shift_;
    // Of each string: where its length and then its bytes stand in the arena.
    std::vector<std::uint32_t> places_;
    std::vector<std::uint8_t> arena_;
};

}  // namespace fanrank::text
