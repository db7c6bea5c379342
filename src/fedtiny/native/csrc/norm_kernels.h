// Norms that measure each image by itself: a lane has its own mean and deviation.
#pragma once
#include "vectors.h"

namespace fedtiny {
namespace {

// Two sums that stay in registers, or with APART lie in memory, two for each pixel.
template <bool APART>
struct LaneSums {
  LaneSums(float* sum, float* product) : at{sum, product} {
    if (!APART)
      for (int i = 0; i < 2; ++i) held[i] = load(at[i]);
  }
  void add(Index pixel, Vec first, Vec second) {
    const Vec more[2] = {first, second};
    for (int i = 0; i < 2; ++i) {
      if (APART)
        store(at[i] + pixel, load(at[i] + pixel) + more[i]);
      else
        held[i] += more[i];
    }
  }
  void finish() {
    if (!APART)
      for (int i = 0; i < 2; ++i) store(at[i], held[i]);
  }
  float* at[2];
  Vec held[2] = {};
};

template <bool APART>
void image_moments_as(ImageNorm n) {
  LaneSums<APART> sums(n.sum, n.product);
  for (Index i = 0; i < n.count * L; i += L) {
    const Vec v = load(n.rows + i) - load(n.mean + (APART ? i : 0));
    sums.add(i, v, v * v);
  }
  sums.finish();
}

void image_moments(const ImageNorm& n) {
  return n.apart ? image_moments_as<true>(n) : image_moments_as<false>(n);
}

void image_normalize(const ImageNorm& given) {
  const ImageNorm n = given;
  const Vec weight = broadcast(n.weight), bias = broadcast(n.bias);
  for (Index i = 0; i < n.count * L; i += L) {
    const Index at = n.apart ? i : 0;
    const Vec xhat = (load(n.rows + i) - load(n.mean + at)) * load(n.inverse + at);
    store(n.rows + i, weight * xhat + bias);
  }
}

template <bool APART>
ChannelSums image_products_as(ImageNorm n) {
  const Vec weight = broadcast(n.weight);
  LaneSums<APART> sums(n.sum, n.product);
  Vec sum = {}, product = {};
  for (Index i = 0; i < n.count * L; i += L) {
    const Index at = APART ? i : 0;
    const Vec d = load(n.rows + i);
    const Vec by = d * ((load(n.values + i) - load(n.mean + at)) * load(n.inverse + at));
    sum += d;
    product += by;
    sums.add(i, weight * d, weight * by);
  }
  sums.finish();
  return {sum_lanes(sum), sum_lanes(product)};
}

ChannelSums image_products(const ImageNorm& n) {
  return n.apart ? image_products_as<true>(n) : image_products_as<false>(n);
}

void image_gradient(const ImageNorm& given) {
  const ImageNorm n = given;
  const Vec weight = broadcast(n.weight);
  for (Index i = 0; i < n.count * L; i += L) {
    const Index at = n.apart ? i : 0;
    const Vec inverse = load(n.inverse + at);
    const Vec xhat = (load(n.values + i) - load(n.mean + at)) * inverse;
    const Vec d = weight * load(n.rows + i) - load(n.sum + at) - xhat * load(n.product + at);
    store(n.rows + i, inverse * d);
  }
}

}  // namespace
}  // namespace fedtiny
