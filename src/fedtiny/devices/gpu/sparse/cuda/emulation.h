// CUDA on the host, as far as the kernels use it: a thread of a block is a fiber, and blocks run
// one after another.
//
// Shared memory holds NaN bits when a block starts and lies between guards that are checked when
// the block ends. A shuffle from a thread that has returned gives NaN bits. Every second block runs
// its threads in reverse order, so that a missing barrier shows in one block or the other. Not for
// several host threads at once.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#define EMULATED 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#undef __restrict__
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __shared__ static_assert(false, "use SHARED(type, name, [size]) or DYN_SHARED(name)");

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

namespace emulation {

// ---- contexts: a stack each, and a switch that saves what a called function must keep ----

#if defined(__x86_64__) || defined(__aarch64__)
struct Context {
  void** top;
};
extern "C" __attribute__((visibility("hidden"))) void switch_stack(void*** from, void** to) __asm__(
    "fedtiny_switch");
#if defined(__x86_64__)
constexpr int FRAME = 8, START = 6;  // words: six registers, the address to go on at, one to align
__asm__(
    ".text\n.p2align 4\nfedtiny_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
#else
constexpr int FRAME = 20, START = 11;  // x19 to x30, d8 to d15
__asm__(
    ".text\n.p2align 4\nfedtiny_switch:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, "
    "#48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, "
    "#144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, "
    "#48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, "
    "#144]\n"
    "add sp, sp, #160\nret\n");
#endif
static void switch_context(Context& from, Context& to) { switch_stack(&from.top, to.top); }
static void prepare(Context& context, unsigned char* stack, size_t size, void (*entry)()) {
  context.top = reinterpret_cast<void**>(stack + size) - FRAME;
  memset(context.top, 0, FRAME * sizeof(void*));
  context.top[START] = reinterpret_cast<void*>(entry);
}
#else
}  // namespace emulation
#include <ucontext.h>
namespace emulation {
using Context = ucontext_t;
static void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
static void prepare(Context& context, unsigned char* stack, size_t size, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = size;
  makecontext(&context, entry, 0);
}
#endif

// ---- threads ----

constexpr size_t STACK = 1 << 18;  // address space; only what is touched takes memory
constexpr unsigned WARP = 32, MAX_THREADS = 1024;
enum State { READY, AT_WARP, AT_BLOCK, DONE };
struct Fiber {
  Context context;
  unsigned char* stack;
};
struct Thread {
  State state;
  Fiber* fiber;
  unsigned mask;
  uint64_t value;
};

static Thread threads[MAX_THREADS];
static Thread* current;
static Context scheduler;
static std::vector<Fiber*> idle;  // fibers without a thread
static uint64_t exchanged[WARP];  // what the lanes of the running warp gave to the last shuffle
static void (*body)(const void*);
static const void* arguments;
static char message[256];  // what went wrong, or empty

static void run_threads() {  // a fiber serves one thread after another
  for (;;) {
    body(arguments);
    Fiber* fiber = current->fiber;
    current->state = DONE;
    idle.push_back(fiber);
    switch_context(fiber->context, scheduler);
  }
}

static Fiber* take_fiber() {
  if (idle.empty()) {
    Fiber* fiber = new Fiber;
    fiber->stack = static_cast<unsigned char*>(aligned_alloc(4096, STACK));
    prepare(fiber->context, fiber->stack, STACK, run_threads);
    return fiber;
  }
  Fiber* fiber = idle.back();
  idle.pop_back();
  return fiber;
}

static void resume(unsigned index) {
  current = &threads[index];
  threadIdx.x = index;
  if (!current->fiber) current->fiber = take_fiber();
  switch_context(scheduler, current->fiber->context);
}

static void wait(State at, unsigned mask) {
  current->state = at;
  current->mask = mask;
  switch_context(current->fiber->context, scheduler);
}

// Whether all threads of a warp that a mask names wait with the same mask, or have returned.
static bool complete(unsigned first, unsigned mask) {
  for (unsigned lane = 0; lane < WARP; lane++) {
    const Thread& other = threads[first + lane];
    if (!(mask >> lane & 1) || first + lane >= blockDim.x || other.state == DONE) continue;
    if (other.state != AT_WARP || other.mask != mask) return false;
  }
  return true;
}

static bool release_warp(unsigned first, unsigned end) {
  bool released = false;
  for (unsigned i = first; i < end; i++) {
    const unsigned mask = threads[i].mask;
    if (threads[i].state != AT_WARP || !(mask >> (i - first) & 1) || !complete(first, mask))
      continue;
    for (unsigned lane = 0; lane < WARP; lane++) {
      if (!(mask >> lane & 1)) continue;
      Thread& other = threads[first + lane];
      const bool here = first + lane < end && other.state == AT_WARP;
      exchanged[lane] = here ? other.value : ~uint64_t(0);
      if (here) other.state = READY;
    }
    released = true;
  }
  return released;
}

static void run_warp(unsigned first, unsigned end, bool reverse) {
  do {
    for (unsigned n = 0; n < end - first; n++) {
      const unsigned i = reverse ? end - 1 - n : first + n;
      if (threads[i].state == READY) resume(i);
    }
  } while (release_warp(first, end));
}

static bool release_block() {
  bool released = false;
  for (unsigned i = 0; i < blockDim.x; i++) {
    if (threads[i].state == AT_WARP) {
      snprintf(message, sizeof message, "thread %u waits for threads of its warp that do not come",
               i);
      return false;
    }
    if (threads[i].state != AT_BLOCK) continue;
    threads[i].state = READY;
    released = true;
  }
  return released;
}

static void run_threads_of_block(bool reverse) {
  const unsigned warps = (blockDim.x + WARP - 1) / WARP;
  for (unsigned i = 0; i < blockDim.x; i++) threads[i] = {READY, nullptr, 0, 0};
  do {
    for (unsigned n = 0; n < warps; n++) {
      const unsigned first = (reverse ? warps - 1 - n : n) * WARP;
      run_warp(first, first + WARP < blockDim.x ? first + WARP : blockDim.x, reverse);
    }
  } while (release_block());
  for (unsigned i = 0; i < blockDim.x; i++) {  // those that wait in vain
    if (threads[i].state == DONE) continue;
    prepare(threads[i].fiber->context, threads[i].fiber->stack, STACK, run_threads);
    idle.push_back(threads[i].fiber);
  }
}

// ---- shared memory ----

constexpr size_t GUARD = 1024;
constexpr uint32_t GUARD_WORD =
    0x7fc57fc5;  // a NaN in fp32 and in both halves, but not the one of fresh memory
struct Region {
  unsigned char* memory;
  size_t size, padded;
};  // memory[size] up to memory[padded] is guard too

static std::vector<Region> regions;  // of the block
static unsigned char* dynamic_shared;
static uint64_t block_number;  // counts all blocks of all launches

static bool is_guard(const unsigned char* byte, const unsigned char* memory) {
  const size_t shift = static_cast<size_t>(byte - memory) & 3;
  return *byte == (GUARD_WORD >> 8 * shift & 0xff);
}

static void poison(const Region& region) {
  for (unsigned char* at = region.memory - GUARD; at < region.memory + region.padded + GUARD;
       at += 4)
    memcpy(at, &GUARD_WORD, 4);
  memset(region.memory, 0xff, region.size);
  regions.push_back(region);
}

static void check(const Region& region) {
  const unsigned char *memory = region.memory, *end = memory + region.size;
  const unsigned char* damaged = nullptr;
  for (const unsigned char* at = memory - GUARD; at < memory + region.padded + GUARD && !damaged;
       at++) {
    if (at == memory) at = end;
    if (!is_guard(at, memory)) damaged = at;
  }
  if (damaged)
    snprintf(message, sizeof message, "a write to byte %td of %zu bytes of shared memory",
             damaged - memory, region.size);
}

template <class T>
struct Shared {  // a variable in shared memory
  alignas(128) unsigned char before[GUARD];
  alignas(128) T value;
  alignas(128) unsigned char after[GUARD];
  uint64_t block;

  T& enter() {  // the first thread of a block finds it fresh
    if (block != block_number) {
      block = block_number;
      poison({reinterpret_cast<unsigned char*>(&value), sizeof(T), (sizeof(T) + 127) / 128 * 128});
    }
    return value;
  }
};

// ---- grids ----

static void run_block(size_t shared) {
  block_number++;
  regions.clear();
  poison({dynamic_shared, shared, (shared + 127) / 128 * 128});
  run_threads_of_block((blockIdx.x + blockIdx.y + blockIdx.z) % 2);
  for (const Region& region : regions)
    if (!message[0]) check(region);
}

static void run_grid(size_t shared) {
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
        run_block(shared);
        if (message[0]) return;
      }
}

// Runs a kernel; returns what went wrong, or null.
static const char* launch(const char* name, dim3 grid, unsigned block, unsigned max_threads,
                          size_t shared, void (*kernel)(const void*), const void* args) {
  static char sentence[512];
  if (block == 0 || block > max_threads || block > MAX_THREADS) {
    snprintf(sentence, sizeof sentence, "%s: %u threads, but at most %u", name, block, max_threads);
    return sentence;
  }
  const size_t padded = (shared + 127) / 128 * 128;
  unsigned char* memory = static_cast<unsigned char*>(aligned_alloc(128, padded + 2 * GUARD));
  dynamic_shared = memory + GUARD;
  gridDim = grid;
  blockDim = {block, 1, 1};
  body = kernel;
  arguments = args;
  message[0] = 0;
  run_grid(shared);
  free(memory);
  if (!message[0]) return nullptr;
  snprintf(sentence, sizeof sentence, "%s, block (%u, %u, %u): %s", name, blockIdx.x, blockIdx.y,
           blockIdx.z, message);
  return sentence;
}

template <class T>
static T shuffle(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most eight bytes");
  memcpy(&current->value, &value, sizeof(T));
  wait(AT_WARP, mask);
  memcpy(&value, &exchanged[lane % WARP], sizeof(T));
  return value;
}

template <class To, class From>
static inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace emulation

#define DYN_SHARED(name) unsigned char* const name = emulation::dynamic_shared
#define SHARED(type, name, ...)                             \
  static emulation::Shared<type __VA_ARGS__> name##_shared; \
  auto& name = name##_shared.enter()
#define KERNEL(name, Args, max_threads, min_blocks)                                          \
  static void name(const Args& args);                                                        \
  extern "C" __attribute__((visibility("default"))) const char* name##_emulated(             \
      unsigned x, unsigned y, unsigned z, unsigned block, size_t shared, const Args* args) { \
    return emulation::launch(                                                                \
        #name, {x, y, z}, block, max_threads, shared,                                        \
        [](const void* all) { name(*static_cast<const Args*>(all)); }, args);                \
  }                                                                                          \
  static void name(const Args& args)

static inline void __syncthreads() { emulation::wait(emulation::AT_BLOCK, 0); }
static inline void __syncwarp(unsigned mask = ~0u) { emulation::wait(emulation::AT_WARP, mask); }
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane) {
  return emulation::shuffle(mask, value, static_cast<unsigned>(lane));
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emulation::shuffle(mask, value, threadIdx.x ^ static_cast<unsigned>(lanes));
}

template <class T>
static inline T __ldg(const T* from) {
  return *from;
}
static inline float __uint_as_float(unsigned v) { return emulation::bits<float>(v); }
static inline float __int_as_float(int v) { return emulation::bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return emulation::bits<unsigned>(v); }
static inline int __float_as_int(float v) { return emulation::bits<int>(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }

static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define MIN_AND_MAX(type)                                          \
  static inline type min(type a, type b) { return b < a ? b : a; } \
  static inline type max(type a, type b) { return a < b ? b : a; }
MIN_AND_MAX(int)
MIN_AND_MAX(unsigned)
MIN_AND_MAX(long)
MIN_AND_MAX(unsigned long)
MIN_AND_MAX(long long)
MIN_AND_MAX(unsigned long long)
MIN_AND_MAX(float)
MIN_AND_MAX(double)
#undef MIN_AND_MAX

// Two floats as bf16, rounded to nearest even, the first in the low half.
static inline uint32_t pack_bf16(float low, float high) {
  const auto rounded = [](float v) {
    const uint32_t u = __float_as_uint(v);
    return v != v ? 0x7fffu : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
}

// The larger of two values, or NaN if one is.
static inline float max_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }

// c += a b: 16 x 16 by 16 x 8 in bf16, spread over a warp as the tensor cores' mma.m16n8k16 has it.
static inline void mma_bf16(float* c, const uint32_t* a, const uint32_t* b) {
  const unsigned lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
  for (unsigned j = 0; j < 4; j++) {
    uint32_t rows[4], columns[2][2];
    for (int i = 0; i < 4; i++) rows[i] = __shfl_sync(0xffffffffu, a[i], row * 4 + j);
    for (int n = 0; n < 2; n++)
      for (int i = 0; i < 2; i++)
        columns[n][i] = __shfl_sync(0xffffffffu, b[i], (column + n) * 4 + j);
    for (int r = 0; r < 2; r++)
      for (int n = 0; n < 2; n++)
        for (int i = 0; i < 2; i++)
          for (int half = 0; half < 2; half++) {
            const auto of = [half](uint32_t w) {
              return __uint_as_float(half ? w & 0xffff0000u : w << 16);
            };
            c[2 * r + n] = fmaf(of(rows[r + 2 * i]), of(columns[n][i]), c[2 * r + n]);
          }
  }
}
