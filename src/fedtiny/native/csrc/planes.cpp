// Operations that turn each plane into another one; the input, flattening, copies and reshapes,
// which leave values in their order, are such.
#include "run.h"

namespace fedtiny {
namespace {

// From images [n][size] to a tensor.
void pack_images(Run& run, const Op& op) {
  const Shape& shape = run.output(op).shape;
  run.each_plane(shape, [&](const Plane& plane) {
    const float* images =
        run.pass.images + plane.block * run.lanes * shape.size() + plane.channel * shape.plane();
    float* rows = run.scratch(plane.thread);
    run.kernels.pack({images, run.lanes_in(plane.block), shape.size(), shape.plane(), rows});
    run.kernels.store_rows(
        run.stored(one_row(rows, shape.plane()), run.value(op.out, plane.offset)));
  });
}

Shape input_shape(Node& node) {
  need(is_size(node.channels) && is_size(node.height) && is_size(node.width), node,
       "needs channels, height and width");
  return {node.channels, node.height, node.width};
}

Shape flat_shape(Node& node) { return {node.in.size(), 1, 1}; }

Shape reshaped(Node& node) {
  need(is_size(node.channels) && is_size(node.height) && is_size(node.width) &&
           sized(node.channels, node.height, node.width) == node.in.size(),
       node, "gives another number of values than it reads");
  return {node.channels, node.height, node.width};
}

void copy_forward(Run& run, const Op& op) { planes_forward(run, op, unchanged); }
void copy_backward(Run& run, const Op& op) { planes_backward(run, op, op.in[0], unchanged); }

}  // namespace

void planes_forward(Run& run, const Op& op, const PlaneWork& work) {
  const Shape in = run.tensor(op.in[0]).shape, out = run.output(op).shape;
  const int norm = run.measured_norm(op);
  const Index columns = out.size() / in.channels;
  run.each_plane(in, [&](const Plane& plane) {
    float* rows = run.scratch(plane.thread);
    run.kernels.load_rows(run.view_rows(op.in[0], plane.channel, plane.offset), rows);
    char* to = run.value(op.out, plane.number * columns * run.lanes);
    StoreRows store = run.stored(one_row(work(plane, rows), columns), to);
    store.lanes = run.lanes_in(plane.block);
    store.sums = norm >= 0;
    const BatchSums sums = run.kernels.store_rows(store);
    if (norm >= 0) run.batch_sums(plane.number) = sums;
  });
  if (norm >= 0) measure_batch(run, norm, 1, out.height);
}

void planes_backward(Run& run, const Op& op, const View& view, const PlaneWork& work) {
  if (!view.grad.needed) return;
  const Shape in = run.tensor(view).shape;
  const Index columns = run.output(op).shape.size() / in.channels;
  run.each_plane(in, [&](const Plane& plane) {
    float* rows = run.scratch(plane.thread);
    run.kernels.load_rows(run.gradient_row(op.out, plane, columns), rows);
    run.accumulate_plane(view, plane, work(plane, rows));
  });
  run.collect_sums(view, run.blocks);
}

const Operation operations::input = {"input", 0, input_shape, pack_images};
const Operation operations::flatten = {"flatten", 1, flat_shape};
const Operation operations::reshape = {"reshape", 1, reshaped, copy_forward, copy_backward};
const Operation operations::copy = {"copy", 1, nullptr, copy_forward, copy_backward};

}  // namespace fedtiny
