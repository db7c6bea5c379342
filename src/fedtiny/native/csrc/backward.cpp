#include <cstring>

#include "network.h"

namespace fedtiny {

namespace {

void gather_back_weights(const Layer& l, Index buckets) {
  for (Index j = 0; j < l.back_begin[buckets]; ++j)
    l.back_weights[j] = l.weights[l.back_index[j]];
}

}  // namespace

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

// dz = a * (d - mean(d) - xhat * mean(d * xhat)) as a * d + k1 + k2 * z.
void Network::finish_norm_gradient(int place) {
  const Norm& n = norm(place);
  const Node& me = node(place);
  const auto index = static_cast<std::size_t>(place);
  const float* scale = at<float>(plan_.values) + plan_.norms[index].first_scale;
  float* all = at<float>(plan_.gradients);
  const double count = static_cast<double>(pass_.images * me.out.plane());
  if (pass_.keep_gradients) {  // of what is left out, too
    std::fill_n(all + plan_.norms[index].first_scale, me.whole_channels, 0.0F);
    std::fill_n(all + plan_.norms[index].first_shift, me.whole_channels, 0.0F);
  }
  for (Index c = 0; c < me.out.channels; ++c) {
    const Index w = n.numbers[c];
    const double deviation = 1.0 / std::sqrt(n.var[w] + static_cast<double>(me.epsilon));
    const double by_scale = n.product[c] * deviation;
    if (pass_.keep_gradients) {
      const double unscale = 1.0 / static_cast<double>(loss_scale_);
      all[plan_.norms[index].first_scale + w] = static_cast<float>(by_scale * unscale);
      all[plan_.norms[index].first_shift + w] = static_cast<float>(n.sum[c] * unscale);
    }
    const double a = static_cast<double>(scale[w]) * deviation;
    const double k2 = -a * deviation * by_scale / count;
    n.a[c] = static_cast<float>(a);
    n.k2[c] = static_cast<float>(k2);
    n.k1[c] = static_cast<float>(-a * n.sum[c] / count -
                                 k2 * static_cast<double>(n.batch_mean[c]));
  }
}

// The gradients of outputs that a band of input rows needs: of all filters, or of those with
// kept weights.
void Network::load_gradients(const Op& op, const Geometry& g, Index block, Index first,
                             Index filter, Index filters, bool all, float* scratch) {
  const Layer& l = layer(op.node);
  const Index plane = g.y.out * g.x.out;
  for (Index f = filter; f < filter + filters; ++f) {
    if (!all && l.row_begin[l.numbers[f]] == l.row_begin[l.numbers[f] + 1]) continue;
    LoadGradient rows =
        gradient_rows(op.out, block, f, (block * g.filters + f) * plane * lanes_);
    rows.ahead = plane * lanes_;
    rows.first_row = first + g.y.back_min;
    rows.rows = g.band + g.y.backs();
    rows.first_column = g.x.back_min;
    rows.columns = g.x.positions + g.x.backs();
    kernels_.load_gradient(rows, scratch + (f - filter) * g.out_plane);
  }
}

void Network::convolve_backward(int i) {
  const Op& op = program_.op(i);
  const Geometry& g = geometry(op.node);
  const Layer& l = layer(op.node);
  const bool hand_back = op.emission[0].needed;
  const bool bias = l.bias != nullptr && program_.tensor(op.out).norm < 0;
  gather_back_weights(l, g.channels * g.phases());
  const Index pieces = blocks_ * g.bands;
  const Index chunks = std::min(pieces, plan_.layers[static_cast<std::size_t>(op.node)].chunks);
  const Index size = l.kept + node(op.node).whole_channels;
  pool_.run(chunks, [&](Index thread, Index chunk) {
    float* inputs = scratch(thread);
    float* gradients = inputs + ceil_div(g.in_floats, 16) * 16;
    float* rows = gradients + ceil_div(g.out_floats, 16) * 16;
    float* sums = at<float>(plan_.partials) + chunk * size;
    std::fill_n(sums, size, 0.0F);
    for (Index piece = chunk * pieces / chunks; piece < (chunk + 1) * pieces / chunks; ++piece) {
      const Index block = piece / g.bands, first = piece % g.bands * g.band;
      load_gradients(op, g, block, first, 0, g.filters, bias, gradients);
      if (hand_back) hand_back_piece(i, g, block, first, piece, gradients, rows);
      const Index count = std::min(g.band, g.y.out - first);
      if (!pass_.keep_gradients || count <= 0) continue;
      load_piece(op, g, block, first, false, inputs);
      for (Index f = 0; f < g.filters; ++f) {
        const float* d = gradients + f * g.out_plane - g.y.back_min * g.out_pitch -
                         g.x.back_min * lanes_;
        const Index row = l.numbers[f], begin = l.row_begin[row];
        kernels_.weight_gradient({inputs, g.in_pitch, d, g.out_pitch, count, g.x.out,
                                  l.offsets + begin, l.row_begin[row + 1] - begin, sums + begin});
        if (bias) sums[l.kept + row] += kernels_.sum(d, g.out_pitch, count, g.x.out);
      }
    }
  });
  if (hand_back) collect_sums(i, 0, pieces);
  if (pass_.keep_gradients) sum_chunks(op, chunks);
}

void Network::hand_back_piece(int i, const Geometry& g, Index block, Index first, Index piece,
                              const float* gradients, float* rows) {
  const Op& op = program_.op(i);
  const Layer& l = layer(op.node);
  const Index top = first * g.y.stride;
  const Index count = std::min(g.band * g.y.stride, g.y.in - top);
  for (Index c = 0; c < g.channels; ++c) {
    const Index bucket = c * g.phases();
    const bool empty = l.back_begin[bucket] == l.back_begin[bucket + g.phases()];
    EmitRows e{};
    if (count > 0 && !(empty && writes_nothing(i, 0))) {
      for (Index phase = 0; phase < g.phases(); ++phase) {
        const Index y = phase / g.x.stride, x = phase % g.x.stride;
        const Index begin = l.back_begin[bucket + phase];
        const Index phase_rows = ceil_div(count - y, g.y.stride);
        const Index phase_columns = ceil_div(g.x.in - x, g.x.stride);
        if (phase_rows <= 0 || phase_columns <= 0) continue;
        kernels_.gather({gradients, g.out_pitch, l.back_offsets + begin, l.back_weights + begin,
                         l.back_begin[bucket + phase + 1] - begin, rows + y * g.row_pitch + x * lanes_,
                         g.y.stride * g.row_pitch, g.x.stride * lanes_, phase_rows, phase_columns});
      }
      e = emission_of(i, 0, c, ((block * g.channels + c) * g.y.in + top) * g.x.in * lanes_);
      e.rows = rows;
      e.pitch = g.row_pitch;
      e.count = count;
      e.columns = g.x.in;
      e.row_stride = g.x.in * lanes_;
      e.ahead = g.y.in * g.x.in * lanes_;
      kernels_.emit_rows(e);
    }
    keep_sums(e, piece, c, g.channels);
  }
}

// The same order for any number of threads.
void Network::sum_chunks(const Op& op, Index chunks) {
  const Layer& l = layer(op.node);
  const Index filters = node(op.node).whole_channels, size = l.kept + filters;
  const float* partials = at<float>(plan_.partials);
  const double unscale = 1.0 / static_cast<double>(loss_scale_);
  const auto total = [&](Index j) {
    double sum = 0;
    for (Index chunk = 0; chunk < chunks; ++chunk)
      sum += static_cast<double>(partials[chunk * size + j]);
    return static_cast<float>(sum * unscale);
  };
  for (Index j = 0; j < l.kept; ++j) l.gradient[j] = total(j);
  if (l.bias != nullptr)
    for (Index f = 0; f < filters; ++f) l.bias_gradient[f] = total(l.kept + f);
}

const float* Network::linear_gradients(const Op& op) {
  if (bytes_ == 4) return reinterpret_cast<const float*>(gradient(op.out, 0));
  const Index neurons = node(op.node).channels;
  float* copy = at<float>(plan_.partials) + blocks_ * node(op.node).in.size() * lanes_;
  pool_.run(blocks_, [&](Index, Index block) {
    LoadGradient rows = gradient_rows(op.out, block, 0, block * neurons * lanes_);
    rows.columns = rows.width = neurons;
    kernels_.load_gradient(rows, copy + block * neurons * lanes_);
  });
  return copy;
}

constexpr Index NEURON_GROUP = 16;

void Network::linear_backward(int i) {
  const Op& op = program_.op(i);
  const Layer& l = layer(op.node);
  const Index inputs = node(op.node).in.size(), neurons = node(op.node).channels;
  const float* d = linear_gradients(op);
  if (op.emission[0].needed) {
    gather_back_weights(l, inputs);
    const Shape shape = program_.tensor(op.in[0].tensor).shape;
    pool_.run(shape.channels, [&](Index thread, Index channel) {
      float* rows = scratch(thread);
      EmitRows total{};
      for (Index p = channel * shape.plane(); p < (channel + 1) * shape.plane(); ++p) {
        const Index begin = l.back_begin[p];
        kernels_.gather({d, neurons * lanes_, l.back_offsets + begin, l.back_weights + begin,
                         l.back_begin[p + 1] - begin, rows, lanes_, lanes_, blocks_, 1});
        EmitRows e = emission_of(i, 0, channel, p * lanes_);
        e.rows = rows;
        e.pitch = lanes_;
        e.count = blocks_;
        e.columns = 1;
        e.row_stride = inputs * lanes_;
        kernels_.emit_rows(e);
        total.sum += e.sum;
        total.product[0] += e.product[0];
        total.product[1] += e.product[1];
      }
      keep_sums(total, 0, channel, shape.channels);
    });
    collect_sums(i, 0, 1);
  }
  if (!pass_.keep_gradients) return;
  const float* x = linear_inputs(op);
  std::fill_n(l.gradient, l.kept, 0.0F);
  if (l.bias != nullptr) std::fill_n(l.bias_gradient, node(op.node).whole_channels, 0.0F);
  const float unscale = 1.0F / loss_scale_;
  pool_.run(ceil_div(neurons, NEURON_GROUP), [&](Index, Index group) {
    const Index end = std::min(neurons, (group + 1) * NEURON_GROUP);
    for (Index f = group * NEURON_GROUP; f < end; ++f) {
      const Index row = l.numbers[f];
      const Index begin = l.row_begin[row], count = l.row_begin[row + 1] - begin;
      kernels_.weight_gradient({x, inputs * lanes_, d + f * lanes_, neurons * lanes_, blocks_, 1,
                                l.offsets + begin, count, l.gradient + begin});
      for (Index j = begin; j < begin + count; ++j) l.gradient[j] *= unscale;
      if (l.bias != nullptr)
        l.bias_gradient[row] = unscale * kernels_.sum(d + f * lanes_, neurons * lanes_, blocks_, 1);
    }
  });
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
