// Which of the compiled kernels this processor can run.
#include "kernels.h"

namespace fedtiny {

#if defined(__x86_64__)
extern const Kernels kernels_sse2, kernels_avx2, kernels_avx512;

const Kernels* kernels_for(Index lanes) {
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (avx512 && (lanes == 0 || lanes == kernels_avx512.lanes)) return &kernels_avx512;
  if (avx2 && (lanes == 0 || lanes == kernels_avx2.lanes)) return &kernels_avx2;
  if (lanes == 0 || lanes == kernels_sse2.lanes) return &kernels_sse2;
  return nullptr;
}
#elif defined(__aarch64__)
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
