// Products: of two tensors of one shape, or with a factor for each channel of each image.
#include "run.h"

namespace fedtiny {
namespace {

struct Product {
  Run& run;
  const Op& op;
  const Shape shape = run.output(op).shape;
  const Index size = shape.plane() * run.lanes;

  // One factor's plane, which may be a single value.
  Plane plane_of(const Plane& plane, const View& view) const {
    Plane own = plane;
    own.offset = plane.number * run.tensor(view).shape.plane() * run.lanes;
    return own;
  }
  bool single(const View& view) const { return run.tensor(view).shape.plane() != shape.plane(); }

  void load(const View& view, const Plane& plane, float* rows) const {
    const Plane own = plane_of(plane, view);
    run.kernels.load_rows(run.view_rows(view, plane.channel, own.offset), rows);
  }

  void forward() const {
    run.each_plane(shape, [&](const Plane& plane) {
      float *rows = run.scratch(plane.thread), *by = rows + size;
      load(op.in[0], plane, rows);
      load(op.in[1], plane, by);
      run.kernels.multiply(rows, by, shape.plane(), single(op.in[1]));
      StoreRows store = run.stored(one_row(rows, shape.plane()), run.value(op.out, plane.offset));
      store.stream = run.streams(op.out);
      run.kernels.store_rows(store);
    });
  }

  // The gradient of one factor is that of the product times the other.
  void backward(const View& view, const View& other) const {
    if (!view.grad.needed) return;
    run.each_plane(shape, [&](const Plane& plane) {
      float *rows = run.scratch(plane.thread), *by = rows + size;
      run.kernels.load_rows(run.gradient_row(op.out, plane, shape.plane()), rows);
      load(other, plane, by);
      run.kernels.multiply(rows, by, shape.plane(), single(other));
      if (single(view)) run.kernels.add_up(rows, shape.plane());
      run.accumulate_plane(view, plane_of(plane, view), rows);
    });
    run.collect_sums(view, run.blocks);
  }
};

void forward(Run& run, const Op& op) { Product{run, op}.forward(); }

void backward(Run& run, const Op& op) {
  Product{run, op}.backward(op.in[0], op.in[1]);
  Product{run, op}.backward(op.in[1], op.in[0]);
}

Shape shape(Node& node) {
  const Shape &a = node.in, &b = node.second_in;
  const bool same = a.height == b.height && a.width == b.width;
  need(a.channels == b.channels && (same || b.plane() == 1), node,
       "multiplies with neither the same shape nor one value a channel");
  return node.in;
}

Index scratch(const Node& node, const Options& o, Index) { return 2 * node.out.plane() * o.lanes; }

}  // namespace

const Operation operations::multiply = {
    "multiply",
    2,
    shape,
    forward,
    backward,
    /*rereads_input=*/true,
    /*leads_norm=*/false,
    scratch,
};

}  // namespace fedtiny
