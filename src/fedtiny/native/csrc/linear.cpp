// Sparse linear layers: a convolution whose rows are the blocks of images.
#include "network.h"

namespace fedtiny {

constexpr Index NEURON_GROUP = 16;  // neurons of one piece of work

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

void Network::linear_backward(int i) {
  const Op& op = program_.op(i);
  const Layer& l = layer(op.node);
  const Index inputs = node(op.node).in.size(), neurons = node(op.node).channels;
  const float* d = linear_gradients(op);
  if (op.emission[0].needed) {
    l.gather_back_weights(inputs);
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

}  // namespace fedtiny
