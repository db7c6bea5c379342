// How a convolution is cut into pieces of work, and how its scratch is laid out.
//
// A piece is a block of images times a band of rows. For a band the rows of the input that it needs
// lie in scratch as `stride` x `stride` interleaved planes a channel, so that every tap of a kernel
// is a constant offset; the gradients of the output that the band's input rows need lie beside
// them. Groups are done one after the other, so scratch has the channels of one. A linear layer is
// a convolution of one tap on planes of one value.
#pragma once
#include <algorithm>

#include "graph.h"

namespace fedtiny {

inline Index floor_div(Index a, Index b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
inline Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

struct Axis {
  Index in, out, kernel, stride, padding, dilation;
  // Of taps, in steps of the stride; of outputs that an input position feeds, in outputs.
  Index reach_min = reach(0), reach_max = reach(kernel - 1);
  Index back_min = std::min<Index>(0, -reach_max), back_max = std::max<Index>(0, -reach_min);
  // Outputs, or input positions over the stride if those are more.
  Index positions = std::max(out, ceil_div(in, stride));

  Index phase(Index tap) const { return tap * dilation - padding - stride * reach(tap); }
  Index reach(Index tap) const { return floor_div(tap * dilation - padding, stride); }
  Index reaches() const { return reach_max - reach_min; }
  Index backs() const { return back_max - back_min; }
};

constexpr Index SPARE = 4;  // vectors beside a row that a kernel may touch for nothing
constexpr Index MAX_SCRATCH = Index{7} << 18;  // bytes of input rows: about a second-level cache
constexpr Index BAND_ROWS = 8;
constexpr Index MIN_PIECES = 4;

struct Geometry {
  Axis y, x;
  Index channels, filters, lanes;
  Index group_channels, group_filters;  // of a group at most
  Index band, bands;
  Index in_pitch, in_phase, in_plane, in_floats;  // input rows in scratch
  Index out_pitch, out_plane, out_floats;         // gradient rows in scratch
  Index row_pitch, row_floats;                    // one channel's rows before they are stored

  Geometry(const Node& n, Index lanes_, Index blocks)
      : y{n.in.height, n.out.height, n.kernel[0], n.stride[0], n.padding[0], n.dilation[0]},
        x{n.in.width, n.out.width, n.kernel[1], n.stride[1], n.padding[1], n.dilation[1]},
        channels(n.in.channels),
        filters(n.channels),
        lanes(lanes_),
        group_channels(std::min(channels, n.group_inputs())),
        group_filters(std::min(filters, n.group_filters())) {
    in_pitch = (x.out + x.reaches()) * lanes;
    band = chosen_band(blocks, n.group_inputs());
    bands = ceil_div(y.positions, band);
    in_phase = sized(band + y.reaches(), in_pitch);
    in_plane = sized(phases(), in_phase);
    in_floats = sized(group_channels, in_plane) + SPARE * lanes;
    out_pitch = (x.positions + x.backs()) * lanes;
    out_plane = sized(band + y.backs(), out_pitch);
    out_floats = sized(group_filters, out_plane) + SPARE * lanes;
    row_pitch = sized(x.positions + SPARE, x.stride, lanes);
    row_floats = sized(band, y.stride, row_pitch);
    if (std::max(in_floats, out_floats) > INT32_MAX) refuse("a convolution is too large");
  }

  // Whether two bytes are too few for where something lies in scratch, in vectors.
  bool wide() const { return std::max(in_floats, out_floats) / lanes > UINT16_MAX; }
  Index phases() const { return y.stride * x.stride; }
  Index buckets() const { return channels * phases(); }
  Index phase(Index tap_y, Index tap_x) const { return y.phase(tap_y) * x.stride + x.phase(tap_x); }

  // Where a tap finds its input among a channel's rows in scratch, and the gradient of its output
  // among a filter's.
  Index tap_offset(Index tap_y, Index tap_x) const {
    return phase(tap_y, tap_x) * in_phase + (y.reach(tap_y) - y.reach_min) * in_pitch +
           (x.reach(tap_x) - x.reach_min) * lanes;
  }
  Index back_offset(Index tap_y, Index tap_x) const {
    return (-y.reach(tap_y) - y.back_min) * out_pitch + (-x.reach(tap_x) - x.back_min) * lanes;
  }
  // From the gradient rows of a filter in scratch to the first of its outputs.
  Index first_output() const { return -y.back_min * out_pitch - x.back_min * lanes; }

 private:
  // By all channels, whatever is left out: so leaving some out never takes more memory here.
  Index chosen_band(Index blocks, Index whole_channels) const {
    const Index row = sized(phases(), whole_channels, in_pitch, 4);
    Index rows = std::min(BAND_ROWS, y.positions);
    while (rows > 1 && row * (rows + y.reaches()) > MAX_SCRATCH) --rows;
    rows = ceil_div(y.positions, ceil_div(y.positions, rows));  // bands of one size
    while (rows > 1 && blocks * ceil_div(y.positions, rows) < MIN_PIECES) rows = ceil_div(rows, 2);
    return rows;
  }
};

}  // namespace fedtiny
