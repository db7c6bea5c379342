#include "thread_pool.h"

#include <unistd.h>

#include <chrono>

namespace fedtiny {
namespace {

constexpr auto SPIN_TIME = std::chrono::microseconds(50);  // before a thread sleeps between jobs

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Stores that pass the caches by are seen by all after this.
void fence_stores() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace

ThreadPool::~ThreadPool() {
  if (workers_ == nullptr || owner_ != getpid()) return;
  {
    const std::lock_guard<std::mutex> lock(workers_->mutex);
    workers_->over = true;
  }
  workers_->wake.notify_all();
  for (std::thread& thread : workers_->threads) thread.join();
  delete workers_;
}

void ThreadPool::start_workers() {
  workers_ = new Workers;
  owner_ = getpid();
  for (Index t = 1; t < threads_; ++t)
    workers_->threads.emplace_back([workers = workers_, t] { serve(*workers, t); });
}

void ThreadPool::run(Index pieces, const Work& work) {
  if (threads_ == 1 || pieces < 2) {
    for (Index i = 0; i < pieces; ++i) work(0, i);
    fence_stores();
    return;
  }
  if (workers_ == nullptr || owner_ != getpid()) start_workers();
  Workers& workers = *workers_;
  workers.pieces = pieces;
  workers.work = &work;
  workers.next = 0;
  workers.busy = threads_ - 1;
  {
    const std::lock_guard<std::mutex> lock(workers.mutex);
    workers.round.fetch_add(1, std::memory_order_release);
  }
  workers.wake.notify_all();
  take_pieces(workers, 0);
  while (workers.busy.load(std::memory_order_acquire) > 0) pause_briefly();
}

void ThreadPool::take_pieces(Workers& workers, Index thread) {
  for (Index i = workers.next++; i < workers.pieces; i = workers.next++) (*workers.work)(thread, i);
  fence_stores();
}

bool ThreadPool::wait_for_round(Workers& workers, Index seen) {
  const auto since = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - since < SPIN_TIME) {
    for (int i = 0; i < 64; ++i) {
      if (workers.round.load(std::memory_order_acquire) != seen) return true;
      if (workers.over) return false;
      pause_briefly();
    }
  }
  std::unique_lock<std::mutex> lock(workers.mutex);
  workers.wake.wait(lock, [&] { return workers.over || workers.round.load() != seen; });
  return !workers.over;
}

void ThreadPool::serve(Workers& workers, Index thread) {
  for (Index seen = 0; wait_for_round(workers, seen);) {
    seen = workers.round.load(std::memory_order_acquire);
    take_pieces(workers, thread);
    workers.busy.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace fedtiny
