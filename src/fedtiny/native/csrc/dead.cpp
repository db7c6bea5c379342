#include <algorithm>
#include <numeric>

#include "graph.h"

namespace fedtiny {
namespace {

// Nodes whose outputs must have the same channels share a group: all but layers hand on what they
// read, and both terms of a sum go together.
Table<int> channel_groups(const Nodes& nodes) {
  Table<int> group(nodes.count());
  for (const Node& node : nodes) {
    const bool own = node.is_layer() || node.first < 0 || node.kind == FEDTINY_FLATTEN;
    group[node.place] = own ? node.place : group[node.first];
    if (node.second < 0) continue;
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
    if (!node.is_layer()) return;
    const std::int32_t* places = positions_ != nullptr ? positions_[node.place] : nullptr;
    for (Index j = 0; j < kept_[node.place]; ++j) {
      const Index position = places != nullptr ? places[j] : j;
      if (position < 0 || position >= node.weights()) refuse_positions(node);
      if (flags(node.place)[position / node.filter_size()])
        mark(node.first, position % node.filter_size() / node.taps());
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
    node.out.channels = channels[node.place].count();
    if (node.is_layer()) node.channels = static_cast<std::int32_t>(node.out.channels);
  }
  return nodes;
}

void refuse_positions(const Node& node) {
  refuse("node " + std::to_string(node.place) +
         ": kept positions must be sorted, distinct and below " + std::to_string(node.weights()));
}

}  // namespace fedtiny
