// Sparse linear layers: a convolution whose rows are the blocks of images.
#include "run.h"

namespace fedtiny {
namespace {

constexpr Index NEURON_GROUP = 16;  // neurons of one piece of work

struct Linear : LayerRun {
  using LayerRun::LayerRun;
  const Index in_pitch = node.in.size() * lanes, out_pitch = node.channels * lanes;

  template <class Work>  // (thread, neuron)
  void each_neuron(const Work& work) const {
    run.pool.run(ceil_div(node.channels, NEURON_GROUP), [&](Index thread, Index group) {
      const Index end = std::min<Index>(node.channels, (group + 1) * NEURON_GROUP);
      for (Index f = group * NEURON_GROUP; f < end; ++f) work(thread, f);
    });
  }

  // What it reads as [block][input][lane] floats: where it lies, or a copy.
  const float* inputs() const {
    const View& view = op.in[0];
    if (run.bytes == 4 && view.plain())
      return reinterpret_cast<const float*>(run.value(view.tensor, 0));
    float* copy = run.storage.partials;
    run.each_plane(run.tensor(view).shape, [&](const Plane& plane) {
      run.kernels.load_rows(run.view_rows(view, plane.channel, plane.offset), copy + plane.offset);
    });
    return copy;
  }

  const float* gradients() const {
    if (run.bytes == 4) return reinterpret_cast<const float*>(run.gradient(op.out, 0));
    float* copy = run.storage.partials + blocks * in_pitch;
    run.pool.run(blocks, [&](Index thread, Index block) {
      const Plane plane = {thread, block, block, 0, block * out_pitch};
      run.kernels.load_rows(run.gradient_row(op.out, plane, node.channels), copy + plane.offset);
    });
    return copy;
  }

  void forward() const {
    const float* x = inputs();
    each_neuron([&](Index thread, Index f) {
      float* rows = run.scratch(thread);
      const Row r = row(f);
      run.kernels.gather({x, in_pitch, l.offsets.from(r.begin), l.weight.values + r.begin, r.count,
                          rows, lanes, lanes, blocks, 1});
      StoreRows store =
          run.stored({rows, lanes, blocks, 1, out_pitch}, run.value(op.out, f * lanes));
      store.bias = l.bias.values != nullptr ? l.bias.values[r.number] : 0.0F;
      run.kernels.store_rows(store);
    });
  }

  void backward() const {
    const float* d = gradients();
    if (op.in[0].grad.needed) input_grad(d);
    if (run.pass.learns()) weight_gradient(inputs(), d);
  }

  void input_grad(const float* d) const {
    order_back_weights(groups_of(run.storage, node));
    const Shape shape = run.tensor(op.in[0]).shape;
    run.pool.run(shape.channels, [&](Index thread, Index channel) {
      GradSums total{};
      for (Index p = channel * shape.plane(); p < (channel + 1) * shape.plane(); ++p) {
        const GradSums sums = input_grad_at(p, channel, d, run.scratch(thread));
        total.sum += sums.sum;
        total.product[0] += sums.product[0];
        total.product[1] += sums.product[1];
      }
      run.grad_sums(channel) = total;
    });
    run.collect_sums(op.in[0], 1);
  }

  GradSums input_grad_at(Index input, Index channel, const float* d, float* rows) const {
    const Index begin = l.back_begin[input];
    run.kernels.gather({d, out_pitch, l.back_offsets.from(begin), run.storage.back_weights + begin,
                        l.back_begin[input + 1] - begin, rows, lanes, lanes, blocks, 1});
    return run.kernels.accumulate_grad(
        run.input_grad({rows, lanes, blocks, 1, in_pitch}, op.in[0], channel, input * lanes));
  }

  void weight_gradient(const float* x, const float* d) const {
    const float unscale = 1.0F / run.loss_scale;
    const bool adds = node.adds_gradient;  // to what a later use has left
    if (!adds) std::fill_n(l.weight.gradient, l.kept, 0.0F);
    if (!adds && l.bias.values != nullptr) std::fill_n(l.bias.gradient, node.whole_channels, 0.0F);
    each_neuron([&](Index, Index f) {
      const Row r = row(f);
      float* gradient = l.weight.gradient + r.begin;
      for (Index j = 0; adds && j < r.count; ++j) gradient[j] *= run.loss_scale;
      run.kernels.weight_gradient({x, in_pitch, d + f * lanes, out_pitch, blocks, 1,
                                   l.offsets.from(r.begin), r.count, gradient});
      for (Index j = 0; j < r.count; ++j) gradient[j] *= unscale;
      if (l.bias.values == nullptr) return;
      const float own = unscale * run.kernels.sum(d + f * lanes, out_pitch, blocks, 1);
      float& bias = l.bias.gradient[r.number];
      bias = adds ? bias + own : own;
    });
  }
};

Shape shape(Node& node) {
  check_filters(node);
  for (int axis = 0; axis < 2; ++axis) {
    node.kernel[axis] = node.stride[axis] = node.dilation[axis] = 1;
    node.padding[axis] = node.padding_end[axis] = 0;
  }
  node.groups = 1;
  if (node.in.plane() > 1) node.kind = FEDTINY_CONVOLUTION;  // over the channels, at each place
  return {node.channels, node.in.height, node.in.width};
}

Index scratch(const Node&, const Options& o, Index images) {
  return o.blocks(images) * o.lanes * 2 + SPARE * o.lanes;
}

void forward(Run& run, const Op& op) { Linear(run, op).forward(); }
void backward(Run& run, const Op& op) { Linear(run, op).backward(); }

// Every input is a tap.
FilterGradients filter_gradients(Run& run, const Op& op) {
  const Linear linear(run, op);
  const float *x = linear.inputs(), *d = linear.gradients();
  const Index inputs = linear.node.filter_size();
  Table<std::int32_t> taps(inputs);
  for (Index i = 0; i < inputs; ++i) taps[i] = static_cast<std::int32_t>(i * run.lanes);
  return [=](Index, Index first, Index filters, float* slab) {
    linear.run.kernels.dense_gradient({x, inputs * linear.lanes, d + first * linear.lanes,
                                       linear.out_pitch, linear.lanes, linear.blocks, 1, filters,
                                       taps.data(), inputs, slab, inputs});
  };
}

}  // namespace

const Operation operations::linear = {
    "linear",
    1,
    shape,
    forward,
    backward,
    /*rereads_input=*/true,
    /*leads_norm=*/false,
    scratch,
    filter_gradients,
};

}  // namespace fedtiny
