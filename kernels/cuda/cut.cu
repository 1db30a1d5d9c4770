// Where each posting list crosses the tile borders, and its largest contribution in each tile.
#include "common.cuh"

constexpr i32 THREADS = 256;
constexpr i32 UNROLL = 4;

// One thread a (list, tile border); a warp takes 32 borders of one list. Grid: lists * border_groups warps.
extern "C" __global__ void __launch_bounds__(256) cut_borders(
    i32 tile_bits,
    i32 border_groups,  // ceil((max_tiles + 1) / 32)
    i64 lists,
    const i64* words_of,
    const i32* sizes,
    const i32* list_segment,
    const i64* list_start,
    const i32* list_length,
    const i64* list_cuts,
    i32* cuts) {
    const i64 warp = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    const i64 list = warp / border_groups;
    if (list >= lists) {
        return;
    }
    const i32 border = static_cast<i32>(warp % border_groups) * WARP + static_cast<i32>(threadIdx.x % WARP);
    const i32 segment = list_segment[list];
    const i32 tiles = (sizes[segment] + (1 << tile_bits) - 1) >> tile_bits;
    if (border > tiles) {
        return;
    }
    i32 low = 0;
    i32 high = list_length[list];
    if (high > 0 && border == tiles) {
        low = high;
    } else if (high > 0) {
        const u32* words = at_address<u32>(words_of[segment]) + list_start[list];
        const u32 document = static_cast<u32>(border) << tile_bits;
        while (low < high) {
            const i32 middle = low + (high - low) / 2;
            if ((words[middle] & DOCUMENT_MASK) < document) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
    }
    cuts[list_cuts[list] + border] = low;
}

template <typename Quantum>
__device__ __forceinline__ i64 largest_absolute(const Quantum* quanta, i32 count) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    i64 largest = 0;
    for (i32 first = 0; first < count; first += WARP * UNROLL) {
#pragma unroll
        for (i32 i = 0; i < UNROLL; ++i) {
            const i32 index = first + i * WARP + lane;
            const i64 value = index < count ? static_cast<i64>(quanta[index]) : 0;
            largest = larger(largest, value < 0 ? -value : value);
        }
    }
    return warp_largest(largest);
}

// Of the kinds of postings, the largest of what they saturate to. Positive doubles are ordered as their bits.
template <typename Kind>
__device__ __forceinline__ double largest_saturated(const double* saturated, i32 count, const Kind& kind) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    i64 largest = 0;
    for (i32 first = 0; first < count; first += WARP * UNROLL) {
#pragma unroll
        for (i32 i = 0; i < UNROLL; ++i) {
            const i32 index = first + i * WARP + lane;
            largest = larger(largest, index < count ? __double_as_longlong(saturated[kind(index)]) : 0);
        }
    }
    return __longlong_as_double(warp_largest(largest));
}

// As `cut_maxima`, where contributions are made of kinds. A contribution grows with what it saturates to, so one is made.
extern "C" __global__ void __launch_bounds__(256) cut_maxima_kinds(
    i32 tile_bits,
    i32 max_tiles,
    i32 bytes,  // of a posting: 4 or 6
    i64 lists,
    const i64* words_of,
    const i64* kinds_of,
    const i64* saturated_of,
    const double* list_idf,
    const i32* sizes,
    const i32* list_segment,
    const i64* list_start,
    const i32* list_length,
    const i64* list_cuts,
    const i32* cuts,
    i64* maxima) {
    const i64 warp = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    const i64 list = warp / max_tiles;
    if (list >= lists) {
        return;
    }
    const i32 tile = static_cast<i32>(warp % max_tiles);
    const i32 segment = list_segment[list];
    if (tile >= (sizes[segment] + (1 << tile_bits) - 1) >> tile_bits) {
        return;
    }
    const i64 row = list_cuts[list] + tile;
    const i32 begin = list_length[list] > 0 ? cuts[row] : 0;
    const i32 count = list_length[list] > 0 ? cuts[row + 1] - begin : 0;
    i64 largest = 0;
    if (count > 0) {
        const i64 first = list_start[list] + begin;
        const double* const saturated = at_address<double>(saturated_of[segment]);
        double most;
        if (bytes == 4) {
            const u32* const words = at_address<u32>(words_of[segment]) + first;
            most = largest_saturated(saturated, count, [=](i32 index) { return words[index] >> DOCUMENT_BITS; });
        } else {
            const u16* const kinds = at_address<u16>(kinds_of[segment]) + first;
            most = largest_saturated(saturated, count, [=](i32 index) { return static_cast<u32>(kinds[index]); });
        }
        largest = quanta_of_kind(list_idf[list], most);
    }
    if (threadIdx.x % WARP == 0) {
        maxima[row] = largest;
    }
}

// One warp a (list, tile). Grid: lists * max_tiles warps.
extern "C" __global__ void __launch_bounds__(256) cut_maxima(
    i32 tile_bits,
    i32 max_tiles,
    i32 long_quanta,
    i64 lists,
    const i64* quanta_of,
    const i32* sizes,
    const i32* list_segment,
    const i64* list_start,
    const i32* list_length,
    const i64* list_cuts,
    const i32* cuts,
    i64* maxima) {
    const i64 warp = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    const i64 list = warp / max_tiles;
    if (list >= lists) {
        return;
    }
    const i32 tile = static_cast<i32>(warp % max_tiles);
    const i32 segment = list_segment[list];
    if (tile >= (sizes[segment] + (1 << tile_bits) - 1) >> tile_bits) {
        return;
    }
    const i64 row = list_cuts[list] + tile;
    i64 largest = 0;
    if (list_length[list] > 0) {
        const i32 begin = cuts[row];
        const i32 count = cuts[row + 1] - begin;
        const i64 first = list_start[list] + begin;
        if (long_quanta) {
            largest = largest_absolute(at_address<i64>(quanta_of[segment]) + first, count);
        } else {
            largest = largest_absolute(at_address<i32>(quanta_of[segment]) + first, count);
        }
    }
    if (threadIdx.x % WARP == 0) {
        maxima[row] = largest;
    }
}
