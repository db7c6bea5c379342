#include "thread_pool.h"

#if !defined(FEDTINY_SINGLE_THREAD)
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#endif

namespace fedtiny {
namespace {

// Stores that pass the caches by are seen by all after this.
void fence_stores() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace

void ThreadPool::run(Index pieces, const Work& work) {
  if (threads_ > 1 && pieces > 1) return run_together(pieces, work);
  for (Index i = 0; i < pieces; ++i) work(0, i);
  fence_stores();
}

#if defined(FEDTINY_SINGLE_THREAD)
struct ThreadPool::Workers {};
ThreadPool::~ThreadPool() { delete workers_; }  // there never are any: limits.h allows one thread
void ThreadPool::run_together(Index, const Work&) {}
#else
namespace {

constexpr auto SPIN_TIME = std::chrono::microseconds(50);  // before a thread sleeps between jobs

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

struct ThreadPool::Workers {
  explicit Workers(Index count) {
    threads.reserve(static_cast<std::size_t>(count - 1));
    try {
      for (Index t = 1; t < count; ++t) threads.emplace_back([this, t] { serve(t); });
    } catch (const std::exception&) {  // those that the system has started do the work
    }
  }

  ~Workers() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      over = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void run(Index count, const Work& given) {
    pieces = count;
    work = &given;
    next = 0;
    busy = static_cast<Index>(threads.size());
    {
      const std::lock_guard<std::mutex> lock(mutex);
      round.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
    take_pieces(0);
    while (busy.load(std::memory_order_acquire) > 0) pause_briefly();
  }

  void take_pieces(Index thread) {
    for (Index i = next++; i < pieces; i = next++) (*work)(thread, i);
    fence_stores();
  }

  bool wait_for_round(Index seen) {
    const auto since = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - since < SPIN_TIME) {
      for (int i = 0; i < 64; ++i) {
        if (round.load(std::memory_order_acquire) != seen) return true;
        if (over) return false;
        pause_briefly();
      }
    }
    std::unique_lock<std::mutex> lock(mutex);
    wake.wait(lock, [&] { return over || round.load() != seen; });
    return !over;
  }

  void serve(Index thread) {
    for (Index seen = 0; wait_for_round(seen);) {
      seen = round.load(std::memory_order_acquire);
      take_pieces(thread);
      busy.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  const pid_t owner = getpid();
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<Index> round{0}, next{0}, busy{0};
  Index pieces = 0;
  const Work* work = nullptr;
  std::atomic<bool> over{false};
};

ThreadPool::~ThreadPool() {
  if (workers_ != nullptr && workers_->owner == getpid()) delete workers_;
}

void ThreadPool::run_together(Index pieces, const Work& work) {
  if (workers_ == nullptr || workers_->owner != getpid()) workers_ = new Workers(threads_);
  workers_->run(pieces, work);
}
#endif

}  // namespace fedtiny
