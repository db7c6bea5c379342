// What memory a network needs and where each array lies in it, worked out before any is taken.
#pragma once
#include <vector>

#include "geometry.h"
#include "program.h"

namespace fedtiny {

struct Options : fedtiny_options {
  Index blocks(Index images) const { return ceil_div(images, lanes); }
  Index value_bytes() const { return half != 0 ? 2 : 4; }
};

Options checked_options(const fedtiny_options& given);
Geometry geometry_of(const Node& node, const Options& options);

constexpr Index FILTER_GROUP = 12;  // filters whose whole gradient is held at once

constexpr Index NOWHERE = -1;
constexpr Index ALIGNMENT = 64;
#if defined(__SANITIZE_ADDRESS__)
constexpr bool SANITIZED = true;
#else
constexpr bool SANITIZED = false;
#endif

// Offsets in bytes from the start of the arena.
struct LayerPlan {
  Index kept = 0;
  Index first_value = 0;  // among all parameters
  Index first_bias = 0;
  Index positions = NOWHERE, row_begin = NOWHERE, offsets = NOWHERE;
  Index back_begin = NOWHERE, back_offsets = NOWHERE, back_index = NOWHERE, back_weights = NOWHERE;
  Index pieces = 0, chunks = 0;
};

struct NormPlan {
  Index first_scale = 0, first_shift = 0;
  Index running = NOWHERE;       // float mean, var
  Index statistics = NOWHERE;    // double mean, var, sum of d, sum of d * (z - mean)
  Index coefficients = NOWHERE;  // float scale, shift, mean, a, k1, k2
};

struct Placement {
  std::vector<Index> values, again, gradients;  // by tensor; by gradient buffer
  Index bytes = 0;
};

struct Plan {
  const std::vector<Node>* nodes = nullptr;
  Options options{};
  std::vector<LayerPlan> layers;
  std::vector<NormPlan> norms;
  Index parameters = 0;  // number of trained values
  Index values = 0, gradients = 0, moments[2] = {0, 0};
  Index sums = 0, partials = 0, scratch = 0, scratch_each = 0, heaps = 0, heap_each = 0;
  Index slabs = 0, slab_each = 0, logits = 0;
  Index activations = 0;
  fedtiny_memory memory{};
  std::vector<Index> gaps;  // ground that nothing may touch

  Placement training(const Program& program, Index images) const;
  Placement forward(const Program& program, Index images) const;
};

Plan plan_of(const std::vector<Node>& nodes, const Program& program, const Options& options,
             const std::vector<Index>& kept);

}  // namespace fedtiny
