#include "score.hpp"

#include <algorithm>

namespace fanrank::search {

using Score = void(const Part&, std::span<const TermList>, std::span<const Slot>, const Accepted&, const Decay&,
                   const ScoreOptions&, Best&, Scratch&, Counted&);

using Lend = void(const Part&, std::span<const TermList>, std::span<const Slot>, const Layout&, const Loan&, LentSums&,
                  Counted&);

using Take = void(const Layout&, const Loan&, std::int64_t, const Acceptance*, LentSums&);

namespace generic {
Score score;
Lend lend;
Take take_best;
}

#ifdef FANRANK_AVX2
namespace avx2 {
Score score;
Lend lend;
Take take_best;
}
#endif

namespace {

bool has_avx2() {
#ifdef FANRANK_AVX2
    // All that score_avx2.cpp is compiled for.
    static const bool found =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    return found;
#else
    return false;
#endif
}

}  // namespace

void Scratch::prepare(std::int64_t tile, std::int64_t room) {
    const std::size_t documents = static_cast<std::size_t>(tile), places = documents + 1;
    if (scores.size() < documents) scores.resize(documents, 0);
    if (maxima.size() < documents) maxima.resize(documents);
    // One place more than the tile, as each candidate is written before it counts.
    if (this->places.size() < places) this->places.resize(places);
    if (sums.size() < places) sums.resize(places);
    if (found.size() < places) found.resize(places);
    if (found_sums.size() < places) found_sums.resize(places);
    if (keys.size() < static_cast<std::size_t>(room)) keys.resize(static_cast<std::size_t>(room));
    if (hits.size() < static_cast<std::size_t>(room)) hits.resize(static_cast<std::size_t>(room));
}

void start(Best& best, Scratch& scratch, std::int64_t k, const ScoreOptions& options) {
    best.k = k;
    best.count = 0;
    best.threshold = 1;
    best.room = std::max({options.room * k, options.least_room, k + 1});
    scratch.prepare(std::max(options.tile, options.faded_tile), best.room);
}

void score(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Accepted& accepted,
           const Decay& decay, const ScoreOptions& options, Best& best, Scratch& scratch, Counted& counted) {
#ifdef FANRANK_AVX2
    static Score* const loops = has_avx2() ? avx2::score : generic::score;
#else
    static Score* const loops = generic::score;
#endif
    loops(part, lists, query, accepted, decay, options, best, scratch, counted);
}

void lend(const Part& part, std::span<const TermList> lists, std::span<const Slot> query, const Layout& layout,
          const Loan& loan, LentSums& own, Counted& counted) {
#ifdef FANRANK_AVX2
    static Lend* const loops = has_avx2() ? avx2::lend : generic::lend;
#else
    static Lend* const loops = generic::lend;
#endif
    loops(part, lists, query, layout, loan, own, counted);
}

void take_best(const Layout& layout, const Loan& loan, std::int64_t k, const Acceptance* accepted, LentSums& own) {
#ifdef FANRANK_AVX2
    static Take* const loops = has_avx2() ? avx2::take_best : generic::take_best;
#else
    static Take* const loops = generic::take_best;
#endif
    loops(layout, loan, k, accepted, own);
}

}  // namespace fanrank::search
