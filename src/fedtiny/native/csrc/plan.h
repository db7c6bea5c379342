// What memory a network needs and where each array lies in it, worked out before any is taken.
#pragma once
#include <optional>

#include "geometry.h"
#include "program.h"

namespace fedtiny {

struct Options : fedtiny_options {
  Index blocks(Index images) const { return ceil_div(images, lanes); }
  Index value_bytes() const { return half != 0 ? 2 : 4; }
};

// What is only planned may be for another processor, with lanes that this one does not have.
Options checked_options(const fedtiny_options& given, bool only_planned = false);
Geometry geometry_of(const Node& node, const Options& options);

constexpr Index FILTER_GROUP = 12;  // filters whose whole gradient is held at once
constexpr Index ALIGNMENT = 64;
inline Index rounded_up(Index floats) { return ceil_div(floats, 16) * 16; }

struct Parameter {
  float* values = nullptr;
  float* gradient = nullptr;
};

// Whole numbers from 0 on, of two bytes each or, if some do not fit, of four.
class Numbers {
 public:
  Numbers() = default;
  Numbers(void* place, bool wide) : place_(place), wide_(wide) {}
  static Index bytes(Index count, bool wide) { return sized(count, wide ? 4 : 2); }

  Index operator[](Index i) const {
    return wide_ ? Index{static_cast<const std::uint32_t*>(place_)[i]}
                 : Index{static_cast<const std::uint16_t*>(place_)[i]};
  }
  void set(Index i, Index value) const {
    if (wide_)
      static_cast<std::uint32_t*>(place_)[i] = static_cast<std::uint32_t>(value);
    else
      static_cast<std::uint16_t*>(place_)[i] = static_cast<std::uint16_t>(value);
  }
  Offsets from(Index i) const { return {static_cast<char*>(place_) + bytes(i, wide_), wide_}; }

 private:
  void* place_ = nullptr;
  bool wide_ = false;
};

// A convolution or linear layer. Weights, biases and row_begin are of the whole layer. The back
// lists have the same weights by what they read (see lists.cpp).
struct Layer {
  std::optional<Geometry> geometry;
  Index kept = 0, chunks = 0;  // chunks: parts that the gradient of the weights is summed in
  // What the mask keeps. It is what is kept, but groups of which most is kept keep all: the rest is
  // zero and has no gradient, and filters that read the same are done together.
  Index masked = 0;
  unsigned char* mask = nullptr;  // a bit for each weight of a layer that is filled
  bool filled() const { return masked < kept; }
  bool keeps(Index j) const { return !filled() || (mask[j / 8] >> j % 8 & 1) != 0; }
  Parameter weight, bias;
  Numbers row_begin, offsets;
  Numbers back_begin, back_offsets;
  const std::int32_t* numbers;      // in the whole layer, of each filter that is there
  float* whole_gradient = nullptr;  // of all uses of shared weights, if largest ones are asked for
};

// Parameters, running and batch statistics are of the whole layer, the rest is of what is there.
struct Norm {
  Parameter weight, bias;
  float *running_mean, *running_var;
  double *mean, *var, *sum, *product;  // of the batch; of d, and of d * (z - mean)
  float *scale, *shift, *batch_mean, *a, *k1, *k2;
  const std::int32_t* numbers;  // in the whole layer, of each channel that is there
};

// Every array beside the activations, counted from a given start.
struct Layout {
  Table<Layer> layers;  // by node
  Table<Norm> norms;
  Index parameters = 0;  // number of trained values
  float *values, *gradients;
  float *first_moment, *second_moment;  // of SGD, one alone
  float* start = nullptr;               // values that the optimizer started from, if it keeps them
  float *sums, *partials, *logits;
  float* back_weights;      // of one layer, in the order of its back lists
  std::int32_t* back_next;  // of each bucket, where its next weight goes
  float *scratch, *slabs;  // of each thread, one after the other
  char* heaps;
  Index scratch_each, slab_each;
  char* activations;
  fedtiny_memory memory{};
  std::vector<char*> gaps;  // ground that nothing may touch
};

Layout layout_of(const Nodes& nodes, const Options& options, const Table<Index>& kept,
                 Index activation_bytes, char* start);

// Where tensors and gradients lie among the activations, in bytes: by tensor; by gradient buffer.
struct Placement {
  Table<Index> values, again, gradients;
  Index bytes = 0;
};

Placement placement_of(const Program& program, const Options& options, Index images, bool training);
Index activation_bytes(const Program& program, const Options& options);

}  // namespace fedtiny
