// Addition and activations: sums of one or two views, written a plane at a time.
#include <cmath>

#include "run.h"

namespace fedtiny {
namespace {

void forward(Run& run, const Op& op) {
  const Shape shape = run.output(op).shape;
  run.each_plane(shape, [&](const Plane& plane) {
    Combine c{};
    c.out = run.value(op.out, plane.offset);
    c.count = shape.plane();
    c.half = run.bytes == 2;
    c.activation = op.activation;
    c.stream = run.streams(op.out);
    for (const View& view : op.in) {
      const LoadRows rows = run.view_rows(view, plane.channel, plane.offset);
      c.term[c.terms] = rows.plane;
      c.scale[c.terms++] = rows.affine ? rows.scale : 1.0F;
      c.shift += rows.shift;
    }
    run.kernels.combine(c);
  });
}

// Mask and sums of a gradient that came from where they could not be done on the way.
void finish(Run& run, const Op& op) {
  View all;
  all.tensor = op.out;
  all.grad = {true, true, true, false, op.normed_inputs()};
  if (op.activation == Activation::None && all.grad.normed.empty()) return;
  run.each_plane(run.output(op).shape,
                 [&](const Plane& plane) { run.accumulate_plane(all, plane, nullptr); });
  run.collect_sums(all, run.blocks);
}

void backward(Run& run, const Op& op) {
  if (!op.finished) finish(run, op);
  for (const View& view : op.in)
    if (!view.grad.shared) planes_backward(run, op, view, unchanged);
}

Shape same_shape(Node& node) {
  need(std::isfinite(node.slope), node, "needs a finite slope");
  need(node.approximate == 0 || (node.approximate == 1 && node.kind == FEDTINY_GELU), node,
       "cannot be approximate");
  return node.in;
}

constexpr Operation activation(const char* name, Activation kind) {
  Operation operation{name, 1, same_shape};
  operation.activation = kind;
  return operation;
}

Shape added_shape(Node& node) {
  const Shape &a = node.in, &b = node.second_in;
  need(a.channels == b.channels && a.height == b.height && a.width == b.width, node,
       "adds two nodes of different shapes");
  return node.in;
}

}  // namespace

const Operation operations::relu = activation("relu", Activation::Relu);
const Operation operations::relu6 = activation("relu6", Activation::Relu6);
const Operation operations::leaky_relu = activation("leaky relu", Activation::LeakyRelu);
const Operation operations::silu = activation("silu", Activation::Silu);
const Operation operations::hard_swish = activation("hard swish", Activation::HardSwish);
const Operation operations::hard_sigmoid = activation("hard sigmoid", Activation::HardSigmoid);
const Operation operations::sigmoid = activation("sigmoid", Activation::Sigmoid);
const Operation operations::tanh = activation("tanh", Activation::Tanh);
const Operation operations::gelu = activation("gelu", Activation::Gelu);
const Operation operations::add = {"add", 2, added_shape};
const Operation operations::combine = {"combine", 2, nullptr, forward, backward};

}  // namespace fedtiny
