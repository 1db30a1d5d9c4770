// What translated PTX calls: values as their bits, memory by its space, the primitives of a warp and a block.
//
// A shared address is an offset into the block's shared memory; a generic one lies in a window that no pointer of the
// host reaches. Both are checked at each access, as is the alignment of every access.
#pragma once

#include "shim.h"

#include <cstdio>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;

using fanrank_host::Barrier;
using fanrank_host::bits;
using fanrank_host::Exchange;

constexpr u64 SHARED_WINDOW = 0x6000000000000000u;
constexpr u64 WINDOW_SIZE = u64{1} << 32;

[[noreturn, gnu::noinline, gnu::cold]] static void fault_at(const char *what, u64 address, u64 size, int line) {
    char text[200];
    std::snprintf(text, sizeof text, "line %d: %llu bytes at %s %#llx", line, static_cast<unsigned long long>(size),
                  what, static_cast<unsigned long long>(address));
    fanrank_host::fault(text);
}

inline void jump_back(int line) {
    if (!--fanrank_host::jumps_left) fault_at("a loop that does not end,", 0, 0, line);
}

// Offsets wrap at 32 bits: compilers add to a register that is below zero.
inline u8 *at_shared(u64 wide, u64 size, int line) {
    const u64 address = static_cast<u32>(wide);
    if (address + size > fanrank_host::shared_size)
        fault_at("an address outside the block's shared memory,", address, size, line);
    if (address & (size - 1)) fault_at("a shared address that is not aligned,", address, size, line);
    return fanrank_host::dynamic_shared + address;
}

// Where other blocks may write: they run first, if they run at once.
inline u8 *at_global(u64 address, u64 size, int line) {
    if (fanrank_host::interleaved) fanrank_host::give_way();
    if (address < 4096 || address >= u64{1} << 47) fault_at("what is no global address,", address, size, line);
    if (address & (size - 1)) fault_at("a global address that is not aligned,", address, size, line);
    return reinterpret_cast<u8 *>(address);
}

// Memory that no other block writes.
inline u8 *at_own(u64 address, u64 size, int line) {
    if (address < 4096 || address & (size - 1)) fault_at("what is no address of its own,", address, size, line);
    return reinterpret_cast<u8 *>(address);
}

inline u8 *at_generic(u64 address, u64 size, int line) {
    if (address - SHARED_WINDOW < WINDOW_SIZE) return at_shared(address - SHARED_WINDOW, size, line);
    return at_global(address, size, line);
}

template <class T>
inline T get(const u8 *at, int index = 0) {
    T value;
    __builtin_memcpy(&value, at + static_cast<std::size_t>(index) * sizeof value, sizeof value);
    return value;
}
template <class T>
inline void put(u8 *at, T value, int index = 0) {
    __builtin_memcpy(at + static_cast<std::size_t>(index) * sizeof value, &value, sizeof value);
}

// Subnormal numbers become zero of their sign.
inline f32 flushed(f32 value) {
    return __builtin_fabsf(value) < 0x1p-126f ? __builtin_copysignf(0.0f, value) : value;
}

template <class T>
inline T divided(T a, T b, int line) {
    if (!b) fault_at("a division by zero; of", static_cast<u64>(a), sizeof a, line);
    if (b == static_cast<T>(-1) && T(-1) < T(0)) return static_cast<T>(0 - static_cast<u64>(a));
    return a / b;
}
template <class T>
inline T rest(T a, T b, int line) {
    if (!b) fault_at("a division by zero; of", static_cast<u64>(a), sizeof a, line);
    if (b == static_cast<T>(-1) && T(-1) < T(0)) return 0;
    return a % b;
}

// The one that is a number, if one is not; -0 is below +0.
template <class T>
inline T least(T a, T b) {
    if (a != a) return b;
    if (b != b) return a;
    return a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
template <class T>
inline T greatest(T a, T b) {
    return -least<T>(-a, -b);
}

// A number that was rounded to an integer, as one: saturating; NaN is 0 between 32-bit types, else the highest bit.
template <class To, class From>
inline To whole(From value) {
    constexpr int WIDTH = 8 * sizeof(To);
    constexpr bool SIGNED = To(-1) < To(0);
    if (value != value) return sizeof(From) < 8 && sizeof(To) < 8 ? To(0) : static_cast<To>(u64{1} << (WIDTH - 1));
    const From limit = static_cast<From>(__builtin_ldexp(1.0, SIGNED ? WIDTH - 1 : WIDTH));
    const To largest = static_cast<To>(~u64{0} >> (64 - WIDTH + SIGNED));
    if (value >= limit) return largest;
    if (SIGNED ? value < -limit : value < From(0)) return SIGNED ? static_cast<To>(~largest) : To(0);
    return static_cast<To>(value);
}

inline u32 reversed(u32 value) {
    u32 result = 0;
    for (int i = 0; i < 32; ++i) result |= (value >> i & 1) << (31 - i);
    return result;
}

inline u32 field(u32 value, u32 first, u32 length) {
    first &= 255, length &= 255;
    return first > 31 || !length ? 0 : value >> first & (length > 31 ? ~0u : (1u << length) - 1);
}

template <class T>
inline T inserted(T value, T into, u32 first, u32 length) {
    constexpr u32 WIDTH = 8 * sizeof(T);
    first &= 255, length &= 255;
    if (first >= WIDTH || !length) return into;
    const T mask = static_cast<T>((length >= WIDTH ? static_cast<T>(~T(0)) : static_cast<T>((T(1) << length) - 1)) << first);
    return static_cast<T>((into & ~mask) | (value << first & mask));
}

inline u32 chosen_bytes(u32 a, u32 b, u32 selector) {
    const u64 both = u64{b} << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 choice = selector >> 4 * i & 15;
        u32 byte = both >> 8 * (choice & 7) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

enum class Shuffle { up, down, bfly, idx };

// shfl.sync: the value, and whether the lane that it names lies in its segment.
inline u32 shuffled(Shuffle mode, u32 value, u32 b, u32 c, u32 members, bool &inside) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int lane = static_cast<int>(thread & 31), operand = static_cast<int>(b & 31);
    const int clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
    const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int source = lane;
    switch (mode) {
        case Shuffle::up: source = lane - operand; break;
        case Shuffle::down: source = lane + operand; break;
        case Shuffle::bfly: source = lane ^ operand; break;
        case Shuffle::idx: source = first | (operand & ~segment); break;
    }
    inside = mode == Shuffle::up ? source >= last : source <= last;
    return static_cast<u32>(fanrank_host::exchange(Exchange::index, members, value, inside ? source : lane, 32));
}

// ldmatrix and stmatrix: where the lane's 4 bytes lie; lanes 8 i to 8 i + 7 say where the rows of matrix i do.
inline u8 *matrix_part(u32 row, u32 matrix, int line) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), lane = thread & 31;
    const int source = static_cast<int>(8 * matrix + lane / 4);
    const u32 own = static_cast<u32>(fanrank_host::exchange(Exchange::index, ~0u, row, source, 32));
    return at_shared(own, 16, line) + 4 * (lane & 3);
}

inline u32 ballot(bool predicate, u32 members) {
    return static_cast<u32>(fanrank_host::exchange(Exchange::ballot, members, predicate, 0, 32)) & members;
}
inline bool any(bool predicate, u32 members) { return ballot(predicate, members) != 0; }
// A lane that has returned votes for whatever the others want.
inline bool all(bool predicate, u32 members) { return ballot(!predicate, members) == 0; }

inline u32 reduced(fanrank_host::Reduction how, u32 value, u32 members) {
    return static_cast<u32>(fanrank_host::exchange(Exchange::reduce, members, value, how, 32));
}

// The threads of a barrier's count must be all of the block's.
inline int block_barrier(Barrier kind, bool predicate, u32 number, u32 count, int line) {
    if (number || (count && count != blockDim.x * blockDim.y * blockDim.z))
        fault_at("a barrier of a part of the block, threads and number", number, count, line);
    return fanrank_host::barrier(kind, predicate, line);
}

}  // namespace ptx
