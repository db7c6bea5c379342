#include <algorithm>
#include <numeric>

#include "graph.h"

namespace fedtiny {
namespace {

// Whether a node's channels are others than those that it reads.
bool changes_channels(const Node& node) {
  switch (node.kind) {
    case FEDTINY_INPUT:
    case FEDTINY_CONVOLUTION:
    case FEDTINY_LINEAR:
    case FEDTINY_FLATTEN:
    case FEDTINY_RESHAPE:
    case FEDTINY_PERMUTE:
    case FEDTINY_CONCAT:
    case FEDTINY_SLICE: return true;
    default: return false;
  }
}

// Nodes whose outputs must have the same channels share a group: many nodes hand on what they read,
// and both terms of a sum or factors of a product go together.
Table<int> channel_groups(const Nodes& nodes) {
  Table<int> group(nodes.count());
  for (const Node& node : nodes) {
    group[node.place] = changes_channels(node) ? node.place : group[node.first];
    if (node.second < 0 || changes_channels(node)) continue;
    const int from = group[node.second], to = group[node.first];
    std::replace(group.begin(), group.end(), from, to);
  }
  return group;
}

class Reachability {
 public:
  Reachability(const Nodes& nodes, const Table<Index>& kept, const std::int32_t* const* positions)
      : nodes_(nodes), kept_(kept), positions_(positions), group_(channel_groups(nodes)) {
    for (const Node& node : nodes) to_output_.emplace_back(node.out.channels, false);
    for (const Node* end : {&nodes.front(), &nodes.back()})
      flags(end->place).assign(flags(end->place).size(), true);
    do {
      changed_ = false;
      for (int i = static_cast<int>(nodes.size()) - 1; i > 0; --i) visit(nodes[i]);
      if (!changed_) keep_one_each();
    } while (changed_);
  }

  Channels channels() {
    Channels found(nodes_.count());
    for (const Node& node : nodes_)
      for (Index c = 0; c < node.out.channels; ++c)
        if (flags(node.place)[c]) found[node.place].push_back(static_cast<std::int32_t>(c));
    return found;
  }

 private:
  Table<bool>& flags(int i) { return to_output_[group_[i]]; }

  void mark(int i, Index channel) {
    if (flags(i)[channel]) return;
    flags(i)[channel] = true;
    changed_ = true;
  }

  // Where nothing lives, the first channel stands in: every tensor has something in it.
  void keep_one_each() {
    for (const Node& node : nodes_) {
      const Table<bool>& live = flags(node.place);
      if (std::find(live.begin(), live.end(), true) == live.end()) mark(node.place, 0);
    }
  }

  void visit(const Node& node) {
    if (node.kind == FEDTINY_FLATTEN) mark_flattened(node);
    if (node.kind == FEDTINY_CONCAT) {
      mark_alike(node.first, 0, node.place, 0, node.in.channels);
      mark_alike(node.second, 0, node.place, node.in.channels, node.second_in.channels);
    }
    if (node.kind == FEDTINY_SLICE)
      mark_alike(node.first, node.start, node.place, 0, node.out.channels);
    if (needs_all(node)) {
      for (Index c = 0; c < node.in.channels; ++c) mark(node.first, c);
      for (Index c = 0; c < node.out.channels; ++c) mark(node.place, c);
    }
    if (node.is_layer()) mark_read(node);
  }

  static bool needs_all(const Node& node) {
    return node.is_image_norm() || node.kind == FEDTINY_RESHAPE || node.kind == FEDTINY_PERMUTE;
  }

  // Channels of two nodes that are the same ones.
  void mark_alike(int one, Index first, int other, Index second, Index count) {
    for (Index c = 0; c < count; ++c) {
      if (flags(one)[first + c]) mark(other, second + c);
      if (flags(other)[second + c]) mark(one, first + c);
    }
  }

  // What the live filters of a layer read.
  void mark_read(const Node& node) {
    const std::int32_t* places = positions_ != nullptr ? positions_[node.owner()] : nullptr;
    for (Index j = 0; j < kept_[node.place]; ++j) {
      const Index position = places != nullptr ? places[j] : j;
      if (position < 0 || position >= node.weights()) refuse_positions(node);
      const Index filter = position / node.filter_size();
      const Index first = filter / node.group_filters() * node.group_inputs();
      if (flags(node.place)[filter])
        mark(node.first, first + position % node.filter_size() / node.taps());
    }
  }

  // A channel lives if one of its values does; then all of its values are there.
  void mark_flattened(const Node& node) {
    for (Index v = 0; v < node.out.channels; ++v)
      if (flags(node.place)[v]) mark(node.first, v / node.in.plane());
    for (Index v = 0; v < node.out.channels; ++v)
      if (flags(node.first)[v / node.in.plane()]) mark(node.place, v);
  }

  const Nodes& nodes_;
  const Table<Index>& kept_;
  const std::int32_t* const* positions_;
  Table<int> group_;
  Table<Table<bool>> to_output_;
  bool changed_ = false;
};

}  // namespace

Channels all_channels(const Nodes& nodes) {
  Channels channels;
  for (const Node& node : nodes) {
    channels.emplace_back(node.out.channels);
    std::iota(channels.back().begin(), channels.back().end(), 0);
  }
  return channels;
}

Channels live_channels(const Nodes& nodes, const Table<Index>& kept,
                       const std::int32_t* const* positions) {
  return Reachability(nodes, kept, positions).channels();
}

Nodes reduced_nodes(Nodes nodes, const Channels& channels) {
  for (Node& node : nodes) {
    if (node.first < 0) continue;
    node.in.channels = nodes[node.first].out.channels;
    if (node.second >= 0) node.second_in.channels = nodes[node.second].out.channels;
    node.out.channels = channels[node.place].count();
    if (node.kind == FEDTINY_SLICE) {
      const Table<std::int32_t>& read = channels[node.first];
      node.start = static_cast<std::int32_t>(
          std::lower_bound(read.begin(), read.end(), node.start) - read.begin());
    }
    if (node.is_layer()) node.channels = static_cast<std::int32_t>(node.out.channels);
  }
  return nodes;
}

void refuse_positions(const Node& node) {
  refuse("node " + std::to_string(node.place) +
         ": kept positions must be sorted, distinct and below " + std::to_string(node.weights()));
}

}  // namespace fedtiny
