// Where each posting list crosses the tile borders, and its largest contribution in each tile.
#include "arguments.cuh"

constexpr i32 THREADS = 256;
constexpr i32 UNROLL = 4;

__device__ __forceinline__ i32 tiles_of(const CutArguments& a, i32 segment) {
    return (a.sizes[segment] + (1 << a.tile_bits) - 1) >> a.tile_bits;
}

// One thread a (list, tile border); a warp takes 32 borders of one list. Grid: lists * border_groups warps.
extern "C" __global__ void __launch_bounds__(256) cut_borders(const __grid_constant__ CutArguments a) {
    const i64 warp = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    const i64 list = warp / a.border_groups;
    if (list >= a.lists) {
        return;
    }
    const i32 border = static_cast<i32>(warp % a.border_groups) * WARP + static_cast<i32>(threadIdx.x % WARP);
    const i32 segment = a.list_segment[list];
    const i32 tiles = tiles_of(a, segment);
    if (border > tiles) {
        return;
    }
    i32 low = 0;
    i32 high = a.list_length[list];
    if (high > 0 && border == tiles) {
        low = high;
    } else if (high > 0) {
        const u32* words = at_address<u32>(a.words_of[segment]) + a.list_start[list];
        const u32 document = static_cast<u32>(border) << a.tile_bits;
        while (low < high) {
            const i32 middle = low + (high - low) / 2;
            if ((words[middle] & DOCUMENT_MASK) < document) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
    }
    a.cuts[a.list_cuts[list] + border] = low;
}

// A warp's largest value(index) of the indices below `count`, or 0. value() is 0 from `count` on: with that test here,
// cut_maxima takes 34 registers on sm_100 instead of 32, and a quarter fewer warps fit.
template <typename Value>
__device__ __forceinline__ i64 largest_value(i32 count, const Value& value) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    i64 largest = 0;
    for (i32 first = 0; first < count; first += WARP * UNROLL) {
#pragma unroll
        for (i32 i = 0; i < UNROLL; ++i) {
            const i32 index = first + i * WARP + lane;
            largest = larger(largest, value(index));
        }
    }
    return warp_largest(largest);
}

template <typename Quantum>
__device__ __forceinline__ i64 largest_absolute(const Quantum* quanta, i32 count) {
    return largest_value(count, [=](i32 index) {
        const i64 value = index < count ? static_cast<i64>(quanta[index]) : 0;
        return value < 0 ? -value : value;
    });
}

// The largest saturated frequency of postings whose impact classes are impact class(index). Positive doubles are
// ordered as their bits.
template <typename ImpactClass>
__device__ __forceinline__ double largest_saturated(const double* saturated, i32 count, const ImpactClass& impact_class) {
    return __longlong_as_double(
        largest_value(count, [=](i32 index) { return index < count ? __double_as_longlong(saturated[impact_class(index)]) : 0; }));
}

// Writes the maximum of one (list, tile) a warp, which largest(list, segment, first posting, postings) returns. Grid:
// lists * max_tiles warps.
template <typename Largest>
__device__ __forceinline__ void write_maxima(const CutArguments& a, const Largest& largest) {
    const i64 warp = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    const i64 list = warp / a.max_tiles;
    if (list >= a.lists) {
        return;
    }
    const i32 tile = static_cast<i32>(warp % a.max_tiles);
    const i32 segment = a.list_segment[list];
    if (tile >= tiles_of(a, segment)) {
        return;
    }
    const i64 row = a.list_cuts[list] + tile;
    i64 maximum = 0;
    if (a.list_length[list] > 0) {
        const i32 begin = a.cuts[row];
        maximum = largest(list, segment, a.list_start[list] + begin, a.cuts[row + 1] - begin);
    }
    if (threadIdx.x % WARP == 0) {
        a.maxima[row] = maximum;
    }
}

extern "C" __global__ void __launch_bounds__(256) cut_maxima(const __grid_constant__ CutArguments a) {
    write_maxima(a, [&](i64, i32 segment, i64 first, i32 count) {
        if (a.long_quanta) {
            return largest_absolute(at_address<i64>(a.quanta_of[segment]) + first, count);
        }
        return largest_absolute(at_address<i32>(a.quanta_of[segment]) + first, count);
    });
}

// As `cut_maxima`, where contributions are computed from impact classes. A contribution grows with the saturated
// frequency, so only that of the largest is computed.
extern "C" __global__ void __launch_bounds__(256) cut_maxima_classes(const __grid_constant__ CutArguments a) {
    write_maxima(a, [&](i64 list, i32 segment, i64 first, i32 count) {
        // Without postings the maximum is 0, and quanta_of_class is at least 1.
        if (count == 0) {
            return i64(0);
        }
        const double* const saturated = at_address<double>(a.saturated_of[segment]);
        double largest;
        if (a.posting_bytes == 4) {
            const u32* const words = at_address<u32>(a.words_of[segment]) + first;
            largest = largest_saturated(saturated, count, [=](i32 index) { return words[index] >> DOCUMENT_BITS; });
        } else {
            const u16* const impact_classes = at_address<u16>(a.quanta_of[segment]) + first;
            largest = largest_saturated(saturated, count, [=](i32 index) { return static_cast<u32>(impact_classes[index]); });
        }
        return quanta_of_class(a.list_idf[list], largest);
    });
}
