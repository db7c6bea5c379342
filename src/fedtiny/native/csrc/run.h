// A pass under way, as operations see it: where tensors and their gradients lie, and how their rows
// are read, written and accumulated.
#pragma once
#include "operations.h"
#include "storage.h"
#include "thread_pool.h"

namespace fedtiny {

struct Pass : fedtiny_pass {
  bool own_statistics() const { return mode != FEDTINY_FORWARD; }
  bool backward() const { return mode >= FEDTINY_MEASURE; }  // with dropout
  bool learns() const { return mode >= FEDTINY_GRADIENTS; }  // keeps gradients and statistics
};

// One channel of one block of images; `offset` is where it begins in its tensor, in values.
struct Plane {
  Index thread, number, block, channel, offset;
};

inline Rows one_row(float* row, Index columns) { return {row, 0, 1, columns, 0}; }

struct Run {
  Run(Storage& storage, ThreadPool& pool);

  void begin(const Pass& pass);

  const Node& node(const Op& op) const { return storage.nodes[op.node]; }
  const Tensor& tensor(const View& view) const { return storage.program.tensors[view.tensor]; }
  const Tensor& output(const Op& op) const { return storage.program.tensors[op.out]; }
  Index lanes_in(Index block) const { return std::min(lanes, pass.count - block * lanes); }
  float* scratch(Index thread) const { return storage.scratch + thread * storage.scratch_each; }
  char* value(int tensor, Index offset) const {
    return storage.activations + value_places[tensor] + offset * bytes;
  }
  char* gradient(int tensor, Index offset) const {
    const int buffer = storage.program.tensors[tensor].gradient_buffer;
    return storage.activations + placement.gradients[buffer] + offset * bytes;
  }
  // The batch norm whose statistics the output of an operation gives, or -1.
  int measured_norm(const Op& op) const;
  // Whether a tensor is too large for the caches to hold until it is read.
  bool streams(int tensor) const;

  template <class Work>  // (const Plane&)
  void each_plane(const Shape& shape, const Work& work) {
    pool.run(blocks * shape.channels, [&](Index thread, Index i) {
      work(Plane{thread, i, i / shape.channels, i % shape.channels, i * shape.plane() * lanes});
    });
  }

  // Whole planes unless changed; `offset` is where they begin in the tensor, in values.
  LoadRows view_rows(const View& view, Index channel, Index offset) const;
  LoadRows gradient_rows(int tensor, Index block, Index channel, Index offset) const;
  // One row of so many columns.
  LoadRows gradient_row(int tensor, const Plane& plane, Index columns) const;
  StoreRows stored(const Rows& rows, char* to) const {
    StoreRows store{rows, to};
    store.half = bytes == 2;
    return store;
  }
  AccumulateGrad input_grad(const Rows& rows, const View& view, Index channel, Index offset) const;

  // From a block's rows [i][lane] to images[lane * stride + i].
  void unpack(const float* rows, Index block, float* images, Index count, Index stride) const;

  // Adds to the gradient of what was read; without rows, finishes what is there.
  void accumulate_plane(const View& view, const Plane& plane, float* rows) const;
  // Adds up what the pieces of work have left in `sums` for the batch norms before a view.
  void collect_sums(const View& view, Index pieces) const;

  // What a piece of work found for a channel.
  BatchSums& batch_sums(Index i) const { return reinterpret_cast<BatchSums*>(storage.sums)[i]; }
  GradSums& grad_sums(Index i) const { return reinterpret_cast<GradSums*>(storage.sums)[i]; }

  Storage& storage;
  ThreadPool& pool;
  const Kernels& kernels;
  const Index lanes, bytes;
  Pass pass{};
  Index blocks = 0;
  float loss_scale = 1.0F;
  bool recomputing = false;
  Placement placement;
  Index placed_images = -1;
  bool placed_for_training = false;
  Table<Index> value_places;  // by tensor, among the activations
};

// A convolution or linear layer in a pass.
struct LayerRun {
  LayerRun(Run& r, const Op& o) : run(r), op(o) {}
  // A filter's kept weights: where they begin, and how many.
  struct Row {
    Index number, begin, count;
  };
  Row row(Index filter) const {
    const Index number = l.numbers[filter], begin = l.row_begin[number];
    return {number, begin, l.row_begin[number + 1] - begin};
  }
  // The weights as the back lists have them: each goes behind those before it that read the same
  // plane of scratch.
  void order_back_weights(const Table<Group>& groups) const;

  Run& run;
  const Op& op;
  const Node& node = run.storage.nodes[op.node];
  const Layer& l = run.storage.layers[op.node];
  const Geometry& g = *l.geometry;
  const Index lanes = run.lanes, blocks = run.blocks;
};

// planes.cpp: an operation that turns each plane into another. Forward, `rows` has what is read,
// backward the gradient of what was written. The work may use the scratch behind its rows and
// returns where its result lies.
using PlaneWork = std::function<float*(const Plane& plane, float* rows)>;
void planes_forward(Run& run, const Op& op, const PlaneWork& work);
void planes_backward(Run& run, const Op& op, const View& view, const PlaneWork& work);
inline float* unchanged(const Plane&, float* rows) { return rows; }

}  // namespace fedtiny
