// The network as it was given: checked nodes with their shapes.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "fedtiny_native.h"
#include "kernels.h"

namespace fedtiny {

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse(const std::string& why) { throw Refusal(why); }

// A product of sizes, refused where no machine has room for it.
template <class... Factors>
Index sized(Factors... factors) {
  Index product = 1;
  for (const Index factor : {static_cast<Index>(factors)...})
    if (__builtin_mul_overflow(product, factor, &product) || product > (Index{1} << 44))
      refuse("this needs more memory than there can be");
  return product;
}

struct Shape {
  Index channels, height, width;
  Index plane() const { return height * width; }
  Index size() const { return channels * plane(); }
};

struct Node : fedtiny_node {
  Shape in, out;
  std::vector<int> consumers;
  bool is_layer() const { return kind == FEDTINY_CONVOLUTION || kind == FEDTINY_LINEAR; }
  bool is_pool() const {
    return kind == FEDTINY_MAX_POOL || kind == FEDTINY_MEAN_POOL || kind == FEDTINY_ADAPTIVE_POOL;
  }
  bool is_norm() const { return kind == FEDTINY_BATCH_NORM; }
  // Of the whole layer, whatever is left out of it.
  Index whole_channels, whole_inputs;
  Index filter_size() const {
    return kind == FEDTINY_LINEAR ? whole_inputs : whole_inputs * kernel[0] * kernel[1];
  }
  Index weights() const { return is_layer() ? whole_channels * filter_size() : 0; }
};

std::vector<Node> checked_nodes(const fedtiny_node* nodes, int count);
Index parameter_size(const std::vector<Node>& nodes, int node, int parameter);

}  // namespace fedtiny
