// Sparse convolution, forward and backward, a piece (block of images, band of rows) at a time.
#include "network.h"

namespace fedtiny {

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
        to[2] = store.pilot;
      }
    }
  });
  if (sums) finish_norm(follows, g.bands, g.band);
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
  l.gather_back_weights(g.channels * g.phases());
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

}  // namespace fedtiny
