#include "thread_pool.h"

#include <unistd.h>

#include <chrono>

namespace fedtiny {
namespace {

constexpr auto PATIENCE = std::chrono::microseconds(50);  // before a thread sleeps between jobs

void breathe() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Stores that pass the caches by are seen by all after this.
void settle() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace

ThreadPool::~ThreadPool() {
  if (!crew_) return;
  if (owner_ != getpid()) {
    crew_.release();  // threads do not survive a fork: there is nobody to dismiss
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(crew_->mutex);
    crew_->over = true;
  }
  crew_->wake.notify_all();
  for (std::thread& thread : crew_->threads) thread.join();
}

void ThreadPool::hire() {
  if (crew_) crew_.release();
  crew_ = std::make_unique<Crew>();
  owner_ = getpid();
  for (Index t = 1; t < threads_; ++t)
    crew_->threads.emplace_back([crew = crew_.get(), t] { serve(*crew, t); });
}

void ThreadPool::run(Index pieces, const Work& work) {
  if (threads_ == 1 || pieces < 2) {
    for (Index i = 0; i < pieces; ++i) work(0, i);
    settle();
    return;
  }
  if (!crew_ || owner_ != getpid()) hire();
  Crew& crew = *crew_;
  crew.pieces = pieces;
  crew.work = &work;
  crew.next = 0;
  crew.busy = threads_ - 1;
  {
    const std::lock_guard<std::mutex> lock(crew.mutex);
    crew.round.fetch_add(1, std::memory_order_release);
  }
  crew.wake.notify_all();
  take_pieces(crew, 0);
  while (crew.busy.load(std::memory_order_acquire) > 0) breathe();
}

void ThreadPool::take_pieces(Crew& crew, Index thread) {
  for (Index i = crew.next++; i < crew.pieces; i = crew.next++) (*crew.work)(thread, i);
  settle();
}

bool ThreadPool::wait_for_round(Crew& crew, Index seen) {
  const auto since = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - since < PATIENCE) {
    for (int i = 0; i < 64; ++i) {
      if (crew.round.load(std::memory_order_acquire) != seen) return true;
      if (crew.over) return false;
      breathe();
    }
  }
  std::unique_lock<std::mutex> lock(crew.mutex);
  crew.wake.wait(lock, [&] { return crew.over || crew.round.load() != seen; });
  return !crew.over;
}

void ThreadPool::serve(Crew& crew, Index thread) {
  for (Index seen = 0; wait_for_round(crew, seen);) {
    seen = crew.round.load(std::memory_order_acquire);
    take_pieces(crew, thread);
    crew.busy.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace fedtiny
