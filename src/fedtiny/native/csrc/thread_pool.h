// Threads that run the pieces of one job at a time; the calling thread is the first of them.
#pragma once
#include <functional>

#include "kernels.h"

namespace fedtiny {

class ThreadPool {
 public:
  using Work = std::function<void(Index thread, Index piece)>;

  explicit ThreadPool(Index threads) : threads_(threads) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Work must not throw. Which thread does which piece is left open.
  void run(Index pieces, const Work& work);

 private:
  struct Workers;
  void run_together(Index pieces, const Work& work);

  const Index threads_;
  Workers* workers_ = nullptr;  // not freed after a fork, which threads do not survive
};

}  // namespace fedtiny
