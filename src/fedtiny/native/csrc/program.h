// The network as it is run: few operations on few stored tensors.
//
// Batch norm and activations are not run by themselves. A value that only layers and pools read is
// a view (a stored tensor seen through batch norm and an activation) that is worked out wherever it
// is read. Any other is written: by a combination, which also adds, or by a copy if it takes more
// than the output to tell the activation's derivative. Batch norm always follows a tensor that
// nothing else reads, so its gradient has one place.
#pragma once
#include "graph.h"

namespace fedtiny {

struct Operation;

struct NormedTensor {
  int tensor, norm;
};

// What becomes of the gradient of what an operation reads.
struct InputGrad {
  bool needed = false;
  bool add = false;       // an earlier operation has written there
  bool finishes = false;  // also does mask and sums of the combination that wrote the tensor
  bool shared = false;    // of a combination: it is the gradient of its output, in one buffer
  std::vector<NormedTensor> normed = {};  // whose batch norms need sums of it
};

// What an operation reads.
struct View {
  int tensor = -1;
  int norm = -1;  // node of the batch norm it is seen through
  Activation activation = Activation::None;
  float leak = 0;
  InputGrad grad = {};
  bool plain() const { return norm < 0 && activation == Activation::None; }
};

struct Op {
  const Operation* operation;
  int node;
  std::vector<View> in;  // two, if two are added, multiplied or joined
  int out = -1;
  Activation activation = Activation::None;  // of a combination
  bool finished = false;             // the last reader of its output has done its mask and sums
  std::vector<int> recomputes = {};  // operations to be run again before this one's backward pass
  std::vector<NormedTensor> normed_inputs() const;
};

struct Tensor {
  Shape shape;
  int producer;
  int norm = -1;  // the batch norm that alone reads it
  bool gradient = true;
  bool dropped = false;           // not held between forward and backward pass
  std::vector<int> readers = {};  // operations, in order
  int gradient_buffer = -1;
};

struct Program {
  Table<Op> ops;
  Table<Tensor> tensors;
  int gradient_buffers = 0;
  int output = -1;  // tensor of logits

  // The operation that wrote what an operation reads.
  const Op& producer(const View& view) const { return ops[tensors[view.tensor].producer]; }
};

Program program_of(const Nodes& nodes, const fedtiny_options& options);

}  // namespace fedtiny
