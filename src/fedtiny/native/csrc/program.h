// The network as it is run: few operations on few stored tensors.
//
// Batch norm and ReLU are not run by themselves. A value that only layers and pools read is a view
// (a stored tensor seen through batch norm and ReLU) that is worked out wherever it is read. Any
// other is written by a `Combine`, which also adds. Batch norm always follows a tensor that nothing
// else reads, so its gradient has one place.
#pragma once
#include <array>
#include <vector>

#include "graph.h"

namespace fedtiny {

struct View {
  int tensor = -1;
  int norm = -1;  // node of the batch norm it is seen through
  bool relu = false;
};

enum class OpKind { Input, Convolution, Linear, Plane, Combine };

// What becomes of a gradient that an operation hands to a tensor.
struct Emission {
  bool needed = false;
  bool add = false;       // an earlier operation has written there
  bool finishes = false;  // also does the mask and the sums of the Combine that wrote the tensor
};

struct Op {
  OpKind kind;
  int node;
  std::array<View, 2> in;
  int terms = 1;
  bool relu = false;  // Combine
  int out;
  std::array<Emission, 2> emission;
  std::array<bool, 2> shares_gradient = {false, false};  // Combine: a term's gradient is its own
  bool finished = false;  // Combine: the last reader of its output has done its mask and sums
  std::vector<int> recomputes;  // operations to be run again before this one's backward pass
};

struct Tensor {
  Shape shape;
  int producer;
  int norm = -1;           // the batch norm that alone reads it
  bool gradient = true;
  bool dropped = false;    // not held between forward and backward pass
  std::vector<int> readers;  // operations, in order
  int gradient_buffer = -1;
};

struct Program {
  std::vector<Op> ops;
  std::vector<Tensor> tensors;
  int gradient_buffers = 0;
  int output = -1;  // tensor of logits

  const Op& op(int i) const { return ops[static_cast<std::size_t>(i)]; }
  const Tensor& tensor(int i) const { return tensors[static_cast<std::size_t>(i)]; }
};

Program program_of(const std::vector<Node>& nodes, bool recompute, bool input_gradient);

}  // namespace fedtiny
