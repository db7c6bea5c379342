#include <cmath>

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

// The input rows that a band of outputs needs: of all channels, or of those with kept weights.
void Network::load_piece(const Op& op, const Geometry& g, Index block, Index first, bool all,
                         float* scratch) {
  const Layer& l = layer(op.node);
  const Index plane = program_.tensor(op.in[0].tensor).shape.plane();
  for (Index c = 0; c < g.channels; ++c) {
    LoadRows rows = view_rows(op.in[0], c, (block * g.channels + c) * plane * lanes_);
    rows.rows = g.band + g.y.reaches();
    rows.columns = g.x.out + g.x.reaches();
    rows.row_step = g.y.stride;
    rows.column_step = g.x.stride;
    rows.ahead = plane * lanes_;
    for (Index phase = 0; phase < g.phases(); ++phase) {
      const Index bucket = c * g.phases() + phase;
      if (!all && l.back_begin[bucket] == l.back_begin[bucket + 1]) continue;
      rows.first_row = g.y.stride * (first + g.y.reach_min) + phase / g.x.stride;
      rows.first_column = g.x.stride * g.x.reach_min + phase % g.x.stride;
      kernels_.load_rows(rows, scratch + c * g.in_plane + phase * g.in_phase);
    }
  }
}

void Network::convolve(const Op& op, bool with_sums) {
  const Geometry& g = geometry(op.node);
  const Layer& l = layer(op.node);
  const int follows = program_.tensor(op.out).norm;
  const bool sums = with_sums && follows >= 0;
  const Index plane = g.y.out * g.x.out;
  const bool stream = streams(op.out);
  pool_.run(blocks_ * g.bands, [&](Index thread, Index piece) {
    const Index block = piece / g.bands, first = piece % g.bands * g.band;
    const Index rows = std::min(g.band, g.y.out - first);
    float* inputs = scratch(thread);
    float* outputs = inputs + ceil_div(g.in_floats, 16) * 16;
    if (rows > 0) load_piece(op, g, block, first, false, inputs);
    for (Index f = 0; f < g.filters; ++f) {
      StoreRows store{};
      if (rows > 0) {
        const Index row = l.numbers[f], begin = l.row_begin[row];
        kernels_.gather({inputs, g.in_pitch, l.offsets + begin, l.weights + begin,
                         l.row_begin[row + 1] - begin, outputs, g.row_pitch, lanes_, rows, g.x.out});
        store.rows = outputs;
        store.pitch = g.row_pitch;
        store.plane =
            value(op.out, ((block * g.filters + f) * plane + first * g.x.out) * lanes_);
        store.count = rows;
        store.columns = g.x.out;
        store.row_stride = g.x.out * lanes_;
        store.lanes = lanes_in(block);
        store.bias = l.bias != nullptr && follows < 0 ? l.bias[row] : 0.0F;
        store.half = bytes_ == 2;
        store.sums = sums;
        store.stream = stream;
        kernels_.store_rows(store);
      }
      if (sums) {
        float* to = at<float>(plan_.sums) + (piece * g.filters + f) * 3;
        to[0] = store.sum;
        to[1] = store.square;
      }
    }
  });
  if (sums) finish_norm(follows, blocks_ * g.bands);
}

// A linear layer's inputs as [block][input][lane] floats: where they lie, or a copy.
const float* Network::linear_inputs(const Op& op) {
  const View& view = op.in[0];
  if (bytes_ == 4 && view.norm < 0 && !view.relu)
    return reinterpret_cast<const float*>(value(view.tensor, 0));
  const Shape& shape = program_.tensor(view.tensor).shape;
  float* copy = at<float>(plan_.partials);
  pool_.run(blocks_ * shape.channels, [&](Index, Index piece) {
    const Index offset = piece * shape.plane() * lanes_;
    kernels_.load_rows(view_rows(view, piece % shape.channels, offset), copy + offset);
  });
  return copy;
}

constexpr Index NEURON_GROUP = 16;

void Network::linear(const Op& op) {
  const Layer& l = layer(op.node);
  const Index inputs = node(op.node).in.size(), neurons = node(op.node).channels;
  const float* x = linear_inputs(op);
  pool_.run(ceil_div(neurons, NEURON_GROUP), [&](Index thread, Index group) {
    float* rows = scratch(thread);
    const Index end = std::min(neurons, (group + 1) * NEURON_GROUP);
    for (Index f = group * NEURON_GROUP; f < end; ++f) {
      const Index row = l.numbers[f], begin = l.row_begin[row];
      kernels_.gather({x, inputs * lanes_, l.offsets + begin, l.weights + begin,
                       l.row_begin[row + 1] - begin, rows, lanes_, lanes_, blocks_, 1});
      StoreRows store{};
      store.rows = rows;
      store.pitch = lanes_;
      store.plane = value(op.out, f * lanes_);
      store.count = blocks_;
      store.columns = 1;
      store.row_stride = neurons * lanes_;
      store.bias = l.bias != nullptr ? l.bias[row] : 0.0F;
      store.half = bytes_ == 2;
      kernels_.store_rows(store);
    }
  });
}

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
    }
  });
  if (sums) finish_norm(follows, blocks_);
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

// From the pieces' sums to the statistics of the batch. A convolution's bias was left out of what
// is stored: it changes the mean alone.
void Network::finish_norm(int place, Index pieces) {
  const Norm& n = norm(place);
  const Node& me = node(place);
  const Index channels = me.out.channels;
  const double count = static_cast<double>(pass_.images * me.out.plane());
  if (count < 2) refuse("batch norm cannot measure a single value a channel");
  const int source = me.first;
  const float* bias = node(source).kind == FEDTINY_CONVOLUTION && node(source).consumers.size() == 1
                          ? layer(source).bias
                          : nullptr;
  const float* scale = at<float>(plan_.values) + plan_.norms[static_cast<std::size_t>(place)].first_scale;
  const float* shift = at<float>(plan_.values) + plan_.norms[static_cast<std::size_t>(place)].first_shift;
  for (Index c = 0; c < channels; ++c) {
    double sum = 0, square = 0;
    for (Index piece = 0; piece < pieces; ++piece) {
      const float* from = at<float>(plan_.sums) + (piece * channels + c) * 3;
      sum += static_cast<double>(from[0]);
      square += static_cast<double>(from[1]);
    }
    const double mean = sum / count;
    const double var = std::max(0.0, square / count - mean * mean);
    const Index w = n.numbers[c];
    n.mean[w] = mean + (bias != nullptr ? static_cast<double>(bias[w]) : 0.0);
    n.var[w] = var;
    n.batch_mean[c] = static_cast<float>(mean);
    n.a[c] = static_cast<float>(1.0 / std::sqrt(var + static_cast<double>(me.epsilon)));
    n.scale[c] = scale[w] * n.a[c];
    n.shift[c] = static_cast<float>(static_cast<double>(shift[w]) - mean * static_cast<double>(n.scale[c]));
    if (pass_.update_statistics) {
      const double m = static_cast<double>(me.momentum);
      const auto moved = [m](float from, double to) {
        return static_cast<float>((1 - m) * static_cast<double>(from) + m * to);
      };
      n.running_mean[w] = moved(n.running_mean[w], n.mean[w]);
      n.running_var[w] = moved(n.running_var[w], var * count / (count - 1));
    }
  }
}

void Network::use_running_statistics(int place) {
  const Norm& n = norm(place);
  const Node& me = node(place);
  const auto index = static_cast<std::size_t>(place);
  const float* scale = at<float>(plan_.values) + plan_.norms[index].first_scale;
  const float* shift = at<float>(plan_.values) + plan_.norms[index].first_shift;
  const bool leads = node(me.first).kind == FEDTINY_CONVOLUTION &&
                     node(me.first).consumers.size() == 1;
  const float* bias = leads ? layer(me.first).bias : nullptr;
  for (Index c = 0; c < me.out.channels; ++c) {
    const Index w = n.numbers[c];
    const double deviation =
        std::sqrt(static_cast<double>(n.running_var[w]) + static_cast<double>(me.epsilon));
    const double a = static_cast<double>(scale[w]) / deviation;
    const double centre = static_cast<double>(n.running_mean[w]) -
                          (bias != nullptr ? static_cast<double>(bias[w]) : 0.0);
    n.scale[c] = static_cast<float>(a);
    n.shift[c] = static_cast<float>(static_cast<double>(shift[w]) - centre * a);
  }
}

}  // namespace fedtiny
