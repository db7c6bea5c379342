// The work that is compiled once for each kind of processor.
//
// A stored tensor is [blocks of L images][channels][height][width][L]: each pixel of a channel is
// one vector with a lane for each image. It is held as float or as half. What kernels compute with
// is always float: rows are loaded from a tensor into scratch (through batch norm and ReLU, with
// zeros around them), worked on there, and stored from there.
#pragma once
#include <cstdint>

namespace fedtiny {

using Index = std::int64_t;

// Pointwise functions; `leak` is the slope of a leaky ReLU below zero.
enum class Activation {
  None,
  Relu,
  Relu6,
  LeakyRelu,
  Silu,
  HardSwish,
  HardSigmoid,
  Sigmoid,
  Tanh,
  Gelu,
  GeluByTanh
};

// Load rows of one channel through x -> activation(scale * x + shift); outside the plane there are
// zeros.
// With `value` they are of a gradient, through the batch norm that follows its tensor:
// d -> scale * d + (slope * (value - mean) + shift), in the lanes that hold an image.
struct LoadRows {
  const void* plane;
  const void* value;
  Index height, width, row_stride;  // of the plane; row_stride in values
  Index first_row, rows, row_step;  // plane row of scratch row i: first_row + i * row_step
  Index first_column, columns, column_step;
  float scale, shift, slope, mean;
  Index lanes;
  Index ahead;  // values to what is loaded next, which is fetched meanwhile
  bool half, affine;
  Activation activation;
  float leak;
};

// Sums of values less a pilot (one of them), so that a large mean costs no digits.
struct BatchSums {
  float sum, square, pilot;
};

// Rows in scratch and how they lie in a plane.
struct Rows {
  float* rows;
  Index pitch;
  Index count, columns, row_stride;
};

// Store rows with a bias added; if asked for, return the sums that batch norm needs over lanes that
// hold an image.
struct StoreRows : Rows {
  void* plane;
  Index lanes = 0;
  float bias = 0;
  bool half = false, sums = false;
  bool stream = false;  // past the caches: for tensors that they cannot hold until they are read
};

// Sums of d, and of d * (z - mean) for each batch norm that a tensor went through.
struct GradSums {
  float sum, product[2];
};

// Add rows (or none, to finish what is there) to the gradient of a tensor, times the derivative of
// its activation at scale * value + shift, and return the sums for the batch norms that the tensor
// went through. Finishing, derivative and sums are of all that was added; what is finished went
// through ReLU or ReLU6, whose derivative the output tells. Rows are used up.
struct AccumulateGrad : Rows {
  void* gradient;
  Activation activation = Activation::None;
  const void* value = nullptr;
  float scale = 1, shift = 0, leak = 0;
  int terms = 0;
  const void* term[2] = {};
  float mean[2] = {};
  Index ahead = 0;
  bool half = false, add = false, finish = false;
  bool stream = false;  // if nothing is added
};

// Where in scratch values lie, in vectors of L floats: as uint16_t, or where those are too small as
// uint32_t.
struct Offsets {
  const void* first;
  bool wide;
};

// rows[r][c] = sum of weights[j] * x[offsets[j] * L + r * x_pitch + c * L]
struct Gather {
  const float* x;
  Index x_pitch;
  Offsets offsets;
  const float* weights;
  Index count;
  float* out;
  Index out_pitch, out_step;
  Index rows, columns;
};

// The same for a few filters (or channels) at once that read the same offsets.
struct DenseGather : Gather {
  Index weight_step, out_filter;  // from one filter to the next
};
constexpr Index DENSE_FILTERS = 4;

// gradient[j] += sum over rows, columns and lanes of d * x at offsets[j] * L
struct WeightGradient {
  const float* x;
  Index x_pitch;
  const float* d;
  Index d_pitch;
  Index rows, columns;
  Offsets offsets;
  Index count;
  float* gradient;
};

// The same for a few filters at once and for every tap of a kernel at one input channel.
struct DenseGradient {
  const float* x;
  Index x_pitch;
  const float* d;
  Index d_pitch, d_filter;  // d_filter: from one filter's rows to the next one's
  Index rows, columns, filters;
  const std::int32_t* taps;
  Index count;
  float* gradient;
  Index gradient_filter;
};

// out = activation(scale[0] * term[0] + scale[1] * term[1] + shift), over whole planes; no
// activation, ReLU or ReLU6
struct Combine {
  void* out;
  const void* term[2];
  float scale[2];
  float shift;
  int terms;
  Index count;
  bool half, stream;
  Activation activation;
};

// Which rows or columns each pooled one covers, and by how much its mean is divided.
struct PoolAxis {
  Index in, out, kernel, stride, padding, padding_end;
  bool adaptive, count_padding;

  Index first(Index o) const { return adaptive ? o * in / out : o * stride - padding; }
  Index last(Index o) const {
    if (adaptive) return ((o + 1) * in + out - 1) / out;
    return first(o) + kernel < in + padding_end ? first(o) + kernel : in + padding_end;
  }
  Index begin(Index o) const { return first(o) < 0 ? 0 : first(o); }
  Index end(Index o) const { return last(o) < in ? last(o) : in; }
  Index divisor(Index o) const { return count_padding ? last(o) - first(o) : end(o) - begin(o); }
};

struct Pool {
  PoolAxis y, x;
  const float* values;    // the plane that is pooled
  const float* gradient;  // of the pooled plane
  float* out;  // pooled plane; in the backward pass the gradient of the whole plane, zeroed
};

struct Dropout {
  float* rows;
  Index count;  // vectors
  std::uint64_t key;
  Index first_image, image_size, first_value;
  float probability;
};

// Images that lie `stride` values apart, one in each lane; lanes without one hold zeros.
struct Pack {
  const float* images;
  Index count, stride, size;
  float* rows;
};

// Every value of a plane that is so many times as high and wide.
struct Upsample {
  Index height, width, down, across;
};

// A channel's plane in a norm that measures each image by itself. Mean, inverse deviation and sums
// are one vector for the whole plane, or with `apart` one for each pixel.
struct ImageNorm {
  float* rows;          // what is normalised; in the backward pass the gradient of the result
  const float* values;  // in the backward pass what was normalised
  Index count;
  bool apart;
  const float *mean, *inverse;
  float *sum, *product;
  float weight, bias;
};

// Of one channel's d, and of d * xhat.
struct ChannelSums {
  float sum, product;
};

struct Kernels {
  const char* name;
  Index lanes;
  Index dense_filters;  // how many filters dense_gradient does best at once
  void (*load_rows)(const LoadRows&, float* out);
  BatchSums (*store_rows)(const StoreRows&);
  GradSums (*accumulate_grad)(const AccumulateGrad&);
  void (*gather)(const Gather&);
  void (*gather_dense)(const DenseGather&);  // of DENSE_FILTERS
  void (*weight_gradient)(const WeightGradient&);
  void (*dense_gradient)(const DenseGradient&);
  void (*combine)(const Combine&);
  void (*max_pool)(const Pool&);
  void (*max_pool_backward)(const Pool&);
  void (*mean_pool)(const Pool&);
  void (*mean_pool_backward)(const Pool&);
  void (*dropout)(const Dropout&);
  void (*pack)(const Pack&);
  // rows *= by, a vector at a time or with `single` all of them by one
  void (*multiply)(float* rows, const float* by, Index count, bool single);
  void (*add_up)(float* rows, Index count);  // leaves the sum of all vectors in the first
  void (*upsample)(const Upsample&, const float* rows, float* out);
  void (*upsample_backward)(const Upsample&, const float* gradient, float* out);
  // Adds x - mean to sum, and its square to product.
  void (*image_moments)(const ImageNorm&);
  // rows = (rows - mean) * inverse * weight + bias
  void (*image_normalize)(const ImageNorm&);
  // Adds weight * d to sum, and weight * d * xhat to product.
  ChannelSums (*image_products)(const ImageNorm&);
  // rows = inverse * (weight * rows - sum - xhat * product)
  void (*image_gradient)(const ImageNorm&);
  float (*sum)(const float* rows, Index pitch, Index count, Index columns);
};

// The kernels for this processor, or for exactly this many lanes; nothing if it has none such.
const Kernels* kernels_for(Index lanes);

}  // namespace fedtiny
