// Weight gradients: at kept positions, and of whole filters for the largest gradients.
#pragma once
#include "gather_kernels.h"

namespace fedtiny {
namespace {

constexpr Index RUN = 32;  // kept weights whose sums stay in the first-level cache

template <int ROWS, int COLUMNS>
inline void weight_tile(const WeightGradient& g, const float* x, const float* d, Index valid,
                        const std::int32_t* offsets, Index count, float* sums) {
  constexpr int SIZE = ROWS * COLUMNS;
  Vec tile[SIZE];
#pragma GCC unroll 16
  for (int i = 0; i < SIZE; ++i) {
    tile[i] = i % COLUMNS < valid ? load(d + (i / COLUMNS) * g.d_pitch + (i % COLUMNS) * L) : Vec{};
    hold(tile[i]);
  }
  for (Index j = 0; j < count; ++j) {
    const float* from = x + offsets[j];
    Vec part[4] = {load(sums + j * L)};
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; ++i)
      part[i % 4] += tile[i] * load(from + (i / COLUMNS) * g.x_pitch + (i % COLUMNS) * L);
    store(sums + j * L, (part[0] + part[1]) + (part[2] + part[3]));
  }
}

template <int ROWS, int COLUMNS>
inline void weight_strip(const WeightGradient& g, Index row, Index column,
                         const std::int32_t* offsets, Index count, float* sums) {
  for (; row + ROWS <= g.rows; row += ROWS)
    weight_tile<ROWS, COLUMNS>(g, g.x + row * g.x_pitch + column * L,
                               g.d + row * g.d_pitch + column * L, g.columns - column, offsets,
                               count, sums);
  if constexpr (ROWS > 1)
    if (row < g.rows) weight_strip<ROWS / 2, COLUMNS>(g, row, column, offsets, count, sums);
}

void weight_gradient(const WeightGradient& g) {
  alignas(64) float sums[RUN * L];
  for (Index start = 0; start < g.count; start += RUN) {
    const Index count = g.count - start < RUN ? g.count - start : RUN;
    const std::int32_t* offsets = g.offsets + start;
    std::memset(sums, 0, sizeof sums);
    for (Index column = 0; column < g.columns;) {
      const int width = strip_width(g.columns - column);
      switch (width) {
        case 1: weight_strip<TILE, 1>(g, 0, column, offsets, count, sums); break;
        case 2: weight_strip<TILE / 2, 2>(g, 0, column, offsets, count, sums); break;
        case 4: weight_strip<TILE / 4, 4>(g, 0, column, offsets, count, sums); break;
        case 8: weight_strip<TILE / 8, 8>(g, 0, column, offsets, count, sums); break;
        default: weight_strip<1, TILE>(g, 0, column, offsets, count, sums); break;
      }
      column += width;
    }
    float found[RUN];
    for (Index j = 0; j < count; j += 16) sum_lanes_of_16(sums + j * L, found + j);
    for (Index j = 0; j < count; ++j) g.gradient[start + j] += found[j];
  }
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int FILTERS = 3;  // times nine taps: the accumulators that 32 registers allow
#else
constexpr int FILTERS = 1;
#endif

template <int FILTER_COUNT, int TAPS>
inline void dense_tile(const DenseGradient& g, Index filter, Index tap) {
  Vec sums[FILTER_COUNT * TAPS] = {};
  const Index filter_step = g.d_filter;
  std::int32_t taps[TAPS];
  for (int t = 0; t < TAPS; ++t) taps[t] = g.taps[tap + t];
  for (Index row = 0; row < g.rows; ++row) {
    const float* x = g.x + row * g.x_pitch;
    const float* d = g.d + filter * g.d_filter + row * g.d_pitch;
    for (Index column = 0; column < g.columns; ++column, x += L, d += L) {
      Vec each[FILTER_COUNT];
#pragma GCC unroll 4
      for (int f = 0; f < FILTER_COUNT; ++f) {
        each[f] = load(d + f * filter_step);
        hold(each[f]);
      }
#pragma GCC unroll 9
      for (int t = 0; t < TAPS; ++t) {
        Vec value = load(x + taps[t]);
        hold(value);
#pragma GCC unroll 4
        for (int f = 0; f < FILTER_COUNT; ++f) sums[f * TAPS + t] += each[f] * value;
      }
    }
  }
  constexpr int ROUNDED = (FILTER_COUNT * TAPS + 15) / 16 * 16;
  alignas(64) float vectors[ROUNDED * L] = {};
  float found[ROUNDED];
  for (int i = 0; i < FILTER_COUNT * TAPS; ++i) store(vectors + i * L, sums[i]);
  for (int i = 0; i < ROUNDED; i += 16) sum_lanes_of_16(vectors + i * L, found + i);
  for (int f = 0; f < FILTER_COUNT; ++f)
    for (int t = 0; t < TAPS; ++t)
      g.gradient[(filter + f) * g.gradient_filter + tap + t] += found[f * TAPS + t];
}

template <int FILTER_COUNT>
inline void dense_taps(const DenseGradient& g, Index filter) {
  Index tap = 0;
  for (; tap + 9 <= g.count; tap += 9) dense_tile<FILTER_COUNT, 9>(g, filter, tap);
  for (; tap + 3 <= g.count; tap += 3) dense_tile<FILTER_COUNT, 3>(g, filter, tap);
  for (; tap < g.count; ++tap) dense_tile<FILTER_COUNT, 1>(g, filter, tap);
}

void dense_gradient(const DenseGradient& g) {
  Index filter = 0;
  for (; filter + FILTERS <= g.filters; filter += FILTERS) dense_taps<FILTERS>(g, filter);
  for (; filter < g.filters; ++filter) dense_taps<1>(g, filter);
}

float sum(const float* rows, Index pitch, Index count, Index columns) {
  Vec total = {};
  for (Index row = 0; row < count; ++row)
    for (Index c = 0; c < columns; ++c) total += load(rows + row * pitch + c * L);
  return sum_lanes(total);
}

}  // namespace
}  // namespace fedtiny
