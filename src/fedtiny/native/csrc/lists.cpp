// From the positions of kept weights to the offsets that kernels follow.
#include "network.h"

namespace fedtiny {
namespace {

std::int32_t small(Index i) { return static_cast<std::int32_t>(i); }

struct Place {
  Index filter, input, y, x;
  Place(const Node& n, Index position) {
    const Index taps = n.kind == FEDTINY_LINEAR ? 1 : n.kernel[0] * n.kernel[1];
    const Index columns = n.kind == FEDTINY_LINEAR ? 1 : n.kernel[1];
    filter = position / n.filter_size();
    const Index rest = position % n.filter_size();
    input = rest / taps;
    y = rest % taps / columns;
    x = rest % columns;
  }
};

std::vector<std::int32_t> places_of(const std::vector<std::int32_t>& numbers, Index whole) {
  std::vector<std::int32_t> places(static_cast<std::size_t>(whole), 0);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    places[static_cast<std::size_t>(numbers[i])] = small(static_cast<Index>(i));
  return places;
}

}  // namespace

// The place among what is there of each input channel (of a linear layer: value) of the whole
// layer. What is not there is read by no filter that is; it gets 0.
std::vector<std::int32_t> Network::input_numbers(int i) const {
  return places_of(channels_[static_cast<std::size_t>(node(i).first)], node(i).whole_inputs);
}

void Network::build_lists(int i, const std::int32_t* positions) {
  const Node& n = node(i);
  const Layer& l = layer(i);
  const bool all = positions == nullptr;
  const std::vector<std::int32_t> inputs = input_numbers(i);
  Index before = -1;
  for (Index j = 0; j < l.kept; ++j) {
    const Index position = all ? j : positions[j];
    if (position <= before || position >= n.weights())
      refuse("node " + std::to_string(i) + ": kept positions must be sorted, distinct and below " +
             std::to_string(n.weights()));
    before = position;
    l.positions[j] = small(position);
    Place p(n, position);
    ++l.row_begin[p.filter + 1];
    p.input = inputs[static_cast<std::size_t>(p.input)];
    if (n.kind == FEDTINY_LINEAR) {
      l.offsets[j] = small(p.input * lanes_);
      continue;
    }
    const Geometry& g = geometry(i);
    const Index phase = g.y.phase(p.y) * g.x.stride + g.x.phase(p.x);
    l.offsets[j] = small(p.input * g.in_plane + phase * g.in_phase +
                         (g.y.reach(p.y) - g.y.reach_min) * g.in_pitch +
                         (g.x.reach(p.x) - g.x.reach_min) * lanes_);
  }
  for (Index f = 0; f < n.whole_channels; ++f) l.row_begin[f + 1] += l.row_begin[f];
  build_back_lists(i);
}

// The same weights by what they read: by channel, and within it by place modulo the stride.
void Network::build_back_lists(int i) {
  const Node& n = node(i);
  const Layer& l = layer(i);
  const bool linear = n.kind == FEDTINY_LINEAR;
  const Index buckets = linear ? n.in.size() : n.in.channels * geometry(i).phases();
  const auto bucket = [&](const Place& p) {
    if (linear) return p.input;
    const Geometry& g = geometry(i);
    return p.input * g.phases() + g.y.phase(p.y) * g.x.stride + g.x.phase(p.x);
  };
  const std::vector<std::int32_t> inputs = input_numbers(i);
  const auto& there = channels_[static_cast<std::size_t>(i)];
  const std::vector<std::int32_t> filters = places_of(there, n.whole_channels);
  const auto each_live = [&](auto&& visit) {
    for (const std::int32_t filter : there)
      for (Index j = l.row_begin[filter]; j < l.row_begin[filter + 1]; ++j) {
        Place p(n, l.positions[j]);
        p.input = inputs[static_cast<std::size_t>(p.input)];
        p.filter = filters[static_cast<std::size_t>(p.filter)];
        visit(p, j);
      }
  };
  each_live([&](const Place& p, Index) { ++l.back_begin[bucket(p) + 1]; });
  for (Index b = 0; b < buckets; ++b) l.back_begin[b + 1] += l.back_begin[b];
  std::vector<std::int32_t> next(l.back_begin, l.back_begin + buckets);
  each_live([&](const Place& p, Index j) {
    const Index to = next[static_cast<std::size_t>(bucket(p))]++;
    l.back_index[to] = small(j);
    if (linear) {
      l.back_offsets[to] = small(p.filter * lanes_);
      return;
    }
    const Geometry& g = geometry(i);
    l.back_offsets[to] = small(p.filter * g.out_plane +
                               (-g.y.reach(p.y) - g.y.back_min) * g.out_pitch +
                               (-g.x.reach(p.x) - g.x.back_min) * lanes_);
  });
}

}  // namespace fedtiny
