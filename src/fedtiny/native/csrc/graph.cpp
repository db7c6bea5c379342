#include "graph.h"

#include <cmath>

namespace fedtiny {
namespace {

constexpr Index LARGEST = Index{1} << 26;  // values of a tensor of one image
constexpr Index MOST_WEIGHTS = Index{1} << 30;

const char* const NAMES[] = {"input",    "convolution", "linear",        "batch norm",
                             "relu",     "add",         "max pool",      "mean pool",
                             "adaptive pool", "flatten", "dropout"};

std::string named(int place, const fedtiny_node& node) {
  const bool known = node.kind >= FEDTINY_INPUT && node.kind <= FEDTINY_DROPOUT;
  return "node " + std::to_string(place) + " (" + (known ? NAMES[node.kind] : "unknown kind") + ")";
}

void need(bool ok, int place, const fedtiny_node& node, const char* what) {
  if (!ok) refuse(named(place, node) + " " + what);
}

bool within(Index value, Index least) { return value >= least && value <= LARGEST; }

void check_inputs(const std::vector<Node>& nodes, int place) {
  const Node& node = nodes[static_cast<std::size_t>(place)];
  const int wanted = node.kind == FEDTINY_INPUT ? 0 : node.kind == FEDTINY_ADD ? 2 : 1;
  need((node.kind == FEDTINY_INPUT) == (place == 0), place, node,
       "is out of place: the first node, and no other, is the input");
  need(wanted == 0 || (node.first >= 0 && node.first < place), place, node,
       "must read a node before it");
  need(wanted < 2 || (node.second >= 0 && node.second < place), place, node,
       "must read two nodes before it");
  need(wanted > 0 || node.first == -1, place, node, "reads nothing");
  need(wanted > 1 || node.second == -1, place, node, "reads no second node");
}

bool is_windowed(int kind) {
  return kind == FEDTINY_CONVOLUTION || kind == FEDTINY_MAX_POOL || kind == FEDTINY_MEAN_POOL;
}

Index window_count(Index size, Index kernel, Index stride, Index padding) {
  return size + 2 * padding < kernel ? 0 : (size + 2 * padding - kernel) / stride + 1;
}

void check_windows(int place, const Node& node) {
  for (int axis = 0; axis < 2; ++axis) {
    need(node.kernel[axis] >= 1 && node.kernel[axis] <= 4096, place, node,
         "needs a kernel of 1 to 4096");
    need(node.stride[axis] >= 1 && node.stride[axis] <= 4096, place, node,
         "needs a stride of 1 to 4096");
    need(node.padding[axis] >= 0 && node.padding[axis] <= 4096, place, node,
         "needs a padding of 0 to 4096");
    need(node.kind == FEDTINY_CONVOLUTION || 2 * node.padding[axis] <= node.kernel[axis], place,
         node, "needs a padding of at most half its kernel");
  }
}

Shape windowed(int place, const Node& node) {
  check_windows(place, node);
  const Index height =
      window_count(node.in.height, node.kernel[0], node.stride[0], node.padding[0]);
  const Index width = window_count(node.in.width, node.kernel[1], node.stride[1], node.padding[1]);
  need(height > 0 && width > 0, place, node, "has a kernel larger than what it reads");
  return {node.kind == FEDTINY_CONVOLUTION ? node.channels : node.in.channels, height, width};
}

Shape output_shape(const std::vector<Node>& nodes, int place) {
  const Node& node = nodes[static_cast<std::size_t>(place)];
  if (is_windowed(node.kind)) return windowed(place, node);
  switch (node.kind) {
    case FEDTINY_INPUT: return {node.channels, node.height, node.width};
    case FEDTINY_LINEAR:
      need(node.in.plane() == 1, place, node, "must read something flat");
      return {node.channels, 1, 1};
    case FEDTINY_ADAPTIVE_POOL:
      need(within(node.height, 1) && within(node.width, 1), place, node, "needs an output size");
      return {node.in.channels, node.height, node.width};
    case FEDTINY_FLATTEN: return {node.in.size(), 1, 1};
    case FEDTINY_ADD: {
      const Shape& other = nodes[static_cast<std::size_t>(node.second)].out;
      need(other.channels == node.in.channels && other.height == node.in.height &&
               other.width == node.in.width,
           place, node, "adds two nodes of different shapes");
      return node.in;
    }
    default: return node.in;
  }
}

void check_node(std::vector<Node>& nodes, int place) {
  Node& node = nodes[static_cast<std::size_t>(place)];
  need(node.kind >= FEDTINY_INPUT && node.kind <= FEDTINY_DROPOUT, place, node, "is not known");
  check_inputs(nodes, place);
  if (node.kind == FEDTINY_INPUT)
    need(within(node.channels, 1) && within(node.height, 1) && within(node.width, 1), place, node,
         "needs channels, height and width");
  if (node.is_layer()) {
    need(within(node.channels, 1), place, node, "needs at least one filter");
    need(node.bias == 0 || node.bias == 1, place, node, "has a bias or has none");
  }
  if (node.is_norm()) {
    need(std::isfinite(node.epsilon) && node.epsilon > 0, place, node, "needs an epsilon above 0");
    need(node.momentum >= 0 && node.momentum <= 1, place, node, "needs a momentum of 0 to 1");
  }
  if (node.kind == FEDTINY_DROPOUT)
    need(node.probability >= 0 && node.probability <= 1, place, node,
         "needs a probability of 0 to 1");
  if (node.first >= 0) node.in = nodes[static_cast<std::size_t>(node.first)].out;
  node.out = output_shape(nodes, place);
  node.whole_channels = node.out.channels;
  node.whole_inputs = node.kind == FEDTINY_LINEAR ? node.in.size() : node.in.channels;
  need(node.out.channels <= LARGEST / node.out.height / node.out.width, place, node,
       "gives too many values");
  need(!node.is_layer() || node.channels <= MOST_WEIGHTS / node.filter_size(), place, node,
       "has too many weights");
}

}  // namespace

std::vector<Node> checked_nodes(const fedtiny_node* given, int count) {
  if (given == nullptr || count < 2 || count > 100000) refuse("a network has 2 to 100000 nodes");
  std::vector<Node> nodes(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    static_cast<fedtiny_node&>(nodes[static_cast<std::size_t>(i)]) = given[i];
    check_node(nodes, i);
    for (const int read : {given[i].first, given[i].second})
      if (read >= 0) nodes[static_cast<std::size_t>(read)].consumers.push_back(i);
  }
  for (int i = 0; i + 1 < count; ++i)
    if (nodes[static_cast<std::size_t>(i)].consumers.empty())
      refuse(named(i, given[i]) + " is read by no other node");
  const Node& last = nodes.back();
  if (last.out.plane() != 1) refuse("the last node must give one logit a class");
  return nodes;
}

Index parameter_size(const std::vector<Node>& nodes, int place, int parameter) {
  if (place < 0 || place >= static_cast<int>(nodes.size())) refuse("there is no such node");
  const Node& node = nodes[static_cast<std::size_t>(place)];
  if (node.is_layer() && parameter == FEDTINY_WEIGHT) return node.weights();
  if (node.is_layer() && parameter == FEDTINY_BIAS && node.bias != 0) return node.whole_channels;
  if (node.is_norm() && parameter >= FEDTINY_SCALE && parameter <= FEDTINY_CORRECTED_VAR)
    return node.whole_channels;
  refuse(named(place, node) + " has no parameter of this kind");
}

}  // namespace fedtiny
