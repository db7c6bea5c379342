// Pooling, dropout, products, upsampling, and images put into lanes.
#pragma once
#include "vectors.h"

namespace fedtiny {
namespace {

// Calls `each` with the row, the column and the place of every pooled value.
template <class Each>
inline void each_window(const Pool& p, const Each& each) {
  for (Index r = 0; r < p.y.out; ++r)
    for (Index c = 0; c < p.x.out; ++c) each(r, c, (r * p.x.out + c) * L);
}

// Calls `each` with the place of every value that a window covers.
template <class Each>
inline void each_value(const Pool& p, Index r, Index c, const Each& each) {
  const Index begin = p.x.begin(c), end = p.x.end(c), bottom = p.y.end(r);
  for (Index y = p.y.begin(r); y < bottom; ++y)
    for (Index x = begin; x < end; ++x) each((y * p.x.in + x) * L);
}

inline Vec window_maximum(const Pool& p, Index r, Index c) {
  Vec best = load(p.values + (p.y.begin(r) * p.x.in + p.x.begin(c)) * L);
  each_value(p, r, c, [&](Index at) {
    const Vec v = load(p.values + at);
    best = v > best ? v : best;
  });
  return best;
}

void max_pool(const Pool& pool) {
  const Pool p = pool;
  each_window(p, [&](Index r, Index c, Index at) { store(p.out + at, window_maximum(p, r, c)); });
}

// The first largest value of a window takes its gradient, as in torch.
void max_pool_backward(const Pool& pool) {
  const Pool p = pool;
  each_window(p, [&](Index r, Index c, Index pooled) {
    const Vec best = window_maximum(p, r, c);
    const Vec gradient = load(p.gradient + pooled);
    Ints open = first_lanes(L);
    each_value(p, r, c, [&](Index at) {
      const Ints here = open & (load(p.values + at) == best);
      store(p.out + at, load(p.out + at) + keep(here, gradient));
      open &= ~here;
    });
  });
}

inline Vec share(const Pool& p, Index r, Index c) {
  return broadcast(1.0F / static_cast<float>(p.y.divisor(r) * p.x.divisor(c)));
}

void mean_pool(const Pool& pool) {
  const Pool p = pool;
  each_window(p, [&](Index r, Index c, Index pooled) {
    Vec total = {};
    each_value(p, r, c, [&](Index at) { total += load(p.values + at); });
    store(p.out + pooled, total * share(p, r, c));
  });
}

void mean_pool_backward(const Pool& pool) {
  const Pool p = pool;
  each_window(p, [&](Index r, Index c, Index pooled) {
    const Vec gradient = load(p.gradient + pooled) * share(p, r, c);
    each_value(p, r, c, [&](Index at) { store(p.out + at, load(p.out + at) + gradient); });
  });
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

void multiply(float* rows, const float* by, Index count, bool single) {
  const Vec first = load(by);
  for (Index i = 0; i < count * L; i += L)
    store(rows + i, load(rows + i) * (single ? first : load(by + i)));
}

void add_up(float* rows, Index count) {
  Vec total = {};
  for (Index i = 0; i < count * L; i += L) total += load(rows + i);
  store(rows, total);
}

void upsample(const Upsample& given, const float* rows, float* out) {
  const Upsample u = given;
  for (Index r = 0; r < u.height * u.down; ++r)
    for (Index c = 0; c < u.width * u.across; ++c, out += L)
      store(out, load(rows + (r / u.down * u.width + c / u.across) * L));
}

void upsample_backward(const Upsample& given, const float* gradient, float* out) {
  const Upsample u = given;
  for (Index i = 0; i < u.height * u.width; ++i, out += L) {
    const Index top = i / u.width * u.down, left = i % u.width * u.across;
    Vec total = {};
    for (Index r = 0; r < u.down; ++r)
      for (Index c = 0; c < u.across; ++c)
        total += load(gradient + ((top + r) * u.width * u.across + left + c) * L);
    store(out, total);
  }
}

void pack(const Pack& p) {
  for (Index i = 0; i < p.size; ++i)
    for (Index lane = 0; lane < L; ++lane)
      p.rows[i * L + lane] = lane < p.count ? p.images[lane * p.stride + i] : 0.0F;
}

}  // namespace
}  // namespace fedtiny
