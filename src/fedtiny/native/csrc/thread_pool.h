// Threads that run the pieces of one job at a time; the calling thread is the first of them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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
  struct Workers {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<Index> round{0}, next{0}, busy{0};
    Index pieces = 0;
    const Work* work = nullptr;
    std::atomic<bool> over{false};
  };

  void start_workers();
  static void serve(Workers& workers, Index thread);
  static void take_pieces(Workers& workers, Index thread);
  static bool wait_for_round(Workers& workers, Index seen);

  Index threads_;
  Workers* workers_ = nullptr;  // not freed after a fork, which threads do not survive
  pid_t owner_ = 0;
};

}  // namespace fedtiny
