// Which of the compiled kernels this processor can run.
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fedtiny {

#if defined(__x86_64__)
extern const Kernels kernels_sse2, kernels_avx2, kernels_avx512;

namespace {

constexpr unsigned OSXSAVE = 1u << 27, YMM = 0x06, ZMM = 0xe6;
constexpr unsigned WIDE = bit_AVX512F | bit_AVX512VL | bit_AVX512BW | bit_AVX512DQ;

bool has(unsigned found, unsigned bits) { return (found & bits) == bits; }

// Registers that the system saves; macOS begins to save those of AVX-512 when they are first used.
unsigned saved_registers() {
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
#if defined(__APPLE__)
  low |= ZMM;
#endif
  return low;
}

// What both the processor and the system offer. __builtin_cpu_supports would tell, but needs a
// runtime library that not every compiler brings.
struct Processor {
  bool avx2 = false, avx512 = false;

  Processor() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !has(c, OSXSAVE | bit_FMA | bit_F16C)) return;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    const unsigned saved = saved_registers();
    avx2 = has(saved, YMM) && has(b, bit_AVX2);
    avx512 = avx2 && has(saved, ZMM) && has(b, WIDE);
  }
};

}  // namespace

const Kernels* kernels_for(Index lanes) {
  static const Processor processor;
  const bool avx2 = processor.avx2, avx512 = processor.avx512;
  if (avx512 && (lanes == 0 || lanes == kernels_avx512.lanes)) return &kernels_avx512;
  if (avx2 && (lanes == 0 || lanes == kernels_avx2.lanes)) return &kernels_avx2;
  if (lanes == 0 || lanes == kernels_sse2.lanes) return &kernels_sse2;
  return nullptr;
}
#elif defined(__ARM_NEON)
extern const Kernels kernels_neon;

const Kernels* kernels_for(Index lanes) {
  return lanes == 0 || lanes == kernels_neon.lanes ? &kernels_neon : nullptr;
}
#else
extern const Kernels kernels_plain;

const Kernels* kernels_for(Index lanes) {
  return lanes == 0 || lanes == kernels_plain.lanes ? &kernels_plain : nullptr;
}
#endif

}  // namespace fedtiny
