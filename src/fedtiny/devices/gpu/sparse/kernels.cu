// A training step of several devices under one mask, at the kept weights only.
//
// A tensor is [device x word images][channel][height x width] of 32-bit words. A word holds the
// bf16 values of two images, or the fp32 value of one (Word). A shift in space is a constant offset,
// so a kept weight costs one shifted read of a word for each position, and no index arithmetic.
//
// In a convolution a block keeps a tile of all channels in shared memory; a warp computes one
// channel of the tile. Every sum is added up in a fixed order: the same bits every time, whatever
// the number of devices in a launch.

typedef uint32_t u32;
#define GUARD 32  // words before the first plane and behind the last

static __device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

struct Bf16Pair {
  static constexpr int N = 2;
  static __device__ __forceinline__ float get(u32 w, int i) {
    return __uint_as_float(i ? w & 0xffff0000u : w << 16);
  }
  static __device__ __forceinline__ u32 pack(const float* v) { return pack_bf16(v[0], v[1]); }
  static __device__ __forceinline__ u32 only(u32 w, int i) {
    return i ? w & 0xffff0000u : w & 0x0000ffffu;
  }
};

struct Fp32 {
  static constexpr int N = 1;
  static __device__ __forceinline__ float get(u32 w, int) { return __uint_as_float(w); }
  static __device__ __forceinline__ u32 pack(const float* v) { return __float_as_uint(v[0]); }
  static __device__ __forceinline__ u32 only(u32 w, int) { return w; }
};

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}

// A tensor from some channel on, and how its values are used: max(scale * value + shift, floor).
struct View {
  const u32* words;     // null: there is none
  const float4* coef;   // [device][coefs] (scale, shift, mean, inverse deviation); null: as it is
  int stride, coefs;    // words of a word image; coefficients of a device
  float floor;          // 0 after a ReLU, else minus infinity
  int relu;             // whether a gradient passes only where the value is above zero
};

template <class W>
static __device__ __forceinline__ u32 affine(u32 w, float4 k, float floor) {
  float v[W::N];
#pragma unroll
  for (int i = 0; i < W::N; i++) v[i] = fmaxf(fmaf(k.x, W::get(w, i), k.y), floor);
  return W::pack(v);
}

template <class W>
static __device__ __forceinline__ u32 passed(u32 g, u32 value) {
  u32 kept = 0;
#pragma unroll
  for (int i = 0; i < W::N; i++) kept |= W::get(value, i) > 0.f ? W::only(g, i) : 0u;
  return kept;
}

// ---------------------------------------------------------------------------------------------
// Convolutions

// Positions: Columns x Rows of Images word images = the lanes of a warp, Depth rows each. Step:
// of the source under a position. Top: rows of the source above the first position's. Left: columns
// before it (0 where one tile has all columns: then zeros behind a row serve as those before the
// next). Held: columns of a stored row that may hold values. Pitch and Height: of a stored plane.
// Tail: rows of zeros behind the last plane. Gap: words between the planes of two images, so that
// lanes read from different banks. Chunk: words that are read at a time. Exact: no position lies outside of the output.
template <class W_, int Columns_, int Rows_, int Depth_, int Images_, int Step_, int Top_, int Left_,
          int Held_, int Pitch_, int Height_, int Tail_, int Gap_, int Chunk_, bool Exact_>
struct Tile {
  typedef W_ W;
  static constexpr int Columns = Columns_, Rows = Rows_, Depth = Depth_, Images = Images_, Step = Step_,
                       Top = Top_, Left = Left_, Held = Held_, Pitch = Pitch_, Height = Height_,
                       Tail = Tail_, Gap = Gap_, Chunk = Chunk_;
  static constexpr bool Exact = Exact_;
  static constexpr int Plane = Pitch * Height, Lanes = Columns * (Rows / Depth);
  static_assert(Images * Lanes <= 32 && Rows % Depth == 0, "a warp has 32 lanes");
  static_assert(Held % Chunk == 0 && Held <= Pitch, "rows are read in chunks");
};

struct Conv {
  View source;             // what is convolved; backward: the output, whose gradient comes of it and g
  const u32 *g1, *g2;      // backward: gradient of channels below `split`, and of the rest
  int g1_stride, g2_stride, split;
  int channels, height, width;       // of the source
  int tiles_x, tiles_y, images;      // tiles; word images of a device
  int items, room, sums, step;       // room: for taps of a device; step: of the output under a position
  const int2* taps;        // [device][room] (byte offset in the tile, weight)
  const int4* work;        // (first tap, end, channel, class)
  u32* out;
  int out_stride, out_height, out_width, out_channels;
  float2* part;            // forward sums [device][tile][channel]
  float4* gradient_part;   // backward sums [device][tile][class][channel]
  float* weight_part;      // weight gradients [device][tile][room]
  View input, norm1, norm2;  // what the convolution read; outputs whose batch norms need sums
  const u32* more;         // a gradient to add
  int more_stride, classes;
};
enum { PLAIN = 0, AFFINE = 1, GRADIENT = 2 };

template <class T, int MODE>
static __device__ __forceinline__ u32 loaded(const Conv& c, u32 value, u32 g, float4 k) {
  typedef typename T::W W;
  if (MODE == AFFINE) return affine<W>(value, k, c.source.floor);
  if (MODE == PLAIN) return value;
  float v[W::N];
#pragma unroll
  for (int i = 0; i < W::N; i++) v[i] = fmaf(k.x, W::get(g, i), fmaf(k.y, W::get(value, i), k.z));
  return W::pack(v);
}

// Words of a row from the source: Chunk of them, which lie together, or nothing.
template <int N>
struct Words {
  u32 w[N];
};
template <int N>
static __device__ __forceinline__ Words<N> read(const u32* from) {
  Words<N> found;
  if (N == 4) {
    const uint4 q = __ldg((const uint4*)from);
    found.w[0] = q.x, found.w[N > 1 ? 1 : 0] = q.y, found.w[N > 2 ? 2 : 0] = q.z, found.w[N > 3 ? 3 : 0] = q.w;
  } else {
    found.w[0] = __ldg(from);
  }
  return found;
}

// Words that lie between images before a stored row.
template <class T>
static __device__ __forceinline__ int image_gap(int row, int channels) {
  return T::Images == 1 ? 0 : row / (channels * T::Height) * T::Gap;
}

template <class T, int MODE>
static __device__ __forceinline__ void fill(u32* shared, const Conv& c, int device, int image0, int y0,
                                            int x0) {
  typedef typename T::W W;
  const int threads = blockDim.x, thread = threadIdx.x, planes = T::Images * c.channels;
  constexpr int chunks = T::Held / T::Chunk, gap = T::Pitch - T::Held;
  const int hw = c.height * c.width;
  for (int i = thread; i < GUARD; i += threads) shared[i] = 0;
  for (int i = thread; i < T::Tail * T::Pitch + GUARD; i += threads)
    shared[GUARD + planes * T::Plane + (T::Images - 1) * T::Gap + i] = 0;
  for (int i = thread; i < (T::Images - 1) * T::Gap; i += threads)
    shared[GUARD + (i / (T::Gap ? T::Gap : 1) + 1) * (c.channels * T::Plane + T::Gap) - T::Gap + i % (T::Gap ? T::Gap : 1)] = 0;
  for (int i = thread; i < planes * T::Height * gap; i += threads)
    shared[GUARD + i / (gap ? gap : 1) * T::Pitch + image_gap<T>(i / (gap ? gap : 1), c.channels) + T::Held +
           i % (gap ? gap : 1)] = 0;
  const int total = planes * T::Height * chunks;
  constexpr int AHEAD = MODE == GRADIENT ? 3 : 4;
  for (int first = thread; first < total; first += threads * AHEAD) {
    Words<T::Chunk> value[AHEAD], g[AHEAD];
    float4 k[AHEAD];
    int to[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int i = first + u * threads, row = i / chunks, chunk = i - row * chunks;
      const int plane = row / T::Height, y = y0 - T::Top + row - plane * T::Height;
      const int x = x0 - T::Left + chunk * T::Chunk;
      const int image = T::Images == 1 ? 0 : plane / c.channels, channel = plane - image * c.channels;
#pragma unroll
      for (int j = 0; j < T::Chunk; j++) value[u].w[j] = g[u].w[j] = 0;
      k[u] = make_float4(0.f, 0.f, 0.f, 0.f);
      to[u] = i < total ? GUARD + row * T::Pitch + image * T::Gap + chunk * T::Chunk : -1;
      const bool inside = i < total && y >= 0 && y < c.height && (T::Left == 0 || (x >= 0 && x < c.width)) &&
                          (T::Exact || T::Images == 1 || image0 % c.images + image < c.images);
      if (inside) {
        const size_t at = (size_t)channel * hw + y * c.width + x;
        value[u] = read<T::Chunk>(c.source.words + (size_t)(image0 + image) * c.source.stride + at);
        if (MODE != PLAIN) k[u] = __ldg(c.source.coef + (size_t)device * c.source.coefs + channel);
        if (MODE == GRADIENT)
          g[u] = read<T::Chunk>(channel < c.split
                                    ? c.g1 + (size_t)(image0 + image) * c.g1_stride + at
                                    : c.g2 + (size_t)(image0 + image) * c.g2_stride + at - (size_t)c.split * hw);
      }
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (to[u] < 0) continue;
#pragma unroll
      for (int j = 0; j < T::Chunk; j++) value[u].w[j] = loaded<T, MODE>(c, value[u].w[j], g[u].w[j], k[u]);
      u32* s = shared + to[u];
      if (T::Chunk == 4 && T::Pitch % 4 == 0 && T::Gap % 4 == 0) {
        *(uint4*)s = make_uint4(value[u].w[0], value[u].w[T::Chunk > 1 ? 1 : 0], value[u].w[T::Chunk > 2 ? 2 : 0],
                                value[u].w[T::Chunk > 3 ? 3 : 0]);
      } else {
#pragma unroll
        for (int j = 0; j < T::Chunk; j++) s[j] = value[u].w[j];
      }
    }
  }
}

// The part of the grid that a block has, and that a lane has in it.
template <class T>
struct Place {
  int device, tile, image, y, x, rows;  // rows: of the lane's Depth that lie inside
  int image0, y0, x0, lane_image, lane_row, lane_column;
  __device__ Place(const Conv& c, int height, int width) {
    device = blockIdx.z;
    tile = blockIdx.x;
    const int tx = T::Left ? tile % c.tiles_x : 0, rest = T::Left ? tile / c.tiles_x : tile;
    y0 = rest % c.tiles_y * T::Rows;
    x0 = tx * T::Columns;
    const int group = rest / c.tiles_y * T::Images, lane = threadIdx.x % 32;
    const bool idle = T::Images * T::Lanes < 32 && lane >= T::Images * T::Lanes;
    const int at = idle ? 0 : lane, l = at % T::Lanes;
    lane_image = at / T::Lanes;
    lane_column = l % T::Columns;
    lane_row = l / T::Columns * T::Depth;
    image0 = device * c.images + group;
    image = image0 + lane_image;
    y = y0 + lane_row;
    x = x0 + lane_column;
    rows = T::Depth;
    if (!T::Exact) {
      if (height - y < rows) rows = height - y;
      if (idle || x >= width || group + lane_image >= c.images) rows = 0;
    }
  }
  __device__ bool has(int v) const { return T::Exact || v < rows; }
  // Where the tile has the source under the lane's first position.
  __device__ int base(int channels) const {
    return GUARD + lane_image * (channels * T::Plane + T::Gap) + (T::Step * lane_row + T::Top) * T::Pitch +
           T::Step * lane_column + T::Left;
  }
};

template <int N>
static __device__ __forceinline__ void load_taps(int2* to, const int2* taps) {
#pragma unroll
  for (int j = 0; j < N; j++) to[j] = __ldg(taps + j);  // some behind the end may be read
}

template <class T, int MODE>
static __device__ __forceinline__ void convolve(const Conv& c) {
  typedef typename T::W W;
  DYN_SHARED(raw);
  u32* shared = (u32*)raw;
  const Place<T> p(c, c.out_height, c.out_width);
  fill<T, MODE>(shared, c, p.device, p.image0, p.y0 * T::Step, p.x0 * T::Step);
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const unsigned char* base = (const unsigned char*)(shared + p.base(c.channels));
  const int2* taps = c.taps + (size_t)p.device * c.room;
  const size_t hw = (size_t)c.out_height * c.out_width;
  u32* out = c.out + (size_t)p.image * c.out_stride + (size_t)p.y * c.out_width + p.x;
  constexpr int AHEAD = T::Depth >= 4 ? 4 : 8;
  const int stride = warps * gridDim.y;
  int item = warp * gridDim.y + blockIdx.y;
  int4 following = __ldg(c.work + (item < c.items ? item : 0));
  for (; item < c.items; item += stride) {
    const int4 work = following;
    if (item + stride < c.items) following = __ldg(c.work + item + stride);
    float sum[T::Depth][W::N];
#pragma unroll
    for (int v = 0; v < T::Depth; v++)
#pragma unroll
      for (int i = 0; i < W::N; i++) sum[v][i] = 0.f;
    auto add = [&](int2 tap) {
      const u32* s = (const u32*)(base + tap.x);
      const float w = __int_as_float(tap.y);
#pragma unroll
      for (int v = 0; v < T::Depth; v++) {
        const u32 u = s[v * T::Step * T::Pitch];
#pragma unroll
        for (int i = 0; i < W::N; i++) sum[v][i] = fmaf(w, W::get(u, i), sum[v][i]);
      }
    };
    int t = work.x;
    int2 next[AHEAD];
    for (; t + AHEAD <= work.y; t += AHEAD) {
      load_taps<AHEAD>(next, taps + t);
#pragma unroll
      for (int j = 0; j < AHEAD; j++) add(next[j]);
    }
    if (t < work.y) {
      load_taps<AHEAD - 1>(next, taps + t);
#pragma unroll
      for (int j = 0; j < AHEAD - 1; j++) {
        if (t + j >= work.y) break;
        add(next[j]);
      }
    }
    float s1 = 0.f, s2 = 0.f;
    u32* o = out + work.z * hw;
#pragma unroll
    for (int v = 0; v < T::Depth; v++) {
      if (!p.has(v)) continue;
      const u32 w = W::pack(sum[v]);
      o[v * c.out_width] = w;
#pragma unroll
      for (int i = 0; i < W::N; i++) {
        const float a = W::get(w, i);
        s1 += a;
        s2 = fmaf(a, a, s2);
      }
    }
    if (c.sums) {
      s1 = warp_sum(s1);
      s2 = warp_sum(s2);
      if (lane == 0)
        c.part[((size_t)p.device * gridDim.x + p.tile) * c.out_channels + work.z] = make_float2(s1, s2);
    }
  }
}

// A lane's words of one channel, with the channel's coefficients.
template <class T>
struct Column {
  u32 w[T::Depth];
  float4 k;
  __device__ __forceinline__ void load(const u32* words, int stride, const Place<T>& p, size_t at, int row) {
    const u32* from = words + (size_t)p.image * stride + at;
#pragma unroll
    for (int v = 0; v < T::Depth; v++) w[v] = p.has(v) ? __ldg(from + v * row) : 0u;
  }
  __device__ __forceinline__ void load(const View& view, const Place<T>& p, int channel, size_t at, int row) {
    load(view.words, view.stride, p, at, row);
    if (view.coef) k = __ldg(view.coef + (size_t)p.device * view.coefs + channel);
  }
  // Sum over the positions of g times the normalized value, for the gradient of a batch norm.
  __device__ __forceinline__ float along(const Place<T>& p, const u32* g) const {
    typedef typename T::W W;
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < T::Depth; v++) {
      if (!p.has(v)) continue;
#pragma unroll
      for (int i = 0; i < W::N; i++) sum = fmaf(W::get(g[v], i), (W::get(w[v], i) - k.z) * k.w, sum);
    }
    return warp_sum(sum);
  }
};

// Sums over 32 lanes of N values at once: halves of the lanes keep halves of the sums. The sum of
// value j ends in lanes j * 32 / N and following.
template <int N>
static __device__ __forceinline__ float warp_sums(float* part) {
  const int lane = threadIdx.x % 32;
  int m = 16;
#pragma unroll
  for (int h = N / 2; h; h >>= 1, m >>= 1) {
    const bool upper = lane & m;
#pragma unroll
    for (int j = 0; j < h; j++) {
      const float send = upper ? part[j] : part[j + h], keep = upper ? part[j + h] : part[j];
      part[j] = keep + __shfl_xor_sync(0xffffffffu, send, m);
    }
  }
  float sum = part[0];
#pragma unroll
  for (int k = 16 / N; k; k >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, k);
  return sum;
}

// Input gradient and weight gradients in one pass over the kept weights, by input channel: both
// need the same shifted word of the output's gradient. Or only those of the weights.
template <class T, int MODE, bool ONLY_WEIGHTS>
static __device__ __forceinline__ void gradients(const Conv& c) {
  typedef typename T::W W;
  DYN_SHARED(raw);
  u32* shared = (u32*)raw;
  const Place<T> p(c, (c.out_height + c.step - 1) / c.step, (c.out_width + c.step - 1) / c.step);
  fill<T, MODE>(shared, c, p.device, p.image0, p.y0, p.x0);
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const unsigned char* base = (const unsigned char*)(shared + p.base(c.channels));
  const int2* taps = c.taps + (size_t)p.device * c.room;
  float* weight_part = c.weight_part + ((size_t)p.device * gridDim.x + p.tile) * c.room;
  constexpr int AHEAD = T::Depth >= 8 ? 4 : 8;
  const int row = c.step * c.out_width;
  constexpr bool EARLY = T::Depth <= 2 && !ONLY_WEIGHTS;  // few registers: load all before the taps
  Column<T> more, norm1, norm2;
  const int stride = warps * gridDim.y;
  int item = warp * gridDim.y + blockIdx.y;
  int4 following = __ldg(c.work + (item < c.items ? item : 0));
  for (; item < c.items; item += stride) {
    const int4 work = following;
    if (item + stride < c.items) following = __ldg(c.work + item + stride);
    if (ONLY_WEIGHTS && work.x == work.y) continue;
    const int channel = work.z, dy = work.w / c.step, dx = work.w % c.step;
    const int y = c.step * p.y + dy, x = c.step * p.x + dx;
    Place<T> q = p;  // the class may have fewer positions
    if (!T::Exact) {
      if ((c.out_height - y + c.step - 1) / c.step < q.rows) q.rows = (c.out_height - y + c.step - 1) / c.step;
      if (x >= c.out_width || q.rows < 0) q.rows = 0;
    }
    const size_t at = ((size_t)channel * c.out_height + y) * c.out_width + x;
    Column<T> read;
    read.load(c.input, q, channel, at, row);
    if (EARLY) {
      if (c.more) more.load(c.more, c.more_stride, q, at, row);
      if (c.norm1.words) norm1.load(c.norm1, q, channel, at, row);
      if (c.norm2.words) norm2.load(c.norm2, q, channel, at, row);
    }
    u32* input = read.w;
    if (c.input.coef)
#pragma unroll
      for (int v = 0; v < T::Depth; v++) input[v] = q.has(v) ? affine<W>(input[v], read.k, c.input.floor) : 0u;
    float sum[T::Depth][W::N];
#pragma unroll
    for (int v = 0; v < T::Depth; v++)
#pragma unroll
      for (int i = 0; i < W::N; i++) sum[v][i] = 0.f;
    auto add = [&](int2 tap) {
      const u32* s = (const u32*)(base + tap.x);
      const float w = __int_as_float(tap.y);
      float product[W::N];
#pragma unroll
      for (int i = 0; i < W::N; i++) product[i] = 0.f;
#pragma unroll
      for (int v = 0; v < T::Depth; v++) {
        const u32 u = s[v * T::Pitch];
#pragma unroll
        for (int i = 0; i < W::N; i++) {
          const float g = W::get(u, i);
          if (!ONLY_WEIGHTS) sum[v][i] = fmaf(w, g, sum[v][i]);
          product[i] = fmaf(W::get(input[v], i), g, product[i]);
        }
      }
      return W::N == 2 ? product[0] + product[W::N - 1] : product[0];
    };
    for (int t = work.x; t < work.y; t += AHEAD) {
      int2 next[AHEAD];
      float part[AHEAD];
      load_taps<AHEAD>(next, taps + t);
      if (t + AHEAD <= work.y) {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) part[j] = add(next[j]);
      } else {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) part[j] = 0.f;
#pragma unroll
        for (int j = 0; j < AHEAD - 1; j++) {
          if (t + j >= work.y) break;
          part[j] = add(next[j]);
        }
      }
      const float total = warp_sums<AHEAD>(part);
      const int j = lane / (32 / AHEAD);
      if (lane % (32 / AHEAD) == 0 && t + j < work.y) weight_part[t + j] = total;
    }
    if (ONLY_WEIGHTS) continue;
    u32* o = c.out + (size_t)q.image * c.out_stride + at;
    if (c.more) {
      if (!EARLY) more.load(c.more, c.more_stride, q, at, row);
#pragma unroll
      for (int v = 0; v < T::Depth; v++)
#pragma unroll
        for (int i = 0; i < W::N; i++) sum[v][i] += W::get(more.w[v], i);
    }
    u32 g[T::Depth];
    float s0 = 0.f;
#pragma unroll
    for (int v = 0; v < T::Depth; v++) {
      g[v] = 0u;
      if (!q.has(v)) continue;
      g[v] = W::pack(sum[v]);
      if (c.input.relu) g[v] = passed<W>(g[v], input[v]);
      o[v * row] = g[v];
#pragma unroll
      for (int i = 0; i < W::N; i++) s0 += W::get(g[v], i);
    }
    if (c.sums) {
      s0 = warp_sum(s0);
      if (!EARLY && c.norm1.words) norm1.load(c.norm1, q, channel, at, row);
      const float s1 = c.norm1.words ? norm1.along(q, g) : 0.f;
      if (!EARLY && c.norm2.words) norm2.load(c.norm2, q, channel, at, row);
      const float s2 = c.norm2.words ? norm2.along(q, g) : 0.f;
      if (lane == 0)
        c.gradient_part[(((size_t)q.device * gridDim.x + q.tile) * c.classes + work.w) * c.out_channels + channel] =
            make_float4(s0, s1, s2, 0.f);
    }
  }
}

// A convolution with stride 1 that keeps all its weights, on the tensor cores: filters x taps by taps
// x positions, eight positions at a time, for each image of a pair. Weights are rounded to bf16.
template <class T, int MODE, int Filters, int Channels, int KernelY, int KernelX, int Padding>
static __device__ __forceinline__ void dense_convolve(const Conv& c) {
  constexpr int TILES = T::Rows * T::Columns / 8, KERNEL_SIZE = KernelY * KernelX, TAPS = Channels * KERNEL_SIZE;
  constexpr int BLOCKS = Filters / 16, PAIRS = 16, PITCH = 20;  // pairs of taps; pitch: no two lanes share a bank
  static_assert(T::Exact && T::Images == 1 && T::Columns % 8 == 0 && TAPS <= 2 * PAIRS && Filters % 16 == 0, "whole tiles");
  DYN_SHARED(raw);
  u32* shared = (u32*)raw;
  u32* weights = shared + 2 * GUARD + Channels * T::Plane + T::Tail * T::Pitch;  // [filter][pair of taps]
  float2* sums = (float2*)(weights + Filters * PITCH);                           // [warp][filter]
  const Place<T> p(c, c.out_height, c.out_width);
  fill<T, MODE>(shared, c, p.device, p.image0, p.y0, 0);
  const int2* taps = c.taps + (size_t)p.device * c.room;
  for (int i = threadIdx.x; i < Filters * PAIRS; i += blockDim.x) {
    const int filter = i / PAIRS, tap = i % PAIRS * 2;
    const float low = tap < TAPS ? __int_as_float(taps[filter * TAPS + tap].y) : 0.f;
    const float high = tap + 1 < TAPS ? __int_as_float(taps[filter * TAPS + tap + 1].y) : 0.f;
    weights[filter * PITCH + i % PAIRS] = pack_bf16(low, high);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int row = lane / 4, column = lane % 4;
  int offset[8];  // where the taps of this lane read; one behind the last reads zeros before the first plane
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int tap = k / 4 * 16 + k % 4 / 2 * 8 + column * 2 + k % 2, inside = tap % KERNEL_SIZE;
    offset[k] = GUARD + tap / KERNEL_SIZE * T::Plane + inside / KernelX * T::Pitch + inside % KernelX - Padding;
    if (tap >= TAPS) offset[k] = -1;
  }
  float s1[BLOCKS][2] = {}, s2[BLOCKS][2] = {};
  for (int tile = warp; tile < TILES; tile += warps) {
    const int y = tile * 8 / T::Columns, x = tile * 8 % T::Columns;
    u32 b[2][2][2];  // [step][image][half]
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      const int at = y * T::Pitch + x + row;
      const u32 first = offset[k] < 0 ? 0u : shared[offset[k] + at];
      const u32 second = offset[k + 1] < 0 ? 0u : shared[offset[k + 1] + at];
      b[k / 4][0][k % 4 / 2] = (first & 0xffffu) | second << 16;
      b[k / 4][1][k % 4 / 2] = first >> 16 | (second & 0xffff0000u);
    }
    u32* out = c.out + (size_t)p.image * c.out_stride + (size_t)(p.y0 + y) * c.out_width + x + 2 * column;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      float sum[2][4] = {};
#pragma unroll
      for (int step = 0; step < 2; step++) {
        const u32* w = weights + (block * 16 + row) * PITCH + step * 8 + column;
        const u32 a[4] = {w[0], w[8 * PITCH], w[4], w[8 * PITCH + 4]};
        mma_bf16(sum[0], a, b[step][0]);
        mma_bf16(sum[1], a, b[step][1]);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int filter = block * 16 + half * 8 + row;
        u32 both[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
          both[j] = pack_bf16(sum[0][2 * half + j], sum[1][2 * half + j]);
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const float v = Bf16Pair::get(both[j], i);
            s1[block][half] += v;
            s2[block][half] = fmaf(v, v, s2[block][half]);
          }
        }
        *(uint2*)(out + (size_t)filter * c.out_height * c.out_width) = make_uint2(both[0], both[1]);
      }
    }
  }
  if (!c.sums) return;
#pragma unroll
  for (int block = 0; block < BLOCKS; block++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float a = s1[block][half], b = s2[block][half];
#pragma unroll
      for (int m = 1; m < 4; m *= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, m);
        b += __shfl_xor_sync(0xffffffffu, b, m);
      }
      if (column == 0) sums[warp * Filters + block * 16 + half * 8 + row] = make_float2(a, b);
    }
  __syncthreads();
  for (int filter = threadIdx.x; filter < Filters; filter += blockDim.x) {
    float2 total = sums[filter];
    for (int w = 1; w < warps; w++) {
      total.x += sums[w * Filters + filter].x;
      total.y += sums[w * Filters + filter].y;
    }
    c.part[((size_t)p.device * gridDim.x + p.tile) * c.out_channels + filter] = total;
  }
}

// Weight gradients of a convolution with stride 1 that keeps all its weights, on the tensor cores:
// filters x taps, summed over the positions of a tile, eight positions of two images at a time.
// T: tile of the output's gradient; X: tile of the input. Padding: of columns.
template <class T, class X, int MODE, int Filters, int Channels, int KernelY, int KernelX, int Padding>
static __device__ __forceinline__ void dense_gradients(const Conv& c) {
  constexpr int POSITIONS = T::Rows * T::Columns, TAPS = Channels * KernelY * KernelX, BLOCKS = Filters / 16;
  static_assert(T::Exact && X::Exact && T::Images == 1 && X::Images == 1 && T::Columns % 8 == 0, "whole tiles");
  static_assert(T::Columns == X::Columns && T::Rows == X::Rows && TAPS <= 32 && Filters % 16 == 0, "same positions");
  DYN_SHARED(raw);
  u32* shared = (u32*)raw;
  u32* inputs = shared + 2 * GUARD + Filters * T::Plane + T::Tail * T::Pitch;
  const Place<T> p(c, c.out_height, c.out_width);
  fill<T, MODE>(shared, c, p.device, p.image0, p.y0, 0);
  Conv x = c;
  x.source = c.input, x.channels = Channels, x.height = c.out_height, x.width = c.out_width;
  fill<X, PLAIN>(inputs, x, p.device, p.image0, p.y0, 0);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int row = lane / 4, column = lane % 4, block = warp % BLOCKS, groups = warps / BLOCKS;
  const u32* gradient = shared + GUARD + T::Top * T::Pitch + (block * 16 + row) * T::Plane + column;
  int offset[4];  // where the taps of this lane's columns read
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const int tap = n * 8 + row < TAPS ? n * 8 + row : 0, inside = tap % (KernelY * KernelX);
    offset[n] = GUARD + tap / (KernelY * KernelX) * X::Plane + inside / KernelX * X::Pitch + inside % KernelX -
                Padding + column;
  }
  float sum[4][4] = {};
  for (int step = warp / BLOCKS; warp < BLOCKS * groups && step < POSITIONS / 8; step += groups) {
    const int y = step * 8 / T::Columns, at = step * 8 % T::Columns;
    const u32* g = gradient + y * T::Pitch + at;
    const u32 a[4] = {g[0], g[8 * T::Plane], g[4], g[8 * T::Plane + 4]};
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const u32* in = inputs + offset[n] + y * X::Pitch + at;
      const u32 b[2] = {in[0], in[4]};
      mma_bf16(sum[n], a, b);
    }
  }
  __syncthreads();
  float* partial = (float*)raw;  // [group][filter][32]
  if (warp < BLOCKS * groups)
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int filter = block * 16 + row + i / 2 * 8, tap = n * 8 + column * 2 + i % 2;
        partial[(warp / BLOCKS * Filters + filter) * 32 + tap] = sum[n][i];
      }
  __syncthreads();
  float* out = c.weight_part + ((size_t)p.device * gridDim.x + p.tile) * c.room;
  for (int i = threadIdx.x; i < Filters * 32; i += blockDim.x) {
    const int filter = i / 32, tap = i % 32, inside = tap % (KernelY * KernelX);
    if (tap >= TAPS) continue;
    float total = 0.f;
    for (int group = 0; group < groups; group++) total += partial[group * Filters * 32 + i];
    out[(tap / (KernelY * KernelX) * Filters + filter) * (KernelY * KernelX) + inside] = total;
  }
}

// ---------------------------------------------------------------------------------------------
// Batch norm: sums of tiles in a fixed order become coefficients. 32 channels x 32 parts a block.

struct Norm {
  const float2* part;          // forward sums [device][tile][of]
  const float4* gradient_part; // backward sums [device][tile][of]
  int tiles, of, channels, first;  // first: channel in `part`
  int which;                   // backward: 1 or 2, which of the sums is this norm's
  float count, epsilon, momentum;
  float* theta;                // [device][values], with the places of this norm's values; -1: it has none
  int values, scale, shift, mean, variance, bias;
  float4* coef;                // [device][coefs], of this norm
  float4* gradient_coef;       // the same, for the gradient
  int coefs;
  float* gradient;             // [device][dense]
  int dense, plain;            // plain: no batch norm, a bias only
};

template <int N, class V>
static __device__ __forceinline__ bool summed(const V* part, const Norm& n, double* found) {
  SHARED(double, shared, [N][32][32]);
  const int x = threadIdx.x % 32, y = threadIdx.x / 32, channel = blockIdx.x * 32 + x;
  double sum[N];
#pragma unroll
  for (int k = 0; k < N; k++) sum[k] = 0;
  if (channel < n.channels)
#pragma unroll 4
    for (int t = y; t < n.tiles; t += 32) {
      const V v = part[((size_t)blockIdx.z * n.tiles + t) * n.of + n.first + channel];
      const float* each = (const float*)&v;
#pragma unroll
      for (int k = 0; k < N; k++) sum[k] += each[k];
    }
#pragma unroll
  for (int k = 0; k < N; k++) shared[k][y][x] = sum[k];
  __syncthreads();
  if (y || channel >= n.channels) return false;
#pragma unroll
  for (int k = 0; k < N; k++) {
    found[k] = 0;
    for (int i = 0; i < 32; i++) found[k] += shared[k][i][x];
  }
  return true;
}

KERNEL(norm_forward, Norm, 1024, 1) {
  const Norm& n = args;
  const int device = blockIdx.z, channel = blockIdx.x * 32 + threadIdx.x % 32;
  float* theta = n.theta + (size_t)device * n.values;
  if (n.plain) {
    if (threadIdx.x < 32 && channel < n.channels)
      n.coef[(size_t)device * n.coefs + channel] = 
          make_float4(1.f, n.bias < 0 ? 0.f : theta[n.bias + channel], 0.f, 1.f);
    return;
  }
  double sum[2];
  if (!summed<2>(n.part, n, sum)) return;
  const double mean = sum[0] / n.count, variance = fmax(sum[1] / n.count - mean * mean, 0.0);
  const float inverse = (float)(1.0 / sqrt(variance + n.epsilon));
  const float scale = n.scale < 0 ? 1.f : theta[n.scale + channel];
  const float shift = n.shift < 0 ? 0.f : theta[n.shift + channel];
  n.coef[(size_t)device * n.coefs + channel] =
      make_float4(scale * inverse, shift - scale * inverse * (float)mean, (float)mean, inverse);
  if (n.mean < 0) return;
  const float seen = (float)mean + (n.bias < 0 ? 0.f : theta[n.bias + channel]);
  const float spread = (float)(variance * n.count / (n.count - 1));
  theta[n.mean + channel] += n.momentum * (seen - theta[n.mean + channel]);
  theta[n.variance + channel] += n.momentum * (spread - theta[n.variance + channel]);
}

KERNEL(norm_backward, Norm, 1024, 1) {
  const Norm& n = args;
  const int device = blockIdx.z, channel = blockIdx.x * 32 + threadIdx.x % 32;
  double sum[3];
  if (!summed<3>(n.gradient_part, n, sum)) return;
  float* gradient = n.gradient + (size_t)device * n.dense;
  if (n.plain) {
    if (n.bias >= 0) gradient[n.bias + channel] = (float)sum[0];
    return;
  }
  const double along = n.which == 1 ? sum[1] : sum[2];
  const float4 k = n.coef[(size_t)device * n.coefs + channel];
  const float m1 = (float)(sum[0] / n.count), m2 = (float)(along / n.count), b = -k.x * m2 * k.w;
  n.gradient_coef[(size_t)device * n.coefs + channel] = make_float4(k.x, b, -k.x * m1 - b * k.z, 0.f);
  if (n.scale >= 0) gradient[n.scale + channel] = (float)along;
  if (n.shift >= 0) gradient[n.shift + channel] = (float)sum[0];
  if (n.bias >= 0) gradient[n.bias + channel] = 0.f;  // batch norm takes it out again
}

// ---------------------------------------------------------------------------------------------
// Elementwise: one block has a channel of some word images.

struct Plane {             // one word image's channel of the result: what makes it
  View a, b;               // forward: what is added
  const u32 *g1, *g2;      // backward: gradients to add up
  int g1_stride, g2_stride;
  int kind;                // of the operation
  int channels, height, width;            // of the result
  int in_height, in_width;                // of what a pool reads (forward), or of what it gave (backward)
  int kernel_y, kernel_x, step_y, step_x, pad_y, pad_x, count_padding;
  int images, group;       // word images of a device, and of a block
  u32* out;
  int stride;
  float2* part;            // sums for a batch norm of the result
  float4* gradient_part;
  View norm1, norm2;
  float* features;         // [device x images][channels x cells]
  int sums, area;          // area: positions of a feature
  float floor;             // of a sum
};
enum { ADD = 0, MAX_POOL = 1, MEAN_POOL = 2, NORM = 3, FEATURES = 4 };

template <class W>
static __device__ __forceinline__ float value(const View& v, u32 w, float4 k, int i) {
  return v.coef ? fmaxf(fmaf(k.x, W::get(w, i), k.y), v.floor) : fmaxf(W::get(w, i), v.floor);
}

static __device__ __forceinline__ float4 coefficients(const View& v, int device, int channel) {
  return v.coef ? __ldg(v.coef + (size_t)device * v.coefs + channel) : make_float4(1.f, 0.f, 0.f, 1.f);
}

// The largest of a window of one image, as the view has it rounded, and where it lies.
template <class W>
static __device__ __forceinline__ float window_max(const Plane& p, const View& v, const u32* from, float4 k,
                                                   int i, int height, int width, int y, int x, int* where) {
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

static __device__ __forceinline__ float window_size(const Plane& p, int height, int width, int y, int x) {
  int top = y * p.step_y - p.pad_y, left = x * p.step_x - p.pad_x;
  int bottom = top + p.kernel_y, right = left + p.kernel_x;
  if (p.count_padding) {  // within the padded image
    bottom = min(bottom, height + p.pad_y), right = min(right, width + p.pad_x);
    return (float)((bottom - top) * (right - left));
  }
  top = max(top, 0), left = max(left, 0), bottom = min(bottom, height), right = min(right, width);
  return (float)((bottom - top) * (right - left));
}

template <class W>
static __device__ __forceinline__ void window(const Plane& p, const u32* from, float4 k, int y, int x, float* v) {
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
static __device__ __forceinline__ void window_gradient(const Plane& p, const u32* from, const u32* g, float4 k,
                                                       int y, int x, float* v) {
  for (int oy = max(0, (y + p.pad_y - p.kernel_y + p.step_y) / p.step_y); oy < p.in_height; oy++) {
    if (oy * p.step_y - p.pad_y > y) break;
    for (int ox = max(0, (x + p.pad_x - p.kernel_x + p.step_x) / p.step_x); ox < p.in_width; ox++) {
      if (ox * p.step_x - p.pad_x > x) break;
      const u32 u = g[oy * p.in_width + ox];
      const float size = p.kind == MEAN_POOL ? window_size(p, p.height, p.width, oy, ox) : 1.f;
      for (int i = 0; i < W::N; i++) {
        int where = y * p.width + x;
        if (p.kind == MAX_POOL) window_max<W>(p, p.a, from, k, i, p.height, p.width, oy, ox, &where);
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
  const Words<4> a = read<4>(p.a.words + image * p.a.stride + i), b = read<4>(p.b.words + image * p.b.stride + i);
  const float4 ka = coefficients(p.a, device, channel), kb = coefficients(p.b, device, channel);
  u32 o[4];
#pragma unroll
  for (int q = 0; q < 4; q++) {
    float v[W::N];
#pragma unroll
    for (int j = 0; j < W::N; j++) v[j] = fmaxf(value<W>(p.a, a.w[q], ka, j) + value<W>(p.b, b.w[q], kb, j), p.floor);
    o[q] = W::pack(v);
  }
  *(uint4*)(p.out + image * p.stride + i) = make_uint4(o[0], o[1], o[2], o[3]);
}

// The same for any shape, or of one tensor as it is used, or a pool of it; with sums for a batch norm.
// Grid (channels, groups of word images, devices).
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
      const u32 wa = __ldg(a + at), wb = p.b.words ? __ldg(p.b.words + image * p.b.stride + (size_t)channel * hw + at) : 0u;
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
    p.part[((size_t)device * gridDim.y + blockIdx.y) * p.channels + channel] = make_float2(sum[0], sum[1]);
}

// The gradient of a tensor: of what reads it, added up, where its ReLU lets it pass; with sums for
// the batch norms that lie before it. Of NORM: the gradient before a batch norm, A g + B x + C.
template <class W>
static __device__ __forceinline__ void collected(const Plane& p) {
  const int channel = blockIdx.x, device = blockIdx.z, hw = p.height * p.width, out_hw = p.in_height * p.in_width;
  const float4 ka = coefficients(p.a, device, channel);
  const float4 k1 = coefficients(p.norm1, device, channel), k2 = coefficients(p.norm2, device, channel);
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
      for (int j = 0; j < W::N; j++) v[j] = fmaf(ka.x, W::get(g, j), fmaf(ka.y, W::get(a[at], j), ka.z));
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
      window_gradient<W>(p, a, p.g1 + image * p.g1_stride + (size_t)channel * out_hw, ka, at / p.width, at % p.width, v);
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
    const u32 u1 = p.norm1.words ? p.norm1.words[image * p.norm1.stride + (size_t)channel * hw + at] : 0u;
    const u32 u2 = p.norm2.words ? p.norm2.words[image * p.norm2.stride + (size_t)channel * hw + at] : 0u;
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
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.channels * cells; i += gridDim.x * blockDim.x) {
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

// ---------------------------------------------------------------------------------------------
// Batches: cropped, mirrored, normalized, cut out, as a plan says for every sample.

struct Batch {
  const void* pixels;        // [sample][padded height][padded width][channel]
  const long long* labels;
  const int* plan;           // [device][steps][batch][6]: sample, row, column, mirrored, corner of the hole
  const int* next;           // which step
  int steps, batch, channels, height, width, padded_height, padded_width, cutout;
  const float *scale, *shift;
  u32* out;
  long long* out_labels;     // [device][batch]
};

// Grid (pixels, word images, devices).
template <class W, class Pixel>
static __device__ __forceinline__ void fetched(const Batch& b) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x, hw = b.height * b.width;
  if (at >= hw) return;
  const size_t image = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
  const int y = at / b.width, x = at % b.width;
  const Pixel* from[W::N];
  bool hole[W::N];
#pragma unroll
  for (int i = 0; i < W::N; i++) {
    const int sample = blockIdx.y * W::N + i;
    const int* row = b.plan + (((size_t)blockIdx.z * b.steps + *b.next) * b.batch + sample) * 6;
    const int sy = row[1] + y, sx = row[2] + (row[3] ? b.width - 1 - x : x);
    from[i] = (const Pixel*)b.pixels + (((size_t)row[0] * b.padded_height + sy) * b.padded_width + sx) * b.channels;
    hole[i] = y >= row[4] && y < row[4] + b.cutout && x >= row[5] && x < row[5] + b.cutout;
    if (at == 0) b.out_labels[(size_t)blockIdx.z * b.batch + sample] = b.labels[row[0]];
  }
  for (int channel = 0; channel < b.channels; channel++) {
    float v[W::N];
#pragma unroll
    for (int i = 0; i < W::N; i++) v[i] = hole[i] ? 0.f : (float)from[i][channel] * b.scale[channel] - b.shift[channel];
    b.out[(image * b.channels + channel) * hw + at] = W::pack(v);
  }
}

// ---------------------------------------------------------------------------------------------
// The optimizer, as PyTorch computes Adam and SGD

struct Segment {           // the kept weights of a convolution, or of several that share their source
  const float* part;       // gradients [device][tiles][room], in the order of the backward pass
  int2 *taps, *back_taps;  // [device][room]
  const int* place;        // [room] by tap of the backward pass, the tap of the forward pass; -1: none
  int tiles, room, first, pad;  // first: in a device's theta, from where forward taps have their weights
};
struct Update {
  const Segment* segments;
  float *theta, *gradient, *first, *second;  // [device][values], but gradient [device][dense]
  const float* received;   // [values] what the devices were sent, for FedProx
  const unsigned char* moves;  // [dense] whether it is trained, 2: without decay
  const float* rates;      // see the enum
  int values, dense, adam;
};

enum { LR, DECAY, MU, FIRST, REST_OF_FIRST, SECOND, REST_OF_SECOND, EPSILON, STEP, SCALE };  // FIRST: beta1 or momentum

static __device__ __forceinline__ float updated(const Update& u, size_t at, size_t place, int j, float g, bool decays) {
  const float* r = u.rates;
  float w = u.theta[place];
  if (decays) g += r[DECAY] * w;
  if (r[MU] != 0.f) g += r[MU] * (w - u.received[j]);
  if (u.adam) {
    const float m = u.first[at] + r[REST_OF_FIRST] * (g - u.first[at]);
    const float v = r[SECOND] * u.second[at] + r[REST_OF_SECOND] * g * g;
    u.first[at] = m;
    u.second[at] = v;
    w -= r[STEP] * m / (sqrtf(v) / r[SCALE] + r[EPSILON]);
  } else {
    const float m = r[FIRST] * u.first[at] + g;
    u.first[at] = m;
    w -= r[LR] * m;
  }
  u.theta[place] = w;
  return w;
}

// Grid (blocks of values, 1, devices): parameters of which there is one gradient.
KERNEL(update_dense, Update, 256, 1) {
  const Update& u = args;
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= u.dense || !u.moves[j]) return;
  const size_t at = (size_t)blockIdx.z * u.values + j;
  updated(u, at, at, j, u.gradient[(size_t)blockIdx.z * u.dense + j], u.moves[j] == 1);
}

// Grid (blocks of taps, segments, devices): kept weights, whose gradients lie by tiles; the new
// weight goes to both lists of taps.
KERNEL(update_kept, Update, 256, 1) {
  const Update& u = args;
  const Segment s = u.segments[blockIdx.y];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int place = i < s.room ? s.place[i] : -1;
  if (place < 0) return;
  const float* p = s.part + (size_t)blockIdx.z * s.tiles * s.room + i;
  float sums[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  int t = 0;
#pragma unroll 2
  for (; t + 8 <= s.tiles; t += 8)
#pragma unroll
    for (int q = 0; q < 8; q++) sums[q] += p[(size_t)(t + q) * s.room];
  for (; t < s.tiles; t++) sums[0] += p[(size_t)t * s.room];
  const float g = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  const size_t device = (size_t)blockIdx.z * u.values;
  const float w = updated(u, device + s.first + i, device + s.first + place, s.first + place, g, true);
  s.taps[(size_t)blockIdx.z * s.room + place].y = __float_as_int(w);
  s.back_taps[(size_t)blockIdx.z * s.room + i].y = __float_as_int(w);
}

// Before a training, weights go from theta to the taps. Grid as update_kept's.
KERNEL(spread, Update, 256, 1) {
  const Update& u = args;
  const Segment s = u.segments[blockIdx.y];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int place = i < s.room ? s.place[i] : -1;
  if (place < 0) return;
  const float w = u.theta[(size_t)blockIdx.z * u.values + s.first + place];
  s.taps[(size_t)blockIdx.z * s.room + place].y = __float_as_int(w);
  s.back_taps[(size_t)blockIdx.z * s.room + i].y = __float_as_int(w);
}

struct Tick {
  int* next;             // steps done since the plan was laid down
  double* exact;         // steps done since the training began, lr, beta1, beta2
  float* rates;
  int adam;
};
// Before the update of a step.
KERNEL(tick, Tick, 32, 1) {
  if (threadIdx.x) return;
  *args.next += 1;
  const double count = args.exact[0] += 1;
  if (!args.adam) return;
  args.rates[STEP] = (float)(args.exact[1] / (1.0 - pow(args.exact[2], count)));
  args.rates[SCALE] = (float)sqrt(1.0 - pow(args.exact[3], count));
}
