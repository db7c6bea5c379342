// The dense first convolution: products of matrices for the tensor cores.

// A convolution with stride 1 that keeps all its weights, on the tensor cores: filters x taps by
// taps x positions, eight positions at a time, for each image of a pair. Weights are rounded to
// bf16.
template <class T, int MODE, int Filters, int Channels, int KernelY, int KernelX, int Padding>
static __device__ __forceinline__ void dense_convolve(const Conv& c) {
  constexpr int TILES = T::Rows * T::Columns / 8, KERNEL_SIZE = KernelY * KernelX,
                TAPS = Channels * KERNEL_SIZE;
  constexpr int BLOCKS = Filters / 16, PAIRS = 16,
                PITCH = 20;  // pairs of taps; pitch: no two lanes share a bank
  static_assert(
      T::Exact && T::Images == 1 && T::Columns % 8 == 0 && TAPS <= 2 * PAIRS && Filters % 16 == 0,
      "whole tiles");
  DYN_SHARED(raw);
  u32* shared = (u32*)raw;
  u32* weights =
      shared + 2 * GUARD + Channels * T::Plane + T::Tail * T::Pitch;  // [filter][pair of taps]
  float2* sums = (float2*)(weights + Filters * PITCH);                // [warp][filter]
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
  int offset[8];  // where the taps of this lane read; one behind the last reads zeros before the
                  // first plane
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int tap = k / 4 * 16 + k % 4 / 2 * 8 + column * 2 + k % 2, inside = tap % KERNEL_SIZE;
    offset[k] = GUARD + tap / KERNEL_SIZE * T::Plane + inside / KernelX * T::Pitch +
                inside % KernelX - Padding;
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
    u32* out =
        c.out + (size_t)p.image * c.out_stride + (size_t)(p.y0 + y) * c.out_width + x + 2 * column;
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
template <class T, class X, int MODE, int Filters, int Channels, int KernelY, int KernelX,
          int Padding>
static __device__ __forceinline__ void dense_gradients(const Conv& c) {
  constexpr int POSITIONS = T::Rows * T::Columns, TAPS = Channels * KernelY * KernelX,
                BLOCKS = Filters / 16;
  static_assert(T::Exact && X::Exact && T::Images == 1 && X::Images == 1 && T::Columns % 8 == 0,
                "whole tiles");
  static_assert(T::Columns == X::Columns && T::Rows == X::Rows && TAPS <= 32 && Filters % 16 == 0,
                "same positions");
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
    offset[n] = GUARD + tap / (KernelY * KernelX) * X::Plane + inside / KernelX * X::Pitch +
                inside % KernelX - Padding + column;
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
