// Pointwise activations and their derivatives, a vector at a time.
#pragma once
#include "vectors.h"

namespace fedtiny {
namespace {

inline Vec between(Vec low, Vec x, Vec high) {  // what is no number stays none
  x = x < low ? low : x;
  return x > high ? high : x;
}

// Two to a whole power.
inline Vec power_of_two(Ints n) {
  const Ints bits = (n + 127) << 23;
  return reinterpret_cast<Vec>(bits);
}

// e^x = 2^n * e^r with |r| at most half of ln 2, by a polynomial of r (Cephes).
inline Vec exponential(Vec given) {
  const Vec x = between(broadcast(-87.0F), given, broadcast(88.0F));
  const Vec half = x > Vec{} ? broadcast(0.5F) : broadcast(-0.5F);
  const Ints n = __builtin_convertvector(x * 1.44269504088896341F + half, Ints);
  const Vec whole = __builtin_convertvector(n, Vec);
  const Vec r = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
  Vec p = broadcast(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  return (p * r * r + r + 1.0F) * power_of_two(n);
}

inline Vec sigmoid(Vec x) { return 1.0F / (1.0F + exponential(-x)); }

inline Vec hyperbolic_tangent(Vec x) {
  const Vec near = x * (1.0F - x * x * (1.0F / 3.0F));
  const Ints small = (x < broadcast(0.02F)) & (x > broadcast(-0.02F));
  return small ? near : 2.0F * sigmoid(2.0F * x) - 1.0F;
}

// The normal distribution: its density, and what lies below x (Abramowitz and Stegun 7.1.26, off by
// at most 8e-8).
struct Normal {
  Vec below, density;
  explicit Normal(Vec x) {
    const Vec size = x < Vec{} ? -x : x;
    const Vec bell = exponential(-0.5F * x * x);
    const Vec t = 1.0F / (1.0F + (0.3275911F * 0.70710678F) * size);
    Vec p = broadcast(1.061405429F);
    p = p * t - 1.453152027F;
    p = p * t + 1.421413741F;
    p = p * t - 0.284496736F;
    p = p * t + 0.254829592F;
    const Vec tail = 0.5F * p * t * bell;
    below = x < Vec{} ? tail : 1.0F - tail;
    density = 0.39894228F * bell;
  }
};

// x * (1 + tanh(u)) / 2 is x times the sigmoid of 2u.
inline Vec twice_argument(Vec x) { return 1.5957691216F * x * (1.0F + 0.044715F * x * x); }

inline Vec hard_sigmoid(Vec x) { return between(Vec{}, x * (1.0F / 6.0F) + 0.5F, broadcast(1.0F)); }

template <Activation ACTIVATION>
inline Vec activated(Vec x, Vec leak) {
  switch (ACTIVATION) {
    case Activation::Relu: return relu(x);
    case Activation::Relu6: return between(Vec{}, x, broadcast(6.0F));
    case Activation::LeakyRelu: return x > Vec{} ? x : leak * x;
    case Activation::Silu: return x * sigmoid(x);
    case Activation::HardSwish: return x * hard_sigmoid(x);
    case Activation::HardSigmoid: return hard_sigmoid(x);
    case Activation::Sigmoid: return sigmoid(x);
    case Activation::Tanh: return hyperbolic_tangent(x);
    case Activation::Gelu: return x * Normal(x).below;
    case Activation::GeluByTanh: return x * sigmoid(twice_argument(x));
    default: return x;
  }
}

// Ones where the gradient of ReLU or ReLU6 goes through.
template <Activation ACTIVATION>
inline Ints is_open(Vec x) {
  const Ints above = x > Vec{};
  if constexpr (ACTIVATION == Activation::Relu6) return above & (x < broadcast(6.0F));
  return above;
}

template <Activation ACTIVATION>
inline Vec derivative(Vec x, Vec leak) {
  const Vec one = broadcast(1.0F);
  switch (ACTIVATION) {
    case Activation::LeakyRelu: return x > Vec{} ? one : leak;
    case Activation::Silu: {
      const Vec s = sigmoid(x);
      return s * (1.0F + x * (1.0F - s));
    }
    case Activation::HardSwish: {
      const Vec middle = x * (1.0F / 3.0F) + 0.5F;
      return x < broadcast(-3.0F) ? Vec{} : (x > broadcast(3.0F) ? one : middle);
    }
    case Activation::HardSigmoid: {
      const Ints inside = (x > broadcast(-3.0F)) & (x < broadcast(3.0F));
      return inside ? broadcast(1.0F / 6.0F) : Vec{};
    }
    case Activation::Sigmoid: {
      const Vec s = sigmoid(x);
      return s * (1.0F - s);
    }
    case Activation::Tanh: {
      const Vec t = hyperbolic_tangent(x);
      return 1.0F - t * t;
    }
    case Activation::Gelu: {
      const Normal normal(x);
      return normal.below + x * normal.density;
    }
    case Activation::GeluByTanh: {
      const Vec s = sigmoid(twice_argument(x));
      const Vec slope = 1.5957691216F * (1.0F + 3 * 0.044715F * x * x);
      return s * (1.0F + x * slope * (1.0F - s));
    }
    default: return one;
  }
}

// Calls `f` with an activation other than none, ReLU and ReLU6 as a type.
template <class F>
inline void with_curve(Activation activation, const F& f) {
  switch (activation) {
    case Activation::LeakyRelu: return f(Constant<Activation::LeakyRelu>{});
    case Activation::Silu: return f(Constant<Activation::Silu>{});
    case Activation::HardSwish: return f(Constant<Activation::HardSwish>{});
    case Activation::HardSigmoid: return f(Constant<Activation::HardSigmoid>{});
    case Activation::Sigmoid: return f(Constant<Activation::Sigmoid>{});
    case Activation::Tanh: return f(Constant<Activation::Tanh>{});
    case Activation::Gelu: return f(Constant<Activation::Gelu>{});
    default: return f(Constant<Activation::GeluByTanh>{});
  }
}

// Calls `f` with ReLU or ReLU6 as a type, or with none for all others.
template <class F>
inline auto with_clip(Activation activation, const F& f) {
  switch (activation) {
    case Activation::Relu: return f(Constant<Activation::Relu>{});
    case Activation::Relu6: return f(Constant<Activation::Relu6>{});
    default: return f(Constant<Activation::None>{});
  }
}

inline bool is_clip(Activation activation) {
  return activation == Activation::None || activation == Activation::Relu ||
         activation == Activation::Relu6;
}

}  // namespace
}  // namespace fedtiny
