// Sparse convolution, forward and backward, a piece (block of images, band of rows) at a time, and
// in it one group of channels after the other.
#include "convolution_run.h"

namespace fedtiny {
namespace {

// Calls `work` with the first of a few numbers that can be done together, and how many they are.
template <class Work>
void each_few(Index first, Index count, bool together, const Work& work) {
  for (Index i = 0; i < count;) {
    const Index few = together && i + DENSE_FILTERS <= count ? DENSE_FILTERS : 1;
    work(first + i, few);
    i += few;
  }
}

struct Convolution : ConvolutionRun {
  using ConvolutionRun::ConvolutionRun;

  void forward() const {
    const int norm = run.measured_norm(op);
    const bool stream = run.streams(op.out);
    run.pool.run(pieces(), [&](Index thread, Index i) {
      const Piece piece(g, i);
      for (const Group& group : groups) {
        if (output_rows(piece) > 0) load_inputs(piece, group, false, inputs(thread));
        each_few(group.filter, group.filters, is_dense, [&](Index first, Index few) {
          if (output_rows(piece) > 0) gather_filters(piece, first, few, thread);
          for (Index f = first; f < first + few; ++f) {
            float* rows = gradients(thread) + (f - first) * g.row_floats;
            const BatchSums sums = stored(piece, f, rows, norm >= 0, stream);
            if (norm >= 0) run.batch_sums(i * g.filters + f) = sums;
          }
        });
      }
    });
    if (norm >= 0) measure_batch(run, norm, g.bands, g.band);
  }

  // The rows of one filter, or of a few that keep all weights.
  void gather_filters(const Piece& piece, Index first, Index few, Index thread) const {
    const Row r = row(first);
    gather_some({inputs(thread), g.in_pitch, l.offsets.from(r.begin), l.weight.values + r.begin,
                 r.count, gradients(thread), g.row_pitch, lanes, output_rows(piece), g.x.out},
                few, r.count);
  }

  void gather_some(const Gather& gather, Index few, Index weight_step) const {
    if (few > 1)
      run.kernels.gather_dense({gather, weight_step, g.row_floats});
    else
      run.kernels.gather(gather);
  }

  BatchSums stored(const Piece& piece, Index f, float* rows, bool sums, bool stream) const {
    if (output_rows(piece) <= 0) return {};
    const Index first = (piece.block * g.filters + f) * g.y.out + piece.first;
    StoreRows store = run.stored({rows, g.row_pitch, output_rows(piece), g.x.out, g.x.out * lanes},
                                 run.value(op.out, first * g.x.out * lanes));
    store.lanes = run.lanes_in(piece.block);
    store.bias = has_bias() ? l.bias.values[row(f).number] : 0.0F;
    store.sums = sums;
    store.stream = stream;
    return run.kernels.store_rows(store);
  }

  void backward() const {
    const Index chunks = std::min(pieces(), l.chunks), size = l.kept + node.whole_channels;
    if (op.in[0].grad.needed) order_back_weights(groups);
    run.pool.run(chunks, [&](Index thread, Index chunk) {
      float* sums = run.storage.partials + chunk * size;
      std::fill_n(sums, size, 0.0F);
      for (Index i = chunk * pieces() / chunks; i < (chunk + 1) * pieces() / chunks; ++i) {
        const Piece piece(g, i);
        for (const Group& group : groups) {
          load_gradients(piece, group.filter, group.filters, learns_bias(), gradients(thread));
          if (op.in[0].grad.needed) input_grad(piece, group, gradients(thread));
          if (!run.pass.learns() || output_rows(piece) <= 0) continue;
          load_inputs(piece, group, false, inputs(thread));
          add_weight_gradients(piece, group, thread, sums);
        }
      }
    });
    if (op.in[0].grad.needed) run.collect_sums(op.in[0], pieces());
    if (run.pass.learns()) sum_chunks(chunks);
  }

  void add_weight_gradients(const Piece& piece, const Group& group, Index thread,
                            float* sums) const {
    const Index rows = output_rows(piece);
    if (is_dense)
      add_whole_gradients(piece, group, group.filters, thread,
                          sums + group.filter * node.filter_size());
    for (Index f = 0; f < group.filters; ++f) {
      const float* d = gradients(thread) + f * g.out_plane + g.first_output();
      const Row r = row(group.filter + f);
      if (!is_dense)
        run.kernels.weight_gradient({inputs(thread), g.in_pitch, d, g.out_pitch, rows, g.x.out,
                                     l.offsets.from(r.begin), r.count, sums + r.begin});
      if (learns_bias()) sums[l.kept + r.number] += run.kernels.sum(d, g.out_pitch, rows, g.x.out);
    }
  }

  void input_grad(const Piece& piece, const Group& group, float* d) const {
    const Index count = std::min(g.band * g.y.stride, g.y.in - piece.first * g.y.stride);
    const InputGrad& plan = op.in[0].grad;
    float* rows = d + rounded_up(g.out_floats);
    each_few(group.channel, group.channels, is_dense, [&](Index first, Index few) {
      const Index bucket = first * g.phases();
      const bool zero = l.back_begin[bucket] == l.back_begin[bucket + g.phases()];
      // Adding zeros to a gradient that nothing finishes yet changes nothing.
      const bool work = count > 0 && !(zero && plan.add && !plan.finishes);
      if (work) gather_back(bucket, few, count, d, rows);
      for (Index c = first; c < first + few; ++c)
        run.grad_sums(piece.number * g.channels + c) =
            work ? accumulated(piece, c, count, rows + (c - first) * g.row_floats) : GradSums{};
    });
  }

  GradSums accumulated(const Piece& piece, Index c, Index count, float* rows) const {
    const Index first = (piece.block * g.channels + c) * g.y.in + piece.first * g.y.stride;
    AccumulateGrad grad = run.input_grad({rows, g.row_pitch, count, g.x.in, g.x.in * lanes},
                                         op.in[0], c, first * g.x.in * lanes);
    grad.ahead = g.y.in * g.x.in * lanes;
    return run.kernels.accumulate_grad(grad);
  }

  // The gradient of one channel, or of a few that are read alike: what is at the same place modulo
  // the stride is done together.
  void gather_back(Index bucket, Index few, Index count, const float* d, float* rows) const {
    for (Index phase = 0; phase < g.phases(); ++phase) {
      const Index y = phase / g.x.stride, x = phase % g.x.stride;
      const Index begin = l.back_begin[bucket + phase];
      const Index phase_rows = ceil_div(count - y, g.y.stride);
      const Index phase_columns = ceil_div(g.x.in - x, g.x.stride);
      if (phase_rows <= 0 || phase_columns <= 0) continue;
      const Index next = few > 1 ? l.back_begin[bucket + g.phases() + phase] - begin : 0;
      gather_some({d, g.out_pitch, l.back_offsets.from(begin), run.storage.back_weights + begin,
                   l.back_begin[bucket + phase + 1] - begin, rows + y * g.row_pitch + x * lanes,
                   g.y.stride * g.row_pitch, g.x.stride * lanes, phase_rows, phase_columns},
                  few, next);
    }
  }

  // The same order for any number of threads.
  void sum_chunks(Index chunks) const {
    const Index size = l.kept + node.whole_channels;
    const double unscale = 1.0 / static_cast<double>(run.loss_scale);
    for (Index j = 0; j < (l.bias.values != nullptr ? size : l.kept); ++j) {
      double sum = 0;
      for (Index chunk = 0; chunk < chunks; ++chunk)
        sum += static_cast<double>(run.storage.partials[chunk * size + j]);
      float& gradient = l.weight.gradient[j];  // the bias follows the weights
      const auto own = static_cast<float>(sum * unscale);
      gradient = node.adds_gradient ? gradient + own : own;
    }
    if (l.filled()) clear_pruned();
  }

  // What the mask does not keep stays zero.
  void clear_pruned() const {
    for (Index j = 0; j < l.kept; ++j)
      if (!l.keeps(j)) l.weight.gradient[j] = 0.0F;
  }
};

Shape shape(Node& node) {
  check_filters(node);
  check_groups(node, node.channels);
  need(node.ceil == 0, node, "has no ceil mode");
  return windowed_shape(node, node.channels);
}

Index scratch(const Node& node, const Options& o, Index) {
  const Geometry g = geometry_of(node, o);
  const Index few = node.groups > 1 ? DENSE_FILTERS : 1;
  return g.in_floats + g.out_floats + few * g.row_floats + SPARE * o.lanes;
}

void forward(Run& run, const Op& op) { Convolution(run, op).forward(); }
void backward(Run& run, const Op& op) { Convolution(run, op).backward(); }

}  // namespace

const Operation operations::convolution = {
    "convolution",
    1,
    shape,
    forward,
    backward,
    /*rereads_input=*/true,
    /*leads_norm=*/true,
    scratch,
    convolution_filter_gradients,
};

}  // namespace fedtiny
