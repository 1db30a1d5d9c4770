// The candidates of a block: its eligible documents, and the k best of them by radix selection.
#pragma once

#include "score_tile.cuh"

constexpr i32 BINS_PER_LANE = RADIX / WARP;

// The documents of the block that are eligible: matched, passing and at or above the threshold.
template <bool WIDE, bool SIGNED, bool DECAYS>
struct Eligible {
    using Score = typename IntegerOf<WIDE || DECAYS>::Type;

    Shared& shared;
    const TileDecay* tile_decay;  // null unless DECAYS
    Tile<WIDE, DECAYS> tile;

    __device__ __forceinline__ Score score_of(i64 sum, i32 local) const {
        if constexpr (DECAYS) {
            if (tile_decay->decay.rate != 0.0) {
                return tile_decay->decay.bits(sum, at_global(tile_decay->times)[local]);
            }
        }
        return static_cast<Score>(sum);
    }

    // Calls visit(score, local document) for each that scores at least `lowest`, spread over the threads of the block.
    template <typename Visit>
    __device__ __forceinline__ void each(Score lowest, const Visit& visit) const {
        const i32 thread = static_cast<i32>(threadIdx.x);
        const i32 list_length = shared.state.list_length;
        if (list_length >= 0) {
#pragma unroll 1
            for (i32 i = thread; i < list_length; i += THREADS) {
                const i32 local = shared.reached[i];
                const Score score = DECAYS ? tile.listed()[i] : static_cast<Score>(tile.sum(local));
                if (score >= lowest) {
                    visit(score, local);
                }
            }
            return;
        }
        Score least_sum = lowest;
        if constexpr (DECAYS) {
            least_sum = tile_decay->least_sum;
        }
        const bool restricted = shared.state.restricted;
        // A decayed score takes so much code that it stands here once.
        constexpr i32 STEP = DECAYS ? 1 : VECTOR;
        using Words = SumVector<STEP>;
#pragma unroll 1
        for (i32 place = thread; place < tile.size / STEP; place += THREADS) {
            const Words low = reinterpret_cast<const Words*>(tile.low())[place];
            Words high;
            if constexpr (WIDE) {
                high = reinterpret_cast<const Words*>(tile.high())[place];
            }
            const i32 first = place * STEP;
            u32 passing = ~0u;
            if (SIGNED) {
                passing &= tile.matched()[first / 32] >> (first % 32);
            }
            if (restricted) {
                passing &= tile.allowed()[first / 32] >> (first % 32);
            }
#pragma unroll
            for (i32 i = 0; i < STEP; ++i) {
                Score sum;
                if constexpr (WIDE) {
                    sum = static_cast<Score>(static_cast<u64>(high.word[i]) << 32 | low.word[i]);
                } else {
                    sum = static_cast<i32>(low.word[i]);
                }
                if ((passing >> i & 1) != 0 && sum >= least_sum) {
                    const Score score = score_of(sum, first + i);
                    if (!DECAYS || score >= lowest) {
                        visit(score, first + i);
                    }
                }
            }
        }
    }

    // Where scores decay: puts the scores of the `count` listed documents in place of the tile's sums, so that each is
    // computed once. All threads of the block call it.
    __device__ __forceinline__ void decay_listed(i32 count) const {
        constexpr i32 PER_THREAD = (MAX_REACHED + THREADS - 1) / THREADS;
        const i32 thread = static_cast<i32>(threadIdx.x);
        typename IntegerOf<WIDE>::Type sums[PER_THREAD] = {};
#pragma unroll
        for (i32 i = 0; i < PER_THREAD; ++i) {
            const i32 place = thread + i * THREADS;
            if (place < count) {
                sums[i] = tile.sum(shared.reached[place]);
            }
        }
        __syncthreads();
#pragma unroll
        for (i32 i = 0; i < PER_THREAD; ++i) {
            const i32 place = thread + i * THREADS;
            if (place < count) {
                // A listed sum is positive.
                tile.listed()[place] = static_cast<typename IntegerOf<WIDE>::Unsigned>(sums[i]);
            }
        }
        // Each thread goes on with its own places.
#pragma unroll 1
        for (i32 place = thread; place < count; place += THREADS) {
            tile.listed()[place] = score_of(tile.listed()[place], shared.reached[place]);
        }
        __syncthreads();
    }

    // Lists the documents of a scanned tile that score at least `lowest`. From then on the list is read, not the tile,
    // unless it has no room for all of them. All threads of the block call it.
    __device__ __forceinline__ void list(Score lowest) const {
        if (threadIdx.x == 0) {
            shared.reached_count = 0;
        }
        __syncthreads();
        each(lowest, [&](Score, i32 local) {
            const i32 position = atomicAdd(&shared.reached_count, 1);
            if (position < MAX_REACHED) {
                shared.reached[position] = static_cast<u16>(local);
            }
        });
        __syncthreads();
        const i32 count = shared.reached_count;
        if (count > MAX_REACHED) {
            return;
        }
        if constexpr (DECAYS) {
            decay_listed(count);
        }
        if (threadIdx.x == 0) {
            shared.state.list_length = count;
        }
        __syncthreads();
    }
};

// What `radix_largest` found.
template <typename Key>
struct Largest {
    Key key;    // no larger than that of the wanted rank; equal to it where `rank` < `equal`
    i32 rank;   // the wanted rank among the keys that share the digits of `key`
    i32 equal;  // their number; 0 where there are fewer keys than the rank
    i32 total;  // all keys
};

// The `rank`-th largest (1: the largest) of the keys of the eligible documents that score at least `lowest`. Keys fit
// `bits` bits; keys(score, local, key) returns whether a document has a key. Ends where all keys that share the digits
// found so far are among the `rank` largest. With LISTS the keys are score - lowest, and what can still be among the
// `rank` largest is listed as soon as the list has room for it. All threads of the block call it.
template <bool LISTS, typename Key, bool WIDE, bool SIGNED, bool DECAYS, typename Keys>
__device__ __forceinline__ Largest<Key> radix_largest(
    Shared& shared,
    const Eligible<WIDE, SIGNED, DECAYS>& eligible,
    typename Eligible<WIDE, SIGNED, DECAYS>::Score lowest,
    const Keys& keys,
    i32 bits,
    i32 rank) {
    using Score = typename Eligible<WIDE, SIGNED, DECAYS>::Score;
    const i32 thread = static_cast<i32>(threadIdx.x);
    Largest<Key> found = {0, rank, 0, -1};
    i32 shift = bits;
    do {
        const i32 digit_bits = smaller(shift, RADIX_BITS);
        shift -= digit_bits;
        for (i32 bin = thread; bin < RADIX; bin += THREADS) {
            shared.histogram[bin] = 0;
        }
        __syncthreads();
        eligible.each(lowest, [&](Score score, i32 local) {
            Key key;
            if (keys(score, local, key)) {
                // The digits found so far cancel out; what lacks them leaves higher bits.
                const Key digit = (key ^ found.key) >> shift;
                if (digit >> digit_bits == 0) {
                    atomicAdd(&shared.histogram[static_cast<i32>(digit)], 1);
                }
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
            i32 above = warp_prefix_sum(sum, thread);
            if (thread == WARP - 1) {
                shared.total = above;
                if (above < found.rank) {
                    shared.equal = 0;
                }
            }
            above -= sum;
            if (above < found.rank && found.rank <= above + sum) {
                i32 bin = top;
                while (above + shared.histogram[bin] < found.rank) {
                    above += shared.histogram[bin];
                    --bin;
                }
                shared.digit = bin;
                shared.rank = found.rank - above;
                shared.equal = shared.histogram[bin];
            }
        }
        __syncthreads();
        if (found.total < 0) {
            found.total = shared.total;
        }
        found.equal = shared.equal;
        if (found.equal == 0) {
            return found;
        }
        found.key |= static_cast<Key>(shared.digit) << shift;
        found.rank = shared.rank;
        if constexpr (LISTS) {
            const bool fits = rank - found.rank + found.equal <= MAX_REACHED;
            if (fits && found.rank < found.equal && shared.state.list_length < 0) {
                eligible.list(static_cast<Score>(static_cast<Key>(lowest) + found.key));
            }
        }
    } while (shift > 0 && found.rank < found.equal);
    return found;
}

// Emits the k best of the block's eligible documents, and raises the query's threshold to the k-th score. All threads of
// the block call it.
template <bool WIDE, bool SIGNED, bool DECAYS>
__device__ __forceinline__ void emit_candidates(
    const ScoreArguments& a, Shared& shared, const Eligible<WIDE, SIGNED, DECAYS>& eligible) {
    using Score = typename Eligible<WIDE, SIGNED, DECAYS>::Score;
    using Key = typename IntegerOf<WIDE || DECAYS>::Unsigned;
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 tile_size = eligible.tile.size;
    // Emitted are scores above `kth`, and those equal to it in documents up to `last_tied`.
    Score kth = static_cast<Score>(shared.state.threshold);
    i32 last_tied = tile_size - 1;
    // In a list of decayed scores some may lie below the threshold.
    i32 found = DECAYS ? -1 : shared.state.list_length;
    // A list that is full may lack others.
    bool sampled = !DECAYS && shared.reached_count > MAX_REACHED && found >= 0;
    if (found < 0 || found >= shared.state.k) {
        Score lowest = kth;
        if constexpr (DECAYS) {
            // Of the bits of a double the highest hold its exponent. Down to an eighth of the bound the first digit
            // tells scores apart; few tiles have their k-th score below that.
            if (eligible.tile_decay->decay.rate != 0.0) {
                lowest = larger(lowest, shared.state.bound - (i64(3) << MANTISSA_BITS));
            }
        }
        Largest<Key> largest;
        for (;;) {
            const u64 range = static_cast<u64>(shared.state.bound) - static_cast<u64>(static_cast<i64>(lowest));
            largest = radix_largest<true, Key>(
                shared, eligible, lowest,
                [=](Score score, i32, Key& key) {
                    key = static_cast<Key>(score) - static_cast<Key>(lowest);
                    return true;
                },
                64 - __clzll(static_cast<i64>(range | 1)), shared.state.k);
            if (DECAYS && largest.equal == 0 && lowest > kth) {
                lowest = kth;
            } else if (!DECAYS && sampled) {
                // What scores less is not among the k best of the list alone.
                sampled = false;
                lowest = static_cast<Score>(static_cast<Key>(lowest) + largest.key);
                // Others may still look at the list's length.
                __syncthreads();
                if (thread == 0) {
                    shared.state.list_length = -1;
                }
                __syncthreads();
                eligible.list(lowest);
            } else {
                break;
            }
        }
        found = largest.total;
        if (largest.equal > 0) {
            found = shared.state.k;
            kth = static_cast<Score>(static_cast<Key>(lowest) + largest.key);
            if (thread == 0) {
                atomicMax(&a.thresholds[shared.state.query], static_cast<i64>(kth));
            }
            if (largest.rank < largest.equal) {
                const Largest<u32> kept = radix_largest<false, u32>(
                    shared, eligible, kth,
                    [=](Score score, i32 local, u32& key) {
                        key = static_cast<u32>(tile_size - 1 - local);
                        return score == kth;
                    },
                    a.tile_bits, largest.rank);
                last_tied = tile_size - 1 - static_cast<i32>(kept.key);
            }
        }
    }
    if (found == 0) {
        return;
    }
    if (thread == 0) {
        shared.base = shared.state.candidates + atomicAdd(&a.counts[shared.state.query], found);
    }
    __syncthreads();
    const i64 base = shared.base;
    const u32 top = ~shared.state.first;
    eligible.each(kth, [&](Score score, i32 local) {
        if (score > kth || local <= last_tied) {
            const i64 target = base + atomicAdd(&shared.emitted, 1);
            const u32 descending = top - static_cast<u32>(local);
            if constexpr (WIDE || DECAYS) {
                a.keys[target] = score;
                a.documents[target] = descending;
            } else {
                a.keys[target] = static_cast<i64>(static_cast<u64>(static_cast<i64>(score)) << 32 | descending);
            }
        }
    });
}
