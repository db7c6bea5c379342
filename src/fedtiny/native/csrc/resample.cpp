// Values at other places: repeated, or with their axes in another order.
#include "run.h"

namespace fedtiny {
namespace {

Upsample upsample_of(const Node& node) {
  return {node.in.height, node.in.width, node.out.height / node.in.height,
          node.out.width / node.in.width};
}

void upsample_forward(Run& run, const Op& op) {
  const Node& node = run.node(op);
  planes_forward(run, op, [&](const Plane&, float* rows) {
    float* out = rows + node.in.plane() * run.lanes;
    run.kernels.upsample(upsample_of(node), rows, out);
    return out;
  });
}

void upsample_backward(Run& run, const Op& op) {
  const Node& node = run.node(op);
  planes_backward(run, op, op.in[0], [&](const Plane&, float* rows) {
    float* out = rows + node.out.plane() * run.lanes;
    run.kernels.upsample_backward(upsample_of(node), rows, out);
    return out;
  });
}

Shape upsampled(Node& node) {
  need(is_size(node.height) && is_size(node.width) && node.height % node.in.height == 0 &&
           node.width % node.in.width == 0,
       node, "must scale by whole numbers");
  return {node.in.channels, node.height, node.width};
}

// How a tensor's values are found in another that has its axes in another order.
struct Permuted {
  Index steps[3];  // in the other, in values, from one to the next along each axis
  Permuted(const Shape& other, const std::int32_t* order, Index lanes) {
    const Index own[3] = {other.plane() * lanes, other.width * lanes, lanes};
    for (int axis = 0; axis < 3; ++axis) steps[axis] = own[order[axis]];
  }

  // One plane of the tensor of this shape, from rows of the other.
  LoadRows rows(LoadRows all, const Shape& shape, Index lanes) const {
    all.rows = all.height = shape.height;
    all.columns = shape.width;
    all.row_stride = steps[1];
    all.column_step = steps[2] / lanes;
    all.width = (shape.width - 1) * all.column_step + 1;
    return all;
  }
};

void permute_forward(Run& run, const Op& op) {
  const Shape in = run.tensor(op.in[0]).shape, out = run.output(op).shape;
  const Permuted permuted(in, run.node(op).order, run.lanes);
  run.each_plane(out, [&](const Plane& plane) {
    const Index from = plane.block * in.size() * run.lanes + plane.channel * permuted.steps[0];
    float* rows = run.scratch(plane.thread);
    run.kernels.load_rows(permuted.rows(run.view_rows(op.in[0], 0, from), out, run.lanes), rows);
    run.kernels.store_rows(run.stored(one_row(rows, out.plane()), run.value(op.out, plane.offset)));
  });
}

void permute_backward(Run& run, const Op& op) {
  const View& view = op.in[0];
  if (!view.grad.needed) return;
  const Shape in = run.tensor(view).shape, out = run.output(op).shape;
  std::int32_t back[3];
  for (std::int32_t axis = 0; axis < 3; ++axis) back[run.node(op).order[axis]] = axis;
  const Permuted permuted(out, back, run.lanes);
  run.each_plane(in, [&](const Plane& plane) {
    const Index from = plane.block * out.size() * run.lanes + plane.channel * permuted.steps[0];
    float* rows = run.scratch(plane.thread);
    const LoadRows all = run.gradient_rows(op.out, plane.block, 0, from);
    run.kernels.load_rows(permuted.rows(all, in, run.lanes), rows);
    run.accumulate_plane(view, plane, rows);
  });
  run.collect_sums(view, run.blocks);
}

Shape permuted_shape(Node& node) {
  const Index sides[3] = {node.in.channels, node.in.height, node.in.width};
  bool seen[3] = {};
  for (const std::int32_t axis : node.order)
    if (axis >= 0 && axis < 3) seen[axis] = true;
  need(seen[0] && seen[1] && seen[2], node, "needs an order of its three axes");
  return {sides[node.order[0]], sides[node.order[1]], sides[node.order[2]]};
}

}  // namespace

const Operation operations::upsample = {
    "upsample", 1, upsampled, upsample_forward, upsample_backward,
};
const Operation operations::permute = {
    "permute", 1, permuted_shape, permute_forward, permute_backward,
};

}  // namespace fedtiny
