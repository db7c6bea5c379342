// The network as it was given: checked nodes with their shapes.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "fedtiny_native.h"
#include "limits.h"

namespace fedtiny {

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse(const std::string& why) { throw Refusal(why); }

// A product of sizes, refused if no machine has room for it.
template <class... Factors>
Index sized(Factors... factors) {
  Index product = 1;
  for (const Index factor : {static_cast<Index>(factors)...})
    if (__builtin_mul_overflow(product, factor, &product) || product > MAX_BYTES)
      refuse("this needs more memory than there can be");
  return product;
}

// A vector that is indexed with signed numbers: of nodes, operations, tensors, channels.
template <class T>
struct Table : std::vector<T> {
  using Base = std::vector<T>;
  Table() = default;
  explicit Table(Index count, const T& value = T())
      : Base(static_cast<std::size_t>(count), value) {}
  Index count() const { return static_cast<Index>(this->size()); }
  typename Base::reference operator[](Index i) {
    return Base::operator[](static_cast<std::size_t>(i));
  }
  typename Base::const_reference operator[](Index i) const {
    return Base::operator[](static_cast<std::size_t>(i));
  }
};

struct Shape {
  Index channels, height, width;
  Index plane() const { return height * width; }
  Index size() const { return channels * plane(); }
};

struct Node : fedtiny_node {
  int place;  // among the nodes
  Shape in, second_in, out;
  std::vector<int> consumers;
  bool is_layer() const { return kind == FEDTINY_CONVOLUTION || kind == FEDTINY_LINEAR; }
  bool is_norm() const { return kind == FEDTINY_BATCH_NORM; }
  // Measures each image by itself.
  bool is_image_norm() const { return kind == FEDTINY_GROUP_NORM || kind == FEDTINY_LAYER_NORM; }
  // The node whose parameters it uses; whether it adds to the gradient that a later use has left.
  int owner() const { return shared >= 0 ? shared : place; }
  bool owns() const { return shared < 0; }
  bool adds_gradient = false;
  // Of the whole layer, whatever is left out of it.
  Index whole_channels, whole_inputs;
  Index group_inputs() const { return whole_inputs / groups; }
  Index group_filters() const { return whole_channels / groups; }
  Index taps() const { return Index{kernel[0]} * kernel[1]; }
  Index filter_size() const { return group_inputs() * taps(); }
  Index weights() const { return is_layer() ? whole_channels * filter_size() : 0; }
};

using Nodes = Table<Node>;

Nodes checked_nodes(const fedtiny_node* nodes, int count);
Index parameter_size(const Nodes& nodes, int node, int parameter);

// dead.cpp: channels that cannot reach the output, and the network without them.
//
// For each node, which channels (of a flattened one: which values) of its output are left, by their
// number in the whole network.
using Channels = Table<Table<std::int32_t>>;

Channels all_channels(const Nodes& nodes);

// Kept weights by layer; a layer without positions keeps all. What has no kept weight that leads
// to the output is left out, but every tensor keeps at least one channel.
Channels live_channels(const Nodes& nodes, const Table<Index>& kept,
                       const std::int32_t* const* positions);

// The same nodes with these channels alone. Their weights keep their places in the whole layer.
Nodes reduced_nodes(Nodes nodes, const Channels& channels);

[[noreturn]] void refuse_positions(const Node& node);

// For the shape rules of operations.
void need(bool ok, const Node& node, const char* what);
inline bool is_size(Index value) { return value >= 1 && value <= MAX_VALUES; }
void check_filters(const Node& node);
void check_groups(const Node& node, Index channels);
Shape windowed_shape(const Node& node, Index channels);

}  // namespace fedtiny
