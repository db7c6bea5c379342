#include "dead.h"

#include <algorithm>
#include <numeric>

namespace fedtiny {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Nodes whose outputs must have the same channels share a group: all but layers hand on what they
// read, and both terms of a sum go together.
std::vector<int> channel_groups(const std::vector<Node>& nodes) {
  std::vector<int> group(nodes.size());
  std::iota(group.begin(), group.end(), 0);
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    const Node& node = nodes[at(i)];
    if (node.is_layer() || node.kind == FEDTINY_INPUT || node.kind == FEDTINY_FLATTEN) continue;
    group[at(i)] = group[at(node.first)];
    if (node.kind != FEDTINY_ADD) continue;
    const int from = group[at(node.second)], to = group[at(node.first)];
    for (int& g : group)
      if (g == from) g = to;
  }
  return group;
}

class Liveness {
 public:
  Liveness(const std::vector<Node>& nodes, const std::vector<Index>& kept,
           const std::int32_t* const* positions)
      : nodes_(nodes), kept_(kept), positions_(positions), group_(channel_groups(nodes)) {
    live_.resize(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i)
      live_[i].assign(static_cast<std::size_t>(nodes[i].out.channels), false);
    mark_all(0);
    mark_all(static_cast<int>(nodes.size()) - 1);
    do {
      changed_ = false;
      for (int i = static_cast<int>(nodes.size()) - 1; i > 0; --i) visit(i);
      if (!changed_) keep_one_each();
    } while (changed_);
  }

  Channels channels() {
    Channels found(nodes_.size());
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      const std::vector<bool>& live = flags(i);
      for (std::size_t c = 0; c < live.size(); ++c)
        if (live[c]) found[at(i)].push_back(static_cast<std::int32_t>(c));
    }
    return found;
  }

 private:
  std::vector<bool>& flags(int i) { return live_[at(group_[at(i)])]; }

  void mark(int i, Index channel) {
    std::vector<bool>& own = flags(i);
    if (own[static_cast<std::size_t>(channel)]) return;
    own[static_cast<std::size_t>(channel)] = true;
    changed_ = true;
  }
  void mark_all(int i) { flags(i).assign(flags(i).size(), true); }

  // Where nothing lives, the first channel stands in: every tensor has something in it.
  void keep_one_each() {
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i)
      if (std::find(flags(i).begin(), flags(i).end(), true) == flags(i).end()) mark(i, 0);
  }

  void visit(int i) {
    const Node& node = nodes_[at(i)];
    if (node.is_layer()) {
      const Index taps = node.kind == FEDTINY_LINEAR ? 1 : node.kernel[0] * node.kernel[1];
      const std::int32_t* places = positions_ != nullptr ? positions_[i] : nullptr;
      for (Index j = 0; j < kept_[at(i)]; ++j) {
        const Index position = places != nullptr ? places[j] : j;
        if (position < 0 || position >= node.weights()) refuse_position(i, node);
        if (flags(i)[static_cast<std::size_t>(position / node.filter_size())])
          mark(node.first, position % node.filter_size() / taps);
      }
    } else if (node.kind == FEDTINY_FLATTEN) {
      mark_flattened(i, node);
    }
  }

  // A channel lives if one of its values does; then all of its values are there.
  void mark_flattened(int i, const Node& node) {
    for (Index v = 0; v < node.out.channels; ++v)
      if (flags(i)[static_cast<std::size_t>(v)]) mark(node.first, v / node.in.plane());
    for (Index v = 0; v < node.out.channels; ++v)
      if (flags(node.first)[static_cast<std::size_t>(v / node.in.plane())]) mark(i, v);
  }

  [[noreturn]] static void refuse_position(int i, const Node& node) {
    refuse("node " + std::to_string(i) + ": kept positions must be sorted, distinct and below " +
           std::to_string(node.weights()));
  }

  const std::vector<Node>& nodes_;
  const std::vector<Index>& kept_;
  const std::int32_t* const* positions_;
  std::vector<int> group_;
  std::vector<std::vector<bool>> live_;
  bool changed_ = false;
};

}  // namespace

Channels all_channels(const std::vector<Node>& nodes) {
  Channels channels(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    channels[i].resize(static_cast<std::size_t>(nodes[i].out.channels));
    std::iota(channels[i].begin(), channels[i].end(), 0);
  }
  return channels;
}

Channels live_channels(const std::vector<Node>& nodes, const std::vector<Index>& kept,
                       const std::int32_t* const* positions) {
  return Liveness(nodes, kept, positions).channels();
}

std::vector<Node> reduced_nodes(std::vector<Node> nodes, const Channels& channels) {
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    Node& node = nodes[i];
    node.in.channels = nodes[at(node.first)].out.channels;
    node.out.channels = static_cast<Index>(channels[i].size());
    if (node.is_layer()) node.channels = static_cast<std::int32_t>(node.out.channels);
  }
  return nodes;
}

}  // namespace fedtiny
