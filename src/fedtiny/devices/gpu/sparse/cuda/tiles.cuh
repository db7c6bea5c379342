// Convolutions by tiles: what a block keeps in shared memory, and what of it is a lane's.

// Positions: Columns x Rows of Images word images = the lanes of a warp, Depth rows each. Step:
// of the source under a position. Top: rows of the source above the first position's. Left: columns
// before it (0 where one tile has all columns: then zeros behind a row serve as those before the
// next). Held: columns of a stored row that may hold values. Pitch and Height: of a stored plane.
// Tail: rows of zeros behind the last plane. Gap: words between the planes of two images, so that
// lanes read from different banks. Chunk: words that are read at a time. Exact: no position lies
// outside of the output.
template <class W_, int Columns_, int Rows_, int Depth_, int Images_, int Step_, int Top_,
          int Left_, int Held_, int Pitch_, int Height_, int Tail_, int Gap_, int Chunk_,
          bool Exact_>
struct Tile {
  typedef W_ W;
  static constexpr int Columns = Columns_, Rows = Rows_, Depth = Depth_, Images = Images_,
                       Step = Step_, Top = Top_, Left = Left_, Held = Held_, Pitch = Pitch_,
                       Height = Height_, Tail = Tail_, Gap = Gap_, Chunk = Chunk_;
  static constexpr bool Exact = Exact_;
  static constexpr int Plane = Pitch * Height, Lanes = Columns * (Rows / Depth);
  static_assert(Images * Lanes <= 32 && Rows % Depth == 0, "a warp has 32 lanes");
  static_assert(Held % Chunk == 0 && Held <= Pitch, "rows are read in chunks");
};

struct Conv {
  View source;         // what is convolved; backward: the output, whose gradient comes of it and g
  const u32 *g1, *g2;  // backward: gradient of channels below `split`, and of the rest
  int g1_stride, g2_stride, split;
  int channels, height, width;   // of the source
  int tiles_x, tiles_y, images;  // tiles; word images of a device
  int items, room, sums, step;   // room: for taps of a device; step: of the output under a position
  const int2* taps;              // [device][room] (byte offset in the tile, weight)
  const int4* work;              // (first tap, end, channel, class)
  u32* out;
  int out_stride, out_height, out_width, out_channels;
  float2* part;              // forward sums [device][tile][channel]
  float4* gradient_part;     // backward sums [device][tile][class][channel]
  float* weight_part;        // weight gradients [device][tile][room]
  View input, norm1, norm2;  // what the convolution read; outputs whose batch norms need sums
  const u32* more;           // a gradient to add
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
    found.w[0] = q.x, found.w[N > 1 ? 1 : 0] = q.y, found.w[N > 2 ? 2 : 0] = q.z,
    found.w[N > 3 ? 3 : 0] = q.w;
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
static __device__ __forceinline__ void fill(u32* shared, const Conv& c, int device, int image0,
                                            int y0, int x0) {
  typedef typename T::W W;
  const int threads = blockDim.x, thread = threadIdx.x, planes = T::Images * c.channels;
  constexpr int chunks = T::Held / T::Chunk, gap = T::Pitch - T::Held;
  const int hw = c.height * c.width;
  for (int i = thread; i < GUARD; i += threads) shared[i] = 0;
  for (int i = thread; i < T::Tail * T::Pitch + GUARD; i += threads)
    shared[GUARD + planes * T::Plane + (T::Images - 1) * T::Gap + i] = 0;
  for (int i = thread; i < (T::Images - 1) * T::Gap; i += threads)
    shared[GUARD + (i / (T::Gap ? T::Gap : 1) + 1) * (c.channels * T::Plane + T::Gap) - T::Gap +
           i % (T::Gap ? T::Gap : 1)] = 0;
  for (int i = thread; i < planes * T::Height * gap; i += threads)
    shared[GUARD + i / (gap ? gap : 1) * T::Pitch + image_gap<T>(i / (gap ? gap : 1), c.channels) +
           T::Held + i % (gap ? gap : 1)] = 0;
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
      const int image = T::Images == 1 ? 0 : plane / c.channels,
                channel = plane - image * c.channels;
#pragma unroll
      for (int j = 0; j < T::Chunk; j++) value[u].w[j] = g[u].w[j] = 0;
      k[u] = make_float4(0.f, 0.f, 0.f, 0.f);
      to[u] = i < total ? GUARD + row * T::Pitch + image * T::Gap + chunk * T::Chunk : -1;
      const bool inside = i < total && y >= 0 && y < c.height &&
                          (T::Left == 0 || (x >= 0 && x < c.width)) &&
                          (T::Exact || T::Images == 1 || image0 % c.images + image < c.images);
      if (inside) {
        const size_t at = (size_t)channel * hw + y * c.width + x;
        value[u] = read<T::Chunk>(c.source.words + (size_t)(image0 + image) * c.source.stride + at);
        if (MODE != PLAIN) k[u] = __ldg(c.source.coef + (size_t)device * c.source.coefs + channel);
        if (MODE == GRADIENT)
          g[u] =
              read<T::Chunk>(channel < c.split ? c.g1 + (size_t)(image0 + image) * c.g1_stride + at
                                               : c.g2 + (size_t)(image0 + image) * c.g2_stride +
                                                     at - (size_t)c.split * hw);
      }
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (to[u] < 0) continue;
#pragma unroll
      for (int j = 0; j < T::Chunk; j++)
        value[u].w[j] = loaded<T, MODE>(c, value[u].w[j], g[u].w[j], k[u]);
      u32* s = shared + to[u];
      if (T::Chunk == 4 && T::Pitch % 4 == 0 && T::Gap % 4 == 0) {
        *(uint4*)s = make_uint4(value[u].w[0], value[u].w[T::Chunk > 1 ? 1 : 0],
                                value[u].w[T::Chunk > 2 ? 2 : 0], value[u].w[T::Chunk > 3 ? 3 : 0]);
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
    return GUARD + lane_image * (channels * T::Plane + T::Gap) +
           (T::Step * lane_row + T::Top) * T::Pitch + T::Step * lane_column + T::Left;
  }
};
