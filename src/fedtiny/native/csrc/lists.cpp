// From the positions of kept weights to the offsets that kernels follow.
#include "storage.h"

namespace fedtiny {
namespace {

// The place among what is there of each channel of the whole, -1 for what is not there; that is
// read by no filter that is.
Table<std::int32_t> places_of(const Table<std::int32_t>& numbers, Index whole) {
  Table<std::int32_t> places(whole, -1);
  for (Index i = 0; i < numbers.count(); ++i) places[numbers[i]] = static_cast<std::int32_t>(i);
  return places;
}

// Where a weight of the whole layer is among what is there.
struct Place {
  Index group, filter, input, y, x;
  bool there;
};

class Lists {
 public:
  Lists(const Storage& s, const Node& node)
      : node_(node),
        l_(s.layers[node.place]),
        g_(*l_.geometry),
        filters_(places_of(s.channels[node.place], node.whole_channels)),
        inputs_(places_of(s.channels[node.first], node.whole_inputs)),
        groups_(groups_of(s, node)) {}

  void build(const std::int32_t* positions) const {
    check(positions);
    for (Index j = 0; l_.filled() && j < l_.masked; ++j)
      l_.mask[positions[j] / 8] |= static_cast<unsigned char>(1 << positions[j] % 8);
    const std::int32_t* kept = l_.filled() ? nullptr : positions;
    Table<Index> counts(node_.whole_channels), back_counts(g_.buckets());
    each(kept, [&](const Place& p, Index filter, Index) {
      ++counts[filter];
      if (p.there) ++back_counts[bucket(p)];
    });
    Table<Index> next = store_begins(back_counts, l_.back_begin);
    store_begins(counts, l_.row_begin);
    each(kept, [&](const Place& p, Index, Index j) {
      if (!p.there) return;
      const Index channel = p.input - groups_[p.group].channel;
      const Index filter = p.filter - groups_[p.group].filter;
      l_.offsets.set(j, (channel * g_.in_plane + g_.tap_offset(p.y, p.x)) / g_.lanes);
      l_.back_offsets.set(next[bucket(p)]++,
                          (filter * g_.out_plane + g_.back_offset(p.y, p.x)) / g_.lanes);
    });
  }

 private:
  void check(const std::int32_t* positions) const {
    Index before = -1;
    for (Index j = 0; positions != nullptr && j < l_.masked; ++j) {
      if (positions[j] <= before || positions[j] >= node_.weights()) refuse_positions(node_);
      before = positions[j];
    }
  }

  // Of each count, where its numbers begin.
  static Table<Index> store_begins(const Table<Index>& counts, const Numbers& begins) {
    Table<Index> found;
    Index sum = 0;
    for (Index i = 0; i < counts.count(); ++i) {
      found.push_back(sum);
      begins.set(i, sum);
      sum += counts[i];
    }
    begins.set(counts.count(), sum);
    return found;
  }

  Place place(Index filter, Index rest) const {
    const Index group = filter / node_.group_filters(), tap = rest % node_.taps();
    const Index input = group * node_.group_inputs() + rest / node_.taps();
    return {group,      filters_[filter], inputs_[input],  tap / g_.x.kernel, tap % g_.x.kernel,
            filters_[filter] >= 0};
  }

  Index bucket(const Place& p) const { return p.input * g_.phases() + g_.phase(p.y, p.x); }

  // Visits the weights that are kept, all without positions, in order.
  template <class Visit>
  void each(const std::int32_t* positions, const Visit& visit) const {
    for (Index j = 0; j < l_.kept; ++j) {
      const Index position = positions == nullptr ? j : positions[j];
      const Index filter = position / node_.filter_size();
      visit(place(filter, position % node_.filter_size()), filter, j);
    }
  }

  const Node& node_;
  const Layer& l_;
  const Geometry& g_;
  const Table<std::int32_t> filters_, inputs_;
  const Table<Group> groups_;
};

// For each group, where those of its channels that are there begin among all, and how many.
Table<std::pair<Index, Index>> shares(const Table<std::int32_t>& numbers, Index groups,
                                      Index group_size) {
  Table<std::pair<Index, Index>> found(groups);
  Index next = 0;
  for (Index group = 0; group < groups; ++group) {
    const Index begin = next;
    while (next < numbers.count() && numbers[next] < (group + 1) * group_size) ++next;
    found[group] = {begin, next - begin};
  }
  return found;
}

}  // namespace

// A flattened linear layer reads the values of its channels; it has one group.
Table<Group> groups_of(const Storage& s, const Node& node) {
  const auto channels = shares(s.channels[node.first], node.groups, node.group_inputs());
  const auto filters = shares(s.channels[node.place], node.groups, node.group_filters());
  Table<Group> groups;
  for (Index i = 0; i < node.groups; ++i)
    groups.push_back({channels[i].first, channels[i].second, filters[i].first, filters[i].second});
  return groups;
}

void build_lists(const Storage& storage, const Node& node, const std::int32_t* positions) {
  Lists(storage, node).build(positions);
}

}  // namespace fedtiny
