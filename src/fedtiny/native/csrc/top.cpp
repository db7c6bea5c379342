// The largest gradients of pruned weights, in memory for those alone. The gradient of a layer never
// exists as a whole: a few filters at a time are worked out and offered to a heap.
#include <algorithm>
#include <cmath>

#include "network.h"

namespace fedtiny {
namespace {

struct Entry {
  float value;
  std::int32_t index;
  float magnitude() const { return std::isnan(value) ? INFINITY : std::fabs(value); }
};
static_assert(sizeof(Entry) == 8, "the plan counts eight bytes an entry");

// Larger first; ties to the lower position.
bool ahead(const Entry& a, const Entry& b) {
  const float x = a.magnitude(), y = b.magnitude();
  return x != y ? x > y : a.index < b.index;
}

// The best `room` of all that was offered; the worst of them is on top.
class Heap {
 public:
  Heap(Entry* entries, Index room) : entries_(entries), room_(room) {}
  Index size() const { return size_; }
  void offer(const Entry& entry) {
    if (size_ < room_) {
      entries_[size_++] = entry;
      std::push_heap(entries_, entries_ + size_, ahead);
    } else if (room_ > 0 && ahead(entry, entries_[0])) {
      std::pop_heap(entries_, entries_ + size_, ahead);
      entries_[size_ - 1] = entry;
      std::push_heap(entries_, entries_ + size_, ahead);
    }
  }

 private:
  Entry* entries_;
  Index room_, size_ = 0;
};

void offer_pruned(Heap& heap, const float* slab, Index first, Index size, const std::int32_t* kept,
                  const std::int32_t* kept_end) {
  for (Index i = 0; i < size; ++i) {
    const auto position = static_cast<std::int32_t>(first + i);
    if (kept < kept_end && *kept == position) {
      ++kept;
      continue;
    }
    heap.offer({slab[i], position});
  }
}

}  // namespace

std::vector<Wanted> Network::checked_wanted(fedtiny_wanted* wanted, int count) const {
  if (count < 0 || (count > 0 && wanted == nullptr)) refuse("no wanted gradients were given");
  if (count > 0 && plan_.options.remove_dead != 0)
    refuse("gradients of pruned weights need the channels that were left out");
  std::vector<Wanted> found;
  for (int k = 0; k < count; ++k) {
    fedtiny_wanted& w = wanted[k];
    if (w.node < 0 || w.node >= static_cast<int>(nodes_.size()) || !node(w.node).is_layer())
      refuse("gradients are wanted of a node that is no layer");
    const bool dense = w.dense != nullptr;
    if (!dense && (w.count < 0 || w.count > plan_.options.top_count))
      refuse("a layer is asked for " + std::to_string(w.count) + " gradients; at most " +
             std::to_string(plan_.options.top_count) + " were planned for");
    if (!dense && w.count > 0 && (w.indices == nullptr || w.values == nullptr))
      refuse("there is no room for wanted gradients");
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      const OpKind kind = program_.op(i).kind;
      const bool layer_op = kind == OpKind::Convolution || kind == OpKind::Linear;
      if (layer_op && program_.op(i).node == w.node) found.push_back({i, &w});
    }
  }
  return found;
}

void Network::wanted_gradient(const Op& op, const Wanted& wanted) {
  fedtiny_wanted& result = *wanted.result;
  const Node& n = node(op.node);
  const Layer& l = layer(op.node);
  const Index filter_size = n.filter_size(), groups = ceil_div(n.channels, FILTER_GROUP);
  const bool dense = result.dense != nullptr, linear = op.kind == OpKind::Linear;
  const float unscale = 1.0F / loss_scale_;
  const float* x = linear ? linear_inputs(op) : nullptr;
  const float* d = linear ? linear_gradients(op) : nullptr;
  const std::vector<std::int32_t> taps = tap_offsets(op.node);
  Entry* entries = at<Entry>(plan_.heaps);
  std::vector<Heap> heaps;
  for (Index t = 0; t < plan_.options.threads; ++t)
    heaps.emplace_back(entries + t * plan_.heap_each, dense ? 0 : result.count);

  pool_.run(groups, [&](Index thread, Index group) {
    const Index first = group * FILTER_GROUP;
    const Index filters = std::min(FILTER_GROUP, n.channels - first);
    float* slab = at<float>(plan_.slabs) + thread * plan_.slab_each;
    std::fill_n(slab, filters * filter_size, 0.0F);
    if (linear)
      kernels_.dense_gradient({x, filter_size * lanes_, d + first * lanes_, n.channels * lanes_,
                               lanes_, blocks_, 1, filters, taps.data(), filter_size, slab,
                               filter_size});
    else
      filter_gradients(op, first, filters, taps, scratch(thread), slab);
    const Index start = first * filter_size, size = filters * filter_size;
    for (Index i = 0; i < size; ++i) slab[i] *= unscale;
    if (dense) {
      for (Index i = 0; i < size; ++i) result.dense[start + i] += slab[i];
    } else {
      offer_pruned(heaps[static_cast<std::size_t>(thread)], slab, start, size,
                   l.positions + l.row_begin[first], l.positions + l.row_begin[first + filters]);
    }
  });
  if (dense) return;
  Entry* end = entries;
  for (std::size_t t = 0; t < heaps.size(); ++t) {
    const Entry* from = entries + static_cast<Index>(t) * plan_.heap_each;
    end = std::copy(from, from + heaps[t].size(), end);
  }
  if (end - entries > result.count) {
    std::nth_element(entries, entries + result.count, end, ahead);
    end = entries + result.count;
  }
  std::sort(entries, end, [](const Entry& a, const Entry& b) { return a.index < b.index; });
  result.count = static_cast<std::int32_t>(end - entries);
  for (Index i = 0; i < result.count; ++i) {
    result.indices[i] = entries[i].index;
    result.values[i] = entries[i].value;
  }
}

// Where each weight of a filter that reads one channel (or any input of a linear layer) finds it.
std::vector<std::int32_t> Network::tap_offsets(int place) const {
  const Node& n = node(place);
  std::vector<std::int32_t> taps;
  if (n.kind == FEDTINY_LINEAR) {
    for (Index i = 0; i < n.filter_size(); ++i) taps.push_back(static_cast<std::int32_t>(i * lanes_));
    return taps;
  }
  const Geometry& g = geometry(place);
  for (Index y = 0; y < g.y.kernel; ++y)
    for (Index x = 0; x < g.x.kernel; ++x)
      taps.push_back(static_cast<std::int32_t>(
          (g.y.phase(y) * g.x.stride + g.x.phase(x)) * g.in_phase +
          (g.y.reach(y) - g.y.reach_min) * g.in_pitch + (g.x.reach(x) - g.x.reach_min) * lanes_));
  return taps;
}

void Network::filter_gradients(const Op& op, Index first, Index filters,
                               const std::vector<std::int32_t>& taps, float* inputs, float* slab) {
  const Geometry& g = geometry(op.node);
  const Index count = static_cast<Index>(taps.size());
  float* gradients = inputs + ceil_div(g.in_floats, 16) * 16;
  for (Index piece = 0; piece < blocks_ * g.bands; ++piece) {
    const Index block = piece / g.bands, row = piece % g.bands * g.band;
    const Index rows = std::min(g.band, g.y.out - row);
    if (rows <= 0) continue;
    load_piece(op, g, block, row, true, inputs);
    load_gradients(op, g, block, row, first, filters, true, gradients);
    const float* d = gradients - g.y.back_min * g.out_pitch - g.x.back_min * lanes_;
    for (Index c = 0; c < g.channels; ++c)
      kernels_.dense_gradient({inputs + c * g.in_plane, g.in_pitch, d, g.out_pitch, g.out_plane,
                               rows, g.x.out, filters, taps.data(), count, slab + c * count,
                               g.channels * count});
  }
}

}  // namespace fedtiny
