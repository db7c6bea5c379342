#include "run.h"

namespace fedtiny {
namespace {

// Draws go by the place in the whole network, whatever is left out of it.
PlaneWork dropping(const Run& run, const Op& op) {
  return [&](const Plane& plane, float* rows) {
    const Node& node = run.node(op);
    const Index size = node.in.plane(), number = run.storage.channels[op.node][plane.channel];
    const std::uint64_t key = run.pass.seed * 0x9E3779B97F4A7C15ULL +
                              static_cast<std::uint64_t>(op.node) * 0xD1B54A32D192ED03ULL;
    if (run.pass.backward())
      run.kernels.dropout({rows, size, key, plane.block * run.lanes, node.whole_channels * size,
                           number * size, node.probability});
    return rows;
  };
}

Shape shape(Node& node) {
  need(node.probability >= 0 && node.probability <= 1, node, "needs a probability of 0 to 1");
  return node.in;
}

void forward(Run& run, const Op& op) { planes_forward(run, op, dropping(run, op)); }
void backward(Run& run, const Op& op) { planes_backward(run, op, op.in[0], dropping(run, op)); }

}  // namespace

const Operation operations::dropout = {"dropout", 1, shape, forward, backward};

}  // namespace fedtiny
