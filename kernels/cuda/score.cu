// Score one (tile, unit) a block: integer sums in shared memory, then the block's k best leave as candidates. Of a query
// that decays the sums become, once complete, the bits of positive doubles, which are ordered as integers. A posting's
// contribution is read (8 bytes a posting), or made of its kind, which lies beside its word (6) or in it (4).
#include "common.cuh"

constexpr i32 THREADS = 512;
constexpr i32 WARPS = THREADS / WARP;
constexpr i32 SLOTS = 128;     // posting lists described in shared memory at a time
constexpr i32 UNROLL = 4;      // loads of a lane in flight
constexpr i32 RUN = WARP * UNROLL;  // postings that a warp takes from one list before it looks for its next run
constexpr i32 LISTED = 2048;   // documents listed as they reach the floor; beyond, the whole tile is scanned
constexpr i32 RADIX_BITS = 8;
constexpr i32 RADIX = 1 << RADIX_BITS;
constexpr i32 BINS_PER_LANE = RADIX / WARP;

// As in engine/index/decay.py.
constexpr i32 PART_BITS = 16;
constexpr i32 MAX_TICKS = 900 << PART_BITS;
constexpr i32 FACTOR_BITS = 30;
constexpr i32 EXPONENT_BIAS = 1023;
constexpr i32 MANTISSA_BITS = 52;

// What a launch may leave out, to be measured: the answer is the same.
constexpr i32 FLOORS_STAY = 1;  // no tile raises its query's floor
constexpr i32 UNIT_MAJOR = 2;   // blocks go through the tiles of one unit before the next

struct Arguments {
    i64 block_base;  // the number of the first block; the others follow, or where scores decay precede
    i32 tile_bits;
    i32 options;
    i32 segments;
    const i64* words_of;
    const i64* quanta_of;  // of 6 bytes a posting, the kinds
    const i32* sizes;
    const i64* firsts;
    const i64* block_offset;
    const i32* unit_offset;
    const i64* list_start;
    const i32* list_length;
    const i64* list_cuts;
    const i32* unit_query;
    const i64* unit_slots;
    const i64* unit_filter;
    const i32* unit_low;
    const i32* unit_high;
    const i32* slot_list;
    const i32* slot_weight;
    const i32* query_k;
    const u8* query_wide;
    const i64* candidate_offset;
    const i32* cuts;
    const i64* maxima;
    i64* floors;
    i32* counts;
    i64* keys;
    u32* documents;
    // Where scores decay:
    const i64* times_of;
    const i64* latest_of;
    const double* query_now;
    const double* query_rate;
    const i32* decay_table;
    // Where contributions are made of kinds:
    const i64* saturated_of;
    const double* list_idf;
};

// How the scores of a query fade: the operations of engine/index/decay.py, in intrinsics, which are never contracted.
struct Decay {
    double now;
    double rate;       // 0 for a query that does not decay
    const i32* table;  // [1 << PART_BITS]

    __device__ __forceinline__ i32 ticks(double time) const {
        const double age = __dmul_rn(__dsub_rn(now, time), rate);
        // Greater than 0, so that the conversion rounds down.
        return age > 0.0 ? (age < MAX_TICKS ? static_cast<i32>(age) : MAX_TICKS) : 0;
    }

    __device__ __forceinline__ double part(i32 ticks) const {
        return static_cast<double>(table[ticks & ((1 << PART_BITS) - 1)]);
    }

    // 2**-(half-lives + FACTOR_BITS)
    static __device__ __forceinline__ double power(i32 ticks) {
        const i64 exponent = EXPONENT_BIAS - FACTOR_BITS - (ticks >> PART_BITS);
        return __longlong_as_double(exponent << MANTISSA_BITS);
    }

    // The bits of what `sum` is worth in a document of this time.
    __device__ __forceinline__ i64 bits(i64 sum, double time) const {
        const i32 age = ticks(time);
        return __double_as_longlong(__dmul_rn(__dmul_rn(__ll2double_rn(sum), part(age)), power(age)));
    }

    // A sum such that none below it is worth `floor` at this time or before.
    __device__ __forceinline__ i64 least(i64 floor, double time) const {
        const i32 age = ticks(time);
        const double quotient = __ddiv_rn(__longlong_as_double(floor), __dmul_rn(part(age), power(age)));
        // Four roundings, of 2**-53 at most, lie between a sum and this quotient.
        return larger(static_cast<i64>(__dmul_rn(quotient, 1.0 - 0x1p-50)), i64(1));
    }
};

// What a block needs of its query's decay once its postings are added.
struct Decaying {
    Decay decay;
    const double* times;  // of the tile's documents
    i64 least;            // sums below it cannot reach the floor
};

// What the block needs again once its postings are added; kept out of the registers until then.
struct Later {
    i64 bound;
    i64 floor;
    i64 candidates;  // where the query's room begins
    i32* count;
    i64* query_floor;
    i32 k;
    u32 first;       // number of the tile's first document
    i32 restricted;  // not 0 if a filter or a range leaves documents out
    i32 listed;      // documents in `Shared::listed`, or -1 where the whole tile is scanned
};

struct Shared {
    Later later;
    i64 floor;
    i64 base;               // of the block's room in `keys`
    i64 bound[WARPS];
    i32 postings[WARPS];    // not 0 where a warp saw postings
    i32 passing[WARPS];     // not 0 where a warp saw a document that may be returned
    i64 slot_first[SLOTS];  // first posting of the slot in the tile
    i32 slot_count[SLOTS];
    i32 slot_weight[SLOTS];
    i32 slot_runs[SLOTS];   // runs of this slot and those before it
    i32 runs;
    i32 found;              // documents at or above the floor
    i32 emitted;
    i32 digit;              // what `radix_largest` chose
    i32 rank;
    i32 equal;
    i32 histogram[RADIX];
    u16 listed[LISTED];
};

// What contributions are made of, kept out of the registers.
struct Making {
    const u16* kinds;
    const double* saturated;
    double idf[SLOTS];
};

// What neighbouring 16 bytes of the accumulator hold.
template <typename Sum>
struct alignas(16) Sums {
    Sum value[16 / sizeof(Sum)];
};

__device__ __forceinline__ bool is_set(const u32* bitmap, i32 place) {
    return (bitmap[place / 32] >> (place % 32) & 1) != 0;
}

__device__ __forceinline__ i32 add_shared(i32* target, i32 value) {
    return atomicAdd(target, value);
}

__device__ __forceinline__ i64 add_shared(i64* target, i64 value) {
    return static_cast<i64>(atomicAdd(reinterpret_cast<u64*>(target), static_cast<u64>(value)));
}

// Reads the slot's part of the tile into (bound, postings) and describes it in shared memory if it is one of `SLOTS`.
__device__ __forceinline__ void describe_slot(
    const Arguments& a, Shared& shared, Making* making, i64 slot, i32 tile, i32 place, i64& bound, i32& postings) {
    const i32 list = a.slot_list[slot];
    const i32 weight = a.slot_weight[slot];
    i32 count = 0;
    i64 first = 0;
    // A list that does not exist is not looked up any further.
    if (a.list_length[list] > 0) {
        const i64 row = a.list_cuts[list] + tile;
        const i32 begin = a.cuts[row];
        count = a.cuts[row + 1] - begin;
        first = a.list_start[list] + begin;
        bound += weight * a.maxima[row];
        postings |= count;
    }
    if (place < SLOTS) {
        shared.slot_first[place] = first;
        shared.slot_count[place] = count;
        shared.slot_weight[place] = weight;
        if (making != nullptr) {
            making->idf[place] = a.list_idf[list];
        }
    }
}

// Warp 0: inclusive sums of the runs of `slots` described slots.
__device__ __forceinline__ void sum_runs(Shared& shared, i32 slots) {
    constexpr i32 OWN = SLOTS / WARP;
    const i32 lane = static_cast<i32>(threadIdx.x);
    i32 own[OWN];
    i32 sum = 0;
#pragma unroll
    for (i32 i = 0; i < OWN; ++i) {
        const i32 place = lane * OWN + i;
        sum += place < slots ? (shared.slot_count[place] + RUN - 1) / RUN : 0;
        own[i] = sum;
    }
    i32 before = sum;
    for (i32 distance = 1; distance < WARP; distance *= 2) {
        const i32 other = __shfl_up_sync(ALL_LANES, before, distance);
        before += lane >= distance ? other : 0;
    }
    before -= sum;
#pragma unroll
    for (i32 i = 0; i < OWN; ++i) {
        shared.slot_runs[lane * OWN + i] = before + own[i];
    }
    if (lane == WARP - 1) {
        shared.runs = before + sum;
    }
}

// The documents of the block that are eligible: matched, passing and at or above the floor.
template <typename Sum, bool SIGNED, bool DECAYS>
struct Eligible {
    const Shared& shared;
    unsigned char* dynamic;
    i32 tile_size;

    // visit(sum, local document) of each, spread over the threads of the block.
    template <typename Visit>
    __device__ __forceinline__ void each(const Visit& visit) const {
        constexpr i32 PER_VECTOR = 16 / static_cast<i32>(sizeof(Sum));
        const i32 thread = static_cast<i32>(threadIdx.x);
        const Sum* const sums = reinterpret_cast<const Sum*>(dynamic);
        const i32 listed = shared.later.listed;
        if (listed >= 0) {
#pragma unroll 1
            for (i32 i = thread; i < listed; i += THREADS) {
                const i32 local = shared.listed[i];
                // The tile's latest document would have reached the floor with this sum; this one may not.
                if (!DECAYS || sums[local] >= static_cast<Sum>(shared.later.floor)) {
                    visit(sums[local], local);
                }
            }
            return;
        }
        const Sum lowest = static_cast<Sum>(shared.later.floor);
        const bool restricted = shared.later.restricted;
        const u32* const allowed = reinterpret_cast<const u32*>(sums + tile_size);
        const u32* const matched = allowed + tile_size / 32;
#pragma unroll 1
        for (i32 vector = thread; vector < tile_size / PER_VECTOR; vector += THREADS) {
            const Sums<Sum> own = reinterpret_cast<const Sums<Sum>*>(sums)[vector];
#pragma unroll
            for (i32 i = 0; i < PER_VECTOR; ++i) {
                const i32 local = vector * PER_VECTOR + i;
                if (own.value[i] >= lowest && (!SIGNED || is_set(matched, local)) &&
                    (!restricted || is_set(allowed, local))) {
                    visit(own.value[i], local);
                }
            }
        }
    }
};

// The `rank`-th largest (1: the largest) of the keys of the eligible documents, which fit `bits` bits; keys(sum, local,
// key) says whether a document has one. Leaves in `rank` the place among its equals and in `equal` their number. All
// threads of the block call it.
template <typename Key, typename Sum, bool SIGNED, bool DECAYS, typename Keys>
__device__ __forceinline__ Key radix_largest(
    Shared& shared, const Eligible<Sum, SIGNED, DECAYS>& eligible, const Keys& keys, i32 bits, i32& rank, i32& equal) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    Key prefix = 0;
#pragma unroll 1
    for (i32 shift = (bits - 1) / RADIX_BITS * RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
        for (i32 bin = thread; bin < RADIX; bin += THREADS) {
            shared.histogram[bin] = 0;
        }
        __syncthreads();
        eligible.each([&](Sum sum, i32 local) {
            Key key;
            if (keys(sum, local, key) && ((key ^ prefix) >> shift >> RADIX_BITS) == 0) {
                atomicAdd(&shared.histogram[static_cast<i32>((key >> shift) & (RADIX - 1))], 1);
            }
        });
        __syncthreads();
        if (thread < WARP) {
            // Lane 0 holds the highest bins.
            const i32 top = RADIX - 1 - thread * BINS_PER_LANE;
            i32 sum = 0;
#pragma unroll 1
            for (i32 i = 0; i < BINS_PER_LANE; ++i) {
                sum += shared.histogram[top - i];
            }
            i32 above = sum;
#pragma unroll 1
            for (i32 distance = 1; distance < WARP; distance *= 2) {
                const i32 other = __shfl_up_sync(ALL_LANES, above, distance);
                above += thread >= distance ? other : 0;
            }
            above -= sum;
            if (above < rank && rank <= above + sum) {
                i32 bin = top;
                while (above + shared.histogram[bin] < rank) {
                    above += shared.histogram[bin];
                    --bin;
                }
                shared.digit = bin;
                shared.rank = rank - above;
                shared.equal = shared.histogram[bin];
            }
        }
        __syncthreads();
        prefix |= static_cast<Key>(shared.digit) << shift;
        rank = shared.rank;
        equal = shared.equal;
    }
    return prefix;
}

// Puts in place of every sum that may reach the floor the bits of what it is worth, and 0 in place of the others that a
// scan of the tile would meet. All threads of the block call it.
__device__ __forceinline__ void decay_sums(
    const Shared& shared, const Decaying& decaying, i64* sums, i32 tile_size, i32 reached) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    const Decay decay = decaying.decay;
    const double* const times = decaying.times;
    if (reached <= LISTED) {
#pragma unroll 1
        for (i32 i = thread; i < reached; i += THREADS) {
            const i32 local = shared.listed[i];
            sums[local] = decay.bits(sums[local], times[local]);
        }
        return;
    }
    const i64 least = decaying.least;
#pragma unroll 1
    for (i32 local = thread; local < tile_size; local += THREADS) {
        const i64 sum = sums[local];
        sums[local] = sum >= least ? decay.bits(sum, times[local]) : 0;
    }
}

// `Sum` is int32 for narrow queries and int64 for wide ones; `Unsigned` is its unsigned twin. Where DECAYS, `decaying`
// lies in shared memory; its queries may decay or not. `BYTES` of a posting: below 8, `making` lies there too.
// `dynamic` is shared memory, or the block's own part of global memory.
template <typename Sum, typename Unsigned, typename Quantum, bool SIGNED, bool DECAYS, i32 BYTES>
__device__ __forceinline__ void score(
    const Arguments& a, Shared& shared, Decaying* decaying, Making* making, unsigned char* dynamic) {
    static_assert(!DECAYS || (sizeof(Sum) == 8 && !SIGNED), "what decays is the bits of a positive double");
    static_assert(BYTES == 8 || !SIGNED, "a contribution made of a kind is at least one quantum");
    constexpr bool WIDE = sizeof(Sum) == 8;
    constexpr i32 PER_VECTOR = 16 / static_cast<i32>(sizeof(Sum));
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 lane = thread % WARP;
    const i32 warp = thread / WARP;

    // The block's segment, tile and unit.
    const i64 block = DECAYS ? a.block_base - blockIdx.x : a.block_base + blockIdx.x;
    const i32 segment = upper_bound(a.block_offset, 0, a.segments, block) - 1;
    const i32 first_unit = a.unit_offset[segment];
    const i32 units = a.unit_offset[segment + 1] - first_unit;
    const i64 place = block - a.block_offset[segment];
    i32 tile;
    i32 unit;
    if (a.options & UNIT_MAJOR) {
        const i64 tiles = (a.block_offset[segment + 1] - a.block_offset[segment]) / units;
        tile = static_cast<i32>(place % tiles);
        unit = first_unit + static_cast<i32>(place / tiles);
    } else if (place >> 32 == 0) {
        tile = static_cast<i32>(static_cast<u32>(place) / static_cast<u32>(units));
        unit = first_unit + static_cast<i32>(static_cast<u32>(place) % static_cast<u32>(units));
    } else {
        tile = static_cast<i32>(place / units);
        unit = first_unit + static_cast<i32>(place % units);
    }
    const i32 query = a.unit_query[unit];
    const i32 k = a.query_k[query];
    if ((a.query_wide[query] != 0) != WIDE || k <= 0) {
        return;
    }
    const i32 tile_size = 1 << a.tile_bits;
    const i32 tile_first = tile << a.tile_bits;
    const i32 tile_documents = smaller(tile_size, a.sizes[segment] - tile_first);
    const i32 low = larger(a.unit_low[unit] - tile_first, 0);
    const i32 high = smaller(a.unit_high[unit] - tile_first, tile_documents);
    if (low >= high) {
        return;
    }

    Sum* const sums = reinterpret_cast<Sum*>(dynamic);                            // [tile_size]
    u32* const allowed = reinterpret_cast<u32*>(dynamic + sizeof(Sum) * tile_size);  // [tile_size / 32] if restricted
    u32* const matched = allowed + tile_size / 32;                                // [tile_size / 32] if SIGNED
    const u32* const filter = at_address<u32>(a.unit_filter[unit]);
    const bool restricted = filter != nullptr || low > 0 || high < tile_documents;

    i64 own_bound = 0;
    i32 own_postings = 0;
    i32 own_passing = 0;
    const i64 first_slot = a.unit_slots[unit];
    const i32 slots = static_cast<i32>(a.unit_slots[unit + 1] - first_slot);
#pragma unroll 1
    for (i32 slot = thread; slot < slots; slot += THREADS) {
        describe_slot(a, shared, making, first_slot + slot, tile, slot, own_bound, own_postings);
    }
    if (restricted) {
#pragma unroll 1
        for (i32 word = thread; word < tile_size / 32; word += THREADS) {
            const i32 from = larger(low - word * 32, 0);
            const i32 to = smaller(high - word * 32, 32);
            u32 bits = 0;
            if (from < to) {
                bits = filter != nullptr ? filter[(tile_first >> 5) + word] : ~0u;
                bits &= (~0u << from) & (~0u >> (32 - to));
            }
            allowed[word] = bits;
            own_passing |= bits != 0;
        }
    } else {
        own_passing = 1;
    }
    own_bound = warp_sum(own_bound);
    const bool warp_postings = __any_sync(ALL_LANES, own_postings != 0);
    const bool warp_passing = __any_sync(ALL_LANES, own_passing != 0);
    if (lane == 0) {
        shared.bound[warp] = own_bound;
        shared.postings[warp] = warp_postings;
        shared.passing[warp] = warp_passing;
    }
    if (thread == 0) {
        // Other blocks raise the floor meanwhile; any value it ever had is a true floor.
        shared.floor = *const_cast<const volatile i64*>(&a.floors[query]);
        shared.found = 0;
        shared.emitted = 0;
    }
    __syncthreads();
    i64 bound = 0;
    i32 postings = 0;
    i32 passing = 0;
#pragma unroll 1
    for (i32 i = 0; i < WARPS; ++i) {
        bound += shared.bound[i];
        postings |= shared.postings[i];
        passing |= shared.passing[i];
    }
    // A sum lies in [-bound, bound], so this floor fits `Sum`.
    const i64 floor = larger(shared.floor, SIGNED ? -bound : i64(1));
    i64 least_sum = floor;
    if constexpr (DECAYS) {
        const Decay decay = {a.query_now[query], a.query_rate[query], a.decay_table};
        if (decay.rate != 0.0) {
            const double latest = at_address<double>(a.latest_of[segment])[tile];
            bound = decay.bits(bound, latest);
            least_sum = decay.least(floor, latest);
        }
        if (thread == 0) {
            *decaying = {decay, at_address<double>(a.times_of[segment]) + tile_first, least_sum};
        }
    }
    if (postings == 0 || passing == 0 || bound < floor) {
        return;
    }

    if (thread == 0) {
        if constexpr (BYTES < 8) {
            making->kinds = at_address<u16>(a.quanta_of[segment]);
            making->saturated = at_address<double>(a.saturated_of[segment]);
        }
        shared.later.bound = bound;
        shared.later.floor = floor;
        shared.later.candidates = a.candidate_offset[query];
        shared.later.count = a.counts + query;
        shared.later.query_floor = a.options & FLOORS_STAY ? nullptr : a.floors + query;
        shared.later.k = k;
        shared.later.restricted = restricted;
        shared.later.first = static_cast<u32>(a.firsts[segment]) + static_cast<u32>(tile_first);
    }

    Sums<Sum>* const vectors = reinterpret_cast<Sums<Sum>*>(sums);
    for (i32 vector = thread; vector < tile_size / PER_VECTOR; vector += THREADS) {
        vectors[vector] = Sums<Sum>{};
    }
    if (SIGNED) {
        for (i32 word = thread; word < tile_size / 32; word += THREADS) {
            matched[word] = 0;
        }
    }

    const u32* const words = at_address<u32>(a.words_of[segment]);
    const Quantum* const quanta = at_address<Quantum>(a.quanta_of[segment]);
    const Sum lowest = static_cast<Sum>(least_sum);
    const u32 tile_mask = static_cast<u32>(tile_size - 1);
#pragma unroll 1
    for (i32 chunk = 0; chunk < slots; chunk += SLOTS) {
        const i32 described = smaller(slots - chunk, SLOTS);
        if (chunk > 0) {
            __syncthreads();
            if (thread < described) {
                i64 unused_bound = 0;
                i32 unused_postings = 0;
                const i64 next = a.unit_slots[unit] + chunk + thread;
                describe_slot(a, shared, making, next, tile, thread, unused_bound, unused_postings);
            }
            __syncthreads();
        }
        if (warp == 0) {
            sum_runs(shared, described);
        }
        __syncthreads();
        const i32 runs = shared.runs;
#pragma unroll 1
        for (i32 run = warp; run < runs; run += WARPS) {
            const i32 slot = upper_bound(shared.slot_runs, 0, described, run);
            const i32 begin = (run - (slot > 0 ? shared.slot_runs[slot - 1] : 0)) * RUN;
            const i32 count = shared.slot_count[slot] - begin;
            const i64 first = shared.slot_first[slot] + begin;
            const Sum weight = static_cast<Sum>(shared.slot_weight[slot]);
            // Fewer in flight where kinds lie in the words: the registers of three blocks do not hold more.
            constexpr i32 OWN = BYTES == 4 && UNROLL % 2 == 0 ? UNROLL / 2 : UNROLL;
#pragma unroll 1
            for (i32 part = 0; part < UNROLL; part += OWN) {
                u32 locals[OWN];
                Sum values[OWN];
#pragma unroll
                for (i32 i = 0; i < OWN; ++i) {
                    const i32 index = (part + i) * WARP + lane;
                    if (index < count) {
                        locals[i] = words[first + index];
                        if constexpr (BYTES == 8) {
                            values[i] = static_cast<Sum>(quanta[first + index]);
                        } else if constexpr (BYTES == 6) {
                            // A document's place in its tile takes less than 16 bits.
                            locals[i] = (locals[i] & tile_mask) | static_cast<u32>(making->kinds[first + index]) << 16;
                        }
                    }
                }
#pragma unroll
                for (i32 i = 0; i < OWN; ++i) {
                    if ((part + i) * WARP + lane < count) {
                        const u32 local = locals[i] & tile_mask;
                        Sum value;
                        if constexpr (BYTES == 8) {
                            value = values[i];
                        } else {
                            // Looked up last: it lies in the first-level cache, and takes two registers.
                            const u32 kind = locals[i] >> (BYTES == 6 ? 16 : DOCUMENT_BITS);
                            value = static_cast<Sum>(quanta_of_kind(making->idf[slot], making->saturated[kind]));
                        }
                        value *= weight;
                        const Sum before = add_shared(&sums[local], value);
                        if (SIGNED) {
                            atomicOr(&matched[local / 32], 1u << (local % 32));
                        } else if (before < lowest && before + value >= lowest) {
                            // Contributions are positive, so a document reaches the floor once.
                            if (!shared.later.restricted || is_set(allowed, static_cast<i32>(local))) {
                                const i32 position = atomicAdd(&shared.found, 1);
                                if (position < LISTED) {
                                    shared.listed[position] = static_cast<u16>(local);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    __syncthreads();

    // All that follows is for the block's eligible documents alone.
    if (!SIGNED && shared.found == 0) {
        return;
    }
    if (thread == 0) {
        shared.later.listed = SIGNED || shared.found > LISTED ? -1 : shared.found;
    }
    if constexpr (DECAYS) {
        if (decaying->decay.rate != 0.0) {
            decay_sums(shared, *decaying, sums, tile_size, shared.found);
        }
        // All have read how many may reach the floor; those that do are counted now.
        __syncthreads();
        if (thread == 0) {
            shared.found = 0;
        }
    }
    __syncthreads();
    const Eligible<Sum, SIGNED, DECAYS> eligible = {shared, dynamic, tile_size};
    if (SIGNED || DECAYS) {
        i32 own = 0;
        eligible.each([&](Sum, i32) { ++own; });
        own = static_cast<i32>(warp_sum(own));
        if (lane == 0 && own > 0) {
            atomicAdd(&shared.found, own);
        }
        __syncthreads();
        if (shared.found == 0) {
            return;
        }
    }
    const i32 found = shared.found;
    const Sum base_sum = static_cast<Sum>(shared.later.floor);
    Sum least = base_sum;       // emitted: a sum above `least`, or equal to it and a document up to `last`
    i32 last = tile_size - 1;
    if (found >= shared.later.k) {
        i32 rank = shared.later.k;
        i32 equal = 0;
        const u64 range = static_cast<u64>(shared.later.bound) - static_cast<u64>(shared.later.floor);
        const i32 range_bits = 64 - __clzll(static_cast<i64>(range | 1));
        const Unsigned above = radix_largest<Unsigned>(
            shared, eligible,
            [=](Sum sum, i32, Unsigned& key) {
                key = static_cast<Unsigned>(sum) - static_cast<Unsigned>(base_sum);
                return true;
            },
            range_bits, rank, equal);
        least = static_cast<Sum>(static_cast<Unsigned>(base_sum) + above);
        if (thread == 0 && shared.later.query_floor != nullptr) {
            atomicMax(shared.later.query_floor, static_cast<i64>(least));
        }
        if (rank < equal) {
            const u32 kept = radix_largest<u32>(
                shared, eligible,
                [=](Sum sum, i32 local, u32& key) {
                    key = static_cast<u32>(tile_size - 1 - local);
                    return sum == least;
                },
                a.tile_bits, rank, equal);
            last = tile_size - 1 - static_cast<i32>(kept);
        }
    }
    if (thread == 0) {
        shared.base = shared.later.candidates + atomicAdd(shared.later.count, smaller(found, shared.later.k));
    }
    __syncthreads();
    const i64 base = shared.base;
    const u32 top = ~shared.later.first;
    eligible.each([&](Sum sum, i32 local) {
        if (sum > least || (sum == least && local <= last)) {
            const i64 target = base + atomicAdd(&shared.emitted, 1);
            const u32 descending = top - static_cast<u32>(local);
            if (WIDE) {
                a.keys[target] = static_cast<i64>(sum);
                a.documents[target] = descending;
            } else {
                a.keys[target] = static_cast<i64>(static_cast<u64>(static_cast<i64>(sum)) << 32 | descending);
            }
        }
    });
}

// The kernels differ in types alone, so that each has the registers of its own road only.
#define FANRANK_SCORE_PARAMETERS                                                                                      \
    i64 block_base, i32 tile_bits, i32 options, i32 segments, const i64 *words_of, const i64 *quanta_of,             \
        const i32 *sizes, const i64 *firsts, const i64 *block_offset, const i32 *unit_offset, const i64 *list_start, \
        const i32 *list_length, const i64 *list_cuts, const i32 *unit_query, const i64 *unit_slots,                  \
        const i64 *unit_filter, const i32 *unit_low, const i32 *unit_high, const i32 *slot_list,                     \
        const i32 *slot_weight, const i32 *query_k, const u8 *query_wide, const i64 *candidate_offset,               \
        const i32 *cuts, const i64 *maxima, i64 *floors, i32 *counts, i64 *keys, u32 *documents
#define FANRANK_DECAYED_PARAMETERS                                                                                    \
    FANRANK_SCORE_PARAMETERS, const i64 *times_of, const i64 *latest_of, const double *query_now,                     \
        const double *query_rate, const i32 *decay_table
#define FANRANK_KINDS_PARAMETERS FANRANK_SCORE_PARAMETERS, const i64 *saturated_of, const double *list_idf
#define FANRANK_DECAYED_KINDS_PARAMETERS FANRANK_DECAYED_PARAMETERS, const i64 *saturated_of, const double *list_idf
#define FANRANK_GLOBAL_PARAMETERS FANRANK_SCORE_PARAMETERS, unsigned char *sums, i64 stride
#define FANRANK_SCORE_ARGUMENTS                                                                                       \
    block_base, tile_bits, options, segments, words_of, quanta_of, sizes, firsts, block_offset, unit_offset,          \
        list_start, list_length, list_cuts, unit_query, unit_slots, unit_filter, unit_low, unit_high, slot_list,      \
        slot_weight, query_k, query_wide, candidate_offset, cuts, maxima, floors, counts, keys, documents
#define FANRANK_DECAY_ARGUMENTS times_of, latest_of, query_now, query_rate, decay_table
#define FANRANK_NO_DECAY nullptr, nullptr, nullptr, nullptr, nullptr
#define FANRANK_SCORE(...)                                                                                            \
    FANRANK_DYNAMIC_SHARED(dynamic);                                                                                  \
    __shared__ Shared shared;                                                                                         \
    const Arguments arguments = {FANRANK_SCORE_ARGUMENTS};                                                            \
    score<__VA_ARGS__, false, 8>(arguments, shared, nullptr, nullptr, dynamic)
#define FANRANK_SCORE_DECAYED(...)                                                                                    \
    FANRANK_DYNAMIC_SHARED(dynamic);                                                                                  \
    __shared__ Shared shared;                                                                                         \
    __shared__ Decaying decaying;                                                                                     \
    const Arguments arguments = {FANRANK_SCORE_ARGUMENTS, FANRANK_DECAY_ARGUMENTS};                                   \
    score<__VA_ARGS__, false, true, 8>(arguments, shared, &decaying, nullptr, dynamic)
#define FANRANK_SCORE_KINDS(bytes, ...)                                                                               \
    FANRANK_DYNAMIC_SHARED(dynamic);                                                                                  \
    __shared__ Shared shared;                                                                                         \
    __shared__ Making making;                                                                                         \
    const Arguments arguments = {FANRANK_SCORE_ARGUMENTS, FANRANK_NO_DECAY, saturated_of, list_idf};                  \
    score<__VA_ARGS__, false, false, bytes>(arguments, shared, nullptr, &making, dynamic)
#define FANRANK_SCORE_KINDS_DECAYED(bytes, ...)                                                                       \
    FANRANK_DYNAMIC_SHARED(dynamic);                                                                                  \
    __shared__ Shared shared;                                                                                         \
    __shared__ Decaying decaying;                                                                                     \
    __shared__ Making making;                                                                                         \
    const Arguments arguments = {FANRANK_SCORE_ARGUMENTS, FANRANK_DECAY_ARGUMENTS, saturated_of, list_idf};           \
    score<__VA_ARGS__, false, true, bytes>(arguments, shared, &decaying, &making, dynamic)

// On sm_90 three blocks of 64 KiB of sums fit an SM, if each thread makes do with 40 registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define FANRANK_NARROW_BLOCKS 3
#else
#define FANRANK_NARROW_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(512, FANRANK_NARROW_BLOCKS) score_narrow(FANRANK_SCORE_PARAMETERS) {
    FANRANK_SCORE(i32, u32, i32, false);
}

// The sums of a tile in global memory, `stride` bytes a block: what shared memory is worth. In the registers of three
// blocks this one spills, and so does `score_narrow_6`.
extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_global(FANRANK_GLOBAL_PARAMETERS) {
    __shared__ Shared shared;
    const Arguments arguments = {FANRANK_SCORE_ARGUMENTS};
    score<i32, u32, i32, false, false, 8>(arguments, shared, nullptr, nullptr, sums + blockIdx.x * stride);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_6(FANRANK_KINDS_PARAMETERS) {
    FANRANK_SCORE_KINDS(6, i32, u32, i32);
}

extern "C" __global__ void __launch_bounds__(512, FANRANK_NARROW_BLOCKS) score_narrow_4(FANRANK_KINDS_PARAMETERS) {
    FANRANK_SCORE_KINDS(4, i32, u32, i32);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_6(FANRANK_KINDS_PARAMETERS) {
    FANRANK_SCORE_KINDS(6, i64, u64, i32);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_4(FANRANK_KINDS_PARAMETERS) {
    FANRANK_SCORE_KINDS(4, i64, u64, i32);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_decayed_6(FANRANK_DECAYED_KINDS_PARAMETERS) {
    FANRANK_SCORE_KINDS_DECAYED(6, i64, u64, i32);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_decayed_4(FANRANK_DECAYED_KINDS_PARAMETERS) {
    FANRANK_SCORE_KINDS_DECAYED(4, i64, u64, i32);
}

extern "C" __global__ void __launch_bounds__(512, 2) score_narrow_signed(FANRANK_SCORE_PARAMETERS) {
    FANRANK_SCORE(i32, u32, i32, true);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide(FANRANK_SCORE_PARAMETERS) {
    FANRANK_SCORE(i64, u64, i32, false);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_signed(FANRANK_SCORE_PARAMETERS) {
    FANRANK_SCORE(i64, u64, i32, true);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_long(FANRANK_SCORE_PARAMETERS) {
    FANRANK_SCORE(i64, u64, i64, false);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_long_signed(FANRANK_SCORE_PARAMETERS) {
    FANRANK_SCORE(i64, u64, i64, true);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_wide_decayed(FANRANK_DECAYED_PARAMETERS) {
    FANRANK_SCORE_DECAYED(i64, u64, i32);
}

extern "C" __global__ void __launch_bounds__(512, 1) score_long_decayed(FANRANK_DECAYED_PARAMETERS) {
    FANRANK_SCORE_DECAYED(i64, u64, i64);
}
