// What the kernels use beside CUDA itself, on the device; emulation.h has the same for the host.
#pragma once
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

// A kernel that takes one structure, `args`; its body follows.
#define KERNEL(name, Args, max_threads, min_blocks)                     \
  extern "C" __global__ void __launch_bounds__(max_threads, min_blocks) \
      name(const __grid_constant__ Args args)
#define DYN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define SHARED(type, name, ...) __shared__ type name __VA_ARGS__

// Two floats as bf16, rounded to nearest even, the first in the low half.
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The larger of two values, or NaN if one is.
static __device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// c += a b on the tensor cores: 16 x 16 by 16 x 8 in bf16, spread over a warp as mma.m16n8k16 has
// it.
static __device__ __forceinline__ void mma_bf16(float* c, const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
