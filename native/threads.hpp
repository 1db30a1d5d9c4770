// A pool of threads that calls share.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace fanrank {

// A lock for what `owner` holds, for moments only; owners share locks. A fork waits for it, so the child finds it free.
// Nobody may hold two of them.
std::mutex& short_mutex(const void* owner);

// As `run_tasks`, for two tasks and two threads or more.
void share_tasks(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task);

// Calls `task(number)` for each number below `count`, on up to `threads` threads, the caller's among them. The caller
// works through the tasks itself and never waits for a thread that has not begun. An exception of a task is thrown
// again after all tasks that had begun have ended.
template <class Task>
void run_tasks(std::int64_t count, int threads, const Task& task) {
    if (count > 1 && threads > 1) return share_tasks(count, threads, task);
    for (std::int64_t number = 0; number < count; ++number) task(number);
}

}  // namespace fanrank
