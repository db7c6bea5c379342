// Operations on one plane at a time: pools, dropout, copies and sums.
#include "network.h"

namespace fedtiny {

// Draws go by the place in the whole network, whatever is left out of it.
Dropout Network::dropout_of(const Op& op, Index block, Index channel, Index plane,
                            float* rows) const {
  const Node& n = node(op.node);
  const std::uint64_t key = pass_.seed * 0x9E3779B97F4A7C15ULL +
                            static_cast<std::uint64_t>(op.node) * 0xD1B54A32D192ED03ULL;
  const Index number = channels_[static_cast<std::size_t>(op.node)][static_cast<std::size_t>(channel)];
  return {rows,           plane,        key, block * lanes_, n.whole_channels * plane,
          number * plane, n.probability};
}

// Pools, dropout, and plain copies.
void Network::plane(const Op& op) {
  const Node& n = node(op.node);
  const Shape in = program_.tensor(op.in[0].tensor).shape;
  const Shape out = program_.tensor(op.out).shape;
  const int follows = program_.tensor(op.out).norm;
  const bool sums = pass_.own_statistics && follows >= 0;
  const Index out_plane = out.size() / in.channels;
  pool_.run(blocks_ * in.channels, [&](Index thread, Index piece) {
    const Index block = piece / in.channels, channel = piece % in.channels;
    float* rows = scratch(thread);
    kernels_.load_rows(view_rows(op.in[0], channel, piece * in.plane() * lanes_), rows);
    StoreRows store{};
    store.rows = rows;
    if (n.kind == FEDTINY_DROPOUT && pass_.dropout) {
      kernels_.dropout(dropout_of(op, block, channel, in.plane(), rows));
    } else if (n.is_pool()) {
      Pool pool = pools_[static_cast<std::size_t>(op.node)].pool(in.width);
      pool.values = rows;
      pool.out = rows + in.plane() * lanes_;
      (n.kind == FEDTINY_MAX_POOL ? kernels_.max_pool : kernels_.mean_pool)(pool);
      store.rows = pool.out;
    }
    store.plane = value(op.out, piece * out_plane * lanes_);
    store.count = 1;
    store.columns = out_plane;
    store.lanes = lanes_in(block);
    store.half = bytes_ == 2;
    store.sums = sums;
    kernels_.store_rows(store);
    if (sums) {
      float* to = at<float>(plan_.sums) + piece * 3;
      to[0] = store.sum;
      to[1] = store.square;
      to[2] = store.pilot;
    }
  });
  if (sums) finish_norm(follows, 1, out.height);
}

void Network::plane_backward(int i) {
  const Op& op = program_.op(i);
  if (!op.emission[0].needed) return;
  const Node& n = node(op.node);
  const Shape in = program_.tensor(op.in[0].tensor).shape;
  const Index out_plane = program_.tensor(op.out).shape.size() / in.channels;
  pool_.run(blocks_ * in.channels, [&](Index thread, Index piece) {
    const Index block = piece / in.channels, channel = piece % in.channels;
    float* given = scratch(thread);
    LoadGradient load = gradient_rows(op.out, block, channel, piece * out_plane * lanes_);
    load.rows = load.height = 1;
    load.columns = load.width = out_plane;
    kernels_.load_gradient(load, given);
    float* rows = given;
    if (n.kind == FEDTINY_DROPOUT && pass_.dropout) {
      kernels_.dropout(dropout_of(op, block, channel, in.plane(), rows));
    } else if (n.is_pool()) {
      rows = given + out_plane * lanes_;
      float* values = rows + in.plane() * lanes_;
      std::fill_n(rows, in.plane() * lanes_, 0.0F);
      Pool pool = pools_[static_cast<std::size_t>(op.node)].pool(in.width);
      pool.gradient = given;
      pool.out = rows;
      pool.values = values;
      if (n.kind == FEDTINY_MAX_POOL)
        kernels_.load_rows(view_rows(op.in[0], channel, piece * in.plane() * lanes_), values);
      (n.kind == FEDTINY_MAX_POOL ? kernels_.max_pool_backward : kernels_.mean_pool_backward)(pool);
    }
    emit_plane(i, 0, piece, rows);
  });
  collect_sums(i, 0, blocks_);
}

void Network::emit_plane(int i, std::size_t term, Index piece, const float* rows) {
  const Shape shape = program_.tensor(program_.op(i).in[term].tensor).shape;
  const Index channel = piece % shape.channels;
  EmitRows e = emission_of(i, term, channel, piece * shape.plane() * lanes_);
  e.rows = rows;
  e.count = 1;
  e.columns = shape.plane();
  kernels_.emit_rows(e);
  keep_sums(e, piece / shape.channels, channel, shape.channels);
}

void Network::combine(const Op& op) {
  const Shape shape = program_.tensor(op.out).shape;
  pool_.run(blocks_ * shape.channels, [&](Index, Index piece) {
    const Index channel = piece % shape.channels;
    const Index offset = piece * shape.plane() * lanes_;
    Combine c{};
    c.out = value(op.out, offset);
    c.terms = op.terms;
    c.count = shape.plane();
    c.half = bytes_ == 2;
    c.relu = op.relu;
    c.stream = streams(op.out);
    for (std::size_t t = 0; t < static_cast<std::size_t>(op.terms); ++t) {
      const View& view = op.in[t];
      c.term[t] = value(view.tensor, offset);
      c.scale[t] = view.norm >= 0 ? norm(view.norm).scale[channel] : 1.0F;
      c.shift += view.norm >= 0 ? norm(view.norm).shift[channel] : 0.0F;
    }
    kernels_.combine(c);
  });
}

void Network::combine_backward(int i) {
  const Op& op = program_.op(i);
  const Shape shape = program_.tensor(op.out).shape;
  if (!op.finished) finish_combine(op);
  for (std::size_t t = 0; t < static_cast<std::size_t>(op.terms); ++t) {
    if (!op.emission[t].needed || op.shares_gradient[t]) continue;
    pool_.run(blocks_ * shape.channels, [&](Index thread, Index piece) {
      float* rows = scratch(thread);
      const Index block = piece / shape.channels, channel = piece % shape.channels;
      kernels_.load_gradient(
          gradient_rows(op.out, block, channel, piece * shape.plane() * lanes_), rows);
      emit_plane(i, t, piece, rows);
    });
    collect_sums(i, t, blocks_);
  }
}

// Mask and sums of a Combine whose gradient came from where they could not be done on the way.
void Network::finish_combine(const Op& op) {
  const Shape shape = program_.tensor(op.out).shape;
  std::array<int, 2> norms = {-1, -1};
  std::array<const View*, 2> views = {nullptr, nullptr};
  std::size_t count = 0;
  for (std::size_t t = 0; t < static_cast<std::size_t>(op.terms); ++t)
    if (op.in[t].norm >= 0) {
      views[count] = &op.in[t];
      norms[count++] = op.in[t].norm;
    }
  if (!op.relu && count == 0) return;
  pool_.run(blocks_ * shape.channels, [&](Index, Index piece) {
    const Index channel = piece % shape.channels, offset = piece * shape.plane() * lanes_;
    EmitRows e{};
    e.gradient = gradient(op.out, offset);
    e.count = 1;
    e.columns = shape.plane();
    e.half = bytes_ == 2;
    e.mask = op.relu ? value(op.out, offset) : nullptr;
    e.mask_scale = 1.0F;
    for (std::size_t k = 0; k < count; ++k) {
      e.term[k] = value(views[k]->tensor, offset);
      e.mean[k] = norm(norms[k]).batch_mean[channel];
    }
    e.terms = static_cast<int>(count);
    kernels_.emit_rows(e);
    keep_sums(e, piece / shape.channels, channel, shape.channels);
  });
  add_sums(norms, count, shape.channels, blocks_);
}

}  // namespace fedtiny
