#include "text_names.hpp"

#include <algorithm>
#include <cstring>

#include "text.hpp"

namespace fanrank::text {

namespace {

// A longer chunk is data, and nothing of it is kept whole; a longer word is not cut by its case; a word of so many
// characters that mixes letters and digits is a key.
constexpr std::size_t longest_chunk = longest, longest_name = 64, shortest_key = 8;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_small(char byte) { return byte >= 'a' && byte <= 'z'; }
bool is_capital(char byte) { return byte >= 'A' && byte <= 'Z'; }
bool is_letter(char byte) { return is_small(byte) || is_capital(byte); }
bool is_slash(char byte) { return byte == '/' || byte == '\\'; }
bool is_hyphen(char byte) { return byte == '-' || byte == '+'; }
bool is_joint(char byte) { return byte == '_' || std::strchr("-./\\@+:", byte) != nullptr; }
bool is_within(char byte, char first, char last) { return byte >= first && byte <= last; }

// Calls ``each(piece)`` for the pieces between characters of a kind, without those that are empty.
template <class Cuts, class Each>
void split(std::string_view text, const Cuts& cuts, const Each& each) {
    std::size_t begin = 0;
    for (std::size_t at = 0; at <= text.size(); ++at) {
        if (at < text.size() && !cuts(text[at])) continue;
        if (at > begin) each(text.substr(begin, at - begin));
        begin = at + 1;
    }
}

template <class Kind>
bool any(std::string_view text, const Kind& kind) {
    return std::any_of(text.begin(), text.end(), kind);
}

// Where digits that begin here end.
std::size_t end_of_digits(std::string_view text, std::size_t at) {
    while (at < text.size() && is_digit(text[at])) ++at;
    return at;
}

// Whether a version begins here: digits, a dot and a digit, after a v or not.
bool is_version(std::string_view text, std::size_t at) {
    if (at < text.size() && (text[at] == 'v' || text[at] == 'V')) ++at;
    std::size_t end = end_of_digits(text, at);
    return end > at && end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1]);
}

// Where the escape that begins here ends; its begin if it is none. `leaves` says whether a space stays.
std::size_t end_of_escape(std::string_view text, std::size_t begin, bool& leaves) {
    std::size_t at = begin + 1, size = text.size();
    auto skip = [&](char first, char last) {
        while (at < size && is_within(text[at], first, last)) ++at;
    };
    leaves = true;
    if (at == size) return begin;
    if (text[at] == '[') {
        ++at;
        skip('0', '?');
        skip(' ', '/');
        if (at == size || !is_within(text[at], '@', '~')) return begin;
        leaves = text[at] != 'm' && text[at] != 'K';
        return at + 1;
    }
    if (text[at] == ']') {
        while (at < size && text[at] != '\x07' && text[at] != '\x1b') ++at;
        if (at == size) return begin;
        if (text[at] == '\x07') return at + 1;
        return at + 1 < size && text[at + 1] == '\\' ? at + 2 : begin;
    }
    skip(' ', '/');
    if (at == size) return begin;
    char last = text[at];
    if (!is_within(last, '0', 'Z') && last != '\\' && !is_within(last, '^', '~')) return begin;
    leaves = last != 'm' && last != 'K';
    return at + 1;
}

}  // namespace

std::string remove_escapes(std::string_view text) {
    std::string kept;
    kept.reserve(text.size());
    std::size_t from = 0;
    for (std::size_t at = text.find('\x1b'); at != std::string_view::npos; at = text.find('\x1b', at)) {
        bool leaves;
        std::size_t end = end_of_escape(text, at, leaves);
        if (end == at) {
            ++at;
            continue;
        }
        kept.append(text, from, at - from);
        if (leaves) kept.push_back(' ');
        from = at = end;
    }
    kept.append(text, from);
    return kept;
}

void Parts::cut(std::string_view chunk) {
    used_ = 0;
    ends_.clear();
    if (chunk.size() <= longest_chunk) {
        add_path(chunk);
    } else {
        split(chunk, is_joint, [&](std::string_view word) { add_words(word); });
    }
}

std::uint8_t* Parts::open(std::size_t size) {
    if (used_ + size + 1 + padding > bytes_.size()) bytes_.resize(2 * (used_ + size + 1 + padding));
    return bytes_.data() + used_;
}

void Parts::close(std::uint8_t* end) {
    auto size = static_cast<std::size_t>(end - bytes_.data());
    ends_.push_back(size);
    bytes_[size] = 0;
    used_ = size + 1;
}

void Parts::add_path(std::string_view path) {
    auto cuts = [](char byte) { return is_slash(byte) || byte == '@' || byte == ':'; };
    if (any(path, cuts)) add_whole(path);
    split(path, cuts, [&](std::string_view piece) {
        // The dot of a hidden file belongs to the slash before it.
        add_dotted(piece[0] == '.' ? piece.substr(1) : piece);
    });
}

void Parts::add_dotted(std::string_view piece) {
    bool found = is_version(piece, 0);
    for (std::size_t at = 0; at < piece.size(); ++at) found = found || (is_hyphen(piece[at]) && is_version(piece, at + 1));
    if (found && any(piece, is_hyphen)) {
        add_whole(piece);
        split(piece, is_hyphen, [&](std::string_view dotted) { add_names(dotted); });
    } else {
        add_names(piece);
    }
}

void Parts::add_names(std::string_view dotted) {
    auto cuts = [](char byte) { return byte == '.'; };
    if (any(dotted, cuts)) add_whole(dotted);
    split(dotted, cuts, [&](std::string_view name) { add_name(name); });
}

void Parts::add_name(std::string_view name) {
    auto cuts = [](char byte) { return is_hyphen(byte) || byte == '_'; };
    if (any(name, cuts)) add_whole(name);
    split(name, cuts, [&](std::string_view word) { add_words(word); });
}

void Parts::add_words(std::string_view word) {
    std::size_t size = word.size(), cuts[longest_name], count = 0;
    for (std::size_t at = 1; at < size && size <= longest_name; ++at) {
        if (!is_capital(word[at])) continue;
        bool before_small = at + 1 < size && is_small(word[at + 1]);
        // The s of IDs makes no word of its own.
        bool plural = before_small && word[at + 1] == 's' && !(at + 2 < size && is_small(word[at + 2]));
        if (is_small(word[at - 1]) || (is_digit(word[at - 1]) && before_small) ||
            (is_capital(word[at - 1]) && before_small && !plural)) {
            cuts[count++] = at;
        }
    }
    std::size_t letters = 0;
    while (letters < size && is_letter(word[letters])) ++letters;
    if (count == 0 && letters > 0 && letters < size && end_of_digits(word, letters) == size) {
        add_lower(word);
        add_lower(word.substr(0, letters));
        add_lower(word.substr(letters));
        return;
    }
    if (count > 0 || (size >= shortest_key && any(word, is_digit) && any(word, is_letter))) add_lower(word);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
        add_lower(word.substr(begin, cuts[i] - begin));
        begin = cuts[i];
    }
    add_lower(word.substr(begin));
}

void Parts::add_lower(std::string_view word) {
    std::uint8_t* out = open(word.size());
    for (char byte : word) *out++ = static_cast<std::uint8_t>(is_capital(byte) ? byte | 0x20 : byte);
    close(out);
}

void Parts::add_whole(std::string_view piece) {
    if (!any(piece, [](char byte) { return is_letter(byte) || is_digit(byte); })) return;
    if (piece[0] == 'v' || piece[0] == 'V') {
        std::size_t end = end_of_digits(piece, 1);
        if (end > 1 && end < piece.size() && piece[end] == '.') piece.remove_prefix(1);
    }
    char before = 0;
    std::uint8_t* out = open(piece.size());
    for (char byte : piece) {
        if (byte != '-' && !(is_slash(byte) && is_slash(before))) {
            *out++ = static_cast<std::uint8_t>(is_capital(byte) ? byte | 0x20 : byte == '\\' ? '/' : byte);
        }
        before = byte;
    }
    close(out);
}

namespace {

// The kind of a byte: bits that vector instructions can shift to where they are compared.
enum Kind : std::uint8_t { capital = 1, small = 2, digit = 4, other = 8, wide = 16, joint = 32, word = 64 };

// All bytes joined by or. Compilers make vector instructions of this loop and of the next two.
std::uint8_t joined(const std::uint8_t* bytes, std::size_t size) {
    std::uint8_t all = 0;
    for (std::size_t i = 0; i < size; ++i) all |= bytes[i];
    return all;
}

// Whether two bytes are a joint of two: :: // \\ /. /@
bool is_double(std::uint8_t one, std::uint8_t next) {
    return (one == next && (one == ':' || one == '/' || one == '\\')) || (one == '/' && (next == '.' || next == '@'));
}

constexpr std::uint8_t when(bool condition, std::uint8_t value) {
    return static_cast<std::uint8_t>(-static_cast<std::uint8_t>(condition) & value);
}

// Writes the kind of each byte, and returns whether there may be a joint of two.
bool classify(const std::uint8_t* bytes, std::uint8_t* kinds, std::size_t size) {
    std::uint8_t doubles = 0;
    for (std::size_t i = 0; i < size; ++i) {
        std::uint8_t byte = bytes[i], next = bytes[i + 1];
        std::uint8_t back = when(byte == '\\', 0xFF), colon = when(byte == ':', 0xFF), slash = when(byte == '/', 0xFF);
        std::uint8_t same = when(byte == next, 0xFF), follows = when(next == '.', 0xFF) | when(next == '@', 0xFF);
        std::uint8_t from_plus = when(static_cast<std::uint8_t>(byte - '+') < 5, joint);
        kinds[i] = static_cast<std::uint8_t>(
            when(static_cast<std::uint8_t>(byte - 'A') < 26, capital | word) |
            when(static_cast<std::uint8_t>(byte - 'a') < 26, small | word) |
            when(static_cast<std::uint8_t>(byte - '0') < 10, digit | word) | when(byte == '_', other | word) |
            when(byte >= 0x80, wide | word) | (back & joint) | when(byte == '@', joint) |
            (from_plus & ~when(byte == ',', joint)));
        doubles |= (slash & (same | follows)) | (same & (back | colon));
    }
    return doubles != 0;
}

void mark(const std::uint8_t* bytes, const std::uint8_t* kinds, std::uint8_t* lowered, std::uint8_t* marks,
          std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
        std::uint8_t kind = kinds[i], last = kinds[i - 1], next = kinds[i + 1];
        std::uint8_t joins = kind >> 5 & last >> 6 & next >> 6;
        std::uint8_t camel = kind & (last >> 1 | (last & next >> 1));
        std::uint8_t mixed = ((kind | kind >> 1) & last >> 2) | (kind >> 2 & (last | last >> 1));
        std::uint8_t beyond = kind >> 3 | kind >> 4;
        marks[i] = static_cast<std::uint8_t>((joins | camel | mixed | beyond) << 7);
        std::uint8_t keeps = (joins | kind >> 6) & 1;
        lowered[i] = static_cast<std::uint8_t>((bytes[i] | (kind & capital) << 5) & -keeps);
    }
}

}  // namespace

std::size_t NameBlock::fill(std::span<const std::string_view> given) {
    std::size_t size = 0;
    for (std::string_view text : given) size += text.size() + 1;
    lines_ = (size + line - 1) / line;
    if (capacity() > room_) {
        room_ = capacity();
        bytes_.reset(new std::uint8_t[4 * room_]());
    }
    std::memset(bytes_.get(), 0, lead);
    std::uint8_t* out = texts();
    for (std::string_view text : given) {
        if (!text.empty()) std::memcpy(out, text.data(), text.size());
        out += text.size();
        *out++ = 0;
    }
    std::size_t whole = lines_ * line, rest = whole - size;
    std::memset(out, 0, rest + padding);
    // Dashes and quotation marks U+2012 to U+2027; the hyphens before them join.
    if (joined(texts(), size) & 0x80) cut_marks(texts(), size, 0x92);
    bool doubles = classify(texts(), kinds(), whole + padding - 4);
    std::memset(kinds() - 1, 0, 1);
    mark(texts(), kinds(), lowered(), marks(), whole);
    const std::uint8_t *bytes = texts(), *kind = kinds();
    for (std::size_t i = 1; doubles && i + 2 < size; ++i) {
        if (!is_double(bytes[i], bytes[i + 1]) || (kind[i - 1] & word) == 0 || (kind[i + 2] & word) == 0) continue;
        for (std::size_t at : {i, i + 1}) {
            lowered()[at] = bytes[at];
            marks()[at] = 0x80;
        }
    }
    return size;
}

}  // namespace fanrank::text
