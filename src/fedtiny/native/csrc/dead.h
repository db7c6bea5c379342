// Channels that cannot reach the output, and the network without them.
#pragma once
#include <vector>

#include "graph.h"

namespace fedtiny {

// For each node, which channels (of a flattened one: which values) of its output are left, by their
// number in the whole network.
using Channels = std::vector<std::vector<std::int32_t>>;

Channels all_channels(const std::vector<Node>& nodes);

// Kept weights by layer; a layer without positions keeps all. What has no kept weight that leads
// to the output is left out, but every tensor keeps at least one channel.
Channels live_channels(const std::vector<Node>& nodes, const std::vector<Index>& kept,
                       const std::int32_t* const* positions);

// The same nodes with these channels alone. Their weights keep their places in the whole layer.
std::vector<Node> reduced_nodes(std::vector<Node> nodes, const Channels& channels);

}  // namespace fedtiny
