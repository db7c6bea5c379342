// Elementwise: one block has a channel of some word images.

struct Plane {         // one word image's channel of the result: what makes it
  View a, b;           // forward: what is added
  const u32 *g1, *g2;  // backward: gradients to add up
  int g1_stride, g2_stride;
  int kind;                     // of the operation
  int channels, height, width;  // of the result
  int in_height, in_width;      // of what a pool reads (forward), or of what it gave (backward)
  int kernel_y, kernel_x, step_y, step_x, pad_y, pad_x, count_padding;
  int images, group;  // word images of a device, and of a block
  u32* out;
  int stride;
  float2* part;  // sums for a batch norm of the result
  float4* gradient_part;
  View norm1, norm2;
  float* features;  // [device x images][channels x cells]
  int sums, area;   // area: positions of a feature
  float floor;      // of a sum
};
enum { ADD = 0, MAX_POOL = 1, MEAN_POOL = 2, NORM = 3, FEATURES = 4, ADAPTIVE_POOL = 5 };

template <class W>
static __device__ __forceinline__ float value(const View& v, u32 w, float4 k, int i) {
  return v.coef ? fmaxf(fmaf(k.x, W::get(w, i), k.y), v.floor) : fmaxf(W::get(w, i), v.floor);
}

static __device__ __forceinline__ float4 coefficients(const View& v, int device, int channel) {
  return v.coef ? __ldg(v.coef + (size_t)device * v.coefs + channel)
                : make_float4(1.f, 0.f, 0.f, 1.f);
}

// The largest of a window of one image, as the view has it rounded, and where it lies.
template <class W>
static __device__ __forceinline__ float window_max(const Plane& p, const View& v, const u32* from,
                                                   float4 k, int i, int height, int width, int y,
                                                   int x, int* where) {
  float best = -infinity();
  for (int j = 0; j < p.kernel_y; j++)
    for (int l = 0; l < p.kernel_x; l++) {
      const int sy = y * p.step_y - p.pad_y + j, sx = x * p.step_x - p.pad_x + l;
      if (sy < 0 || sy >= height || sx < 0 || sx >= width) continue;
      const float u = value<W>(v, from[sy * width + sx], k, i);
      if (u > best || u != u) best = u, *where = sy * width + sx;
    }
  return best;
}

static __device__ __forceinline__ float window_size(const Plane& p, int height, int width, int y,
                                                    int x) {
  int top = y * p.step_y - p.pad_y, left = x * p.step_x - p.pad_x;
  int bottom = top + p.kernel_y, right = left + p.kernel_x;
  if (p.count_padding) {  // within the padded image
    bottom = min(bottom, height + p.pad_y), right = min(right, width + p.pad_x);
    return (float)((bottom - top) * (right - left));
  }
  top = max(top, 0), left = max(left, 0), bottom = min(bottom, height), right = min(right, width);
  return (float)((bottom - top) * (right - left));
}

// Of an adaptive pool, where window i of `parts` begins and ends along an axis of `size` values.
static __device__ __forceinline__ int2 part_of(int i, int size, int parts) {
  int2 found;
  found.x = i * size / parts;
  found.y = ((i + 1) * size + parts - 1) / parts;
  return found;
}

template <class W>
static __device__ __forceinline__ void adaptive(const Plane& p, const u32* from, float4 k, int y,
                                                int x, float* v) {
  const int2 rows = part_of(y, p.in_height, p.height), columns = part_of(x, p.in_width, p.width);
  for (int i = 0; i < W::N; i++) v[i] = 0.f;
  for (int sy = rows.x; sy < rows.y; sy++)
    for (int sx = columns.x; sx < columns.y; sx++)
      for (int i = 0; i < W::N; i++) v[i] += value<W>(p.a, from[sy * p.in_width + sx], k, i);
  const float size = (float)((rows.y - rows.x) * (columns.y - columns.x));
  for (int i = 0; i < W::N; i++) v[i] /= size;
}

template <class W>
static __device__ __forceinline__ void adaptive_gradient(const Plane& p, const u32* g, int y, int x,
                                                         float* v) {
  for (int oy = 0; oy < p.in_height; oy++) {
    const int2 rows = part_of(oy, p.height, p.in_height);
    if (y < rows.x || y >= rows.y) continue;
    for (int ox = 0; ox < p.in_width; ox++) {
      const int2 columns = part_of(ox, p.width, p.in_width);
      if (x < columns.x || x >= columns.y) continue;
      const float size = (float)((rows.y - rows.x) * (columns.y - columns.x));
      for (int i = 0; i < W::N; i++) v[i] += W::get(g[oy * p.in_width + ox], i) / size;
    }
  }
}

template <class W>
static __device__ __forceinline__ void window(const Plane& p, const u32* from, float4 k, int y,
                                              int x, float* v) {
  if (p.kind == ADAPTIVE_POOL) return adaptive<W>(p, from, k, y, x, v);
  if (p.kind == MAX_POOL) {
    int where;
    for (int i = 0; i < W::N; i++)
      v[i] = window_max<W>(p, p.a, from, k, i, p.in_height, p.in_width, y, x, &where);
    return;
  }
  for (int i = 0; i < W::N; i++) v[i] = 0.f;
  for (int j = 0; j < p.kernel_y; j++)
    for (int l = 0; l < p.kernel_x; l++) {
      const int sy = y * p.step_y - p.pad_y + j, sx = x * p.step_x - p.pad_x + l;
      if (sy < 0 || sy >= p.in_height || sx < 0 || sx >= p.in_width) continue;
      for (int i = 0; i < W::N; i++) v[i] += value<W>(p.a, from[sy * p.in_width + sx], k, i);
    }
  const float size = window_size(p, p.in_height, p.in_width, y, x);
  for (int i = 0; i < W::N; i++) v[i] /= size;
}

// Gradient of a pool at one position of what it read, summed over the windows that have it.
template <class W>
static __device__ __forceinline__ void window_gradient(const Plane& p, const u32* from,
                                                       const u32* g, float4 k, int y, int x,
                                                       float* v) {
  if (p.kind == ADAPTIVE_POOL) return adaptive_gradient<W>(p, g, y, x, v);
  for (int oy = max(0, (y + p.pad_y - p.kernel_y + p.step_y) / p.step_y); oy < p.in_height; oy++) {
    if (oy * p.step_y - p.pad_y > y) break;
    for (int ox = max(0, (x + p.pad_x - p.kernel_x + p.step_x) / p.step_x); ox < p.in_width; ox++) {
      if (ox * p.step_x - p.pad_x > x) break;
      const u32 u = g[oy * p.in_width + ox];
      const float size = p.kind == MEAN_POOL ? window_size(p, p.height, p.width, oy, ox) : 1.f;
      for (int i = 0; i < W::N; i++) {
        int where = y * p.width + x;
        if (p.kind == MAX_POOL)
          window_max<W>(p, p.a, from, k, i, p.height, p.width, oy, ox, &where);
        if (where == y * p.width + x) v[i] += W::get(u, i) / size;
      }
    }
  }
}

// Sums over a block, a fixed order: by thread, warp, block. All threads come here.
template <int N>
static __device__ __forceinline__ bool block_sums(float* sum) {
  SHARED(float, shared, [N][32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int k = 0; k < N; k++) {
    sum[k] = warp_sum(sum[k]);
    if (lane == 0) shared[k][warp] = sum[k];
  }
  __syncthreads();
  if (threadIdx.x) return false;
#pragma unroll
  for (int k = 0; k < N; k++)
    for (int i = 1; i < (int)blockDim.x / 32; i++) sum[k] += shared[k][i];
  return true;
}

// out = max(a + b, floor), four words a thread. Grid (words / 4, word images, devices).
template <class W>
static __device__ __forceinline__ void added(const Plane& p) {
  const int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x), hw = p.height * p.width;
  if (i >= p.channels * hw) return;
  const int device = blockIdx.z, channel = i / hw;
  const size_t image = (size_t)device * p.images + blockIdx.y;
  const Words<4> a = read<4>(p.a.words + image * p.a.stride + i),
                 b = read<4>(p.b.words + image * p.b.stride + i);
  const float4 ka = coefficients(p.a, device, channel), kb = coefficients(p.b, device, channel);
  u32 o[4];
#pragma unroll
  for (int q = 0; q < 4; q++) {
    float v[W::N];
#pragma unroll
    for (int j = 0; j < W::N; j++)
      v[j] = fmaxf(value<W>(p.a, a.w[q], ka, j) + value<W>(p.b, b.w[q], kb, j), p.floor);
    o[q] = W::pack(v);
  }
  *(uint4*)(p.out + image * p.stride + i) = make_uint4(o[0], o[1], o[2], o[3]);
}

// The same for any shape, or of one tensor as it is used, or a pool of it; with sums for a batch
// norm. Grid (channels, groups of word images, devices).
template <class W>
static __device__ __forceinline__ void combined(const Plane& p) {
  const int channel = blockIdx.x, device = blockIdx.z, hw = p.height * p.width;
  const float4 ka = coefficients(p.a, device, channel);
  const float4 kb = p.b.words ? coefficients(p.b, device, channel) : ka;
  const int in_hw = p.kind == ADD ? hw : p.in_height * p.in_width;
  float sum[2] = {0.f, 0.f};
  for (int i = threadIdx.x; i < p.group * hw; i += blockDim.x) {
    const int of = i / hw, at = i - of * hw, within = blockIdx.y * p.group + of;
    if (within >= p.images) break;
    const size_t image = (size_t)device * p.images + within;
    const u32* a = p.a.words + image * p.a.stride + (size_t)channel * in_hw;
    float v[W::N];
    if (p.kind == ADD) {
      const u32 wa = __ldg(a + at),
                wb = p.b.words ? __ldg(p.b.words + image * p.b.stride + (size_t)channel * hw + at)
                               : 0u;
#pragma unroll
      for (int j = 0; j < W::N; j++) {
        v[j] = value<W>(p.a, wa, ka, j) + (p.b.words ? value<W>(p.b, wb, kb, j) : 0.f);
        v[j] = fmaxf(v[j], p.floor);
      }
    } else {
      window<W>(p, a, ka, at / p.width, at % p.width, v);
      for (int j = 0; j < W::N; j++) v[j] = fmaxf(v[j], p.floor);
    }
    const u32 w = W::pack(v);
    p.out[image * p.stride + (size_t)channel * hw + at] = w;
    for (int j = 0; j < W::N; j++) {
      const float u = W::get(w, j);
      sum[0] += u;
      sum[1] = fmaf(u, u, sum[1]);
    }
  }
  if (p.sums && block_sums<2>(sum))
    p.part[((size_t)device * gridDim.y + blockIdx.y) * p.channels + channel] =
        make_float2(sum[0], sum[1]);
}

// The gradient of a tensor: of what reads it, added up, where its ReLU lets it pass; with sums for
// the batch norms that lie before it. Of NORM: the gradient before a batch norm, A g + B x + C.
template <class W>
static __device__ __forceinline__ void collected(const Plane& p) {
  const int channel = blockIdx.x, device = blockIdx.z, hw = p.height * p.width,
            out_hw = p.in_height * p.in_width;
  const float4 ka = coefficients(p.a, device, channel);
  const float4 k1 = coefficients(p.norm1, device, channel),
               k2 = coefficients(p.norm2, device, channel);
  float sum[3] = {0.f, 0.f, 0.f};
  for (int i = threadIdx.x; i < p.group * hw; i += blockDim.x) {
    const int of = i / hw, at = i - of * hw, within = blockIdx.y * p.group + of;
    if (within >= p.images) break;
    const size_t image = (size_t)device * p.images + within;
    const u32* a = p.a.words + image * p.a.stride + (size_t)channel * hw;
    float v[W::N];
    for (int j = 0; j < W::N; j++) v[j] = 0.f;
    if (p.kind == NORM) {
      const u32 g = p.g1[image * p.g1_stride + (size_t)channel * hw + at];
      for (int j = 0; j < W::N; j++)
        v[j] = fmaf(ka.x, W::get(g, j), fmaf(ka.y, W::get(a[at], j), ka.z));
    } else if (p.kind == FEATURES) {
      const int cells = hw / p.area;
      for (int j = 0; j < W::N; j++) {
        const size_t row = (image * W::N + j) * p.channels + channel;
        v[j] = p.features[row * cells + (p.area == 1 ? at : 0)] / (float)p.area;
      }
    } else if (p.kind == ADD) {
      const u32 g = p.g1[image * p.g1_stride + (size_t)channel * hw + at];
      for (int j = 0; j < W::N; j++) v[j] = W::get(g, j);
    } else {
      window_gradient<W>(p, a, p.g1 + image * p.g1_stride + (size_t)channel * out_hw, ka,
                         at / p.width, at % p.width, v);
    }
    if (p.g2) {
      const u32 g = p.g2[image * p.g2_stride + (size_t)channel * hw + at];
      for (int j = 0; j < W::N; j++) v[j] += W::get(g, j);
    }
    u32 w = W::pack(v);
    if (p.a.relu) {
      u32 kept = 0;
      for (int j = 0; j < W::N; j++) kept |= value<W>(p.a, a[at], ka, j) > 0.f ? W::only(w, j) : 0u;
      w = kept;
    }
    p.out[image * p.stride + (size_t)channel * hw + at] = w;
    const u32 u1 =
        p.norm1.words ? p.norm1.words[image * p.norm1.stride + (size_t)channel * hw + at] : 0u;
    const u32 u2 =
        p.norm2.words ? p.norm2.words[image * p.norm2.stride + (size_t)channel * hw + at] : 0u;
    for (int j = 0; j < W::N; j++) {
      const float g = W::get(w, j);
      sum[0] += g;
      sum[1] = fmaf(g, (W::get(u1, j) - k1.z) * k1.w, sum[1]);
      sum[2] = fmaf(g, (W::get(u2, j) - k2.z) * k2.w, sum[2]);
    }
  }
  if (p.sums && block_sums<3>(sum))
    p.gradient_part[((size_t)device * gridDim.y + blockIdx.y) * p.channels + channel] =
        make_float4(sum[0], sum[1], sum[2], 0.f);
}

// Values for the head, in fp32: means over all positions (area > 1), or every value.
template <class W>
static __device__ __forceinline__ void featured(const Plane& p) {
  const int hw = p.height * p.width, cells = hw / p.area;
  const size_t image = (size_t)blockIdx.z * p.images + blockIdx.y;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.channels * cells;
       i += gridDim.x * blockDim.x) {
    const int channel = i / cells, cell = i % cells;
    const float4 k = coefficients(p.a, blockIdx.z, channel);
    const u32* a = p.a.words + image * p.a.stride + (size_t)channel * hw + cell;
    float v[W::N];
    for (int j = 0; j < W::N; j++) v[j] = 0.f;
    for (int at = 0; at < p.area; at++)
      for (int j = 0; j < W::N; j++) v[j] += value<W>(p.a, a[at], k, j);
    for (int j = 0; j < W::N; j++)
      p.features[(image * W::N + j) * p.channels * cells + i] = v[j] / (float)p.area;
  }
}
