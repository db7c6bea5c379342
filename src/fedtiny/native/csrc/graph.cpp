#include "graph.h"

#include <algorithm>

#include "operations.h"

namespace fedtiny {
namespace {

std::string named(const Node& node) {
  const char* name = is_known(node) ? operation_of(node).name : "unknown kind";
  return "node " + std::to_string(node.place) + " (" + name + ")";
}

void check_inputs(const Node& node) {
  const int inputs = operation_of(node).inputs;
  need((inputs == 0) == (node.place == 0), node,
       "is out of place: the first node, and no other, is the input");
  need(inputs == 0 || (node.first >= 0 && node.first < node.place), node,
       "must read a node before it");
  need(inputs < 2 || (node.second >= 0 && node.second < node.place), node,
       "must read two nodes before it");
  need(inputs > 0 || node.first == -1, node, "reads nothing");
  need(inputs > 1 || node.second == -1, node, "reads no second node");
}

bool fits_owner(const Nodes& nodes, const Node& node) {
  if (node.shared < 0 || node.shared >= node.place) return false;
  const Node& owner = nodes[node.shared];
  if (!owner.owns() || node.whole_channels != owner.whole_channels) return false;
  if (node.is_image_norm()) return node.kind == owner.kind;
  return node.is_layer() && owner.is_layer() && node.bias == owner.bias &&
         node.kernel[0] == owner.kernel[0] && node.kernel[1] == owner.kernel[1] &&
         node.filter_size() == owner.filter_size();
}

// The backward pass gets to the last use of shared parameters first.
void find_added_gradients(Nodes& nodes) {
  Table<bool> used(nodes.count());
  for (Index i = nodes.count() - 1; i >= 0; --i) {
    nodes[i].adds_gradient = used[nodes[i].owner()];
    used[nodes[i].owner()] = true;
  }
}

void check_node(Nodes& nodes, Node& node) {
  need(is_known(node), node, "is not known");
  check_inputs(node);
  if (node.first >= 0) node.in = nodes[node.first].out;
  if (node.second >= 0) node.second_in = nodes[node.second].out;
  node.out = operation_of(node).shape(node);
  node.whole_channels = node.out.channels;
  node.whole_inputs = node.in.channels;
  need(node.out.channels <= MAX_VALUES / node.out.height / node.out.width, node,
       "gives too many values");
  need(!node.is_layer() || node.channels <= MAX_WEIGHTS / node.filter_size(), node,
       "has too many weights");
  need(node.shared == -1 || fits_owner(nodes, node), node,
       "shares parameters with a node that has none such");
}

}  // namespace

void need(bool ok, const Node& node, const char* what) {
  if (!ok) refuse(named(node) + " " + what);
}

void check_filters(const Node& node) {
  need(is_size(node.channels), node, "needs at least one filter");
  need(node.bias == 0 || node.bias == 1, node, "has a bias or has none");
}

void check_groups(const Node& node, Index channels) {
  need(node.groups >= 1 && node.in.channels % node.groups == 0 && channels % node.groups == 0, node,
       "cannot share its channels out among its groups");
}

Shape windowed_shape(const Node& node, Index channels) {
  const Index in[2] = {node.in.height, node.in.width};
  Index out[2];
  for (int axis = 0; axis < 2; ++axis) {
    const Index kernel = node.kernel[axis], stride = node.stride[axis];
    const Index dilation = node.dilation[axis], span = (kernel - 1) * dilation + 1;
    const Index padding = node.padding[axis], end = node.padding_end[axis];
    const Index left = in[axis] + padding + end - span;  // beside the first window
    need(kernel >= 1 && kernel <= MAX_WINDOW, node, "needs a kernel of 1 to 4096");
    need(stride >= 1 && stride <= MAX_WINDOW, node, "needs a stride of 1 to 4096");
    need(dilation >= 1 && dilation <= MAX_WINDOW, node, "needs a dilation of 1 to 4096");
    need(std::min(padding, end) >= 0 && std::max(padding, end) <= MAX_WINDOW, node,
         "needs a padding of 0 to 4096");
    need(node.is_layer() || (2 * std::max(padding, end) <= kernel && dilation == 1), node,
         "needs a padding of at most half its kernel, and no dilation");
    out[axis] = left < 0 ? 0 : (node.ceil != 0 ? ceil_div(left, stride) : left / stride) + 1;
    if (node.ceil != 0 && (out[axis] - 1) * stride >= in[axis] + padding) --out[axis];
  }
  need(out[0] > 0 && out[1] > 0, node, "has a kernel larger than what it reads");
  return {channels, out[0], out[1]};
}

Nodes checked_nodes(const fedtiny_node* given, int count) {
  if (given == nullptr || count < 2 || count > MAX_NODES)
    refuse("a network has 2 to " + std::to_string(MAX_NODES) + " nodes");
  Nodes nodes(count);
  for (int i = 0; i < count; ++i) {
    Node& node = nodes[i];
    static_cast<fedtiny_node&>(node) = given[i];
    node.place = i;
    check_node(nodes, node);
    for (const int read : {node.first, node.second})
      if (read >= 0) nodes[read].consumers.push_back(i);
  }
  for (const Node& node : nodes)
    need(node.place + 1 == count || !node.consumers.empty(), node, "is read by no other node");
  find_added_gradients(nodes);
  if (nodes.back().out.plane() != 1) refuse("the last node must give one logit a class");
  return nodes;
}

Index parameter_size(const Nodes& nodes, int place, int parameter) {
  if (place < 0 || place >= nodes.count()) refuse("there is no such node");
  const Node& node = nodes[place];
  if (node.is_layer() && parameter == FEDTINY_WEIGHT) return node.weights();
  if (node.is_layer() && parameter == FEDTINY_BIAS && node.bias != 0) return node.whole_channels;
  if (node.is_norm() && parameter >= FEDTINY_SCALE && parameter <= FEDTINY_CORRECTED_VAR)
    return node.whole_channels;
  if (node.is_image_norm() && (parameter == FEDTINY_SCALE || parameter == FEDTINY_SHIFT))
    return node.whole_channels;
  refuse(named(node) + " has no parameter of this kind");
}

}  // namespace fedtiny
