// What the kernels use beside CUDA itself, on the device; emulation.h has the same for the host.
#pragma once
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

// A kernel that takes one structure, `args`; its body follows.
#define KERNEL(name, Args, max_threads, min_blocks) \
  extern "C" __global__ void __launch_bounds__(max_threads, min_blocks) name(const __grid_constant__ Args args)
#define DYN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define SHARED(type, name, ...) __shared__ type name __VA_ARGS__

// Two floats as bf16, rounded to nearest even, the first in the low half.
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
