// Threads that run the pieces of one job at a time; the calling thread is the first of them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
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
  struct Crew {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<Index> round{0}, next{0}, busy{0};
    Index pieces = 0;
    const Work* work = nullptr;
    std::atomic<bool> over{false};
  };

  void hire();
  static void serve(Crew& crew, Index thread);
  static void take_pieces(Crew& crew, Index thread);
  static bool wait_for_round(Crew& crew, Index seen);

  Index threads_;
  std::unique_ptr<Crew> crew_;
  pid_t owner_ = 0;
};

}  // namespace fedtiny
