// Between stored tensors and scratch: batch norm, activations and their gradients on the way.
#pragma once
#include "activation_kernels.h"

namespace fedtiny {
namespace {

// Arguments are copied: the compiler then knows that no store changes them.

inline void zero(float* p, Index vectors) {
  if (vectors > 0) std::memset(p, 0, static_cast<std::size_t>(vectors * L) * sizeof(float));
}

template <class T>
inline void prefetch(const T* p) {
  __builtin_prefetch(p);
}

// Calls `f` with each flag as a type, so that what it instantiates has the flags as constants.
template <class F>
inline auto with_flags(const F& f) {
  return f();
}

template <class F, class... Flags>
inline auto with_flags(const F& f, bool first, Flags... others) {
  const auto with = [&](auto flag) {
    return with_flags([&](auto... rest) { return f(flag, rest...); }, others...);
  };
  return first ? with(Constant<true>{}) : with(Constant<false>{});
}

template <class T, bool AFFINE, Activation ACTIVATION, bool VALUE>
void load_rows_as(LoadRows a, float* out) {
  const Vec scale = broadcast(a.scale), shift = broadcast(a.shift);
  const Vec slope = broadcast(a.slope), mean = broadcast(a.mean), leak = broadcast(a.leak);
  const Ints lanes = first_lanes(a.lanes);
  const T* plane = static_cast<const T*>(a.plane);
  const T* value = static_cast<const T*>(a.value);
  const Index first = a.first_column, step = a.column_step;
  Index begin = first < 0 ? (-first + step - 1) / step : 0;  // of columns that the plane has
  Index end = first < a.width ? (a.width - first + step - 1) / step : 0;
  if (end > a.columns) end = a.columns;
  if (begin > end) begin = end;
  for (Index i = 0; i < a.rows; ++i, out += a.columns * L) {
    const Index row = a.first_row + i * a.row_step;
    if (row < 0 || row >= a.height) {
      zero(out, a.columns);
      continue;
    }
    zero(out, begin);
    Index at = row * a.row_stride + (first + begin * step) * L;
    for (Index c = begin; c < end; ++c, at += step * L) {
      Vec v = load(plane + at);
      prefetch(plane + at + a.ahead);
      if (VALUE) {
        prefetch(value + at + a.ahead);
        v = keep(lanes, scale * v + (slope * (load(value + at) - mean) + shift));
      } else if (AFFINE) {
        v = scale * v + shift;
      }
      store(out + c * L, activated<ACTIVATION>(v, leak));
    }
    zero(out + end * L, a.columns - end);
  }
}

void load_rows(const LoadRows& a, float* out) {
  with_flags(
      [&](auto half, auto affine) {
        using T = Stored<half>;
        if (a.value != nullptr) {
          load_rows_as<T, false, Activation::None, true>(a, out);
        } else if (is_clip(a.activation)) {
          with_clip(a.activation, [&](auto clip) { load_rows_as<T, affine, clip, false>(a, out); });
        } else {
          with_curve(a.activation,
                     [&](auto curve) { load_rows_as<T, true, curve, false>(a, out); });
        }
      },
      a.half, a.affine);
}

template <class T, bool STREAM, bool SUMS>
BatchSums store_rows_as(StoreRows a) {
  const Vec bias = broadcast(a.bias);
  const Ints lanes = first_lanes(a.lanes);
  const float first = SUMS ? a.rows[0] + a.bias : 0.0F;
  const Vec pilot = broadcast(first);
  Vec sum = {}, square = {};
  for (Index row = 0; row < a.count; ++row) {
    const float* from = a.rows + row * a.pitch;
    T* to = static_cast<T*>(a.plane) + row * a.row_stride;
    for (Index c = 0; c < a.columns; ++c) {
      Vec v = load(from + c * L) + bias;
      put<STREAM>(to + c * L, v);
      if (!SUMS) continue;
      v = keep(lanes, v - pilot);
      sum += v;
      square += v * v;
    }
  }
  return {sum_lanes(sum), sum_lanes(square), first};
}

BatchSums store_rows(const StoreRows& a) {
  return with_flags([&](auto half, auto stream,
                        auto sums) { return store_rows_as<Stored<half>, stream, sums>(a); },
                    a.half, a.stream, a.sums);
}

// How rows meet what is there: in its place, added after derivative and sums or before them, or
// there are no rows.
enum class Add { Never, NeverAndStream, After, Before, NoRows };

template <class T, Activation CLIP, int TERMS, Add ADD>
GradSums accumulate_grad_as(AccumulateGrad a) {
  constexpr bool BEFORE = ADD == Add::Before || ADD == Add::NoRows;
  constexpr bool MASK = CLIP != Activation::None;
  const Vec scale = broadcast(a.scale), shift = broadcast(a.shift);
  const Vec mean0 = broadcast(a.mean[0]), mean1 = broadcast(a.mean[1]);
  Vec sum = {}, product0 = {}, product1 = {};
  for (Index row = 0; row < a.count; ++row) {
    const Index start = row * a.row_stride;
    T* gradient = static_cast<T*>(a.gradient) + start;
    for (Index c = 0; c < a.columns * L; c += L) {
      Vec v = ADD == Add::NoRows ? Vec{} : load(a.rows + row * a.pitch + c);
      if (ADD == Add::After || BEFORE) prefetch(gradient + c + a.ahead);
      if (MASK) prefetch(static_cast<const T*>(a.value) + start + c + a.ahead);
      if (TERMS > 0) prefetch(static_cast<const T*>(a.term[0]) + start + c + a.ahead);
      if (TERMS > 1) prefetch(static_cast<const T*>(a.term[1]) + start + c + a.ahead);
      if (BEFORE) v += load(gradient + c);
      if (MASK) {
        const Vec kept = scale * load(static_cast<const T*>(a.value) + start + c) + shift;
        v = is_open<CLIP>(kept) ? v : Vec{};
      }
      if (TERMS > 0) {
        sum += v;
        product0 += v * (load(static_cast<const T*>(a.term[0]) + start + c) - mean0);
      }
      if (TERMS > 1) product1 += v * (load(static_cast<const T*>(a.term[1]) + start + c) - mean1);
      if (ADD == Add::After) v += load(gradient + c);
      put<ADD == Add::NeverAndStream>(gradient + c, v);
    }
  }
  return {sum_lanes(sum), {sum_lanes(product0), sum_lanes(product1)}};
}

template <class T, Activation CLIP, int TERMS>
GradSums accumulate_grad_of(const AccumulateGrad& a) {
  if (a.rows == nullptr) return accumulate_grad_as<T, CLIP, TERMS, Add::NoRows>(a);
  if (a.add && a.finish) return accumulate_grad_as<T, CLIP, TERMS, Add::Before>(a);
  if (a.add) return accumulate_grad_as<T, CLIP, TERMS, Add::After>(a);
  if (a.stream) return accumulate_grad_as<T, CLIP, TERMS, Add::NeverAndStream>(a);
  return accumulate_grad_as<T, CLIP, TERMS, Add::Never>(a);
}

// Rows times the derivative of a curved activation, in their place.
template <class T, Activation CURVE>
void scale_by_derivative(AccumulateGrad a) {
  const Vec scale = broadcast(a.scale), shift = broadcast(a.shift), leak = broadcast(a.leak);
  for (Index row = 0; row < a.count; ++row) {
    float* rows = a.rows + row * a.pitch;
    const T* value = static_cast<const T*>(a.value) + row * a.row_stride;
    for (Index c = 0; c < a.columns * L; c += L)
      store(rows + c, load(rows + c) * derivative<CURVE>(scale * load(value + c) + shift, leak));
  }
}

template <class T>
GradSums accumulate_grad_held_as(const AccumulateGrad& a) {
  if (!is_clip(a.activation))
    with_curve(a.activation, [&](auto curve) { scale_by_derivative<T, curve>(a); });
  return with_clip(a.activation, [&](auto clip) {
    if (a.terms == 0) return accumulate_grad_of<T, clip, 0>(a);
    if (a.terms == 1) return accumulate_grad_of<T, clip, 1>(a);
    return accumulate_grad_of<T, clip, 2>(a);
  });
}

GradSums accumulate_grad(const AccumulateGrad& a) {
  return a.half ? accumulate_grad_held_as<Half>(a) : accumulate_grad_held_as<float>(a);
}

template <class T, bool TWO, Activation CLIP, bool STREAM>
void combine_as(Combine a) {
  const Vec scale0 = broadcast(a.scale[0]), scale1 = broadcast(a.scale[1]);
  const Vec shift = broadcast(a.shift);
  const T* first = static_cast<const T*>(a.term[0]);
  const T* second = static_cast<const T*>(a.term[1]);
  T* out = static_cast<T*>(a.out);
  for (Index i = 0; i < a.count * L; i += L) {
    Vec v = scale0 * load(first + i) + shift;
    if (TWO) v += scale1 * load(second + i);
    put<STREAM>(out + i, activated<CLIP>(v, Vec{}));
  }
}

void combine(const Combine& a) {
  with_clip(a.activation, [&](auto clip) {
    with_flags(
        [&](auto half, auto two, auto stream) { combine_as<Stored<half>, two, clip, stream>(a); },
        a.half, a.terms > 1, a.stream);
  });
}

}  // namespace
}  // namespace fedtiny
