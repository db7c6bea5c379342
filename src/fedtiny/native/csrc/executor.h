// Runs passes over a prepared network: forward, measuring gradients, training steps.
//
// A pass first gets a place for each of its tensors (lifetimes.cpp: what is not needed at the same
// time shares memory), then runs the operations of the program in order (operations.h), the loss,
// and the operations in reverse; the optimizer comes last. What the network keeps lies in its
// storage (storage.h); a pass leaves nothing else behind.
#pragma once
#include "run.h"

namespace fedtiny {

class Executor {
 public:
  explicit Executor(Storage& storage) : pool_(storage.options.threads), run_(storage, pool_) {}

  fedtiny_score run(const fedtiny_pass& pass);
  void get_input_gradient(float* values, Index count);

 private:
  void check_pass(const Pass& pass) const;
  void check_query(const fedtiny_grad_query& query) const;
  void check_positions(const fedtiny_grad_query& query) const;
  void run_forward();
  void run_backward();
  void recompute(const Op& op);

  ThreadPool pool_;
  Run run_;
};

}  // namespace fedtiny
