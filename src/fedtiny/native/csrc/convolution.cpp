// Sparse convolution, forward and backward, a piece (block of images, band of rows) at a time, and
// in it a group of channels after the other.
#include "run.h"

namespace fedtiny {
namespace {

struct Piece {
  Index number, block, first;  // first: row of the output
  Piece(const Geometry& g, Index i) : number(i), block(i / g.bands), first(i % g.bands * g.band) {}
};

struct Convolution : LayerRun {
  using LayerRun::LayerRun;

  Index pieces() const { return blocks * g.bands; }
  Index output_rows(const Piece& piece) const { return std::min(g.band, g.y.out - piece.first); }
  // Scratch has the input rows of a piece, the gradients of its outputs, and rows to be stored.
  float* inputs(Index thread) const { return run.scratch(thread); }
  float* gradients(Index thread) const { return inputs(thread) + rounded_up(g.in_floats); }
  // A bias before batch norm is left out of what is stored; its gradient is zero.
  bool has_bias() const { return l.bias.values != nullptr && run.output(op).norm < 0; }

  // The input rows that a band of outputs needs: of all channels of a group, or of those with kept
  // weights.
  void load_inputs(const Piece& piece, const Group& group, bool all, float* scratch) const {
    const Index plane = run.tensor(op.in[0]).shape.plane() * lanes;
    for (Index c = group.channel; c < group.channel + group.channels; ++c) {
      LoadRows rows = run.view_rows(op.in[0], c, (piece.block * g.channels + c) * plane);
      rows.rows = g.band + g.y.reaches();
      rows.columns = g.x.out + g.x.reaches();
      rows.row_step = g.y.stride;
      rows.column_step = g.x.stride;
      rows.ahead = plane;
      for (Index phase = 0; phase < g.phases(); ++phase) {
        const Index bucket = c * g.phases() + phase;
        if (!all && l.back_begin[bucket] == l.back_begin[bucket + 1]) continue;
        rows.first_row = g.y.stride * (piece.first + g.y.reach_min) + phase / g.x.stride;
        rows.first_column = g.x.stride * g.x.reach_min + phase % g.x.stride;
        const Index place = (c - group.channel) * g.in_plane + phase * g.in_phase;
        run.kernels.load_rows(rows, scratch + place);
      }
    }
  }

  // The gradients of outputs that a band of input rows needs: of all filters, or of those with
  // kept weights.
  void load_gradients(const Piece& piece, Index first, Index filters, bool all,
                      float* scratch) const {
    const Index plane = g.y.out * g.x.out * lanes;
    for (Index f = first; f < first + filters; ++f) {
      if (!all && row(f).count == 0) continue;
      LoadRows rows =
          run.gradient_rows(op.out, piece.block, f, (piece.block * g.filters + f) * plane);
      rows.ahead = plane;
      rows.first_row = piece.first + g.y.back_min;
      rows.rows = g.band + g.y.backs();
      rows.first_column = g.x.back_min;
      rows.columns = g.x.positions + g.x.backs();
      run.kernels.load_rows(rows, scratch + (f - first) * g.out_plane);
    }
  }

  void forward() const {
    const int norm = run.measured_norm(op);
    const bool stream = run.streams(op.out);
    run.pool.run(pieces(), [&](Index thread, Index i) {
      const Piece piece(g, i);
      for (const Group& group : groups) {
        if (output_rows(piece) > 0) load_inputs(piece, group, false, inputs(thread));
        for (Index f = group.filter; f < group.filter + group.filters; ++f) {
          const BatchSums sums = stored(piece, f, thread, norm >= 0, stream);
          if (norm >= 0) run.batch_sums(i * g.filters + f) = sums;
        }
      }
    });
    if (norm >= 0) measure_batch(run, norm, g.bands, g.band);
  }

  BatchSums stored(const Piece& piece, Index f, Index thread, bool sums, bool stream) const {
    if (output_rows(piece) <= 0) return {};
    StoreRows store = filtered(piece, f, inputs(thread), gradients(thread));
    store.sums = sums;
    store.stream = stream;
    return run.kernels.store_rows(store);
  }

  // One filter's rows of a piece, ready to be stored.
  StoreRows filtered(const Piece& piece, Index f, const float* from, float* outputs) const {
    const Row r = row(f);
    const Index rows = output_rows(piece);
    run.kernels.gather({from, g.in_pitch, l.offsets + r.begin, l.weight.values + r.begin, r.count,
                        outputs, g.row_pitch, lanes, rows, g.x.out});
    const Index first = (piece.block * g.filters + f) * g.y.out + piece.first;
    StoreRows store = run.stored({outputs, g.row_pitch, rows, g.x.out, g.x.out * lanes},
                                 run.value(op.out, first * g.x.out * lanes));
    store.lanes = run.lanes_in(piece.block);
    store.bias = has_bias() ? l.bias.values[r.number] : 0.0F;
    return store;
  }

  void backward() const {
    const Index chunks = std::min(pieces(), l.chunks), size = l.kept + node.whole_channels;
    l.gather_back_weights();
    run.pool.run(chunks, [&](Index thread, Index chunk) {
      float* sums = run.storage.partials + chunk * size;
      std::fill_n(sums, size, 0.0F);
      for (Index i = chunk * pieces() / chunks; i < (chunk + 1) * pieces() / chunks; ++i) {
        const Piece piece(g, i);
        for (const Group& group : groups) {
          load_gradients(piece, group.filter, group.filters, has_bias(), gradients(thread));
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
    for (Index f = 0; f < group.filters; ++f) {
      const float* d = gradients(thread) + f * g.out_plane + g.first_output();
      const Row r = row(group.filter + f);
      run.kernels.weight_gradient({inputs(thread), g.in_pitch, d, g.out_pitch, rows, g.x.out,
                                   l.offsets + r.begin, r.count, sums + r.begin});
      if (has_bias()) sums[l.kept + r.number] += run.kernels.sum(d, g.out_pitch, rows, g.x.out);
    }
  }

  void input_grad(const Piece& piece, const Group& group, float* d) const {
    const Index top = piece.first * g.y.stride;
    const Index count = std::min(g.band * g.y.stride, g.y.in - top);
    const InputGrad& plan = op.in[0].grad;
    float* rows = d + rounded_up(g.out_floats);
    for (Index c = group.channel; c < group.channel + group.channels; ++c) {
      const Index bucket = c * g.phases();
      const bool zero = l.back_begin[bucket] == l.back_begin[bucket + g.phases()];
      GradSums sums{};
      // Adding zeros to a gradient that nothing finishes yet changes nothing.
      if (count > 0 && !(zero && plan.add && !plan.finishes)) {
        gather_back(bucket, count, d, rows);
        const Index first = (piece.block * g.channels + c) * g.y.in + top;
        AccumulateGrad grad = run.input_grad({rows, g.row_pitch, count, g.x.in, g.x.in * lanes},
                                             op.in[0], c, first * g.x.in * lanes);
        grad.ahead = g.y.in * g.x.in * lanes;
        sums = run.kernels.accumulate_grad(grad);
      }
      run.grad_sums(piece.number * g.channels + c) = sums;
    }
  }

  // One channel's gradient: what is at the same place modulo the stride is done together.
  void gather_back(Index bucket, Index count, const float* d, float* rows) const {
    for (Index phase = 0; phase < g.phases(); ++phase) {
      const Index y = phase / g.x.stride, x = phase % g.x.stride;
      const Index begin = l.back_begin[bucket + phase];
      const Index phase_rows = ceil_div(count - y, g.y.stride);
      const Index phase_columns = ceil_div(g.x.in - x, g.x.stride);
      if (phase_rows <= 0 || phase_columns <= 0) continue;
      run.kernels.gather({d, g.out_pitch, l.back_offsets + begin, l.back_weights + begin,
                          l.back_begin[bucket + phase + 1] - begin,
                          rows + y * g.row_pitch + x * lanes, g.y.stride * g.row_pitch,
                          g.x.stride * lanes, phase_rows, phase_columns});
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
  }

  void filter_gradients(Index thread, Index first, Index filters,
                        const std::vector<std::int32_t>& taps, float* slab) const {
    for (const Group& group : groups) {
      const Index begin = std::max(first, group.filter);
      const Index end = std::min(first + filters, group.filter + group.filters);
      if (begin < end)
        filter_gradients(thread, group, begin, end - begin, taps,
                         slab + (begin - first) * node.filter_size());
    }
  }

  // The same of filters of one group.
  void filter_gradients(Index thread, const Group& group, Index first, Index filters,
                        const std::vector<std::int32_t>& taps, float* slab) const {
    const auto count = static_cast<Index>(taps.size());
    for (Index i = 0; i < pieces(); ++i) {
      const Piece piece(g, i);
      if (output_rows(piece) <= 0) continue;
      load_inputs(piece, group, true, inputs(thread));
      load_gradients(piece, first, filters, true, gradients(thread));
      for (Index c = 0; c < group.channels; ++c)
        run.kernels.dense_gradient({inputs(thread) + c * g.in_plane, g.in_pitch,
                                    gradients(thread) + g.first_output(), g.out_pitch, g.out_plane,
                                    output_rows(piece), g.x.out, filters, taps.data(), count,
                                    slab + c * count, group.channels * count});
    }
  }

  const Table<Group> groups = groups_of(run.storage, node);
};

Shape shape(Node& node) {
  check_filters(node);
  check_groups(node, node.channels);
  need(node.ceil == 0, node, "has no ceil mode");
  return windowed_shape(node, node.channels);
}

Index scratch(const Node& node, const Options& o, Index) {
  const Geometry g = geometry_of(node, o);
  return g.in_floats + g.out_floats + g.row_floats + SPARE * o.lanes;
}

void forward(Run& run, const Op& op) { Convolution(run, op).forward(); }
void backward(Run& run, const Op& op) { Convolution(run, op).backward(); }

FilterGradients filter_gradients(Run& run, const Op& op) {
  const Convolution convolution(run, op);
  std::vector<std::int32_t> taps;  // where each weight that reads one channel finds it
  for (Index y = 0; y < convolution.g.y.kernel; ++y)
    for (Index x = 0; x < convolution.g.x.kernel; ++x)
      taps.push_back(static_cast<std::int32_t>(convolution.g.tap_offset(y, x)));
  return [=](Index thread, Index first, Index filters, float* slab) {
    convolution.filter_gradients(thread, first, filters, taps, slab);
  };
}

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
    filter_gradients,
};

}  // namespace fedtiny
