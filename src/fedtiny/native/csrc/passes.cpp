// What a pass does, operation by operation.
#include "network.h"

namespace fedtiny {

void Network::begin(const Pass& pass, bool backward) {
  pass_ = pass;
  blocks_ = plan_.options.blocks(pass.images);
  if (placed_images_ != pass.images || placed_backward_ != backward) {
    placement_ = backward ? plan_.training(program_, pass.images)
                          : plan_.forward(program_, pass.images);
    placed_images_ = pass.images;
    placed_backward_ = backward;
  }
  for (std::size_t t = 0; t < values_at_.size(); ++t)
    values_at_[t] = at<char>(plan_.activations + placement_.values[t]);
}

void Network::run_forward(const float* images) {
  pack_images(images);
  for (int i = 1; i < static_cast<int>(program_.ops.size()); ++i) forward_op(i);
}

void Network::forward_op(int i) {
  const Op& op = program_.op(i);
  switch (op.kind) {
    case OpKind::Convolution: convolve(op, pass_.own_statistics); break;
    case OpKind::Linear: linear(op); break;
    case OpKind::Plane: plane(op); break;
    case OpKind::Combine: combine(op); break;
    case OpKind::Input: break;
  }
  const int follows = program_.tensor(op.out).norm;
  if (follows >= 0 && !pass_.own_statistics) use_running_statistics(follows);
}

void Network::pack_images(const float* images) {
  const Shape& shape = program_.tensors[0].shape;
  pool_.run(blocks_ * shape.channels, [&](Index thread, Index piece) {
    const Index block = piece / shape.channels, channel = piece % shape.channels;
    float* rows = scratch(thread);
    kernels_.pack({rows,
                   const_cast<float*>(images) + block * lanes_ * shape.size() +
                       channel * shape.plane(),
                   shape.plane(), shape.size(), lanes_in(block)});
    StoreRows store{};
    store.rows = rows;
    store.plane = value(0, piece * shape.plane() * lanes_);
    store.count = 1;
    store.columns = shape.plane();
    store.half = bytes_ == 2;
    kernels_.store_rows(store);
  });
}

LoadRows Network::view_rows(const View& view, Index channel, Index offset) const {
  const Shape& shape = program_.tensor(view.tensor).shape;
  LoadRows rows{};
  rows.plane = value(view.tensor, offset);
  rows.height = shape.height;
  rows.width = shape.width;
  rows.row_stride = shape.width * lanes_;
  rows.rows = shape.height;
  rows.columns = shape.width;
  rows.row_step = rows.column_step = 1;
  rows.half = bytes_ == 2;
  rows.relu = view.relu;
  if (view.norm >= 0) {
    rows.affine = true;
    rows.scale = norm(view.norm).scale[channel];
    rows.shift = norm(view.norm).shift[channel];
  }
  return rows;
}

void Network::run_backward(const std::vector<Wanted>& wanted) {
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].is_norm()) {
      std::fill_n(norms_[i].sum, nodes_[i].out.channels, 0.0);
      std::fill_n(norms_[i].product, nodes_[i].out.channels, 0.0);
    }
  for (int i = static_cast<int>(program_.ops.size()) - 1; i > 0; --i) backward_op(i, wanted);
}

void Network::backward_op(int i, const std::vector<Wanted>& wanted) {
  const Op& op = program_.op(i);
  for (const int again : op.recomputes) {
    const int tensor = program_.op(again).out;
    const auto index = static_cast<std::size_t>(tensor);
    values_at_[index] = at<char>(plan_.activations + placement_.again[index]);
    convolve(program_.op(again), false);
  }
  const int follows = program_.tensor(op.out).norm;
  if (follows >= 0) finish_norm_gradient(follows);
  for (const Wanted& w : wanted)
    if (w.op == i) wanted_gradient(op, w);
  switch (op.kind) {
    case OpKind::Convolution: convolve_backward(i); break;
    case OpKind::Linear: linear_backward(i); break;
    case OpKind::Plane: plane_backward(i); break;
    case OpKind::Combine: combine_backward(i); break;
    case OpKind::Input: break;
  }
}

}  // namespace fedtiny
