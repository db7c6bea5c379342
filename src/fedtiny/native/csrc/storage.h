// What a prepared network keeps between passes, in one block of memory: parameters and their
// gradients, the lists of kept weights, optimizer state, statistics of batch norm, and the buffers
// that passes use. The order of things: nodes are checked (graph.h), those without dead channels
// (dead.cpp) become a program of few operations (program.h), every array of which is given a place
// (plan.h) before any memory is taken. An executor (executor.h) then runs passes over it.
#pragma once
#include <memory>

#include "plan.h"

namespace fedtiny {

// Parameters that lie together and decay alike: a piece of the optimizer's work.
struct Span {
  Index begin, end;
  float decay;
};

struct Optimizer {
  fedtiny_rates rates{};
  Index steps = 0;
  bool started = false;
  std::vector<Span> spans;
};

// Gives a block of memory back to the system.
struct Release {
  std::size_t bytes = 0;
  void operator()(void* block) const;
};
using Block = std::unique_ptr<void, Release>;

// The arrays of the layout lie in its block of memory.
struct Storage : Layout {
  Storage(const Nodes& nodes, const Options& options, const Table<Index>& kept,
          const std::int32_t* const* positions);

  void set(int node, int parameter, const float* values, Index count);
  void get(int node, int parameter, double* values, Index count) const;
  void get_gradient(int node, int parameter, float* values, Index count) const;

  const Options options;
  const Channels channels;
  const Nodes nodes;
  const Program program;
  Optimizer optimizer;
  Index measured_images = 0;  // of the last pass with statistics of its own

 private:
  void check_count(int node, int parameter, Index count) const;
  float* values_of(int node, int parameter) const;
  // Calls `work` with the number of each value and where it lies among those held.
  template <class Work>
  void each_held(int node, int parameter, Index count, const Work& work) const;

  Block block_;
};

// What preparing would take.
fedtiny_memory planned_memory(const Nodes& nodes, const Options& options, const Table<Index>& kept);

// The channels and filters of a convolution's group that are there.
struct Group {
  Index channel, channels, filter, filters;  // the first of them, and how many
};

// lists.cpp
Table<Group> groups_of(const Storage& storage, const Node& node);
void build_lists(const Storage& storage, const Node& node, const std::int32_t* positions);

}  // namespace fedtiny
