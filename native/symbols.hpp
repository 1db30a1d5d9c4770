// Short texts in fewer bytes: runs of up to eight bytes that are frequent become one byte each.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fanrank {

// The runs of a table by their codes, and the search for the longest that a text begins with.
class Symbols {
public:
    static constexpr unsigned char ESCAPE = 255;  // A byte that no run begins with follows it.
    static constexpr std::size_t MOST = 255, LONGEST = 8;

    explicit Symbols(std::vector<std::string> runs) : runs_(std::move(runs)), starts_(PAIRS + 1) {
        if (runs_.size() > MOST) throw std::invalid_argument("a table has at most 255 runs");
        single_.fill(NONE);
        for (std::size_t code = 0; code < runs_.size(); ++code) {
            const std::string& run = runs_[code];
            if (run.empty() || run.size() > LONGEST) throw std::invalid_argument("a run has 1 to 8 bytes");
            if (run.size() == 1) {
                single_[static_cast<unsigned char>(run[0])] = static_cast<std::uint16_t>(code);
            } else {
                longer_.push_back({word_of(run), word_of(std::string(run.size(), '\xff')), run.size(),
                                   static_cast<std::uint16_t>(code)});
            }
        }
        std::sort(longer_.begin(), longer_.end(), [](const Long& one, const Long& other) {
            if (pair_of(one.word) != pair_of(other.word)) return pair_of(one.word) < pair_of(other.word);
            return one.size != other.size ? one.size > other.size : one.code < other.code;
        });
        for (const Long& run : longer_) ++starts_[pair_of(run.word) + 1];
        for (std::size_t pair = 0; pair < PAIRS; ++pair) starts_[pair + 1] += starts_[pair];
    }

    const std::vector<std::string>& runs() const { return runs_; }

    // The code of the longest run that the text begins with; `NONE` where there is none.
    static constexpr std::uint16_t NONE = 256;
    std::uint16_t code_of(std::string_view text) const {
        if (text.size() > 1) {
            const std::uint64_t word = word_of(text);
            const std::size_t pair = pair_of(word);
            for (std::size_t at = starts_[pair]; at < starts_[pair + 1]; ++at) {
                const Long& run = longer_[at];
                if (((word ^ run.word) & run.mask) == 0 && run.size <= text.size()) return run.code;
            }
        }
        return single_[static_cast<unsigned char>(text[0])];
    }

    void pack(std::string_view text, std::string& to) const {
        while (!text.empty()) {
            const std::uint16_t code = code_of(text);
            to += static_cast<char>(code == NONE ? ESCAPE : code);
            if (code == NONE) to += text[0];
            text.remove_prefix(code == NONE ? 1 : runs_[code].size());
        }
    }

    // Whether `packed` is what `pack` made of some text, which is added to `to`.
    bool unpack(std::string_view packed, std::string& to) const {
        for (std::size_t at = 0; at < packed.size(); ++at) {
            const auto code = static_cast<unsigned char>(packed[at]);
            if (code == ESCAPE) {
                if (++at == packed.size()) return false;
                to += packed[at];
            } else if (code < runs_.size()) {
                to += runs_[code];
            } else {
                return false;
            }
        }
        return true;
    }

    // The runs that make texts like these shortest, about: each round cuts them by the runs so far, and takes the runs,
    // and neighbours joined, that stand for the most bytes.
    static Symbols learn(const std::vector<std::string_view>& texts) {
        constexpr std::size_t CODES = 512;  // runs, then bytes that no run begins with
        constexpr int ROUNDS = 5;
        Symbols found({});
        for (int round = 1; round <= ROUNDS; ++round) {
            std::vector<std::uint32_t> times(CODES), together(CODES * CODES);
            const auto run_of = [&](std::size_t code) {
                return code <= MOST ? found.runs_[code] : std::string(1, static_cast<char>(code - 256));
            };
            for (std::string_view text : texts) {
                std::size_t before = CODES;
                const auto count = [&](std::size_t code) {
                    ++times[code];
                    if (before < CODES) ++together[before * CODES + code];
                };
                while (!text.empty()) {
                    const std::size_t single = 256 + static_cast<unsigned char>(text[0]);
                    const std::uint16_t code = found.code_of(text);
                    // Its first byte alone counts too, so that runs may end before this one.
                    if (code != NONE && found.runs_[code].size() > 1) count(single);
                    const std::size_t known = code == NONE ? single : code;
                    count(known);
                    text.remove_prefix(run_of(known).size());
                    before = known;
                }
            }
            std::unordered_map<std::string, std::uint64_t> gains;
            for (std::size_t code = 0; code < CODES; ++code) {
                if (times[code] == 0) continue;
                const std::string run = run_of(code);
                // A byte without a code takes two.
                gains[run] += std::uint64_t{times[code]} * (run.size() == 1 ? 8 : run.size());
                for (std::size_t next = 0; round < ROUNDS && next < CODES; ++next) {
                    const std::uint32_t both = together[code * CODES + next];
                    if (both < 2) continue;
                    const std::string joined = run + run_of(next);
                    if (joined.size() <= LONGEST) gains[joined] += std::uint64_t{both} * joined.size();
                }
            }
            std::vector<std::pair<std::string, std::uint64_t>> best(gains.begin(), gains.end());
            std::sort(best.begin(), best.end(), [](const auto& one, const auto& other) {
                return one.second != other.second ? one.second > other.second : one.first < other.first;
            });
            std::vector<std::string> runs;
            for (std::size_t rank = 0; rank < std::min(best.size(), MOST); ++rank) runs.push_back(best[rank].first);
            found = Symbols(std::move(runs));
        }
        return found;
    }

private:
    static constexpr std::size_t PAIRS = 1 << 16;

    struct Long {
        std::uint64_t word, mask;
        std::size_t size;
        std::uint16_t code;
    };

    static std::uint64_t word_of(std::string_view text) {
        std::uint64_t word = 0;
        std::memcpy(&word, text.data(), std::min(text.size(), LONGEST));
        return word;
    }
    static std::size_t pair_of(std::uint64_t word) {
        std::uint16_t pair = 0;
        std::memcpy(&pair, &word, sizeof pair);
        return pair;
    }

    std::vector<std::string> runs_;
    std::array<std::uint16_t, 256> single_{};
    std::vector<Long> longer_;  // runs of two bytes and more: by their first two, the longest first
    std::vector<std::uint16_t> starts_;  // [PAIRS + 1] where those that begin with a pair of bytes start
};

}  // namespace fanrank
