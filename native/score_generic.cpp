// The loops of score.hpp for any processor.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "score.hpp"

namespace fanrank::search::generic {
#include "score_loops.hpp"
#include "sum_loops.hpp"
}
