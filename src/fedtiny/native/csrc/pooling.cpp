// Largest and mean values of windows.
#include "run.h"

namespace fedtiny {
namespace {

PoolAxis axis_of(const Node& node, int axis, Index in, Index out) {
  const bool adaptive = node.kind == FEDTINY_ADAPTIVE_POOL;
  return {in,
          out,
          node.kernel[axis],
          node.stride[axis],
          node.padding[axis],
          node.padding_end[axis],
          adaptive,
          !adaptive && node.count_padding != 0};
}

Pool pool_of(const Node& node) {
  return {axis_of(node, 0, node.in.height, node.out.height),
          axis_of(node, 1, node.in.width, node.out.width), nullptr, nullptr, nullptr};
}

void forward(Run& run, const Op& op) {
  const Node& node = run.node(op);
  const auto kernel = node.kind == FEDTINY_MAX_POOL ? run.kernels.max_pool : run.kernels.mean_pool;
  planes_forward(run, op, [&](const Plane&, float* rows) {
    Pool pool = pool_of(node);
    pool.values = rows;
    pool.out = rows + node.in.plane() * run.lanes;
    kernel(pool);
    return pool.out;
  });
}

void backward(Run& run, const Op& op) {
  const Node& node = run.node(op);
  const bool largest = node.kind == FEDTINY_MAX_POOL;
  const auto kernel = largest ? run.kernels.max_pool_backward : run.kernels.mean_pool_backward;
  const Index size = node.in.plane() * run.lanes;
  planes_backward(run, op, op.in[0], [&](const Plane& plane, float* rows) {
    Pool pool = pool_of(node);
    float* values = rows + node.out.plane() * run.lanes;
    pool.gradient = rows;
    pool.values = values;
    pool.out = values + size;
    std::fill_n(pool.out, size, 0.0F);
    if (largest)
      run.kernels.load_rows(run.view_rows(op.in[0], plane.channel, plane.offset), values);
    kernel(pool);
    return pool.out;
  });
}

Shape windowed(Node& node) {
  need(node.ceil == 0 || node.ceil == 1, node, "has a ceil mode or has none");
  return windowed_shape(node, node.in.channels);
}

Shape adapted(Node& node) {
  need(is_size(node.height) && is_size(node.width), node, "needs an output size");
  return {node.in.channels, node.height, node.width};
}

}  // namespace

const Operation operations::max_pool = {
    "max pool", 1, windowed, forward, backward, /*rereads_input=*/true,
};
const Operation operations::mean_pool = {"mean pool", 1, windowed, forward, backward};
const Operation operations::adaptive_pool = {"adaptive pool", 1, adapted, forward, backward};

}  // namespace fedtiny
