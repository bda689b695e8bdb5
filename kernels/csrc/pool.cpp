#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "simd.h"

namespace vtk {
namespace {

constexpr int kSpins = 4000;  // some 20 microseconds: longer than the gap between two kernels of a step

inline void pause_briefly() {
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A ticket holds the number of the loop above and its items still to be taken below. Who takes an item by exchanging the
// ticket knows that the loop cannot end before the item is done, so `function_` and `context_` are that loop's; a thread
// that wakes late finds nothing left, and nobody waits for it.
class Pool {
public:
    explicit Pool(int workers) {
        try {
            for (int i = 0; i < workers; i++) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {  // the system grants no more: fewer do the same, only later
        }
    }

    ~Pool() {
        publish(0, true);
        for (auto& thread : threads_) thread.join();
    }

    void run(int64_t count, ItemFunction function, void* context) {
        function_ = function;
        context_ = context;
        pending_ = count;
        publish(uint64_t(count), false);
        take_items();
        for (int spin = 0; pending_ && spin < kSpins; spin++) pause_briefly();
        if (!pending_) return;
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return pending_ == 0; });
    }

private:
    void publish(uint64_t count, bool stop) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = stop;
            ticket_ = ((ticket_ >> 32) + 1) << 32 | count;
        }
        wake_.notify_all();
    }

    void take_items() {
        for (uint64_t ticket = ticket_; ticket & 0xffffffff;) {
            if (!ticket_.compare_exchange_weak(ticket, ticket - 1)) continue;
            function_.load()(context_, int64_t(ticket & 0xffffffff) - 1);
            if (--pending_ == 0) {
                std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
            ticket = ticket_;
        }
    }

    void work() {
        while (!stop_) {
            const uint64_t seen = ticket_ >> 32;
            take_items();
            for (int spin = 0; ticket_ >> 32 == seen && spin < kSpins; spin++) pause_briefly();
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return stop_ || ticket_ >> 32 != seen; });
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<uint64_t> ticket_{0};
    std::atomic<int64_t> pending_{0};
    std::atomic<ItemFunction> function_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<bool> stop_{false};
};

std::mutex owner;
Pool* pool = nullptr;
int wanted_threads = 1;

// A forked child has none of the threads; its copy of the pool is left alone and a new one made on demand.
void forget_pool() {
    new (&owner) std::mutex;
    pool = nullptr;
}

}  // namespace

void run_items(int64_t count, ItemFunction function, void* context) {
    std::unique_lock<std::mutex> lock(owner, std::try_to_lock);
    if (!lock || wanted_threads == 1) {  // another caller has the threads
        for (int64_t i = 0; i < count; i++) function(context, i);
        return;
    }
    if (!pool) pool = new Pool(wanted_threads - 1);
    pool->run(count, function, context);
}

}  // namespace vtk

VTK_API void vtk_set_num_threads(int count) {
    std::lock_guard<std::mutex> lock(vtk::owner);
    static const int registered = pthread_atfork(nullptr, nullptr, vtk::forget_pool);
    (void)registered;
    delete vtk::pool;
    vtk::pool = nullptr;
    vtk::wanted_threads = count;
}
