// One SIMD register of floats, and its half-precision form in memory.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // false alarms inside GCC 12's own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#if defined(__aarch64__) || ((__ARM_NEON_FP & 2) != 0 && defined(__ARM_FP16_FORMAT_IEEE))
#define FEDTINY_NEON_HALF  // converts; NEON of 32 bits only if its flags say so
#endif
#endif

#include "kernels.h"

namespace fedtiny {
namespace {

#if defined(__AVX512F__)
constexpr int L = 16;
constexpr int TILE = 16;  // accumulators that leave registers for the rest
#elif defined(__AVX2__)
constexpr int L = 8;
constexpr int TILE = 8;
#elif defined(__aarch64__)
constexpr int L = 4;
constexpr int TILE = 16;
#else
constexpr int L = 4;
constexpr int TILE = 8;
#endif

typedef float Vec __attribute__((vector_size(4 * L), may_alias));
typedef std::int32_t Ints __attribute__((vector_size(4 * L), may_alias));
typedef std::uint16_t Half;

// What a tensor is held as.
template <bool HALF>
using Stored = std::conditional_t<HALF, Half, float>;

// A number that is known when compiled, to be handed to a lambda.
template <auto VALUE>
struct Constant {
  constexpr operator decltype(VALUE)() const { return VALUE; }
};

inline Vec broadcast(float x) { return x - Vec{}; }

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

inline Vec relu(Vec v) { return v > Vec{} ? v : Vec{}; }

#if defined(__AVX512F__)
inline float sum_lanes(Vec v) { return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v)); }
#elif defined(__AVX2__)
inline float sum_lanes(Vec v) {
  const __m256 w = reinterpret_cast<__m256>(v);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#else
inline float sum_lanes(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
#endif

// Tells the compiler to hold a value in a register and not to load it again and again.
inline void hold(Vec& v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#elif defined(__x86_64__)
  __asm__("" : "+x"(v));
#elif defined(__ARM_NEON)
  __asm__("" : "+w"(v));
#else
  (void)v;
#endif
}

// The lane sums of 16 vectors.
#if defined(__AVX512F__)
inline __m512 sums_of_four(const float* v) {  // in each quarter: one sum of each vector's quarter
  const __m512 a = _mm512_load_ps(v), b = _mm512_load_ps(v + L);
  const __m512 c = _mm512_load_ps(v + 2 * L), d = _mm512_load_ps(v + 3 * L);
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
}
inline __m512 sums_of_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}
inline void sum_lanes_of_16(const float* v, float* out) {
  const __m512 first = sums_of_halves(sums_of_four(v), sums_of_four(v + 4 * L));
  const __m512 second = sums_of_halves(sums_of_four(v + 8 * L), sums_of_four(v + 12 * L));
  _mm512_storeu_ps(out, _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88),
                                      _mm512_shuffle_f32x4(first, second, 0xDD)));
}
#else
inline void sum_lanes_of_16(const float* v, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = sum_lanes(load(v + i * L));
}
#endif

// Half precision. A value too large for it becomes the largest that it has, so that no gradient
// turns into infinity; what is no number stays none.
constexpr float MAX_HALF = 65504.0F;

#if defined(__AVX512F__)
inline Vec load(const Half* p) {
  return reinterpret_cast<Vec>(
      _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))));
}
inline void store(Half* p, Vec v) {
  const __m512 top = _mm512_set1_ps(MAX_HALF);
  __m512 w = _mm512_min_ps(top, reinterpret_cast<__m512>(v));
  w = _mm512_max_ps(_mm512_set1_ps(-MAX_HALF), w);
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(w, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__AVX2__)
inline Vec load(const Half* p) {
  return reinterpret_cast<Vec>(
      _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store(Half* p, Vec v) {
  __m256 w = _mm256_min_ps(_mm256_set1_ps(MAX_HALF), reinterpret_cast<__m256>(v));
  w = _mm256_max_ps(_mm256_set1_ps(-MAX_HALF), w);
  _mm_store_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(w, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(FEDTINY_NEON_HALF)
inline Vec load(const Half* p) {
  return reinterpret_cast<Vec>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))));
}
inline void store(Half* p, Vec v) {
  float32x4_t w = vminq_f32(reinterpret_cast<float32x4_t>(v), vdupq_n_f32(MAX_HALF));
  w = vmaxq_f32(w, vdupq_n_f32(-MAX_HALF));
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(w)));
}
#else
inline float as_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline std::uint32_t as_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float widened(Half h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16U;
  const std::uint32_t bits = static_cast<std::uint32_t>(h & 0x7FFFU) << 13U;
  if ((h & 0x7C00U) == 0x7C00U) return as_float(bits | 0x7F800000U | sign);
  // Moves the exponent from half's bias to float's, subnormals too.
  return as_float(as_bits(as_float(bits) * 0x1p112F) | sign);
}
inline Half narrowed(float x) {
  const std::uint32_t sign = (as_bits(x) >> 16U) & 0x8000U;
  const std::uint32_t bits = as_bits(x) & 0x7FFFFFFFU;
  if (bits > 0x7F800000U) return static_cast<Half>(sign | 0x7E00U);
  const float magnitude = as_float(bits);
  if (magnitude >= MAX_HALF) return static_cast<Half>(sign | 0x7BFFU);
  if (magnitude < 0x1p-14F)  // subnormal: adding one half aligns the mantissa, rounding to even
    return static_cast<Half>(sign | (as_bits(magnitude + 0.5F) - 0x3F000000U));
  const std::uint32_t odd = (bits >> 13U) & 1U;
  return static_cast<Half>(sign | ((bits - 0x38000000U + 0xFFFU + odd) >> 13U));
}
inline Vec load(const Half* p) {
  Vec v;
  for (int i = 0; i < L; ++i) v[i] = widened(p[i]);
  return v;
}
inline void store(Half* p, Vec v) {
  for (int i = 0; i < L; ++i) p[i] = narrowed(v[i]);
}
#endif

// Stores that pass the caches by; the thread pool orders them before anyone reads.
#if defined(__AVX512F__)
inline void stream(float* p, Vec v) { _mm512_stream_ps(p, reinterpret_cast<__m512>(v)); }
inline void stream(Half* p, Vec v) {
  alignas(32) Half narrow[L];
  store(narrow, v);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_load_si256(reinterpret_cast<const __m256i*>(narrow)));
}
#elif defined(__AVX2__)
inline void stream(float* p, Vec v) { _mm256_stream_ps(p, reinterpret_cast<__m256>(v)); }
inline void stream(Half* p, Vec v) { store(p, v); }
#else
template <class T>
inline void stream(T* p, Vec v) {
  store(p, v);
}
#endif

template <bool STREAM, class T>
inline void put(T* p, Vec v) {
  if constexpr (STREAM)
    stream(p, v);
  else
    store(p, v);
}

// All ones in the first `count` lanes.
inline Ints first_lanes(Index count) {
  Ints lanes;
  for (int i = 0; i < L; ++i) lanes[i] = i < count ? -1 : 0;
  return lanes;
}
inline Vec keep(Ints lanes, Vec v) {
  return reinterpret_cast<Vec>(lanes & reinterpret_cast<Ints>(v));
}

}  // namespace
}  // namespace fedtiny
