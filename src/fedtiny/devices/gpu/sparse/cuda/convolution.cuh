// Convolutions at the kept weights, and their gradients.

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
        c.part[((size_t)p.device * gridDim.x + p.tile) * c.out_channels + work.z] =
            make_float2(s1, s2);
    }
  }
}

// A lane's words of one channel, with the channel's coefficients.
template <class T>
struct Column {
  u32 w[T::Depth];
  float4 k;
  __device__ __forceinline__ void load(const u32* words, int stride, const Place<T>& p, size_t at,
                                       int row) {
    const u32* from = words + (size_t)p.image * stride + at;
#pragma unroll
    for (int v = 0; v < T::Depth; v++) w[v] = p.has(v) ? __ldg(from + v * row) : 0u;
  }
  __device__ __forceinline__ void load(const View& view, const Place<T>& p, int channel, size_t at,
                                       int row) {
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
      for (int i = 0; i < W::N; i++)
        sum = fmaf(W::get(g[v], i), (W::get(w[v], i) - k.z) * k.w, sum);
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
      if ((c.out_height - y + c.step - 1) / c.step < q.rows)
        q.rows = (c.out_height - y + c.step - 1) / c.step;
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
      for (int v = 0; v < T::Depth; v++)
        input[v] = q.has(v) ? affine<W>(input[v], read.k, c.input.floor) : 0u;
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
        c.gradient_part[(((size_t)q.device * gridDim.x + q.tile) * c.classes + work.w) *
                            c.out_channels +
                        channel] = make_float4(s0, s1, s2, 0.f);
    }
  }
}
