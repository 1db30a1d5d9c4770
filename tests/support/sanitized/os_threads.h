// One OS thread a CUDA thread, for ThreadSanitizer.
#pragma once

#include "block.h"

#include <thread>
#include <vector>

namespace fanrank_host {
namespace {

struct Stopped {};

std::atomic<std::uint32_t> done_word;
char block_tag, end_tag;

void signal(Thread &thread) {
    thread.signal.store(1, std::memory_order_release);
    thread.signal.notify_one();
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
    if (!failed) thread.signal.wait(0, std::memory_order_acquire);
    thread.signal.store(0, std::memory_order_relaxed);
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

struct Team {
    std::vector<std::thread> members;
    std::atomic<std::uint32_t> generation{0};
    bool closing = false;

    explicit Team(unsigned count) {
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

}  // namespace
}  // namespace fanrank_host
