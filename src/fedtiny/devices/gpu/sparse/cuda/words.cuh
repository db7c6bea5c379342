// A training step of several devices under one mask, at the kept weights only.
//
// A tensor is [device x word images][channel][height x width] of 32-bit words. A word holds the
// bf16 values of two images, or the fp32 value of one (Word). A shift in space is a constant
// offset, so a kept weight costs one shifted read of a word for each position, and no index
// arithmetic.
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
  const u32* words;    // null: there is none
  const float4* coef;  // [device][coefs] (scale, shift, mean, inverse deviation); null: as it is
  int stride, coefs;   // words of a word image; coefficients of a device
  float floor;         // 0 after a ReLU, else minus infinity
  int relu;            // whether a gradient passes only where the value is above zero
};

template <class W>
static __device__ __forceinline__ u32 affine(u32 w, float4 k, float floor) {
  float v[W::N];
#pragma unroll
  for (int i = 0; i < W::N; i++) v[i] = max_nan(fmaf(k.x, W::get(w, i), k.y), floor);
  return W::pack(v);
}

template <class W>
static __device__ __forceinline__ u32 passed(u32 g, u32 value) {
  u32 kept = 0;
#pragma unroll
  for (int i = 0; i < W::N; i++) kept |= W::get(value, i) > 0.f ? W::only(g, i) : 0u;
  return kept;
}
