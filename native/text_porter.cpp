#include "text_porter.hpp"

#include <iterator>
#include <string_view>

namespace fanrank::text {

namespace {

using Number = std::uint64_t;

// Up to eight letters as one number, the last letter in the lowest byte.
constexpr Number pack(std::string_view letters) {
    Number number = 0;
    for (char letter : letters) number = number << 8 | static_cast<std::uint8_t>(letter);
    return number;
}

// Replaces a suffix.
struct Rule {
    constexpr Rule(std::string_view from, std::string_view into)
        : suffix(pack(from)), mask(from.size() == 8 ? ~Number{0} : (Number{1} << 8 * from.size()) - 1),
          length(from.size()), replacement(into) {}

    Number suffix, mask;
    std::size_t length;
    std::string_view replacement;
};

struct Irregular {
    std::string_view word, stem;
};

constexpr Irregular irregular[] = {
    {"sky", "sky"},         {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
    {"tying", "tie"},       {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
    {"outings", "outing"},  {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
    {"howe", "howe"},       {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"},
};
// The first rule that fits decides, so a longer suffix stands before a shorter one that it ends with. The last two
// rules of the second step are extensions.
constexpr Rule second_step[] = {
    {"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},   {"anci", "ance"},   {"izer", "ize"},
    {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"},   {"eli", "e"},       {"ousli", "ous"},
    {"ization", "ize"}, {"ation", "ate"},   {"ator", "ate"},    {"alism", "al"},    {"iveness", "ive"},
    {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"},   {"biliti", "ble"},
    {"logi", "log"},    {"fulli", "ful"},
};
constexpr Rule third_step[] = {
    {"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""}, {"ness", ""},
};
constexpr Rule fourth_step[] = {
    {"al", ""},    {"ance", ""}, {"ence", ""}, {"er", ""},  {"ic", ""},  {"able", ""}, {"ible", ""},
    {"ant", ""},   {"ement", ""}, {"ment", ""}, {"ent", ""}, {"ion", ""}, {"ou", ""},   {"ism", ""},
    {"ate", ""},   {"iti", ""},  {"ous", ""},  {"ive", ""}, {"ize", ""},
};
constexpr Number logi = pack("logi"), fulli = pack("fulli"), ion = pack("ion");

template <class Letter>
bool is_vowel(Letter letter) {
    return letter == 'a' || letter == 'e' || letter == 'i' || letter == 'o' || letter == 'u';
}

template <class Letter>
class Word {
public:
    Word(Letter* letters, std::size_t size) : letters_(letters), size_(size) {}

    std::size_t stem(bool nltk) {
        nltk_ = nltk;
        if (nltk_ && size_ <= 8) {
            for (const Irregular& one : irregular) {
                if (size_ == one.word.size() && ends_with(one.word)) return put(0, one.stem);
            }
        }
        if (size_ <= 2) return size_;
        strip_plural();
        if (nltk_ && ends_with("ied")) {
            size_ -= size_ == 4 ? 1 : 2;
        } else {
            strip_past();
        }
        if (ends_with("y") && (nltk_ ? size_ > 2 && is_consonant(size_ - 2) : has_vowel(size_ - 1))) {
            letters_[size_ - 1] = 'i';
        }
        if (nltk_ && ends_with("alli") && measure(size_ - 4) > 0) size_ -= 2;
        replace(second_step, nltk_ ? std::size(second_step) : std::size(second_step) - 1, 0);
        replace(third_step, std::size(third_step), 0);
        replace(fourth_step, std::size(fourth_step), 1);
        if (ends_with("e")) {
            int count = measure(size_ - 1);
            if (count > 1 || (count == 1 && !ends_short(size_ - 1))) --size_;
        }
        if (ends_with("ll") && measure(size_ - 1) > 1) --size_;
        return size_;
    }

    std::size_t strip_suffix() {
        if (size_ <= 2) return size_;
        strip_plural();
        strip_past();
        if (ends_with("y") && has_vowel(size_ - 1)) letters_[size_ - 1] = 'i';
        return size_;
    }

private:
    void strip_plural() {
        if (ends_with("ies")) {
            size_ -= nltk_ && size_ == 4 ? 1 : 2;
        } else if (ends_with("sses")) {
            size_ -= 2;
        } else if (ends_with("s") && !ends_with("ss")) {
            --size_;
        }
    }

    // -eed, -ed and -ing. Where -ed or -ing goes, the end of what remains is repaired.
    void strip_past() {
        if (ends_with("eed")) {
            if (measure(size_ - 3) > 0) --size_;
            return;
        }
        std::size_t left = ends_with("ed") ? size_ - 2 : ends_with("ing") ? size_ - 3 : 0;
        if (!has_vowel(left)) return;
        size_ = left;
        if (ends_with("at") || ends_with("bl") || ends_with("iz")) {
            letters_[size_++] = 'e';
            return;
        }
        Letter last = letters_[size_ - 1];
        if (size_ > 1 && last == letters_[size_ - 2] && is_consonant(size_ - 1)) {
            if (last != 'l' && last != 's' && last != 'z') {
                --size_;
                return;
            }
        }
        if (measure(size_) == 1 && ends_short(size_)) letters_[size_++] = 'e';
    }

    // Applies the first rule whose suffix the word has, if what precedes the suffix has a measure above `least`.
    void replace(const Rule* rules, std::size_t count, int least) {
        Number end = tail();
        for (const Rule* rule = rules; rule != rules + count; ++rule) {
            if ((end & rule->mask) != rule->suffix || size_ < rule->length) continue;
            std::size_t start = size_ - rule->length;
            // NLTK counts the l of -logi to what precedes it.
            if (measure(nltk_ && rule->suffix == logi ? start + 1 : start) <= least) return;
            if (rule->suffix == ion && letters_[start - 1] != 's' && letters_[start - 1] != 't') return;
            size_ = put(start, rule->replacement);
            return;
        }
    }

    std::size_t put(std::size_t start, std::string_view letters) {
        for (char letter : letters) letters_[start++] = static_cast<Letter>(letter);
        return start;
    }

    bool ends_with(std::string_view suffix) const {
        if (size_ < suffix.size()) return false;
        const Letter* end = letters_ + size_ - suffix.size();
        for (char letter : suffix) {
            if (*end++ != static_cast<Letter>(letter)) return false;
        }
        return true;
    }

    // The last eight letters as `pack` gives them; letters beyond ASCII are 255, which no suffix holds.
    Number tail() const {
        Number number = 0;
        for (std::size_t i = size_ < 8 ? 0 : size_ - 8; i < size_; ++i) {
            number = number << 8 | (letters_[i] < 128 ? static_cast<Number>(letters_[i]) : Number{255});
        }
        return number;
    }

    bool is_consonant(std::size_t position) const {
        bool flipped = false;
        while (position > 0 && letters_[position] == 'y') {
            --position;
            flipped = !flipped;
        }
        return is_vowel(letters_[position]) == flipped;
    }

    bool has_vowel(std::size_t size) const {
        for (std::size_t i = 0; i < size; ++i) {
            if (is_vowel(letters_[i]) || (letters_[i] == 'y' && i > 0)) return true;
        }
        return false;
    }

    // How often a consonant follows a vowel.
    int measure(std::size_t size) const {
        int count = 0;
        bool consonant = true;
        for (std::size_t i = 0; i < size; ++i) {
            bool before = consonant;
            consonant = !(is_vowel(letters_[i]) || (letters_[i] == 'y' && i > 0 && before));
            count += consonant && !before;
        }
        return count;
    }

    // Whether the word ends in consonant, vowel, consonant, as -hop does, but not in w, x or y. For NLTK a whole word of
    // a vowel and a consonant does too.
    bool ends_short(std::size_t size) const {
        if (nltk_ && size == 2) return !is_consonant(0) && is_consonant(1);
        if (size < 3) return false;
        Letter last = letters_[size - 1];
        return is_consonant(size - 3) && !is_consonant(size - 2) && is_consonant(size - 1) && last != 'w' &&
               last != 'x' && last != 'y';
    }

    Letter* letters_;
    std::size_t size_;
    bool nltk_ = false;
};

static_assert(second_step[std::size(second_step) - 1].suffix == fulli);

template <class Letter>
std::size_t stem_word(Stem kind, Letter* word, std::size_t size) {
    switch (kind) {
        case Stem::step_one: return Word<Letter>(word, size).strip_suffix();
        case Stem::nltk: return Word<Letter>(word, size).stem(true);
        case Stem::martin: return Word<Letter>(word, size).stem(false);
        default: return size;
    }
}

}  // namespace

std::size_t stem(Stem kind, std::uint8_t* word, std::size_t size) { return stem_word(kind, word, size); }

std::size_t stem(Stem kind, char32_t* word, std::size_t size) { return stem_word(kind, word, size); }

}  // namespace fanrank::text
