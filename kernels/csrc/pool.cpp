#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
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

class Pool {
public:
    explicit Pool(int workers) {
        for (int i = 0; i < workers; i++) threads_.emplace_back([this] { work(); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
            generation_++;
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    void run(int64_t count, ItemFunction function, void* context) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            count_ = count;
            function_ = function;
            context_ = context;
            next_ = 0;
            busy_ = int(threads_.size());
            generation_++;
        }
        wake_.notify_all();
        take_items();
        for (int spin = 0; busy_ && spin < kSpins; spin++) pause_briefly();
        if (!busy_) return;
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    void take_items() {
        for (int64_t item; (item = next_++) < count_;) function_(context_, item);
    }

    void work() {
        uint64_t seen = 0;
        while (true) {
            for (int spin = 0; generation_ == seen && spin < kSpins; spin++) pause_briefly();
            if (generation_ == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_ != seen; });
            }
            seen = generation_;
            if (stop_) return;
            take_items();
            if (--busy_ == 0) {
                std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};
    std::atomic<bool> stop_{false};
    int64_t count_ = 0;
    ItemFunction function_ = nullptr;
    void* context_ = nullptr;
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
