// What a launch needs before tiles can be ordered: the tables of an epoch's long lists, and the descriptors of a launch's
// slots, for terms that the host looked up (`plan_describe`) or that are looked up here (`plan_terms`).
//
// Warps work alone: no kernel has a barrier of the block.
#include "plan_slot.cuh"

// The threshold that a launch begins with.
__device__ __forceinline__ i64 first_threshold(i32 is_signed) {
    return is_signed ? -(i64(1) << 62) : 1;
}

// A warp a (list, tile): its borders, and its largest contribution. The warp of a list's last tile writes two borders.
extern "C" __global__ void __launch_bounds__(256, 1) plan_tables(const __grid_constant__ TabulateArguments a) {
    const i64 warp = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    const i64 index = warp / a.tiles;
    if (index >= a.lists) {
        return;
    }
    const i32 tile = static_cast<i32>(warp % a.tiles);
    const i32 lane = lane_index();
    const SegmentRow& row = a.segment[0];
    const i64 position = a.terms[index];
    const List list = list_of(row, position);
    const u32* const words = at_global(row.words) + list.first;
    const auto border = [&](i32 number) {
        const u32 document = static_cast<u32>(number) << a.tile_bits;
        return leading(list.length, [&](i32 i) { return (words[i] & DOCUMENT_MASK) < document; });
    };
    const i32 begin = tile == 0 ? 0 : border(tile);
    const i32 end = tile + 1 == a.tiles ? list.length : border(tile + 1);
    i64 maximum = 0;
    with_contributions(a, row, position, [&](const auto& contribution) {
#pragma unroll 1
        for (i32 next = begin; next < end; next += WARP * UNROLL) {
#pragma unroll
            for (i32 i = 0; i < UNROLL; ++i) {
                const i32 place = next + i * WARP + lane;
                if (place < end) {
                    maximum = larger(maximum, static_cast<i64>(contribution(list.first + place, words[place])));
                }
            }
        }
    });
    maximum = warp_largest(maximum);
    if (lane == 0) {
        i32* const cuts = a.cuts + index * (a.tiles + 1);
        cuts[tile] = begin;
        if (tile + 1 == a.tiles) {
            cuts[a.tiles] = end;
        }
        a.maxima[index * a.tiles + tile] = maximum;
    }
}

// A warp a slot; then a thread a query begins the launch.
extern "C" __global__ void __launch_bounds__(256, 1) plan_describe(const __grid_constant__ DescribeArguments a) {
    __shared__ Tally tallies[WARPS];
    const i64 slot = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    if (slot >= a.slots) {
        const i64 query = (slot - a.slots) * WARP + lane_index();
        if (query == 0) {
            a.progress[0] = 0;
            a.progress[1] = 0;
        }
        if (query < a.queries) {
            a.thresholds[query] = first_threshold(a.is_signed);
            a.counts[query] = 0;
        }
        return;
    }
    const i32 unit = a.slot_unit[slot];
    const i64 position = a.slot_position[slot];
    const SegmentRow& row = a.segments[a.unit_segment[unit]];
    List list = {0, 0, -1};
    if (position >= 0) {
        list = list_of(row, position);
    }
    if (a.posting_bytes < 8 && lane_index() == 0) {
        a.idf[slot] = position >= 0 ? at_global(row.idf)[position] : 0.0;
    }
    Descriptor* const descriptors = a.descriptors + a.unit_descriptors[unit] + (slot - a.unit_slots[unit]) * row.tiles;
    describe_slot(a, row, position, list, a.slot_weight[slot], descriptors, tallies[threadIdx.x / WARP]);
}

// A term of the batch in one segment.
__device__ __forceinline__ void plan_term(const PlanArguments& a, i64 segment, i64 index, Tally& tally) {
    const SegmentRow& row = a.segments[segment];
    if (row.tiles == 0) {
        return;
    }
    const i64 term = a.terms[index];
    const i32 weight = a.weights != nullptr ? a.weights[index] : 1;
    const i32 query = leading(static_cast<i32>(a.queries), [&](i32 i) { return a.offsets[i + 1] <= index; });
    if (query == a.queries || a.offsets[query] > index) {
        return;
    }
    const i64 start = a.offsets[query];
    const i64 count = a.offsets[query + 1] - start;
    const i32* const terms = at_global(row.terms);
    const i32 known = static_cast<i32>(row.term_count);
    const i32 position = leading(known, [&](i32 i) { return terms[i] < term; });
    List list = {0, 0, -1};
    double idf = 0.0;
    if (position < known) {
        // Read beside the list, not before it: one load less in a row.
        const i64 found = terms[position];
        list = list_of(row, position);
        if (a.posting_bytes < 8) {
            idf = at_global(row.idf)[position];
        }
        if (found != term) {
            list = {0, 0, -1};
            idf = 0.0;
        }
    }
    if (a.posting_bytes < 8 && lane_index() == 0) {
        a.idf[start * a.segment_count + segment * count + (index - start)] = idf;
    }
    Descriptor* const descriptors =
        a.descriptors + start * a.tiles + count * row.tile_offset + (index - start) * row.tiles;
    describe_slot(a, row, position, list, weight, descriptors, tally);
}

// A query's unit in one segment, and in the first segment the query. The query after the last ends the arrays.
__device__ __forceinline__ void plan_unit(const PlanArguments& a, i64 segment, i64 query) {
    const i32 lane = lane_index();
    const i64 unit = query * a.segment_count + segment;
    const i64 start = a.offsets[query];
    const i64 count = query < a.queries ? a.offsets[query + 1] - start : 0;
    if (segment == 0) {
        i64 weight = count;
        if (a.widest >= 0.0 && a.weights != nullptr) {
            weight = 0;
            for (i64 i = lane; i < count; i += WARP) {
                weight += a.weights[start + i];
            }
            weight = warp_sum(weight);
        }
        if (lane == 0) {
            a.query_units[query] = static_cast<i32>(unit);
            a.candidate_offset[query] = query * a.candidates;
            a.entry_offset[query] = query * a.tiles;
            if (query < a.queries) {
                const double bound = __dmul_rn(__ll2double_rn(weight), a.widest);
                a.query_k[query] = a.k;
                a.query_wide[query] = a.widest >= 0.0 ? bound >= 0x7fffffff : a.long_quanta != 0;
                a.thresholds[query] = first_threshold(a.is_signed);
                a.counts[query] = 0;
            } else {
                a.unit_slots[unit] = start * a.segment_count;
                a.progress[0] = 0;
                a.progress[1] = 0;
            }
        }
    }
    if (lane == 0 && query < a.queries) {
        const SegmentRow& row = a.segments[segment];
        a.unit_segment[unit] = static_cast<i32>(segment);
        a.unit_filter[unit] = static_cast<i64>(reinterpret_cast<u64>(row.alive));
        a.unit_low[unit] = 0;
        a.unit_high[unit] = static_cast<i32>(row.size);
        a.unit_slots[unit] = start * a.segment_count + segment * count;
        a.unit_descriptors[unit] = start * a.tiles + count * row.tile_offset;
    }
}

// A warp a (segment, term), and a warp a (segment, query).
extern "C" __global__ void __launch_bounds__(256, 1) plan_terms(const __grid_constant__ PlanArguments a) {
    __shared__ Tally tallies[WARPS];
    const u32 blocks = static_cast<u32>(a.segment_blocks);
    const i64 segment = blockIdx.x / blocks;
    const i64 turn = static_cast<i64>(blockIdx.x % blocks) * WARPS + threadIdx.x / WARP;
    if (turn < a.term_count) {
        plan_term(a, segment, turn, tallies[threadIdx.x / WARP]);
    } else if (turn - a.term_count <= a.queries) {
        plan_unit(a, segment, turn - a.term_count);
    }
}
