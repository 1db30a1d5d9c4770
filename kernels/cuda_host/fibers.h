// The threads of a block as coroutines of one OS thread, resumed in a chosen order.
#pragma once

#include "shim.h"

#ifndef __x86_64__
#define FANRANK_USE_UCONTEXT
#include <ucontext.h>
#endif

namespace fanrank_host {
namespace {

constexpr unsigned MAX_RESIDENT = 8;

// What a thread is resumed from.
#ifdef FANRANK_USE_UCONTEXT
using Context = ucontext_t;
#else
using Context = void *;
#endif

// One OS thread runs all, so nothing is locked, and nothing orders memory but the order in which they run.
struct Guard {
    Guard() {}
};
void begin(Context &) {}
void *arrive(Context &) { return nullptr; }
void depart(void *) {}
std::uint64_t arrive(Context &, unsigned, unsigned) { return 0; }
void depart(unsigned, unsigned, std::uint64_t) {}

}  // namespace
}  // namespace fanrank_host

#include "block.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace fanrank_host {
namespace {

constexpr std::size_t STACK = 64 * 1024;

#ifdef FANRANK_USE_UCONTEXT
ucontext_t scheduler;
void resume(Thread &thread) { swapcontext(&scheduler, &thread.context); }
void yield(Thread &thread) { swapcontext(&thread.context, &scheduler); }
#else
// swapcontext saves the signal mask by a system call; this saves what the ABI says a callee must keep.
extern "C" __attribute__((visibility("hidden"))) void fanrank_switch(void **save, void *load);
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
void *scheduler;
void resume(Thread &thread) { fanrank_switch(&scheduler, thread.context); }
void yield(Thread &thread) { fanrank_switch(&thread.context, scheduler); }
#endif

unsigned char *stacks[MAX_RESIDENT];
std::size_t page;
unsigned fibers[MAX_RESIDENT];

void wake(Warp &, unsigned) {}

void suspend(Guard &) { yield(self()); }

void stop() {
    yield(self());
    __builtin_unreachable();
}

}  // namespace

// Runnable as before: others run first.
void give_way() { yield(self()); }

namespace {

// A fiber outlives its block: it runs one thread of every block until a failure abandons it.
void fiber_main() {
    for (;;) {
        current.entry->call(current.entry->function, current.arguments);
        Guard guard;
        leave(guard);
        yield(self());
    }
}

unsigned char *stack_of(unsigned place, unsigned i) { return stacks[place] + i * (STACK + page) + page; }

// A thread of the resident block at `place`, which was entered.
void make_fiber(unsigned place, unsigned i) {
    unsigned char *base = stack_of(place, i);
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
    threads[i].context = frame;
#endif
}

bool make_threads(unsigned place, unsigned count) {
    enter(place);
    if (!stacks[place]) {
        page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t size = MAX_THREADS * (STACK + page);
        void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return false;
        stacks[place] = static_cast<unsigned char *>(memory);
    }
    for (; fibers[place] < count; ++fibers[place]) {
        if (mprotect(stack_of(place, fibers[place]) - page, page, PROT_NONE)) return false;
        make_fiber(place, fibers[place]);
    }
    return true;
}

// After a fault: every fiber begins anew.
void make_threads_again() {
    for (unsigned place = 0; place < MAX_RESIDENT; ++place) {
        enter(place);
        for (unsigned i = 0; i < fibers[place]; ++i) make_fiber(place, i);
    }
}

constexpr unsigned PATIENCE = 8;

std::uint64_t random_state;

// A number below `bound` (xorshift64*).
unsigned draw(unsigned bound) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return static_cast<unsigned>((random_state * 0x2545f4914f6cdd1du >> 32) * bound >> 32);
}

void run_lane(Warp &warp, unsigned lane) {
    running = &thread_at(warp, lane);
    threadIdx = running->index;
    resume(*running);
    running = nullptr;
}

// Resumes each lane that is runnable now, once.
void run_lanes(Warp &warp, int order) {
    unsigned rest = warp.runnable;
    if (order == SHUFFLE) {
        unsigned char lanes[LANES];
        unsigned count = 0;
        for (; rest; rest &= rest - 1) lanes[count++] = static_cast<unsigned char>(__builtin_ctz(rest));
        for (; count && !resident->failed; --count) {
            std::swap(lanes[draw(count)], lanes[count - 1]);
            run_lane(warp, lanes[count - 1]);
        }
        return;
    }
    while (rest && !resident->failed) {
        const int next = order == ASCENDING ? __builtin_ctz(rest) : 31 - __builtin_clz(rest);
        const unsigned lane = static_cast<unsigned>(next);
        rest &= ~(1u << lane);
        run_lane(warp, lane);
    }
}

// A warp runs as far ahead of the others as the block's barriers let it; shuffled, sometimes only to its next exchange.
void run_block(int order) {
    unsigned sequence[MAX_WARPS];
    for (unsigned w = 0; w < resident->warps; ++w) sequence[w] = order == DESCENDING ? resident->warps - 1 - w : w;
    while (resident->running && !resident->failed) {
        if (order == SHUFFLE)
            for (unsigned w = resident->warps; w > 1; --w) std::swap(sequence[draw(w)], sequence[w - 1]);
        for (unsigned w = 0; w < resident->warps && !resident->failed; ++w) {
            Warp &warp = warps[sequence[w]];
            do {
                run_lanes(warp, order);
            } while (warp.runnable && !resident->failed && !(order == SHUFFLE && draw(2)));
        }
    }
    if (resident->live && !resident->failed) set_deadlock();
}

void trap(int signal, siginfo_t *info, void *) {
    if (!running) {
        ::signal(signal, SIG_DFL);
        return;
    }
    char text[80];
    std::snprintf(text, sizeof text, "touches memory at %p, where none is", info->si_addr);
    fault(text);
}

// While it lives, a kernel that touches memory which is not there has a fault, and the process goes on.
struct Trap {
    struct sigaction before[2];

    Trap() {
        struct sigaction own = {};
        own.sa_sigaction = trap;
        // The handler does not return, so that the signal must stay open.
        own.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &own, &before[0]);
        sigaction(SIGBUS, &own, &before[1]);
    }
    Trap(const Trap &) = delete;
    ~Trap() {
        sigaction(SIGSEGV, &before[0], nullptr);
        sigaction(SIGBUS, &before[1], nullptr);
    }
};

// One of several resident blocks: a warp runs on over a few of the places where its lanes give way or wait. Lanes that
// stand at one place go on together, as a warp's load is one instruction.
void run_some(int order) {
    unsigned ready[MAX_WARPS], count = 0;
    for (unsigned w = 0; w < resident->warps; ++w)
        if (warps[w].runnable) ready[count++] = w;
    if (!count) return set_deadlock();
    Warp &warp = warps[ready[draw(count)]];
    do {
        run_lanes(warp, order);
    } while (warp.runnable && !resident->failed && draw(PATIENCE));
}

// The threads of a launch.
struct Session {
    Trap trap;

    Session(unsigned, std::uint64_t seed) { random_state = seed * 0x9e3779b97f4a7c15u | 1; }

    // Runs the resident block that was entered: to its end, or where several run at once for a while.
    void run(int order) { interleaved ? run_some(order) : run_block(order); }
};

}  // namespace
}  // namespace fanrank_host
