#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace fanrank {

namespace {

constexpr int MAX_THREADS = 64;

// One call of `run_tasks`. Threads of the pool join it as they become free.
struct Job {
    std::int64_t count;
    const std::function<void(std::int64_t)>* task;
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::condition_variable ended;
    int working = 0;      // threads of the pool inside `run`
    bool closed = false;  // nobody may join: the caller goes on
    std::exception_ptr error;

    void run() {
        for (;;) {
            const std::int64_t number = next.fetch_add(1, std::memory_order_relaxed);
            if (number >= count) return;
            try {
                (*task)(number);
            } catch (...) {
                next.store(count, std::memory_order_relaxed);
                const std::lock_guard<std::mutex> lock(mutex);
                if (!error) error = std::current_exception();
            }
        }
    }
    // Called by a thread of the pool.
    void join() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            if (closed) return;
            ++working;
        }
        run();
        const std::lock_guard<std::mutex> lock(mutex);
        if (--working == 0) ended.notify_all();
    }
    // Called by the caller when no task is left.
    void close() {
        std::unique_lock<std::mutex> lock(mutex);
        closed = true;
        ended.wait(lock, [this] { return working == 0; });
    }
};

class Pool {
public:
    void offer(const std::shared_ptr<Job>& job, int helpers) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            try {
                for (; started_ < helpers; ++started_) std::thread([this] { serve(); }).detach();
            } catch (const std::system_error&) {
                // The system gives no more threads: fewer help.
                helpers = started_;
            }
            for (int number = 0; number < helpers; ++number) waiting_.push_back(job);
        }
        helpers == 1 ? offered_.notify_one() : offered_.notify_all();
    }

private:
    void serve() {
        for (;;) {
            std::shared_ptr<Job> job;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                offered_.wait(lock, [this] { return !waiting_.empty(); });
                job = std::move(waiting_.front());
                waiting_.pop_front();
            }
            job->join();
        }
    }

    std::mutex mutex_;
    std::condition_variable offered_;
    std::deque<std::shared_ptr<Job>> waiting_;
    int started_ = 0;
};

std::atomic<Pool*> pool{nullptr};

Pool& shared_pool() {
    Pool* known = pool.load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    // Never freed: its threads run until the process ends.
    Pool* made = new Pool;
    if (pool.compare_exchange_strong(known, made, std::memory_order_acq_rel)) {
#ifndef _WIN32
        // A forked child has none of its parent's threads, and a lock of theirs may be held for ever: it begins anew.
        static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
        static_cast<void>(registered);
#endif
        return *made;
    }
    delete made;
    return *known;
}

constexpr std::size_t LOCKS = 32;

struct Locks {
    std::mutex each[LOCKS];

    void lock() {
        for (std::mutex& one : each) one.lock();
    }
    void unlock() {
        for (std::mutex& one : each) one.unlock();
    }
};

Locks& locks() {
    // Never freed: threads may search while the process ends.
    static Locks* made = [] {
#ifndef _WIN32
        pthread_atfork([] { locks().lock(); }, [] { locks().unlock(); }, [] { locks().unlock(); });
#endif
        return new Locks;
    }();
    return *made;
}

}  // namespace

std::mutex& short_mutex(const void* owner) {
    return locks().each[(reinterpret_cast<std::uintptr_t>(owner) >> 6) % LOCKS];
}

void share_tasks(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task) {
    const int helpers = static_cast<int>(std::min<std::int64_t>({threads, count, MAX_THREADS})) - 1;
    const auto job = std::make_shared<Job>();
    job->count = count;
    job->task = &task;
    try {
        shared_pool().offer(job, helpers);
    } catch (...) {
        // Memory ran out half-way: no thread may begin, as the task goes with this call.
        job->close();
        throw;
    }
    job->run();
    job->close();
    if (job->error) std::rethrow_exception(job->error);
}

}  // namespace fanrank
