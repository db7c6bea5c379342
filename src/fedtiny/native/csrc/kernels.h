// The work that is compiled once for each kind of processor.
//
// A stored tensor is [blocks of L images][channels][height][width][L]: each pixel of a channel is one
// vector with a lane for each image. It is held as float or as half. What kernels compute with is
// always float: rows are loaded from a tensor into scratch (through batch norm and ReLU, with zeros
// around them), worked on there, and stored from there.
#pragma once
#include <cstdint>

namespace fedtiny {

using Index = std::int64_t;

// Load rows of one channel through x -> relu(scale * x + shift); outside the plane there are zeros.
struct LoadRows {
  const void* plane;
  Index height, width, row_stride;  // of the plane; row_stride in values
  Index first_row, rows, row_step;  // plane row of scratch row i: first_row + i * row_step
  Index first_column, columns, column_step;
  float scale, shift;
  Index ahead;  // values to what is loaded next, which is fetched meanwhile
  bool half, affine, relu;
};

// Load rows of the gradient of a convolution's output: through the batch norm that follows it,
// dz = a * d + k1 + k2 * (z - mean) in the lanes that hold an image, or as it is.
struct LoadGradient {
  const void* gradient;
  const void* value;
  Index height, width, row_stride;
  Index first_row, rows, first_column, columns;
  Index lanes;
  Index ahead;
  float a, k1, k2, mean;
  bool half, norm;
};

// Store rows with a bias added; give the sums that batch norm needs over lanes that hold an image,
// of values less a pilot (one of them), so that a large mean costs no digits.
struct StoreRows {
  const float* rows;
  Index pitch;
  void* plane;
  Index count, columns, row_stride;
  Index lanes;
  float bias;
  bool half, sums;
  bool stream;  // past the caches: for tensors that they cannot hold until they are read
  float sum, square, pilot;
};

// Hand a gradient to a tensor: pass it through ReLU's mask, give the sums of d and of
// d * (z - mean) for the batch norms that the tensor went through, and add it to what is there.
// Finishing, mask and sums are of all that was added.
struct EmitRows {
  const float* rows;  // or nothing, to finish what is there
  Index pitch;
  void* gradient;
  Index count, columns, row_stride;
  const void* mask;  // kept where relu'(mask_scale * mask + mask_shift) is 1
  float mask_scale, mask_shift;
  int terms;
  const void* term[2];
  float mean[2];
  Index ahead;
  bool half, add, finish;
  bool stream;  // where nothing is added
  float sum, product[2];
};

// rows[r][c] = sum of weights[j] * x[offsets[j] + r * x_pitch + c * L]
struct Gather {
  const float* x;
  Index x_pitch;
  const std::int32_t* offsets;
  const float* weights;
  Index count;
  float* out;
  Index out_pitch, out_step;
  Index rows, columns;
};

// gradient[j] += sum over rows, columns and lanes of d * x at offsets[j]
struct WeightGradient {
  const float* x;
  Index x_pitch;
  const float* d;
  Index d_pitch;
  Index rows, columns;
  const std::int32_t* offsets;
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

// out = relu(scale[0] * term[0] + scale[1] * term[1] + shift), over whole planes
struct Combine {
  void* out;
  const void* term[2];
  float scale[2];
  float shift;
  int terms;
  Index count;
  bool half, relu, stream;
};

// Which rows or columns each pooled one covers, and by how much its mean is divided.
struct Windows {
  Index count;
  const std::int32_t* begin;
  const std::int32_t* end;
  const std::int32_t* divisor;
};

struct Pool {
  const float* values;  // the plane that is pooled
  const float* gradient;
  float* out;  // pooled plane; in the backward pass the gradient of the whole plane, zeroed
  Index width;
  Windows rows, columns;
};

struct Dropout {
  float* rows;
  Index count;  // vectors
  std::uint64_t key;
  Index first_image, image_size, first_value;
  float probability;
};

// Between images [n][size] and one lane vector a value.
struct Pack {
  float* lanes_side;
  float* image_side;
  Index size, image_stride, images;
};

struct Kernels {
  const char* name;
  Index lanes;
  Index dense_filters;  // how many filters dense_gradient does best at once
  void (*load_rows)(const LoadRows&, float* out);
  void (*load_gradient)(const LoadGradient&, float* out);
  void (*store_rows)(StoreRows&);
  void (*emit_rows)(EmitRows&);
  void (*gather)(const Gather&);
  void (*weight_gradient)(const WeightGradient&);
  void (*dense_gradient)(const DenseGradient&);
  void (*combine)(const Combine&);
  void (*max_pool)(const Pool&);
  void (*max_pool_backward)(const Pool&);
  void (*mean_pool)(const Pool&);
  void (*mean_pool_backward)(const Pool&);
  void (*dropout)(const Dropout&);
  void (*pack)(const Pack&);
  void (*unpack)(const Pack&);
  float (*sum)(const float* rows, Index pitch, Index count, Index columns);
};

// The kernels for this processor, or for exactly this many lanes; nothing if it has none such.
const Kernels* kernels_for(Index lanes);

}  // namespace fedtiny
