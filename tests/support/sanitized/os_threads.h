// One OS thread a CUDA thread, for ThreadSanitizer.
#pragma once

#include "shim.h"

#include <atomic>

extern "C" {
__attribute__((weak, visibility("default"))) void __tsan_acquire(void *);
__attribute__((weak, visibility("default"))) void __tsan_release(void *);
}

namespace fanrank_host {
namespace {

constexpr unsigned MAX_RESIDENT = 1;

struct Context {
    std::atomic<std::uint32_t> signal;
    unsigned barriers;
    unsigned syncs;
};

// Locks and wake-ups by std::atomic in code that is not instrumented: invisible to ThreadSanitizer.
std::atomic<std::uint32_t> lock_word;

struct Guard {
    bool locked = true;
    Guard() {
        while (lock_word.exchange(1, std::memory_order_acquire)) lock_word.wait(1);
    }
    void release() {
        locked = false;
        lock_word.store(0, std::memory_order_release);
        lock_word.notify_one();
    }
    ~Guard() {
        if (locked) release();
    }
};

// What a barrier and __syncwarp order, as ThreadSanitizer is told. A lane releases one of its two tags in turn.
char barrier_tags[2], exchange_tags[MAX_WARPS][LANES][2];

void acquire(void *tag) {
    if (__tsan_acquire) __tsan_acquire(tag);
}
void release(void *tag) {
    if (__tsan_release) __tsan_release(tag);
}

void begin(Context &thread) { thread.barriers = 0; }
void *arrive(Context &thread) {
    void *const tag = &barrier_tags[thread.barriers++ & 1];
    release(tag);
    return tag;
}
void depart(void *tag) { acquire(tag); }
// Which tag the lane released; all lanes learn it.
std::uint64_t arrive(Context &thread, unsigned warp, unsigned lane) {
    const unsigned turn = thread.syncs++ & 1;
    release(&exchange_tags[warp][lane][turn]);
    return turn;
}
void depart(unsigned warp, unsigned mask, std::uint64_t turns) {
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const int other = __builtin_ctz(rest);
        acquire(&exchange_tags[warp][other][turns >> other & 1]);
    }
}

}  // namespace
}  // namespace fanrank_host

#include "block.h"

#include <thread>
#include <vector>

namespace fanrank_host {
namespace {

struct Stopped {};

std::atomic<std::uint32_t> done_word;
char block_tag, end_tag;

void signal(Thread &thread) {
    thread.context.signal.store(1, std::memory_order_release);
    thread.context.signal.notify_one();
}

void wake(Warp &warp, unsigned lanes) {
    for (unsigned rest = lanes; rest; rest &= rest - 1) signal(thread_at(warp, __builtin_ctz(rest)));
}

void stop() { throw Stopped{}; }

}  // namespace

void give_way() {}

namespace {

void suspend(Guard &guard) {
    Thread &thread = self();
    if (!resident->running && !resident->failed) set_deadlock();
    const bool failed = resident->failed;
    guard.release();
    if (!failed) thread.context.signal.wait(0, std::memory_order_acquire);
    thread.context.signal.store(0, std::memory_order_relaxed);
    if (resident->failed) stop();
}

void finish() {
    Guard guard;
    leave(guard);
    if (!resident->live) {
        done_word.store(1, std::memory_order_release);
        done_word.notify_one();
    }
}

bool make_threads(unsigned, unsigned) { return true; }
void make_threads_again() {}
unsigned draw(unsigned) { return 0; }

struct Session {
    std::vector<std::thread> members;
    std::atomic<std::uint32_t> generation{0};
    bool closing = false;

    Session(unsigned count, std::uint64_t) {
        for (unsigned i = 0; i < count; ++i)
            members.emplace_back([this, i] {
                running = &threads[i];
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

    void run(int) {
        for (unsigned i = 0; i < members.size(); ++i) threads[i].context.signal.store(0, std::memory_order_relaxed);
        done_word.store(0, std::memory_order_relaxed);
        release(&block_tag);
        generation.fetch_add(1, std::memory_order_release);
        generation.notify_all();
        done_word.wait(0, std::memory_order_acquire);
        // The last member signals while it holds the lock.
        Guard guard;
        acquire(&end_tag);
    }

    ~Session() {
        closing = true;
        generation.fetch_add(1, std::memory_order_release);
        generation.notify_all();
        for (std::thread &member : members) member.join();
    }
};

}  // namespace
}  // namespace fanrank_host
