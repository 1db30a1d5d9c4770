#include "decay.hpp"

#include <cmath>
#include <vector>

namespace fanrank::search {

// `decay.TABLE`: no exact value is closer to a rounding boundary than the error of `exp2`.
const std::int32_t* decay_table() {
    // Never freed: threads of the pool may read it until the process ends.
    static const std::vector<std::int32_t>& table = *new std::vector<std::int32_t>([] {
        std::vector<std::int32_t> made(1 << PART_BITS);
        for (std::size_t tick = 0; tick < made.size(); ++tick) {
            made[tick] = static_cast<std::int32_t>(std::nearbyint(
                std::ldexp(std::exp2(-static_cast<double>(tick) / static_cast<double>(made.size())), FACTOR_BITS)));
        }
        return made;
    }());
    return table.data();
}

}  // namespace fanrank::search
