// Scores that fade with age; engine/index/decay.py states the formula and why every path gives the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace fanrank::search {

constexpr int PART_BITS = 16;
constexpr int FACTOR_BITS = 30;
constexpr std::int64_t MAX_HALF_LIVES = 900;

// `decay.TABLE`, the factors of one half-life in ticks.
const std::int32_t* decay_table();

// How the scores of one query fade. `table` is `decay_table()`.
struct Decay {
    double now = 0.0;
    double rate = 0.0;  // ticks a second; 0: scores do not fade
    const std::int32_t* table = nullptr;

    // The bits of a sum of quanta that is decayed by the age of `time`.
    std::int64_t key(std::int64_t total, double time) const {
        const std::int64_t ticks = ticks_of(time);
        const double product = static_cast<double>(total) * table[ticks & ((1 << PART_BITS) - 1)];
        return std::bit_cast<std::int64_t>(product * power(ticks));
    }

    // The least sum, 1 or more, whose key at this time is `wanted` or more.
    std::int64_t least_total(std::int64_t wanted, double time) const {
        const std::int64_t ticks = ticks_of(time);
        const double factor = table[ticks & ((1 << PART_BITS) - 1)] * power(ticks);
        const double estimate = std::bit_cast<double>(wanted) / factor;
        // Beyond every sum of quanta, which stay in int32.
        if (!(estimate < 0x1p40)) return std::int64_t{1} << 40;
        // The quotient is off by less than one sum; keys grow with sums, so the first that suffices is the least.
        std::int64_t total = static_cast<std::int64_t>(estimate) - 2;
        if (total < 1) total = 1;
        while (key(total, time) < wanted) ++total;
        return total;
    }

private:
    std::int64_t ticks_of(double time) const {
        const double age = (now - time) * rate;
        // False for a record without a time: the comparison with NaN, or an age of minus infinity.
        if (!(age > 0.0)) return 0;
        return static_cast<std::int64_t>(std::fmin(age, static_cast<double>(MAX_HALF_LIVES << PART_BITS)));
    }
    static double power(std::int64_t ticks) {
        // 2 to a power from -30 to -930, by its exponent: a normal number.
        return std::bit_cast<double>((std::int64_t{1023} - (ticks >> PART_BITS) - FACTOR_BITS) << 52);
    }
};

}  // namespace fanrank::search
