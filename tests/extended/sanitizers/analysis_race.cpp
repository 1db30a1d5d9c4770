// Readers of an `Analysis` beside its writer, for the sanitizers: `test_analysis_race.py` builds and runs it.
//
// Prints "ok", or what was wrong. Tables begin with two slots, so they grow all the time.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "text.hpp"

using namespace fanrank::text;

namespace {

constexpr int rounds = 20, readers = 2;

void check(bool holds, const char* what) {
    if (holds) return;
    std::printf("%s\n", what);
    std::exit(1);
}

std::vector<std::string_view> views(const std::vector<std::string>& strings) { return {strings.begin(), strings.end()}; }

// The terms of a wide chunk are the chunk itself.
std::vector<std::int32_t> write(Analysis& analysis, const std::vector<std::string>& strings, std::size_t threads) {
    auto texts = views(strings);
    Encoding encoding(analysis, texts, threads);
    for (std::size_t chunk = 0; chunk < encoding.wide().size(); ++chunk) {
        std::string_view term = encoding.wide()[chunk];
        encoding.answer(chunk, {&term, 1});
    }
    encoding.number();
    std::vector<std::int32_t> terms(encoding.tokens()), numbers(encoding.tokens());
    encoding.write(terms.data(), numbers.data());
    encoding.publish();
    return terms;
}

std::vector<std::string> documents(int round, int size) {
    std::vector<std::string> texts;
    for (int i = 0; i < size; ++i) {
        std::string tail = std::to_string(round) + "x" + std::to_string(i);
        texts.push_back("Short" + std::to_string(i) + " the RUNNING hippopotamuses" + tail + ", na\xc3\xafve" + tail);
    }
    return texts;
}

// Words that are their own stems, other ones for each round.
std::vector<std::string> words(int round, const char* end) {
    std::vector<std::string> texts;
    for (int i = 0; i < 50; ++i) {
        std::string word = "zo";
        for (int rest = round * 50 + i; rest > 0; rest /= 5) word += "bdfgk"[rest % 5];
        texts.push_back("short " + word + "k" + end + " unforgettabl" + word + "k" + end);
    }
    return texts;
}

// Readers meet words while they are written and forgotten. What they remember must not outlive the words.
void forget_words() {
    Analysis analysis({Stem::nltk, true, {}}, Sizes{});
    write(analysis, {"short"}, 1);
    const std::size_t kept = analysis.size();
    std::atomic<int> now = 0;
    std::atomic<bool> stop = false;
    std::vector<std::thread> threads;
    for (int reader = 0; reader < readers; ++reader) {
        threads.emplace_back([&] {
            while (!stop.load()) {
                auto written = words(now.load(), ""), spelled = words(now.load(), "s");
                analysis.encode(views(written));
                analysis.encode(views(spelled));
            }
        });
    }
    for (int round = 0; round < 8 * rounds; ++round) {
        now.store(round);
        auto terms = write(analysis, words(round, ""), 1);
        for (int wait = 0; wait < 8; ++wait) {
            auto spelled = words(round, "s");
            check(analysis.encode(views(spelled)).terms == terms, "a spelling has another term");
        }
        analysis.truncate(kept);
        write(analysis, words(round + 8 * rounds, ""), 1);
        for (int wait = 0; wait < 8; ++wait) {
            auto spelled = words(round, "s");
            check(analysis.encode(views(spelled)).terms == std::vector<std::int32_t>(50, 0), "a forgotten word is found");
        }
        analysis.truncate(kept);
    }
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
}

// Readers of what was written first, while the tables grow.
void grow_tables() {
    Recipe recipe{Stem::nltk, true, {"the"}};
    Sizes sizes;
    sizes.slots = 2;
    sizes.room = 1;
    sizes.block = 64;
    sizes.share = 1;
    sizes.spellings = 4000;
    Analysis analysis(recipe, sizes);
    const auto first = documents(-1, 200);
    const auto wanted = write(analysis, first, 2);
    const std::size_t kept = analysis.size();
    std::atomic<bool> stop = false;
    std::atomic<int> reads = 0;
    std::vector<std::thread> threads;
    for (int reader = 0; reader < readers; ++reader) {
        threads.emplace_back([&] {
            auto texts = views(first);
            while (!stop.load() || reads.load() < readers) {
                Queries queries = analysis.encode(texts);
                std::vector<std::vector<std::int32_t>> ids;
                for (const Wide& wide : queries.wide) ids.push_back({analysis.find(wide.chunk)});
                queries.insert(ids);
                check(queries.terms == wanted, "a query reads other terms than were written");
                check(queries.offsets.back() == static_cast<std::int64_t>(wanted.size()), "wrong offsets");
                check(analysis.size() >= kept && analysis.find("absent") == unknown, "a wrong vocabulary");
                ++reads;
            }
        });
    }
    for (int round = 0; round < rounds; ++round) {
        auto texts = documents(round, 60);
        auto terms = write(analysis, texts, 1 + static_cast<std::size_t>(round % 3));
        check(terms == write(analysis, texts, 2), "known documents have other terms");
        analysis.spellings();
        if (round % 4 == 3) analysis.truncate(kept);
    }
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
    grow_tables();
    forget_words();
    std::puts("ok");
    return 0;
}
