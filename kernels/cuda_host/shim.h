// CUDA built-ins for a CPU: the kernels of kernels/cuda compile unchanged against this header with g++ or clang++.
//
// Kernel sources see this alone. `runtime.h`, which runs them, is a translation unit of its own, so that no compiler
// keeps shared memory in registers across a barrier, and so that ThreadSanitizer does not see the runtime's own locks,
// which would order what the kernel does not.
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
#define __grid_constant__
// In a template g++ ignores the section, and the array is neither poisoned nor watched: declare none there.
#define __shared__ static __attribute__((section("fanrank_shared")))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint3 {
    unsigned x, y, z;
};
extern FANRANK_PER_THREAD uint3 threadIdx;
extern uint3 blockIdx, blockDim, gridDim;

namespace fanrank_host {

enum class Barrier { plain, any, all, count };
enum class Exchange { index, up, down, exclusive, ballot, sync, reduce };
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned LANES = 32;
constexpr unsigned MAX_WARPS = MAX_THREADS / LANES;

// The operand of a reduction.
enum Reduction { ADD_32, AND_32, OR_32, XOR_32, MIN_S32, MAX_S32, MIN_U32, MAX_U32 };

// The shared memory of the block that runs, and its size.
extern unsigned char *dynamic_shared;
extern std::uint64_t shared_size;
// Whether several blocks are resident, so that a thread gives way where the others' memory may have changed.
extern bool interleaved;
// Jumps back that the threads of a launch may take, where they are counted: a loop without an end is a fault.
extern std::uint64_t jumps_left;

// Threads that meet at one barrier must come from one `site`, a line of the translated code; 0 for sources.
int barrier(Barrier kind, bool predicate, int site = 0);
void give_way();
[[noreturn]] void fault(const char *message);
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, int operand, int width);

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

struct Entry {
    const char *name;
    unsigned count;
    const std::uint16_t *sizes;  // of the parameters
    void (*call)(void (*function)(), void *const *arguments);
    void (*function)();
    const Entry *next;
    std::uint64_t fixed_shared;  // bytes in front of the dynamic shared memory
};

void add(Entry *entry);

template <class... A>
struct Signature {
    static_assert((std::is_trivially_copyable_v<A> && ...), "a parameter is passed as its bytes");
    static constexpr std::uint16_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};

    static void call(void (*function)(), void *const *arguments) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            reinterpret_cast<void (*)(A...)>(function)(*static_cast<std::remove_cv_t<A> *>(arguments[I])...);
        }(std::index_sequence_for<A...>{});
    }
};

template <class... A>
Entry entry(const char *name, void (*kernel)(A...)) {
    return {name, sizeof...(A), Signature<A...>::sizes, Signature<A...>::call,
            reinterpret_cast<void (*)()>(kernel), nullptr, 0};
}

struct Registration {
    Entry entry;
    explicit Registration(Entry kernel) : entry(kernel) { add(&entry); }
};

}  // namespace fanrank_host

#define FANRANK_REGISTER(name) \
    static fanrank_host::Registration fanrank_registration_##name(fanrank_host::entry(#name, &name));

inline unsigned char *fanrank_dynamic_shared() { return fanrank_host::dynamic_shared; }

inline void __syncthreads() { fanrank_host::barrier(fanrank_host::Barrier::plain, false); }
inline int __syncthreads_or(int predicate) { return fanrank_host::barrier(fanrank_host::Barrier::any, predicate != 0); }
inline int __syncthreads_count(int predicate) {
    return fanrank_host::barrier(fanrank_host::Barrier::count, predicate != 0);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    fanrank_host::exchange(fanrank_host::Exchange::sync, mask, 0, 0, 32);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(fanrank_host::exchange(fanrank_host::Exchange::ballot, mask, predicate != 0, 0, 32));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
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
FANRANK_ATOMIC(atomicMax, old < value ? value : old, int, unsigned, long long, unsigned long long)
FANRANK_ATOMIC(atomicOr, old | value, int, unsigned, unsigned long long)
#undef FANRANK_ATOMIC
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clzll(long long value) { return value ? __builtin_clzll(static_cast<unsigned long long>(value)) : 64; }
inline int __ffs(int value) { return __builtin_ffs(value); }
// The build turns contraction off, so each of these rounds once.
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
// Half to even; saturating, and NaN gives the smallest integer: cvt.rni from .f64.
inline long long __double2ll_rn(double value) {
    if (value >= 0x1p63) return INT64_MAX;
    if (!(value > -0x1p63)) return INT64_MIN;
    return __builtin_llrint(value);
}
inline double __ll2double_rn(long long value) { return static_cast<double>(value); }
inline float __int_as_float(int value) { return fanrank_host::bits<float>(value); }
inline double __longlong_as_double(long long value) { return fanrank_host::bits<double>(value); }
inline long long __double_as_longlong(double value) { return fanrank_host::bits<long long>(value); }
