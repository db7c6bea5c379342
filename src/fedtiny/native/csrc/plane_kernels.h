// Pooling, dropout, and moving images in and out of lanes.
#pragma once
#include "vectors.h"

namespace fedtiny {
namespace {

inline Vec window_maximum(const Pool& p, Index r, Index c) {
  Vec best = load(p.values + (p.rows.begin[r] * p.width + p.columns.begin[c]) * L);
  for (Index y = p.rows.begin[r]; y < p.rows.end[r]; ++y)
    for (Index x = p.columns.begin[c]; x < p.columns.end[c]; ++x) {
      const Vec v = load(p.values + (y * p.width + x) * L);
      best = v > best ? v : best;
    }
  return best;
}

void max_pool(const Pool& pool) {
  const Pool p = pool;
  for (Index r = 0; r < p.rows.count; ++r)
    for (Index c = 0; c < p.columns.count; ++c)
      store(p.out + (r * p.columns.count + c) * L, window_maximum(p, r, c));
}

// The first largest value of a window takes its gradient, as in torch.
void max_pool_backward(const Pool& pool) {
  const Pool p = pool;
  for (Index r = 0; r < p.rows.count; ++r)
    for (Index c = 0; c < p.columns.count; ++c) {
      const Vec best = window_maximum(p, r, c);
      const Vec gradient = load(p.gradient + (r * p.columns.count + c) * L);
      Ints open = first_lanes(L);
      for (Index y = p.rows.begin[r]; y < p.rows.end[r]; ++y)
        for (Index x = p.columns.begin[c]; x < p.columns.end[c]; ++x) {
          const Index at = (y * p.width + x) * L;
          const Ints here = open & (load(p.values + at) == best);
          store(p.out + at, load(p.out + at) + keep(here, gradient));
          open &= ~here;
        }
    }
}

inline Vec share(const Pool& p, Index r, Index c) {
  return broadcast(1.0F / static_cast<float>(p.rows.divisor[r] * p.columns.divisor[c]));
}

void mean_pool(const Pool& pool) {
  const Pool p = pool;
  for (Index r = 0; r < p.rows.count; ++r)
    for (Index c = 0; c < p.columns.count; ++c) {
      Vec total = {};
      for (Index y = p.rows.begin[r]; y < p.rows.end[r]; ++y)
        for (Index x = p.columns.begin[c]; x < p.columns.end[c]; ++x)
          total += load(p.values + (y * p.width + x) * L);
      store(p.out + (r * p.columns.count + c) * L, total * share(p, r, c));
    }
}

void mean_pool_backward(const Pool& pool) {
  const Pool p = pool;
  for (Index r = 0; r < p.rows.count; ++r)
    for (Index c = 0; c < p.columns.count; ++c) {
      const Vec gradient = load(p.gradient + (r * p.columns.count + c) * L) * share(p, r, c);
      for (Index y = p.rows.begin[r]; y < p.rows.end[r]; ++y)
        for (Index x = p.columns.begin[c]; x < p.columns.end[c]; ++x) {
          float* at = p.out + (y * p.width + x) * L;
          store(at, load(at) + gradient);
        }
    }
}

// SplitMix64 of a counter: each value's draw depends on its key and place alone.
inline float uniform(std::uint64_t key, std::uint64_t counter) {
  std::uint64_t x = key + (counter + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  x ^= x >> 31U;
  return static_cast<float>(x >> 40U) * 0x1p-24F;
}

void dropout(const Dropout& d) {
  const float scale = d.probability < 1.0F ? 1.0F / (1.0F - d.probability) : 0.0F;
  for (Index i = 0; i < d.count; ++i)
    for (Index lane = 0; lane < L; ++lane) {
      const Index place = (d.first_image + lane) * d.image_size + d.first_value + i;
      const bool kept = uniform(d.key, static_cast<std::uint64_t>(place)) >= d.probability;
      float* value = d.rows + i * L + lane;
      *value = kept ? *value * scale : 0.0F;
    }
}

void pack(const Pack& p) {
  for (Index i = 0; i < p.size; ++i)
    for (Index lane = 0; lane < L; ++lane)
      p.lanes_side[i * L + lane] = lane < p.images ? p.image_side[lane * p.image_stride + i] : 0.0F;
}

void unpack(const Pack& p) {
  for (Index lane = 0; lane < p.images; ++lane)
    for (Index i = 0; i < p.size; ++i)
      p.image_side[lane * p.image_stride + i] = p.lanes_side[i * L + lane];
}

}  // namespace
}  // namespace fedtiny
