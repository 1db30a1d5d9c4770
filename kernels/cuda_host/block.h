// The block that runs: its threads and warps, its barriers, the exchanges of its warps, and the report of a fault.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>
#include <utility>

FANRANK_PER_THREAD uint3 threadIdx;
uint3 blockIdx, blockDim, gridDim;

namespace fanrank_host {
namespace {

enum Order { ASCENDING, DESCENDING, SHUFFLE };

const char *const BARRIER_NAMES[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count"};
const char *const EXCHANGE_NAMES[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
                                      "a vote",      "__syncwarp",     "a reduction"};

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
    Context context;
};

// Sets of lanes. A live lane is in exactly one of the other three.
struct Warp {
    unsigned live;
    unsigned runnable;
    unsigned at_barrier;
    unsigned at_exchange;
};

struct Block {
    uint3 index;
    unsigned char *shared;
    unsigned threads;
    unsigned warps;
    unsigned live;
    unsigned running;
    unsigned arrived;
    Barrier kind;
    int site;
    unsigned true_count;
    int result;
    std::atomic<bool> failed;
    std::string error;
};

struct Launch {
    const Entry *entry;
    void *const *arguments;
};

Block blocks[MAX_RESIDENT];
Thread all_threads[MAX_RESIDENT * MAX_THREADS];
Warp all_warps[MAX_RESIDENT * MAX_WARPS];
Launch current;

// The block that runs now, of those that are resident.
Block *resident = blocks;
Thread *threads = all_threads;
Warp *warps = all_warps;

void enter(unsigned place) {
    resident = blocks + place;
    threads = all_threads + place * MAX_THREADS;
    warps = all_warps + place * MAX_WARPS;
    blockIdx = resident->index;
    dynamic_shared = resident->shared;
}

std::string text_of(const uint3 &at) {
    return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}

std::string hex(unsigned mask) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%08x", mask);
    return text;
}

Thread &thread_at(const Warp &warp, unsigned lane) { return threads[(&warp - warps) * LANES + lane]; }

FANRANK_PER_THREAD Thread *running;
Thread &self() { return *running; }

// What is defined behind: how a thread is woken, how it waits, how it is stopped for good.
void wake(Warp &warp, unsigned lanes);
[[noreturn]] void stop();
void suspend(Guard &guard);

void set_error(const std::string &message) {
    if (resident->failed) return;
    resident->failed = true;
    resident->error = message;
    for (unsigned w = 0; w < resident->warps; ++w) wake(warps[w], warps[w].at_barrier | warps[w].at_exchange);
}

void set_deadlock() {
    unsigned waiting = 0;
    std::string example;
    for (unsigned w = 0; w < resident->warps; ++w) {
        waiting += static_cast<unsigned>(__builtin_popcount(warps[w].at_barrier));
        if (example.empty() && warps[w].at_exchange) {
            const Thread &thread = thread_at(warps[w], static_cast<unsigned>(__builtin_ctz(warps[w].at_exchange)));
            unsigned present = 0;
            for (unsigned rest = warps[w].at_exchange; rest; rest &= rest - 1) {
                unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
                if (thread_at(warps[w], lane).mask == thread.mask) present |= 1u << lane;
            }
            example = "; thread " + text_of(thread.index) + " waits at " +
                      EXCHANGE_NAMES[static_cast<int>(thread.kind)] + " with mask " + hex(thread.mask) +
                      " for the lanes " + hex(thread.mask & warps[w].live & ~present);
        }
    }
    set_error("deadlock: of " + std::to_string(resident->threads) + " threads " + std::to_string(waiting) +
              " wait at " + (waiting ? BARRIER_NAMES[static_cast<int>(resident->kind)] : "a block barrier") + " and " +
              std::to_string(resident->live - waiting) + " at a warp primitive; " +
              std::to_string(resident->threads - resident->live) + " have returned" + example);
}

[[noreturn]] void fail(Guard &guard, const std::string &message) {
    set_error("thread " + text_of(self().index) + ": " + message);
    static_cast<void>(guard);
    stop();
}

void open_barrier() {
    switch (resident->kind) {
        case Barrier::plain: resident->result = 0; break;
        case Barrier::any: resident->result = resident->true_count != 0; break;
        case Barrier::all: resident->result = resident->true_count == resident->arrived; break;
        case Barrier::count: resident->result = static_cast<int>(resident->true_count); break;
    }
    resident->running += resident->arrived;
    resident->arrived = 0;
    resident->true_count = 0;
    for (unsigned w = 0; w < resident->warps; ++w) {
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

// What the lanes that take part give together: `operand` says how.
std::uint64_t reduced(const Warp &warp, unsigned lanes, int operand) {
    const auto value_of = [&](unsigned lane) { return static_cast<std::uint32_t>(thread_at(warp, lane).value); };
    std::uint32_t result = value_of(static_cast<unsigned>(__builtin_ctz(lanes)));
    for (unsigned rest = lanes & (lanes - 1); rest; rest &= rest - 1) {
        const std::uint32_t value = value_of(static_cast<unsigned>(__builtin_ctz(rest)));
        const bool less = operand == MIN_S32 || operand == MAX_S32
                              ? static_cast<std::int32_t>(value) < static_cast<std::int32_t>(result)
                              : value < result;
        switch (operand) {
            case ADD_32: result += value; break;
            case AND_32: result &= value; break;
            case OR_32: result |= value; break;
            case XOR_32: result ^= value; break;
            case MIN_S32:
            case MIN_U32: result = less ? value : result; break;
            default: result = less ? result : value; break;
        }
    }
    return result;
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
        } else if (kind == Exchange::reduce) {
            thread.result = reduced(warp, lanes, thread.operand);
        } else {
            const unsigned source = source_lane(thread, lane);
            thread.result = lanes >> source & 1 ? thread_at(warp, source).value : 0x7f7f7f7f7f7f7f7fu;
        }
    }
    warp.at_exchange &= ~lanes;
    warp.runnable |= lanes;
    resident->running += static_cast<unsigned>(__builtin_popcount(lanes));
    wake(warp, lanes);
    return true;
}

void leave(Guard &) {
    Thread &thread = self();
    Warp &warp = warps[thread.linear / LANES];
    const unsigned bit = 1u << thread.linear % LANES;
    warp.live &= ~bit;
    warp.runnable &= ~bit;
    --resident->live;
    --resident->running;
    if (resident->failed) return;
    if (resident->live && resident->arrived == resident->live) open_barrier();
    for (unsigned rest = warp.at_exchange; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        if (warp.at_exchange >> lane & 1 && !try_exchange(warp, thread_at(warp, lane).mask))
            set_error("the lanes of mask " + hex(thread_at(warp, lane).mask) + " call different warp primitives");
    }
    if (resident->live && !resident->running) set_deadlock();
}

}  // namespace

int barrier(Barrier kind, bool predicate, int site) {
    Thread &thread = self();
    void *const before = arrive(thread.context);
    Guard guard;
    if (resident->arrived && resident->kind != kind)
        fail(guard, std::string("at ") + BARRIER_NAMES[static_cast<int>(kind)] + " while others wait at " +
                        BARRIER_NAMES[static_cast<int>(resident->kind)]);
    if (resident->arrived && resident->site != site)
        fail(guard, "at the barrier of line " + std::to_string(site) + " while others wait at that of line " +
                        std::to_string(resident->site));
    Warp &warp = warps[thread.linear / LANES];
    const unsigned bit = 1u << thread.linear % LANES;
    resident->kind = kind;
    resident->site = site;
    ++resident->arrived;
    resident->true_count += predicate;
    warp.runnable &= ~bit;
    warp.at_barrier |= bit;
    --resident->running;
    if (resident->arrived == resident->live) open_barrier();
    suspend(guard);
    depart(before);
    return resident->result;
}

std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, int operand, int width) {
    Thread &thread = self();
    const unsigned lane = thread.linear % LANES;
    const unsigned bit = 1u << lane;
    Warp &warp = warps[thread.linear / LANES];
    // Only __syncwarp orders memory: shuffles and votes move values and nothing else.
    if (kind == Exchange::sync) value = arrive(thread.context, thread.linear / LANES, lane);
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
    --resident->running;
    if (!try_exchange(warp, mask)) fail(guard, "the lanes of mask " + hex(mask) + " call different warp primitives");
    suspend(guard);
    if (kind == Exchange::sync) depart(thread.linear / LANES, mask, thread.result);
    return thread.result;
}

void fault(const char *message) {
    Guard guard;
    fail(guard, message);
}

namespace {

void start_block(unsigned count) {
    resident->threads = resident->live = resident->running = count;
    resident->warps = (count + LANES - 1) / LANES;
    resident->arrived = resident->true_count = 0;
    resident->failed = false;
    for (unsigned i = 0; i < count; ++i) begin(threads[i].context);
    for (unsigned w = 0; w < resident->warps; ++w) {
        const unsigned lanes = count - w * LANES;
        const unsigned live = lanes >= LANES ? 0xffffffffu : (1u << lanes) - 1;
        warps[w] = {live, live, 0, 0};
    }
}

}  // namespace
}  // namespace fanrank_host
