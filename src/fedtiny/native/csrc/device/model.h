// The names and sizes of a network's tensors, its mask, and its values under a mask.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"

namespace fedtiny::device {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t size = 0;
  std::int32_t node = -1, parameter = -1;  // of the native network
};

// Which tensors may be pruned, and what stays dense.
struct ParamSpec {
  std::vector<Tensor> prunable, dense;
  std::vector<std::string> norms;
  std::uint32_t fingerprint = 0;
  std::int64_t dense_count = 0;

  // Where a tensor is among those of its kind, -1 if there is none.
  static int find(const std::vector<Tensor>& tensors, std::string_view name);
  int layer(std::string_view name) const;  // one that is prunable, or refused
};

std::uint32_t fingerprint_of(const ParamSpec& spec);

// Sorted positions of a layer, or all of them.
struct Positions {
  bool full = false;
  std::vector<std::int32_t> places;

  std::int64_t count(std::int64_t size) const {
    return full ? size : static_cast<std::int64_t>(places.size());
  }
  std::int64_t at(std::int64_t i) const {
    return full ? i : places[static_cast<std::size_t>(i)];
  }
};

struct Mask {
  Mask(const ParamSpec& spec, std::vector<Positions> positions);

  std::int64_t kept(int layer) const { return counts[static_cast<std::size_t>(layer)]; }

  std::vector<Positions> layers;
  std::vector<std::int64_t> counts;
  std::int64_t count = 0;
  std::uint64_t version = 0;
};

// The kept weights of each layer in order of position, then every dense tensor.
struct Theta {
  std::shared_ptr<const Mask> mask;
  std::vector<float> values;

  std::uint64_t version() const;
  std::int64_t start(int layer) const;  // where a layer's values begin
};

// The same model under another mask: dropped weights go, grown ones start at zero.
Theta remasked(const Theta& theta, std::shared_ptr<const Mask> mask, const ParamSpec& spec);
// Only these of each layer's kept weights, given in order.
Theta pruned_to(const Theta& theta, const std::vector<std::vector<std::int64_t>>& chosen,
                const ParamSpec& spec);

// Sorted places of the `count` values of largest magnitude; ties to the lower place.
std::vector<std::int64_t> largest(const float* values, std::int64_t size, std::int64_t count);
std::vector<std::int64_t> smallest(const float* values, std::int64_t size, std::int64_t count);

// The codes of wire/indices.py.
void write_positions(Writer& out, const Positions& positions, std::int64_t size);
Positions read_positions(Reader& in, std::int64_t size);

}  // namespace fedtiny::device
