// The channels of two tensors one behind the other, and some of the channels of one.
#include "run.h"

namespace fedtiny {
namespace {

// The plane of another tensor, whose channels are `shift` further on.
Plane shifted(const Run& run, const Plane& plane, const Shape& shape, Index shift) {
  Plane other = plane;
  other.channel = plane.channel + shift;
  other.number = plane.block * shape.channels + other.channel;
  other.offset = other.number * shape.plane() * run.lanes;
  return other;
}

// The first channel of the output that is of an input.
Index first_of(const Run& run, const Op& op, const View& view) {
  return &view == op.in.data() ? 0 : run.tensor(op.in[0]).shape.channels;
}

void concat_forward(Run& run, const Op& op) {
  const Shape out = run.output(op).shape;
  const int norm = run.measured_norm(op);
  for (const View& view : op.in)
    run.each_plane(run.tensor(view).shape, [&](const Plane& plane) {
      const Plane to = shifted(run, plane, out, first_of(run, op, view));
      float* rows = run.scratch(plane.thread);
      run.kernels.load_rows(run.view_rows(view, plane.channel, plane.offset), rows);
      StoreRows store = run.stored(one_row(rows, out.plane()), run.value(op.out, to.offset));
      store.lanes = run.lanes_in(plane.block);
      store.sums = norm >= 0;
      store.stream = run.streams(op.out);
      const BatchSums sums = run.kernels.store_rows(store);
      if (norm >= 0) run.batch_sums(to.number) = sums;
    });
  if (norm >= 0) measure_batch(run, norm, 1, out.height);
}

void concat_backward(Run& run, const Op& op) {
  const Shape out = run.output(op).shape;
  for (const View& view : op.in) {
    if (!view.grad.needed) continue;
    run.each_plane(run.tensor(view).shape, [&](const Plane& plane) {
      const Plane from = shifted(run, plane, out, first_of(run, op, view));
      float* rows = run.scratch(plane.thread);
      run.kernels.load_rows(run.gradient_row(op.out, from, out.plane()), rows);
      run.accumulate_plane(view, plane, rows);
    });
    run.collect_sums(view, run.blocks);
  }
}

Shape concat_shape(Node& node) {
  const Shape &a = node.in, &b = node.second_in;
  need(a.height == b.height && a.width == b.width, node, "joins two of different sizes");
  return {a.channels + b.channels, a.height, a.width};
}

void slice_forward(Run& run, const Op& op) {
  const Shape in = run.tensor(op.in[0]).shape, out = run.output(op).shape;
  run.each_plane(out, [&](const Plane& plane) {
    const Plane from = shifted(run, plane, in, run.node(op).start);
    float* rows = run.scratch(plane.thread);
    run.kernels.load_rows(run.view_rows(op.in[0], from.channel, from.offset), rows);
    run.kernels.store_rows(run.stored(one_row(rows, out.plane()), run.value(op.out, plane.offset)));
  });
}

// What is left out has no gradient, but it may be the first to write there.
void slice_backward(Run& run, const Op& op) {
  const View& view = op.in[0];
  if (!view.grad.needed) return;
  const Shape in = run.tensor(view).shape, out = run.output(op).shape;
  const Index start = run.node(op).start;
  run.each_plane(in, [&](const Plane& plane) {
    const Plane from = shifted(run, plane, out, -start);
    float* rows = run.scratch(plane.thread);
    if (from.channel >= 0 && from.channel < out.channels)
      run.kernels.load_rows(run.gradient_row(op.out, from, out.plane()), rows);
    else
      std::fill_n(rows, in.plane() * run.lanes, 0.0F);
    run.accumulate_plane(view, plane, rows);
  });
  run.collect_sums(view, run.blocks);
}

Shape slice_shape(Node& node) {
  need(node.channels >= 1 && node.start >= 0 &&
           Index{node.start} + node.channels <= node.in.channels,
       node, "reaches beyond what it reads");
  return {node.channels, node.in.height, node.in.width};
}

}  // namespace

const Operation operations::concat = {
    "concat",
    2,
    concat_shape,
    concat_forward,
    concat_backward,
    /*rereads_input=*/false,
    /*leads_norm=*/true,
};
const Operation operations::slice = {"slice", 1, slice_shape, slice_forward, slice_backward};

}  // namespace fedtiny
