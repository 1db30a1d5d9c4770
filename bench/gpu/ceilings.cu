// What a device can do at best of each thing that scoring is made of. Every kernel leaves a checksum in `total`, so that
// its work can be checked and is not removed.
#include "common.cuh"

struct alignas(16) Vector {
    u32 value[4];
};

__device__ __forceinline__ unsigned char* shared_memory() {
    FANRANK_DYNAMIC_SHARED(dynamic);
    return dynamic;
}

__device__ __forceinline__ u32 next(u32& state) {
    state = state * 1664525u + 1013904223u;
    return state >> 12;
}

__device__ __forceinline__ u32 thread_number() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

// The value added is a parameter of the kernel: for a 1 that it knows, the compiler takes a special instruction.
__device__ __forceinline__ i32 add(i32* target, i32 value) {
    return atomicAdd(target, value);
}

__device__ __forceinline__ float add(float* target, i32 value) {
    return atomicAdd(target, static_cast<float>(value));
}

__device__ __forceinline__ u64 add(u64* target, i32 value) {
    return atomicAdd(target, static_cast<u64>(value));
}

// `steps` additions a thread into `words` (a power of two) values in shared memory; READ: of what was there before, too.
template <typename T, bool RANDOM, bool READ>
__device__ __forceinline__ void add_in_shared(i32 words, i32 steps, i32 value, u64* total) {
    T* const sums = reinterpret_cast<T*>(shared_memory());
    for (u32 i = threadIdx.x; i < static_cast<u32>(words); i += blockDim.x) {
        sums[i] = 0;
    }
    __syncthreads();
    u32 state = thread_number() * 2654435761u;
    u32 place = threadIdx.x;
    T highest = 0;
#pragma unroll 8
    for (i32 step = 0; step < steps; ++step) {
        place = RANDOM ? next(state) : place + blockDim.x;
        const T before = add(&sums[place & static_cast<u32>(words - 1)], value);
        if (READ) {
            highest = larger(highest, before);
        }
    }
    __syncthreads();
    u64 own = 0;
    for (u32 i = threadIdx.x; i < static_cast<u32>(words); i += blockDim.x) {
        own += static_cast<u64>(sums[i]);
    }
    // No sum is that large: `highest` is only read so that it is kept.
    atomicAdd(total, highest == static_cast<T>(-1) ? 0 : own);
}

extern "C" __global__ void __launch_bounds__(512) ceiling_shared_int32(i32 words, i32 steps, i32 value, u64* total) {
    add_in_shared<i32, true, true>(words, steps, value, total);
}

extern "C" __global__ void __launch_bounds__(512) ceiling_shared_int32_in_order(
    i32 words, i32 steps, i32 value, u64* total) {
    add_in_shared<i32, false, true>(words, steps, value, total);
}

extern "C" __global__ void __launch_bounds__(512) ceiling_shared_int32_unread(
    i32 words, i32 steps, i32 value, u64* total) {
    add_in_shared<i32, true, false>(words, steps, value, total);
}

extern "C" __global__ void __launch_bounds__(512) ceiling_shared_float(i32 words, i32 steps, i32 value, u64* total) {
    add_in_shared<float, true, false>(words, steps, value, total);
}

extern "C" __global__ void __launch_bounds__(512) ceiling_shared_int64(i32 words, i32 steps, i32 value, u64* total) {
    add_in_shared<u64, true, false>(words, steps, value, total);
}

// `words` values in shared memory written `steps` times, 16 bytes at once, as a tile is cleared.
extern "C" __global__ void __launch_bounds__(512) ceiling_shared_write(i32 words, i32 steps, u64* total) {
    Vector* const vectors = reinterpret_cast<Vector*>(shared_memory());
    const u32 count = static_cast<u32>(words) / 4;
    for (i32 step = 1; step <= steps; ++step) {
        const u32 value = static_cast<u32>(step);
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            vectors[i] = {{value, value, value, value}};
        }
        __syncthreads();
    }
    u64 own = 0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        own += vectors[i].value[0] + vectors[i].value[3];
    }
    atomicAdd(total, own);
}

// `steps` reads of 16 bytes a thread. Each step a block reads elsewhere, so that its own first-level cache is no help.
extern "C" __global__ void __launch_bounds__(512) ceiling_l2_read(
    i64 vectors, i32 steps, const Vector* values, u64* total) {
    const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x + 7 * blockDim.x;
    i64 place = thread_number() % vectors;
    u32 own = 0;
#pragma unroll 8
    for (i32 step = 0; step < steps; ++step) {
        const Vector read = values[place];
        own += read.value[0] ^ read.value[1] ^ read.value[2] ^ read.value[3];
        place += stride;
        place = place >= vectors ? place - vectors : place;
    }
    atomicAdd(total, static_cast<u64>(own));
}

template <typename T>
__device__ __forceinline__ void add_in_l2(i32 words, i32 steps, i32 value, T* sums) {
    u32 state = thread_number() * 2654435761u;
#pragma unroll 8
    for (i32 step = 0; step < steps; ++step) {
        // 20 bits of one number are too few for the whole buffer.
        const u32 high = next(state) << 10;
        add(&sums[(high ^ next(state)) & static_cast<u32>(words - 1)], value);
    }
}

// `steps` additions a thread into `words` (a power of two) values that the second-level cache holds.
extern "C" __global__ void __launch_bounds__(512) ceiling_l2_int32(i32 words, i32 steps, i32 value, i32* sums) {
    add_in_l2(words, steps, value, sums);
}

extern "C" __global__ void __launch_bounds__(512) ceiling_l2_float(i32 words, i32 steps, i32 value, float* sums) {
    add_in_l2(words, steps, value, sums);
}
