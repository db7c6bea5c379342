// Between stored tensors and scratch: batch norm, ReLU and their gradients on the way.
#pragma once
#include "vectors.h"

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

// The scratch columns whose plane column first + i * step lies in [0, width).
struct Inside {
  Index begin, end;
  Inside(Index first, Index count, Index step, Index width) {
    begin = first < 0 ? (-first + step - 1) / step : 0;
    end = first < width ? (width - first + step - 1) / step : 0;
    if (end > count) end = count;
    if (begin > end) begin = end;
  }
};

template <class T, bool AFFINE, bool RELU>
void load_rows_as(LoadRows a, float* out) {
  const Vec scale = broadcast(a.scale), shift = broadcast(a.shift);
  const Inside inside(a.first_column, a.columns, a.column_step, a.width);
  for (Index i = 0; i < a.rows; ++i, out += a.columns * L) {
    const Index row = a.first_row + i * a.row_step;
    if (row < 0 || row >= a.height) {
      zero(out, a.columns);
      continue;
    }
    zero(out, inside.begin);
    const T* from = static_cast<const T*>(a.plane) + row * a.row_stride +
                    (a.first_column + inside.begin * a.column_step) * L;
    for (Index c = inside.begin; c < inside.end; ++c, from += a.column_step * L) {
      Vec v = load(from);
      prefetch(from + a.ahead);
      if (AFFINE) v = scale * v + shift;
      store(out + c * L, RELU ? relu(v) : v);
    }
    zero(out + inside.end * L, a.columns - inside.end);
  }
}

template <class T>
void load_rows_of(const LoadRows& a, float* out) {
  if (a.affine && a.relu) return load_rows_as<T, true, true>(a, out);
  if (a.affine) return load_rows_as<T, true, false>(a, out);
  if (a.relu) return load_rows_as<T, false, true>(a, out);
  load_rows_as<T, false, false>(a, out);
}

void load_rows(const LoadRows& a, float* out) {
  a.half ? load_rows_of<Half>(a, out) : load_rows_of<float>(a, out);
}

template <class T, bool NORM, bool WHOLE>
void load_gradient_as(LoadGradient a, float* out) {
  const Vec scale = broadcast(a.a), k1 = broadcast(a.k1), k2 = broadcast(a.k2);
  const Vec mean = broadcast(a.mean);
  const Ints lanes = first_lanes(a.lanes);
  const Inside inside(a.first_column, a.columns, 1, a.width);
  for (Index i = 0; i < a.rows; ++i, out += a.columns * L) {
    const Index row = a.first_row + i;
    if (row < 0 || row >= a.height) {
      zero(out, a.columns);
      continue;
    }
    zero(out, inside.begin);
    const Index start = row * a.row_stride + (a.first_column + inside.begin) * L;
    const T* gradient = static_cast<const T*>(a.gradient) + start;
    const T* value = NORM ? static_cast<const T*>(a.value) + start : nullptr;
    for (Index c = 0; c < inside.end - inside.begin; ++c) {
      Vec v = load(gradient + c * L);
      prefetch(gradient + c * L + a.ahead);
      if (NORM) prefetch(value + c * L + a.ahead);
      if (NORM) v = scale * v + (k2 * (load(value + c * L) - mean) + k1);
      if (!WHOLE) v = keep(lanes, v);
      store(out + (inside.begin + c) * L, v);
    }
    zero(out + inside.end * L, a.columns - inside.end);
  }
}

template <class T>
void load_gradient_of(const LoadGradient& a, float* out) {
  if (!a.norm) return load_gradient_as<T, false, true>(a, out);
  if (a.lanes >= L) return load_gradient_as<T, true, true>(a, out);
  load_gradient_as<T, true, false>(a, out);
}

void load_gradient(const LoadGradient& a, float* out) {
  a.half ? load_gradient_of<Half>(a, out) : load_gradient_of<float>(a, out);
}

template <class T, bool SUMS, bool WHOLE, bool STREAM>
void store_rows_as(StoreRows& result) {
  const StoreRows a = result;
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
      v -= pilot;
      if (!WHOLE) v = keep(lanes, v);
      sum += v;
      square += v * v;
    }
  }
  result.sum = sum_lanes(sum);
  result.square = sum_lanes(square);
  result.pilot = first;
}

template <class T, bool STREAM>
void store_rows_of(StoreRows& a) {
  if (!a.sums) return store_rows_as<T, false, true, STREAM>(a);
  if (a.lanes >= L) return store_rows_as<T, true, true, STREAM>(a);
  store_rows_as<T, true, false, STREAM>(a);
}

void store_rows(StoreRows& a) {
  if (a.half) return a.stream ? store_rows_of<Half, true>(a) : store_rows_of<Half, false>(a);
  a.stream ? store_rows_of<float, true>(a) : store_rows_of<float, false>(a);
}

// When what is there is added: never, after mask and sums, or before them.
enum class Add { Never, NeverAndStream, After, Before };

template <class T, bool ROWS, Add ADD, bool MASK, int TERMS>
void emit_rows_as(EmitRows& result) {
  const EmitRows a = result;
  const Vec scale = broadcast(a.mask_scale), shift = broadcast(a.mask_shift);
  const Vec mean0 = broadcast(a.mean[0]), mean1 = broadcast(a.mean[1]);
  Vec sum = {}, product0 = {}, product1 = {};
  for (Index row = 0; row < a.count; ++row) {
    const Index start = row * a.row_stride;
    T* gradient = static_cast<T*>(a.gradient) + start;
    for (Index c = 0; c < a.columns * L; c += L) {
      Vec v = ROWS ? load(a.rows + row * a.pitch + c) : Vec{};
      if (ADD == Add::After || ADD == Add::Before) prefetch(gradient + c + a.ahead);
      if (MASK) prefetch(static_cast<const T*>(a.mask) + start + c + a.ahead);
      if (TERMS > 0) prefetch(static_cast<const T*>(a.term[0]) + start + c + a.ahead);
      if (TERMS > 1) prefetch(static_cast<const T*>(a.term[1]) + start + c + a.ahead);
      if (ADD == Add::Before) v += load(gradient + c);
      if (MASK) {
        const Vec kept = scale * load(static_cast<const T*>(a.mask) + start + c) + shift;
        v = kept > Vec{} ? v : Vec{};
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
  result.sum = sum_lanes(sum);
  result.product[0] = sum_lanes(product0);
  result.product[1] = sum_lanes(product1);
}

template <class T, bool ROWS, Add ADD, bool MASK>
void emit_rows_terms(EmitRows& a) {
  if (a.terms == 0) return emit_rows_as<T, ROWS, ADD, MASK, 0>(a);
  if (a.terms == 1) return emit_rows_as<T, ROWS, ADD, MASK, 1>(a);
  emit_rows_as<T, ROWS, ADD, MASK, 2>(a);
}

template <class T, bool ROWS, Add ADD>
void emit_rows_mask(EmitRows& a) {
  a.mask != nullptr ? emit_rows_terms<T, ROWS, ADD, true>(a)
                    : emit_rows_terms<T, ROWS, ADD, false>(a);
}

template <class T>
void emit_rows_of(EmitRows& a) {
  if (a.rows == nullptr) return emit_rows_mask<T, false, Add::Before>(a);
  if (!a.add)
    return a.stream ? emit_rows_mask<T, true, Add::NeverAndStream>(a)
                    : emit_rows_mask<T, true, Add::Never>(a);
  a.finish ? emit_rows_mask<T, true, Add::Before>(a) : emit_rows_mask<T, true, Add::After>(a);
}

void emit_rows(EmitRows& a) { a.half ? emit_rows_of<Half>(a) : emit_rows_of<float>(a); }

template <class T, int TERMS, bool RELU, bool STREAM>
void combine_as(Combine a) {
  const Vec scale0 = broadcast(a.scale[0]), scale1 = broadcast(a.scale[1]);
  const Vec shift = broadcast(a.shift);
  const T* first = static_cast<const T*>(a.term[0]);
  const T* second = static_cast<const T*>(a.term[1]);
  T* out = static_cast<T*>(a.out);
  for (Index i = 0; i < a.count * L; i += L) {
    Vec v = scale0 * load(first + i) + shift;
    if (TERMS > 1) v += scale1 * load(second + i);
    put<STREAM>(out + i, RELU ? relu(v) : v);
  }
}

template <class T, bool STREAM>
void combine_of(const Combine& a) {
  if (a.terms == 1)
    return a.relu ? combine_as<T, 1, true, STREAM>(a) : combine_as<T, 1, false, STREAM>(a);
  a.relu ? combine_as<T, 2, true, STREAM>(a) : combine_as<T, 2, false, STREAM>(a);
}

void combine(const Combine& a) {
  if (a.half) return a.stream ? combine_of<Half, true>(a) : combine_of<Half, false>(a);
  a.stream ? combine_of<float, true>(a) : combine_of<float, false>(a);
}

}  // namespace
}  // namespace fedtiny
