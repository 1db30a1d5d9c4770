// Runs a kernel: `fanrank_launch`, which `HostLauncher` calls, and the checks and the shared memory of a launch.
//
// Fibers (the default): the threads of a block are coroutines of one OS thread, resumed in a chosen order.
// FANRANK_CUDA_THREADS: a header that runs each as an OS thread. Blocks run one after another in both.
#pragma once

#ifdef FANRANK_CUDA_THREADS
#include FANRANK_CUDA_THREADS
#else
#include "fibers.h"
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

extern "C" {
// The bounds of all in-function __shared__ arrays, from the linker; null where there are none.
extern unsigned char __start_fanrank_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_fanrank_shared[] __attribute__((weak, visibility("hidden")));
}

namespace fanrank_host {

unsigned char *dynamic_shared;
std::uint64_t shared_size;
bool interleaved;
std::uint64_t jumps_left;

namespace {

constexpr unsigned char POISON = 0x7f;
constexpr unsigned char CANARY = 0xa5;
constexpr std::size_t GUARD = 1024;
constexpr std::size_t MAX_SHARED = 227 * 1024;
// Of a launch: some seconds.
constexpr std::uint64_t MAX_JUMPS = std::uint64_t{1} << 28;

const Entry *entries;

}  // namespace

void add(Entry *entry) {
    entry->next = entries;
    entries = entry;
}

namespace {

// Storage of a block's dynamic shared memory between two guards.
struct Shared {
    std::vector<unsigned char> storage;
    std::size_t size;
    unsigned char *memory;

    explicit Shared(std::size_t bytes) : storage(bytes + 2 * GUARD + 128), size(bytes) {
        const auto first = reinterpret_cast<std::uintptr_t>(storage.data()) + GUARD;
        memory = reinterpret_cast<unsigned char *>((first + 127) & ~std::uintptr_t{127});
        std::memset(memory - GUARD, CANARY, GUARD);
        std::memset(memory + size, CANARY, GUARD);
    }

    void poison() {
        std::memset(memory, POISON, size);
        if (__start_fanrank_shared)
            std::memset(__start_fanrank_shared, POISON,
                        static_cast<std::size_t>(__stop_fanrank_shared - __start_fanrank_shared));
    }

    // Where a guard was written, relative to the first byte of the memory.
    std::optional<std::ptrdiff_t> trespass() const {
        const auto limit = static_cast<std::ptrdiff_t>(GUARD), end = static_cast<std::ptrdiff_t>(size);
        static const std::vector<unsigned char> intact(GUARD, CANARY);
        if (std::memcmp(memory + end, intact.data(), GUARD))
            for (std::ptrdiff_t at = end;; ++at)
                if (memory[at] != CANARY) return at;
        if (std::memcmp(memory - limit, intact.data(), GUARD))
            for (std::ptrdiff_t at = -1;; --at)
                if (memory[at] != CANARY) return at;
        return std::nullopt;
    }
};

enum Status { OK, BAD_REQUEST, FAULT };

Status launch(const char *name, const std::uint32_t *grid, const std::uint32_t *size, std::uint64_t shared_bytes,
              unsigned count, void *const *arguments, const std::uint16_t *given, int order, std::uint64_t seed,
              unsigned residents, std::string &message) {
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
    for (unsigned i = 0; i < count; ++i)
        if (entry->sizes[i] != given[i]) {
            message = who + ": argument " + std::to_string(i) + " must have " + std::to_string(entry->sizes[i]) +
                      " bytes, got " + std::to_string(given[i]);
            return BAD_REQUEST;
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
    shared_bytes += entry->fixed_shared;
    if (shared_bytes > MAX_SHARED) {
        message = who + ": " + std::to_string(shared_bytes) + " bytes of shared memory; no device has more than " +
                  std::to_string(MAX_SHARED);
        return BAD_REQUEST;
    }
    if (!residents || residents > MAX_RESIDENT || (residents > 1 && __start_fanrank_shared)) {
        message = who + ": 1 to " + std::to_string(MAX_RESIDENT) + " blocks run at once, and one where a source " +
                  "declares shared memory of its own";
        return BAD_REQUEST;
    }

    current = {entry, arguments};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {size[0], size[1], size[2]};
    const unsigned thread_count = static_cast<unsigned>(total);
    const std::uint64_t block_count = std::uint64_t{grid[0]} * grid[1] * grid[2];
    residents = static_cast<unsigned>(std::min<std::uint64_t>(residents, block_count));
    interleaved = residents > 1;
    shared_size = shared_bytes;
    jumps_left = MAX_JUMPS;
    std::vector<Shared> memories;
    memories.reserve(residents);
    for (unsigned place = 0; place < residents; ++place) {
        memories.emplace_back(shared_bytes);
        blocks[place].shared = memories.back().memory;
        for (unsigned i = 0; i < thread_count; ++i) {
            all_threads[place * MAX_THREADS + i].linear = i;
            all_threads[place * MAX_THREADS + i].index = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
        }
        if (!make_threads(place, thread_count)) {
            message = "no memory for the stacks of " + std::to_string(thread_count) + " threads";
            return FAULT;
        }
    }
    Session session(thread_count, seed);
    std::vector<std::uint64_t> sequence;
    if (order == SHUFFLE) {
        sequence.resize(block_count);
        std::iota(sequence.begin(), sequence.end(), std::uint64_t{0});
        for (std::uint64_t i = block_count; i > 1; --i)
            std::swap(sequence[i - 1], sequence[draw(static_cast<unsigned>(std::min<std::uint64_t>(i, 0xffffffffu)))]);
    }
    std::uint64_t begun = 0;
    const auto begin = [&](unsigned place) {
        const std::uint64_t i = begun++;
        const std::uint64_t b = !sequence.empty() ? sequence[i] : order == DESCENDING ? block_count - 1 - i : i;
        blocks[place].index = {static_cast<unsigned>(b % grid[0]), static_cast<unsigned>(b / grid[0] % grid[1]),
                               static_cast<unsigned>(b / grid[0] / grid[1])};
        enter(place);
        memories[place].poison();
        start_block(thread_count);
    };
    std::vector<unsigned> places(residents);
    std::iota(places.begin(), places.end(), 0u);
    for (const unsigned place : places) begin(place);
    while (!places.empty()) {
        std::size_t at = 0;
        if (places.size() > 1) at = draw(static_cast<unsigned>(places.size()));
        enter(places[at]);
        session.run(order);
        if (resident->live && !resident->failed) continue;
        const auto trespass = memories[places[at]].trespass();
        if (!resident->failed && trespass) {
            resident->failed = true;
            resident->error = "wrote outside its " + std::to_string(shared_bytes) +
                              " bytes of dynamic shared memory, at byte " + std::to_string(*trespass);
        }
        if (resident->failed) {
            message = who + ", block " + text_of(blockIdx) + ": " + resident->error;
            make_threads_again();
            return FAULT;
        }
        if (begun < block_count)
            begin(places[at]);
        else
            places.erase(places.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return OK;
}

std::mutex launching;

}  // namespace
}  // namespace fanrank_host

extern "C" __attribute__((visibility("default"))) int fanrank_launch(
    const char *name, const std::uint32_t *grid, const std::uint32_t *size, std::uint64_t shared_bytes,
    std::uint32_t count, void *const *arguments, const std::uint16_t *given, std::int32_t order,
    std::uint64_t seed, std::uint32_t residents, char *message, std::uint64_t capacity) {
    std::lock_guard<std::mutex> lock(fanrank_host::launching);
    std::string text;
    const int status =
        fanrank_host::launch(name, grid, size, shared_bytes, count, arguments, given, order, seed, residents, text);
    std::snprintf(message, capacity, "%s", text.c_str());
    return status;
}

// What g++ calls in a source that is compiled with -fsanitize=bounds-strict,alignment.
extern "C" void __ubsan_handle_out_of_bounds(void *, void *) { fanrank_host::fault("an index outside its array"); }
extern "C" void __ubsan_handle_type_mismatch_v1(void *, void *) { fanrank_host::fault("a misaligned address"); }
