// A convolution in a pass: its pieces (a block of images, a band of rows), its groups, and the rows
// that a piece needs of a group.
#pragma once
#include "run.h"

namespace fedtiny {

struct Piece {
  Index number, block, first;  // first: row of the output
  Piece(const Geometry& g, Index i) : number(i), block(i / g.bands), first(i % g.bands * g.band) {}
};

struct ConvolutionRun : LayerRun {
  using LayerRun::LayerRun;

  Index pieces() const { return blocks * g.bands; }
  Index output_rows(const Piece& piece) const { return std::min(g.band, g.y.out - piece.first); }
  // Scratch has the input rows of a piece, the gradients of its outputs, and rows to be stored.
  float* inputs(Index thread) const { return run.scratch(thread); }
  float* gradients(Index thread) const { return inputs(thread) + rounded_up(g.in_floats); }
  // A bias before batch norm is left out of what is stored; its gradient is zero, unless
  // statistics are frozen.
  bool has_bias() const { return l.bias.values != nullptr && run.output(op).norm < 0; }
  bool learns_bias() const {
    return l.bias.values != nullptr && (run.output(op).norm < 0 || run.pass.freeze_norms != 0);
  }

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

  // The whole gradient of some filters of a group, whose gradients and inputs are in scratch.
  void add_whole_gradients(const Piece& piece, const Group& group, Index filters, Index thread,
                           float* sums) const {
    const auto count = static_cast<Index>(taps.size());
    for (Index c = 0; c < group.channels; ++c)
      run.kernels.dense_gradient({inputs(thread) + c * g.in_plane, g.in_pitch,
                                  gradients(thread) + g.first_output(), g.out_pitch, g.out_plane,
                                  output_rows(piece), g.x.out, filters, taps.data(), count,
                                  sums + c * count, group.channels * count});
  }

  // Where each weight that reads one channel finds it.
  std::vector<std::int32_t> tap_offsets() const {
    std::vector<std::int32_t> found;
    for (Index y = 0; y < g.y.kernel; ++y)
      for (Index x = 0; x < g.x.kernel; ++x)
        found.push_back(static_cast<std::int32_t>(g.tap_offset(y, x)));
    return found;
  }

  const Table<Group> groups = groups_of(run.storage, node);
  const std::vector<std::int32_t> taps = tap_offsets();
  // Groups that keep all weights: filters, and channels, that read the same are done together.
  const bool is_dense = node.groups > 1 && l.kept == node.weights() &&
                        g.channels == node.whole_inputs&& g.filters == node.whole_channels;
};

// pruned_gradients.cpp
FilterGradients convolution_filter_gradients(Run& run, const Op& op);

}  // namespace fedtiny
