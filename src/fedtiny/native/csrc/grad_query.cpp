// The largest gradients of pruned weights, in memory for those alone. The gradient of a layer never
// exists as a whole: a few filters at a time are worked out and offered to a heap.
#include <algorithm>
#include <cmath>

#include "run.h"

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

// Offers what the mask prunes of one filter. Its kept weights are in order of position: each is
// told by what it reads.
void offer_pruned(Heap& heap, const float* slab, Index filter, const Node& node, const Layer& l,
                  const Table<Index>& taps) {
  const Index end = l.row_begin[filter + 1], plane = l.geometry->in_plane / l.geometry->lanes;
  Index next = l.row_begin[filter], read = next < end ? l.offsets[next] : -1;
  auto position = static_cast<std::int32_t>(filter * node.filter_size());
  for (Index channel = 0; channel < node.group_inputs(); ++channel)
    for (const Index tap : taps) {
      const bool held = channel * plane + tap == read;
      if (!held || !l.keeps(next)) heap.offer({*slab, position});
      if (held) read = ++next < end ? l.offsets[next] : -1;
      ++slab;
      ++position;
    }
}

// Where each weight that reads one channel finds it, in vectors.
Table<Index> tap_places(const Geometry& g) {
  Table<Index> places;
  for (Index y = 0; y < g.y.kernel; ++y)
    for (Index x = 0; x < g.x.kernel; ++x) places.push_back(g.tap_offset(y, x) / g.lanes);
  return places;
}

// Of the slab from a position on, what is asked for; added to what a later use of the weights gave.
void pick_positions(const fedtiny_grad_query& query, const float* slab, Index first, Index size,
                    bool add) {
  const std::int32_t *begin = query.indices, *end = begin + query.count;
  const std::int32_t* from = std::lower_bound(begin, end, first);
  for (; from < end && *from < first + size; ++from)
    query.values[from - begin] = slab[*from - first] + (add ? query.values[from - begin] : 0.0F);
}

// Divides the gradients of some filters by the root of twice their Fisher information.
void divide_by_fisher(const float* factors, const Node& node, Index first, Index filters,
                      float* slab) {
  const Index inputs = node.group_inputs(), taps = node.taps();
  for (Index f = 0; f < filters; ++f) {
    const float* read = factors + (first + f) / node.group_filters() * inputs;
    for (Index j = 0; j < inputs; ++j) {
      const float factor = factors[node.whole_inputs + first + f] * read[j];
      for (Index tap = 0; tap < taps; ++tap) *slab++ *= factor;
    }
  }
}

// Adds the slab from a position on to what later uses of the weights gave; it then has the sum.
void add_uses(float* whole, float* slab, Index size, bool add) {
  for (Index i = 0; i < size; ++i) {
    if (add) slab[i] += whole[i];
    whole[i] = slab[i];
  }
}

// The best of all heaps, which lie `room` entries apart, in order of position.
void fill(fedtiny_grad_query& query, const Table<Heap>& heaps, Entry* entries, Index room) {
  Entry* end = entries;
  for (Index t = 0; t < heaps.count(); ++t) {
    const Entry* from = entries + t * room;
    end = std::copy(from, from + heaps[t].size(), end);
  }
  if (end - entries > query.count) {
    std::nth_element(entries, entries + query.count, end, ahead);
    end = entries + query.count;
  }
  std::sort(entries, end, [](const Entry& a, const Entry& b) { return a.index < b.index; });
  query.count = static_cast<std::int32_t>(end - entries);
  for (Index i = 0; i < query.count; ++i) {
    query.indices[i] = entries[i].index;
    query.values[i] = entries[i].value;
  }
}

}  // namespace

void answer_grad_query(Run& run, const Op& op, fedtiny_grad_query& query) {
  const Storage& s = run.storage;
  const Layer& l = s.layers[op.node];
  const Node& node = run.node(op);
  const Index channels = node.channels, filter_size = node.filter_size();
  const bool dense = query.dense != nullptr, top = !dense && query.at_positions == 0;
  if (query.fisher != nullptr) fisher_factors(run, op, query.fisher);
  const float unscale = 1.0F / run.loss_scale;
  const FilterGradients filter_gradients = op.operation->filter_gradients(run, op);
  auto* entries = reinterpret_cast<Entry*>(s.heaps);
  const Table<Index> taps = tap_places(*l.geometry);
  Table<Heap> heaps;
  for (Index t = 0; t < s.options.threads; ++t)
    heaps.emplace_back(entries + t * s.options.top_count, top ? query.count : 0);

  run.pool.run(ceil_div(channels, FILTER_GROUP), [&](Index thread, Index group) {
    const Index first = group * FILTER_GROUP, filters = std::min(FILTER_GROUP, channels - first);
    const Index start = first * filter_size, size = filters * filter_size;
    float* slab = s.slabs + thread * s.slab_each;
    std::fill_n(slab, size, 0.0F);
    filter_gradients(thread, first, filters, slab);
    for (Index i = 0; i < size; ++i) slab[i] *= unscale;
    if (query.fisher != nullptr) divide_by_fisher(query.fisher, node, first, filters, slab);
    if (dense) {
      for (Index i = 0; i < size; ++i) query.dense[start + i] += slab[i];
    } else if (!top) {
      pick_positions(query, slab, start, size, node.adds_gradient);
    } else {
      if (l.whole_gradient != nullptr)
        add_uses(l.whole_gradient + start, slab, size, node.adds_gradient);
      if (!node.owns()) return;
      for (Index f = 0; f < filters; ++f)
        offer_pruned(heaps[thread], slab + f * filter_size, first + f, node, l, taps);
    }
  });
  if (top && node.owns()) fill(query, heaps, entries, s.options.top_count);
}

}  // namespace fedtiny
