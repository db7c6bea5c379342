// From the positions of kept weights to the offsets that kernels follow.
#include "storage.h"

namespace fedtiny {
namespace {

std::int32_t small(Index i) { return static_cast<std::int32_t>(i); }

// The place among what is there of each channel of the whole. What is not there is read by no
// filter that is; it gets 0.
Table<std::int32_t> places_of(const Table<std::int32_t>& numbers, Index whole) {
  Table<std::int32_t> places(whole);
  for (Index i = 0; i < numbers.count(); ++i) places[numbers[i]] = small(i);
  return places;
}

// Where a weight of the whole layer is among what is there.
struct Place {
  Index group, filter, input, y, x;
};

class Lists {
 public:
  Lists(const Storage& s, const Node& node)
      : node_(node),
        l_(s.layers[node.place]),
        g_(*l_.geometry),
        there_(s.channels[node.place]),
        filters_(places_of(there_, node.whole_channels)),
        inputs_(places_of(s.channels[node.first], node.whole_inputs)),
        groups_(groups_of(s, node)) {}

  void build(const std::int32_t* positions) {
    Index before = -1;
    for (Index j = 0; j < l_.kept; ++j) {
      const Index position = positions == nullptr ? j : positions[j];
      if (position <= before || position >= node_.weights()) refuse_positions(node_);
      before = position;
      const Place p = place(position);
      l_.positions[j] = small(position);
      const Index channel = p.input - groups_[p.group].channel;
      l_.offsets[j] = small(channel * g_.in_plane + g_.tap_offset(p.y, p.x));
      ++l_.row_begin[position / node_.filter_size() + 1];
    }
    for (Index f = 0; f < node_.whole_channels; ++f) l_.row_begin[f + 1] += l_.row_begin[f];
  }

  // The same weights by what they read: by channel, and within it by place modulo the stride.
  void build_back() {
    each_live([&](const Place& p, Index) { ++l_.back_begin[bucket(p) + 1]; });
    for (Index b = 0; b < g_.buckets(); ++b) l_.back_begin[b + 1] += l_.back_begin[b];
    std::vector<std::int32_t> next(l_.back_begin, l_.back_begin + g_.buckets());
    each_live([&](const Place& p, Index j) {
      const Index to = next[static_cast<std::size_t>(bucket(p))]++;
      l_.back_index[to] = small(j);
      const Index filter = p.filter - groups_[p.group].filter;
      l_.back_offsets[to] = small(filter * g_.out_plane + g_.back_offset(p.y, p.x));
    });
  }

 private:
  Place place(Index position) const {
    const Index filter = position / node_.filter_size(), rest = position % node_.filter_size();
    const Index group = filter / node_.group_filters(), tap = rest % node_.taps();
    const Index input = group * node_.group_inputs() + rest / node_.taps();
    return {group, filters_[filter], inputs_[input], tap / g_.x.kernel, tap % g_.x.kernel};
  }

  Index bucket(const Place& p) const { return p.input * g_.phases() + g_.phase(p.y, p.x); }

  template <class Visit>
  void each_live(const Visit& visit) const {
    for (const std::int32_t filter : there_)
      for (Index j = l_.row_begin[filter]; j < l_.row_begin[filter + 1]; ++j)
        visit(place(l_.positions[j]), j);
  }

  const Node& node_;
  const Layer& l_;
  const Geometry& g_;
  const Table<std::int32_t>& there_;
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
  Lists lists(storage, node);
  lists.build(positions);
  lists.build_back();
}

}  // namespace fedtiny
