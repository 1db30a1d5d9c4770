// CUDA built-ins for a CPU: the kernels of kernels/cuda compile unchanged against this header with g++ or clang++.
//
// Fibers (the default): the threads of a block are coroutines of one OS thread, resumed in a chosen order.
// FANRANK_CUDA_THREADS: one OS thread a CUDA thread, for ThreadSanitizer. Blocks run one after another in both.
//
// Kernel sources see the first half. The second half, under FANRANK_CUDA_RUNTIME, is the runtime: a translation unit of
// its own, so that no compiler keeps shared memory in registers across a barrier, and so that ThreadSanitizer does not
// see the runtime's own locks, which would order what the kernel does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <math.h>
#include <stdlib.h>
#include <type_traits>
#include <utility>

#ifdef FANRANK_CUDA_THREADS
#define FANRANK_PER_THREAD __thread
#else
#define FANRANK_PER_THREAD
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static __attribute__((section("fanrank_shared")))
#define __forceinline__ inline __attribute__((always_inline))
#ifndef FANRANK_CUDA_RUNTIME  // libstdc++ spells an attribute so
#define __noinline__ __attribute__((noinline))
#endif
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint3 {
    unsigned x, y, z;
};
using dim3 = uint3;

#define FANRANK_VECTOR(element, name)                                              \
    struct alignas(2 * sizeof(element)) name##2 {                                  \
        element x, y;                                                              \
    };                                                                             \
    struct alignas(16) name##4 {                                                   \
        element x, y, z, w;                                                        \
    };                                                                             \
    inline name##2 make_##name##2(element x, element y) { return {x, y}; }         \
    inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }
FANRANK_VECTOR(int, int)
FANRANK_VECTOR(unsigned, uint)
FANRANK_VECTOR(float, float)
FANRANK_VECTOR(double, double)
FANRANK_VECTOR(long long, longlong)
FANRANK_VECTOR(unsigned long long, ulonglong)
#undef FANRANK_VECTOR

constexpr int warpSize = 32;
extern FANRANK_PER_THREAD uint3 threadIdx;
extern uint3 blockIdx, blockDim, gridDim;

namespace fanrank_host {

enum class Barrier { plain, any, all, count };
enum class Exchange { index, up, down, exclusive, ballot, sync };

extern unsigned char *dynamic_shared;

int barrier(Barrier kind, bool predicate);
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, int operand, int width);
void fence();

template <class T, class... Options>
constexpr bool one_of = (std::is_same_v<T, Options> || ...);

template <class To, class From>
inline To bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

// Types below 32 bits are promoted, as overload resolution does in CUDA.
template <class T>
using Promoted = decltype(+std::declval<T>());

template <class T>
inline T shuffle(Exchange kind, unsigned mask, T value, int operand, int width) {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "a shuffle moves integers, float and double");
    std::uint64_t slot = 0;
    __builtin_memcpy(&slot, &value, sizeof value);
    slot = exchange(kind, mask, slot, operand, width);
    __builtin_memcpy(&value, &slot, sizeof value);
    return value;
}

template <class T, class F>
inline T update(T *address, F next) {
#ifdef FANRANK_CUDA_THREADS
    T old, desired;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do {
        desired = next(old);
    } while (!__atomic_compare_exchange(address, &old, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
#else
    T old = *address;
    *address = next(old);
    return old;
#endif
}

// What a kernel parameter takes; `element` is the size of what a pointer points to, 0 where any will do.
struct Parameter {
    char kind;  // 'p' pointer, 'i' integer, 'f' floating point
    std::uint8_t size;
    std::uint8_t element;
};

struct Entry {
    const char *name;
    unsigned count;
    const Parameter *parameters;
    void (*call)(void (*function)(), void *const *arguments);
    void (*function)();
    const Entry *next;
};

void add(Entry *entry);

template <class T>
constexpr Parameter describe() {
    if constexpr (std::is_pointer_v<T>) {
        using Element = std::remove_cv_t<std::remove_pointer_t<T>>;
        if constexpr (std::is_arithmetic_v<Element> || std::is_pointer_v<Element>)
            return {'p', sizeof(T), sizeof(Element)};
        else
            return {'p', sizeof(T), 0};
    } else {
        static_assert(std::is_arithmetic_v<T>, "a kernel takes pointers, integers, float and double");
        return {std::is_floating_point_v<T> ? 'f' : 'i', sizeof(T), 0};
    }
}

template <class... A>
struct Signature {
    static constexpr Parameter parameters[sizeof...(A) + 1] = {describe<A>()..., {}};

    static void call(void (*function)(), void *const *arguments) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            reinterpret_cast<void (*)(A...)>(function)(*static_cast<std::remove_cv_t<A> *>(arguments[I])...);
        }(std::index_sequence_for<A...>{});
    }
};

template <class... A>
Entry entry(const char *name, void (*kernel)(A...)) {
    return {name, sizeof...(A), Signature<A...>::parameters, Signature<A...>::call,
            reinterpret_cast<void (*)()>(kernel), nullptr};
}

struct Registration {
    Entry entry;
    explicit Registration(Entry own) : entry(own) { add(&entry); }
};

}  // namespace fanrank_host

#define FANRANK_REGISTER(name) \
    static fanrank_host::Registration fanrank_registration_##name(fanrank_host::entry(#name, &name));

inline unsigned char *fanrank_dynamic_shared() { return fanrank_host::dynamic_shared; }

inline void __syncthreads() { fanrank_host::barrier(fanrank_host::Barrier::plain, false); }
inline int __syncthreads_or(int predicate) { return fanrank_host::barrier(fanrank_host::Barrier::any, predicate != 0); }
inline int __syncthreads_and(int predicate) {
    return fanrank_host::barrier(fanrank_host::Barrier::all, predicate != 0);
}
inline int __syncthreads_count(int predicate) {
    return fanrank_host::barrier(fanrank_host::Barrier::count, predicate != 0);
}
inline void __threadfence() { fanrank_host::fence(); }
inline void __threadfence_block() { fanrank_host::fence(); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    fanrank_host::exchange(fanrank_host::Exchange::sync, mask, 0, 0, 32);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(fanrank_host::exchange(fanrank_host::Exchange::ballot, mask, predicate != 0, 0, 32));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate == 0) == 0; }

template <class T>
inline auto __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    using fanrank_host::Promoted;
    return fanrank_host::shuffle<Promoted<T>>(fanrank_host::Exchange::index, mask, value, lane, width);
}
template <class T>
inline auto __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    using fanrank_host::Promoted;
    return fanrank_host::shuffle<Promoted<T>>(fanrank_host::Exchange::up, mask, value, static_cast<int>(delta), width);
}
template <class T>
inline auto __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    using fanrank_host::Promoted;
    const int lanes = static_cast<int>(delta);
    return fanrank_host::shuffle<Promoted<T>>(fanrank_host::Exchange::down, mask, value, lanes, width);
}
template <class T>
inline auto __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    using fanrank_host::Promoted;
    return fanrank_host::shuffle<Promoted<T>>(fanrank_host::Exchange::exclusive, mask, value, lanes, width);
}

// The overloads that CUDA has: a type that it lacks does not compile here either.
#define FANRANK_ATOMIC(name, expression, ...)                                                              \
    template <class T>                                                                                     \
    inline T name(T *address, std::type_identity_t<T> value) {                                             \
        static_assert(fanrank_host::one_of<T, __VA_ARGS__>, "CUDA has no " #name " of this type");          \
        return fanrank_host::update(address, [=](T old) -> T { return expression; });                      \
    }
FANRANK_ATOMIC(atomicAdd, old + value, int, unsigned, unsigned long long, float, double)
FANRANK_ATOMIC(atomicSub, old - value, int, unsigned)
FANRANK_ATOMIC(atomicMax, old < value ? value : old, int, unsigned, long long, unsigned long long)
FANRANK_ATOMIC(atomicMin, value < old ? value : old, int, unsigned, long long, unsigned long long)
FANRANK_ATOMIC(atomicOr, old | value, int, unsigned, unsigned long long)
FANRANK_ATOMIC(atomicAnd, old & value, int, unsigned, unsigned long long)
FANRANK_ATOMIC(atomicXor, old ^ value, int, unsigned, unsigned long long)
FANRANK_ATOMIC(atomicExch, (static_cast<void>(old), value), int, unsigned, unsigned long long, float)
#undef FANRANK_ATOMIC
template <class T>
inline T atomicCAS(T *address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
    static_assert(fanrank_host::one_of<T, int, unsigned, unsigned long long, unsigned short>,
                  "CUDA has no atomicCAS of this type");
    return fanrank_host::update(address, [=](T old) -> T { return old == compare ? value : old; });
}

template <class T>
inline T __ldg(const T *address) {
    return *address;
}

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __clz(int value) { return value ? __builtin_clz(static_cast<unsigned>(value)) : 32; }
inline int __clzll(long long value) { return value ? __builtin_clzll(static_cast<unsigned long long>(value)) : 64; }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// The build turns contraction off, so each of these rounds once.
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }

// Half to even; saturating, and NaN gives the smallest integer: cvt.rni from .f64.
inline long long __double2ll_rn(double value) {
    if (value >= 0x1p63) return INT64_MAX;
    if (!(value > -0x1p63)) return INT64_MIN;
    return __builtin_llrint(value);
}
inline int __double2int_rn(double value) {
    if (value >= 0x1p31) return INT32_MAX;
    if (!(value > -0x1p31)) return INT32_MIN;
    long long rounded = __builtin_llrint(value);
    return rounded > INT32_MAX ? INT32_MAX : static_cast<int>(rounded);
}
inline double __ll2double_rn(long long value) { return static_cast<double>(value); }
inline double __int2double_rn(int value) { return value; }
inline double __uint2double_rn(unsigned value) { return value; }
inline float __int_as_float(int value) { return fanrank_host::bits<float>(value); }
inline float __uint_as_float(unsigned value) { return fanrank_host::bits<float>(value); }
inline int __float_as_int(float value) { return fanrank_host::bits<int>(value); }
inline unsigned __float_as_uint(float value) { return fanrank_host::bits<unsigned>(value); }
inline double __longlong_as_double(long long value) { return fanrank_host::bits<double>(value); }
inline long long __double_as_longlong(double value) { return fanrank_host::bits<long long>(value); }

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(__builtin_fmin(a, b));
    else
        return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(__builtin_fmax(a, b));
    else
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

#ifdef FANRANK_CUDA_RUNTIME

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#if !defined(FANRANK_CUDA_THREADS) && (defined(FANRANK_CUDA_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__)))
#define FANRANK_USE_UCONTEXT
#include <ucontext.h>
#endif

FANRANK_PER_THREAD uint3 threadIdx;
uint3 blockIdx, blockDim, gridDim;

extern "C" {
// The bounds of all in-function __shared__ arrays, from the linker; null where there are none.
extern unsigned char __start_fanrank_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_fanrank_shared[] __attribute__((weak, visibility("hidden")));
__attribute__((weak, visibility("default"))) void __tsan_acquire(void *);
__attribute__((weak, visibility("default"))) void __tsan_release(void *);
}

namespace fanrank_host {

unsigned char *dynamic_shared;

namespace {

constexpr unsigned char POISON = 0x7f;
constexpr unsigned char CANARY = 0xa5;
constexpr std::size_t GUARD = 1024;
constexpr std::size_t MAX_SHARED = 227 * 1024;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned LANES = 32;
constexpr unsigned MAX_WARPS = MAX_THREADS / LANES;

enum Order { ASCENDING, DESCENDING, SHUFFLE };

const char *const BARRIER_NAMES[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count"};
const char *const EXCHANGE_NAMES[] = {"__shfl_sync",     "__shfl_up_sync", "__shfl_down_sync",
                                      "__shfl_xor_sync", "a vote",         "__syncwarp"};

struct Thread {
    uint3 index;
    unsigned linear;
    // The warp primitive that this thread waits at.
    Exchange kind;
    unsigned mask;
    int operand;
    int width;
    std::uint64_t value;
    std::uint64_t result;
#ifdef FANRANK_CUDA_THREADS
    std::atomic<std::uint32_t> signal;
    unsigned barriers;
    unsigned syncs;
#elif defined(FANRANK_USE_UCONTEXT)
    ucontext_t context;
#else
    void *stack_pointer;
#endif
};

// Sets of lanes. A live lane is in exactly one of the other three.
struct Warp {
    unsigned live;
    unsigned runnable;
    unsigned at_barrier;
    unsigned at_exchange;
};

struct Block {
    unsigned threads;
    unsigned warps;
    unsigned live;
    unsigned running;
    unsigned arrived;
    Barrier kind;
    unsigned true_count;
    int result;
    std::atomic<bool> failed;
    std::string error;
};

struct Launch {
    const Entry *entry;
    void *const *arguments;
};

const Entry *entries;
Thread threads[MAX_THREADS];
Warp warps[MAX_WARPS];
Block block;
Launch current;

std::string place(const uint3 &at) {
    return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}

std::string hex(unsigned mask) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%08x", mask);
    return text;
}

Thread &thread_at(const Warp &warp, unsigned lane) { return threads[(&warp - warps) * LANES + lane]; }

// How the two modes differ: who runs, how a thread waits, how it is woken, how it is stopped for good.
Thread &self();
void wake(Warp &warp, unsigned lanes);
[[noreturn]] void stop();
struct Guard;
void suspend(Guard &guard);

#ifdef FANRANK_CUDA_THREADS

struct Stopped {};

// Locks and wake-ups by std::atomic in code that is not instrumented: invisible to ThreadSanitizer.
std::atomic<std::uint32_t> lock_word;

struct Guard {
    bool held = true;
    Guard() {
        while (lock_word.exchange(1, std::memory_order_acquire)) lock_word.wait(1);
    }
    void release() {
        held = false;
        lock_word.store(0, std::memory_order_release);
        lock_word.notify_one();
    }
    ~Guard() {
        if (held) release();
    }
};

__thread Thread *own;
std::atomic<std::uint32_t> done_word;
char block_tag, end_tag, fence_tag, barrier_tags[2], exchange_tags[MAX_WARPS][LANES][2];

void acquire(void *tag) {
    if (__tsan_acquire) __tsan_acquire(tag);
}
void release(void *tag) {
    if (__tsan_release) __tsan_release(tag);
}

Thread &self() { return *own; }

void signal(Thread &thread) {
    thread.signal.store(1, std::memory_order_release);
    thread.signal.notify_one();
}

void wake(Warp &warp, unsigned lanes) {
    for (unsigned rest = lanes; rest; rest &= rest - 1) signal(thread_at(warp, __builtin_ctz(rest)));
}

void stop() { throw Stopped{}; }

#else

struct Guard {
    Guard() {}
};

Thread *own;
Thread &self() { return *own; }
void wake(Warp &, unsigned) {}

#endif

void set_error(const std::string &message) {
    if (block.failed) return;
    block.failed = true;
    block.error = message;
#ifdef FANRANK_CUDA_THREADS
    for (unsigned w = 0; w < block.warps; ++w) wake(warps[w], warps[w].at_barrier | warps[w].at_exchange);
#endif
}

void set_deadlock() {
    unsigned waiting = 0;
    std::string example;
    for (unsigned w = 0; w < block.warps; ++w) {
        waiting += static_cast<unsigned>(__builtin_popcount(warps[w].at_barrier));
        if (example.empty() && warps[w].at_exchange) {
            const Thread &thread = thread_at(warps[w], static_cast<unsigned>(__builtin_ctz(warps[w].at_exchange)));
            unsigned present = 0;
            for (unsigned rest = warps[w].at_exchange; rest; rest &= rest - 1) {
                unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
                if (thread_at(warps[w], lane).mask == thread.mask) present |= 1u << lane;
            }
            example = "; thread " + place(thread.index) + " waits at " +
                      EXCHANGE_NAMES[static_cast<int>(thread.kind)] + " with mask " + hex(thread.mask) +
                      " for the lanes " + hex(thread.mask & warps[w].live & ~present);
        }
    }
    set_error("deadlock: of " + std::to_string(block.threads) + " threads " + std::to_string(waiting) + " wait at " +
              (waiting ? BARRIER_NAMES[static_cast<int>(block.kind)] : "a block barrier") + " and " +
              std::to_string(block.live - waiting) + " at a warp primitive; " +
              std::to_string(block.threads - block.live) + " have returned" + example);
}

[[noreturn]] void fail(Guard &guard, const std::string &message) {
    set_error("thread " + place(self().index) + ": " + message);
    static_cast<void>(guard);
    stop();
}

void open_barrier() {
    switch (block.kind) {
        case Barrier::plain: block.result = 0; break;
        case Barrier::any: block.result = block.true_count != 0; break;
        case Barrier::all: block.result = block.true_count == block.arrived; break;
        case Barrier::count: block.result = static_cast<int>(block.true_count); break;
    }
    block.running += block.arrived;
    block.arrived = 0;
    block.true_count = 0;
    for (unsigned w = 0; w < block.warps; ++w) {
        unsigned lanes = std::exchange(warps[w].at_barrier, 0);
        warps[w].runnable |= lanes;
        wake(warps[w], lanes);
    }
}

// The lane that a shuffle reads, or its own where the lane lies outside its segment.
unsigned source_lane(const Thread &thread, unsigned lane) {
    const int width = thread.width, first = static_cast<int>(lane) & ~(width - 1), last = first + width - 1;
    int source = static_cast<int>(lane);
    switch (thread.kind) {
        case Exchange::index: return static_cast<unsigned>(first | (thread.operand & (width - 1)));
        case Exchange::up: source -= thread.operand; break;
        case Exchange::down: source += thread.operand; break;
        default: source ^= thread.operand; break;
    }
    if (source > last || source < 0 || (thread.kind == Exchange::up && source < first)) return lane;
    return static_cast<unsigned>(source);
}

// Completes the exchange of `mask` if every live lane in it has come. False if they disagree on what it is.
bool try_exchange(Warp &warp, unsigned mask) {
    const unsigned lanes = mask & warp.live;
    if ((warp.at_exchange & lanes) != lanes || !lanes) return true;
    const Exchange kind = thread_at(warp, static_cast<unsigned>(__builtin_ctz(lanes))).kind;
    std::uint64_t votes = 0;
    bool agreed = true;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        const Thread &thread = thread_at(warp, lane);
        if (thread.mask != mask) return true;
        agreed = agreed && thread.kind == kind;
        votes |= (thread.value & 1) << lane;
    }
    if (!agreed) return false;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        Thread &thread = thread_at(warp, lane);
        if (kind == Exchange::ballot || kind == Exchange::sync) {
            thread.result = votes;
        } else {
            const unsigned source = source_lane(thread, lane);
            thread.result = lanes >> source & 1 ? thread_at(warp, source).value : 0x7f7f7f7f7f7f7f7fu;
        }
    }
    warp.at_exchange &= ~lanes;
    warp.runnable |= lanes;
    block.running += static_cast<unsigned>(__builtin_popcount(lanes));
    wake(warp, lanes);
    return true;
}

void leave(Guard &) {
    Thread &thread = self();
    Warp &warp = warps[thread.linear / LANES];
    const unsigned bit = 1u << thread.linear % LANES;
    warp.live &= ~bit;
    warp.runnable &= ~bit;
    --block.live;
    --block.running;
    if (block.failed) return;
    if (block.live && block.arrived == block.live) open_barrier();
    for (unsigned rest = warp.at_exchange; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        if (warp.at_exchange >> lane & 1 && !try_exchange(warp, thread_at(warp, lane).mask))
            set_error("the lanes of mask " + hex(thread_at(warp, lane).mask) + " call different warp primitives");
    }
    if (block.live && !block.running) set_deadlock();
}

}  // namespace

void add(Entry *entry) {
    entry->next = entries;
    entries = entry;
}

int barrier(Barrier kind, bool predicate) {
    Thread &thread = self();
#ifdef FANRANK_CUDA_THREADS
    char *tag = &barrier_tags[thread.barriers++ & 1];
    release(tag);
#endif
    Guard guard;
    if (block.arrived && block.kind != kind)
        fail(guard, std::string("at ") + BARRIER_NAMES[static_cast<int>(kind)] + " while others wait at " +
                        BARRIER_NAMES[static_cast<int>(block.kind)]);
    Warp &warp = warps[thread.linear / LANES];
    const unsigned bit = 1u << thread.linear % LANES;
    block.kind = kind;
    ++block.arrived;
    block.true_count += predicate;
    warp.runnable &= ~bit;
    warp.at_barrier |= bit;
    --block.running;
    if (block.arrived == block.live) open_barrier();
    suspend(guard);
#ifdef FANRANK_CUDA_THREADS
    acquire(tag);
#endif
    return block.result;
}

std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, int operand, int width) {
    Thread &thread = self();
    const unsigned lane = thread.linear % LANES;
    const unsigned bit = 1u << lane;
    Warp &warp = warps[thread.linear / LANES];
#ifdef FANRANK_CUDA_THREADS
    // Only __syncwarp orders memory: shuffles and votes move values and nothing else.
    // A lane releases one of its two tags in turn; all learn which one it was.
    auto &tags = exchange_tags[thread.linear / LANES];
    if (kind == Exchange::sync) {
        value = thread.syncs++ & 1;
        release(&tags[lane][value]);
    }
#endif
    Guard guard;
    if (!(mask & bit))
        fail(guard, std::string("calls ") + EXCHANGE_NAMES[static_cast<int>(kind)] + " with mask " + hex(mask) +
                        ", which lacks its own lane " + std::to_string(lane));
    if (width < 1 || width > 32 || (width & (width - 1)))
        fail(guard, "a shuffle's width must be a power of two up to 32, got " + std::to_string(width));
    thread.kind = kind;
    thread.mask = mask;
    thread.value = value;
    thread.operand = operand;
    thread.width = width;
    warp.runnable &= ~bit;
    warp.at_exchange |= bit;
    --block.running;
    if (!try_exchange(warp, mask)) fail(guard, "the lanes of mask " + hex(mask) + " call different warp primitives");
    suspend(guard);
#ifdef FANRANK_CUDA_THREADS
    if (kind == Exchange::sync)
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            const int other = __builtin_ctz(rest);
            acquire(&tags[other][thread.result >> other & 1]);
        }
#endif
    return thread.result;
}

void fence() {
#ifdef FANRANK_CUDA_THREADS
    std::atomic_thread_fence(std::memory_order_seq_cst);
    release(&fence_tag);
    acquire(&fence_tag);
#endif
}

namespace {

void start_block(unsigned count) {
    block.threads = block.live = block.running = count;
    block.warps = (count + LANES - 1) / LANES;
    block.arrived = block.true_count = 0;
    block.failed = false;
#ifdef FANRANK_CUDA_THREADS
    for (unsigned i = 0; i < count; ++i) threads[i].barriers = 0;
#endif
    for (unsigned w = 0; w < block.warps; ++w) {
        const unsigned lanes = count - w * LANES;
        const unsigned live = lanes >= LANES ? 0xffffffffu : (1u << lanes) - 1;
        warps[w] = {live, live, 0, 0};
    }
}

#ifdef FANRANK_CUDA_THREADS

void suspend(Guard &guard) {
    Thread &thread = self();
    if (!block.running && !block.failed) set_deadlock();
    const bool failed = block.failed;
    guard.release();
    if (!failed) thread.signal.wait(0, std::memory_order_acquire);
    thread.signal.store(0, std::memory_order_relaxed);
    if (block.failed) stop();
}

void finish() {
    Guard guard;
    leave(guard);
    if (!block.live) {
        done_word.store(1, std::memory_order_release);
        done_word.notify_one();
    }
}

struct Team {
    std::vector<std::thread> members;
    std::atomic<std::uint32_t> generation{0};
    bool closing = false;

    explicit Team(unsigned count) {
        for (unsigned i = 0; i < count; ++i)
            members.emplace_back([this, i] {
                own = &threads[i];
                threadIdx = threads[i].index;
                for (std::uint32_t seen = 0;;) {
                    generation.wait(seen, std::memory_order_acquire);
                    seen = generation.load(std::memory_order_acquire);
                    if (closing) return;
                    acquire(&block_tag);
                    try {
                        current.entry->call(current.entry->function, current.arguments);
                    } catch (const Stopped &) {
                    }
                    release(&end_tag);
                    finish();
                }
            });
    }

    void run() {
        for (unsigned i = 0; i < members.size(); ++i) threads[i].signal.store(0, std::memory_order_relaxed);
        done_word.store(0, std::memory_order_relaxed);
        release(&block_tag);
        generation.fetch_add(1, std::memory_order_release);
        generation.notify_all();
        done_word.wait(0, std::memory_order_acquire);
        // The last member signals while it holds the lock.
        Guard guard;
        acquire(&end_tag);
    }

    ~Team() {
        closing = true;
        generation.fetch_add(1, std::memory_order_release);
        generation.notify_all();
        for (std::thread &member : members) member.join();
    }
};

#else

constexpr std::size_t STACK = 64 * 1024;

#ifdef FANRANK_USE_UCONTEXT
ucontext_t scheduler;
void resume(Thread &thread) { swapcontext(&scheduler, &thread.context); }
void yield(Thread &thread) { swapcontext(&thread.context, &scheduler); }
#else
// swapcontext saves the signal mask by a system call; this saves what the ABI says a callee must keep.
extern "C" __attribute__((visibility("hidden"))) void fanrank_switch(void **save, void *load);
#if defined(__x86_64__)
constexpr unsigned SAVED_WORDS = 8;
constexpr unsigned ENTRY_WORD = 6;
asm(R"(
.text
.hidden fanrank_switch
.globl fanrank_switch
.type fanrank_switch, @function
fanrank_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size fanrank_switch, .-fanrank_switch
)");
#else
constexpr unsigned SAVED_WORDS = 20;
constexpr unsigned ENTRY_WORD = 11;
asm(R"(
.text
.hidden fanrank_switch
.globl fanrank_switch
.type fanrank_switch, %function
fanrank_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size fanrank_switch, .-fanrank_switch
)");
#endif
void *scheduler;
void resume(Thread &thread) { fanrank_switch(&scheduler, thread.stack_pointer); }
void yield(Thread &thread) { fanrank_switch(&thread.stack_pointer, scheduler); }
#endif

unsigned char *stacks;
std::size_t page;
unsigned fibers;

void suspend(Guard &) { yield(self()); }

void stop() {
    yield(self());
    __builtin_unreachable();
}

// A fiber outlives its block: it runs one thread of every block until a failure abandons it.
void fiber_main() {
    for (;;) {
        current.entry->call(current.entry->function, current.arguments);
        Guard guard;
        leave(guard);
        yield(self());
    }
}

unsigned char *stack_of(unsigned i) { return stacks + i * (STACK + page) + page; }

void make_fiber(unsigned i) {
    unsigned char *base = stack_of(i);
#ifdef FANRANK_USE_UCONTEXT
    getcontext(&threads[i].context);
    threads[i].context.uc_stack.ss_sp = base;
    threads[i].context.uc_stack.ss_size = STACK;
    threads[i].context.uc_link = nullptr;
    makecontext(&threads[i].context, fiber_main, 0);
#else
    // Equal offsets would put the hot end of all stacks into the same few cache sets.
    std::uintptr_t top = reinterpret_cast<std::uintptr_t>(base + STACK - i * 320 % 16384);
    void **frame = reinterpret_cast<void **>(top & ~std::uintptr_t{63}) - SAVED_WORDS;
    std::memset(frame, 0, SAVED_WORDS * sizeof(void *));
    frame[ENTRY_WORD] = reinterpret_cast<void *>(&fiber_main);
    threads[i].stack_pointer = frame;
#endif
}

bool make_fibers(unsigned count) {
    if (!stacks) {
        page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t size = MAX_THREADS * (STACK + page);
        void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return false;
        stacks = static_cast<unsigned char *>(memory);
    }
    for (; fibers < count; ++fibers) {
        if (mprotect(stack_of(fibers) - page, page, PROT_NONE)) return false;
        make_fiber(fibers);
    }
    return true;
}

std::uint64_t random_state;

// A number below `bound` (xorshift64*).
unsigned draw(unsigned bound) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return static_cast<unsigned>((random_state * 0x2545f4914f6cdd1du >> 32) * bound >> 32);
}

void run_lane(Warp &warp, unsigned lane) {
    own = &thread_at(warp, lane);
    threadIdx = own->index;
    resume(*own);
}

// Resumes each lane that is runnable now, once.
void run_lanes(Warp &warp, int order) {
    unsigned rest = warp.runnable;
    if (order == SHUFFLE) {
        unsigned char lanes[LANES];
        unsigned count = 0;
        for (; rest; rest &= rest - 1) lanes[count++] = static_cast<unsigned char>(__builtin_ctz(rest));
        for (; count && !block.failed; --count) {
            std::swap(lanes[draw(count)], lanes[count - 1]);
            run_lane(warp, lanes[count - 1]);
        }
        return;
    }
    while (rest && !block.failed) {
        const int next = order == ASCENDING ? __builtin_ctz(rest) : 31 - __builtin_clz(rest);
        const unsigned lane = static_cast<unsigned>(next);
        rest &= ~(1u << lane);
        run_lane(warp, lane);
    }
}

// A warp runs as far ahead of the others as the block's barriers let it; shuffled, sometimes only to its next exchange.
void run_block(int order) {
    unsigned sequence[MAX_WARPS];
    for (unsigned w = 0; w < block.warps; ++w) sequence[w] = order == DESCENDING ? block.warps - 1 - w : w;
    while (block.running && !block.failed) {
        if (order == SHUFFLE)
            for (unsigned w = block.warps; w > 1; --w) std::swap(sequence[draw(w)], sequence[w - 1]);
        for (unsigned w = 0; w < block.warps && !block.failed; ++w) {
            Warp &warp = warps[sequence[w]];
            do {
                run_lanes(warp, order);
            } while (warp.runnable && !block.failed && !(order == SHUFFLE && draw(2)));
        }
    }
    if (block.live && !block.failed) set_deadlock();
}

#endif

// Storage of the dynamic shared memory between two guards.
struct Shared {
    std::vector<unsigned char> storage;
    std::size_t size;

    explicit Shared(std::size_t bytes) : storage(bytes + 2 * GUARD + 128), size(bytes) {
        const auto first = reinterpret_cast<std::uintptr_t>(storage.data()) + GUARD;
        dynamic_shared = reinterpret_cast<unsigned char *>((first + 127) & ~std::uintptr_t{127});
        std::memset(dynamic_shared - GUARD, CANARY, GUARD);
        std::memset(dynamic_shared + size, CANARY, GUARD);
    }

    void poison() {
        std::memset(dynamic_shared, POISON, size);
        if (__start_fanrank_shared)
            std::memset(__start_fanrank_shared, POISON,
                        static_cast<std::size_t>(__stop_fanrank_shared - __start_fanrank_shared));
    }

    // Where a guard was written, relative to the first byte of the memory.
    std::optional<std::ptrdiff_t> trespass() const {
        const auto limit = static_cast<std::ptrdiff_t>(GUARD), end = static_cast<std::ptrdiff_t>(size);
        static const std::vector<unsigned char> intact(GUARD, CANARY);
        if (std::memcmp(dynamic_shared + end, intact.data(), GUARD))
            for (std::ptrdiff_t at = end;; ++at)
                if (dynamic_shared[at] != CANARY) return at;
        if (std::memcmp(dynamic_shared - limit, intact.data(), GUARD))
            for (std::ptrdiff_t at = -1;; --at)
                if (dynamic_shared[at] != CANARY) return at;
        return std::nullopt;
    }
};

std::string kind_of(char kind, unsigned size) {
    if (kind == 'p') return "a pointer";
    const char *what = kind == 'f' ? "a floating-point number of " : "an integer of ";
    return what + std::to_string(size) + " bytes";
}

enum Status { OK, BAD_REQUEST, FAULT };

Status launch(const char *name, const std::uint32_t *grid, const std::uint32_t *size, std::uint64_t shared_bytes,
              unsigned count, void *const *arguments, const Parameter *given, int order, std::uint64_t seed,
              std::string &message) {
    const Entry *entry = entries;
    while (entry && std::strcmp(entry->name, name)) entry = entry->next;
    if (!entry) {
        message = "no kernel named " + std::string(name) + "; the library has";
        for (const Entry *other = entries; other; other = other->next) message += std::string(" ") + other->name;
        return BAD_REQUEST;
    }
    const std::string who = "kernel " + std::string(name);
    if (count != entry->count) {
        message = who + " takes " + std::to_string(entry->count) + " arguments, got " + std::to_string(count);
        return BAD_REQUEST;
    }
    for (unsigned i = 0; i < count; ++i) {
        const Parameter &takes = entry->parameters[i];
        if (takes.kind != given[i].kind || takes.size != given[i].size) {
            message = who + ": argument " + std::to_string(i) + " must be " + kind_of(takes.kind, takes.size) +
                      ", got " + kind_of(given[i].kind, given[i].size);
            return BAD_REQUEST;
        }
        if (takes.element > 1 && given[i].element > 1 && takes.element != given[i].element) {
            message = who + ": argument " + std::to_string(i) + " points to elements of " +
                      std::to_string(takes.element) + " bytes, got a tensor with elements of " +
                      std::to_string(given[i].element);
            return BAD_REQUEST;
        }
    }
    const std::uint64_t total = std::uint64_t{size[0]} * size[1] * size[2];
    if (!total || total > MAX_THREADS || size[0] > 1024 || size[1] > 1024 || size[2] > 64) {
        message = who + ": a block has 1 to 1024 threads and at most 64 in z";
        return BAD_REQUEST;
    }
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) {
        message = who + ": a grid has 1 to 2**31 - 1 blocks in x and 1 to 65535 in y and z";
        return BAD_REQUEST;
    }
    if (shared_bytes > MAX_SHARED) {
        message = who + ": " + std::to_string(shared_bytes) + " bytes of shared memory; no device has more than " +
                  std::to_string(MAX_SHARED);
        return BAD_REQUEST;
    }

    current = {entry, arguments};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {size[0], size[1], size[2]};
    const unsigned thread_count = static_cast<unsigned>(total);
    for (unsigned i = 0; i < thread_count; ++i) {
        threads[i].linear = i;
        threads[i].index = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    }
    const std::uint64_t blocks = std::uint64_t{grid[0]} * grid[1] * grid[2];
    Shared shared(shared_bytes);
#ifdef FANRANK_CUDA_THREADS
    Team team(thread_count);
    static_cast<void>(seed);
#else
    if (!make_fibers(thread_count)) {
        message = "no memory for the stacks of " + std::to_string(thread_count) + " threads";
        return FAULT;
    }
    random_state = seed * 0x9e3779b97f4a7c15u | 1;
#endif
    std::vector<std::uint64_t> sequence;
#ifndef FANRANK_CUDA_THREADS
    if (order == SHUFFLE) {
        sequence.resize(blocks);
        std::iota(sequence.begin(), sequence.end(), std::uint64_t{0});
        for (std::uint64_t i = blocks; i > 1; --i)
            std::swap(sequence[i - 1], sequence[draw(static_cast<unsigned>(std::min<std::uint64_t>(i, 0xffffffffu)))]);
    }
#endif
    for (std::uint64_t i = 0; i < blocks; ++i) {
        const std::uint64_t b = !sequence.empty() ? sequence[i] : order == DESCENDING ? blocks - 1 - i : i;
        blockIdx = {static_cast<unsigned>(b % grid[0]), static_cast<unsigned>(b / grid[0] % grid[1]),
                    static_cast<unsigned>(b / grid[0] / grid[1])};
        shared.poison();
        start_block(thread_count);
#ifdef FANRANK_CUDA_THREADS
        team.run();
#else
        run_block(order);
#endif
        const auto trespass = shared.trespass();
        if (!block.failed && trespass) {
            block.failed = true;
            block.error = "wrote outside its " + std::to_string(shared_bytes) +
                          " bytes of dynamic shared memory, at byte " + std::to_string(*trespass);
        }
        if (block.failed) {
            message = who + ", block " + place(blockIdx) + ": " + block.error;
#ifndef FANRANK_CUDA_THREADS
            for (unsigned f = 0; f < fibers; ++f) make_fiber(f);
#endif
            return FAULT;
        }
    }
    return OK;
}

std::mutex launching;

}  // namespace
}  // namespace fanrank_host

extern "C" __attribute__((visibility("default"))) int fanrank_launch(
    const char *name, const std::uint32_t *grid, const std::uint32_t *size, std::uint64_t shared_bytes,
    std::uint32_t count, void *const *arguments, const fanrank_host::Parameter *given, std::int32_t order,
    std::uint64_t seed, char *message, std::uint64_t capacity) {
    std::lock_guard<std::mutex> lock(fanrank_host::launching);
    std::string text;
    const int status =
        fanrank_host::launch(name, grid, size, shared_bytes, count, arguments, given, order, seed, text);
    std::snprintf(message, capacity, "%s", text.c_str());
    return status;
}

#endif
