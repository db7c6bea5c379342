// The convolution itself, sums of shifted rows, which linear layers use too; and weight gradients,
// at kept positions and of whole filters.
#pragma once
#include "vectors.h"

namespace fedtiny {
namespace {

// Covers one strip of columns with tiles of ROWS and then fewer rows.
template <int ROWS, int COLUMNS, class Tile>
inline void cover_strip(Index rows, Index row, Index column, const Tile& tile) {
  for (; row + ROWS <= rows; row += ROWS) tile(Constant<ROWS>{}, Constant<COLUMNS>{}, row, column);
  if constexpr (ROWS > 1)
    if (row < rows) cover_strip<ROWS / 2, COLUMNS>(rows, row, column, tile);
}

// How many columns to do at once. A few too many may be done: scratch has room beside each row.
inline int strip_width(Index columns) {
  int width = TILE;
  while (width > columns) width /= 2;
  if (width < TILE && 4 * (2 * width - columns) <= 2 * width) width *= 2;
  return width;
}

// Calls `tile` for pieces of at most TILE vectors that cover rows times columns.
template <class Tile>
inline void cover(Index rows, Index columns, const Tile& tile) {
  for (Index column = 0; column < columns;) {
    const int width = strip_width(columns - column);
    switch (width) {
      case 1: cover_strip<TILE, 1>(rows, 0, column, tile); break;
      case 2: cover_strip<TILE / 2, 2>(rows, 0, column, tile); break;
      case 4: cover_strip<TILE / 4, 4>(rows, 0, column, tile); break;
      case 8: cover_strip<TILE / 8, 8>(rows, 0, column, tile); break;
      default: cover_strip<1, TILE>(rows, 0, column, tile); break;
    }
    column += width;
  }
}

// Calls `work` with the offsets as what they are held as.
template <class Work>
inline void with_offsets(const Offsets& offsets, const Work& work) {
  if (offsets.wide)
    work(static_cast<const std::uint32_t*>(offsets.first));
  else
    work(static_cast<const std::uint16_t*>(offsets.first));
}

template <int ROWS, int COLUMNS, class Offset>
inline void gather_tile(const Gather& g, const Offset* offsets, const float* x, float* out) {
  Vec sums[ROWS * COLUMNS] = {};
  for (Index j = 0; j < g.count; ++j) {
    const float* from = x + Index{offsets[j]} * L;
    const Vec weight = broadcast(g.weights[j]);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * COLUMNS; ++i)
      sums[i] += weight * load(from + (i / COLUMNS) * g.x_pitch + (i % COLUMNS) * L);
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * COLUMNS; ++i)
    store(out + (i / COLUMNS) * g.out_pitch + (i % COLUMNS) * g.out_step, sums[i]);
}

void gather(const Gather& g) {
  with_offsets(g.offsets, [&](auto* offsets) {
    cover(g.rows, g.columns, [&](auto rows, auto columns, Index row, Index column) {
      gather_tile<rows, columns>(g, offsets, g.x + row * g.x_pitch + column * L,
                                 g.out + row * g.out_pitch + column * g.out_step);
    });
  });
}

constexpr int DENSE_TILE = TILE / static_cast<int>(DENSE_FILTERS);

template <int ROWS, int COLUMNS, class Offset>
inline void gather_dense_tile(const DenseGather& g, const Offset* offsets, const float* x,
                              float* out) {
  constexpr int SIZE = ROWS * COLUMNS;
  Vec sums[DENSE_FILTERS * SIZE] = {};
  for (Index j = 0; j < g.count; ++j) {
    const float* from = x + Index{offsets[j]} * L;
    Vec values[SIZE];
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; ++i) {
      values[i] = load(from + (i / COLUMNS) * g.x_pitch + (i % COLUMNS) * L);
      hold(values[i]);
    }
#pragma GCC unroll 4
    for (int f = 0; f < DENSE_FILTERS; ++f) {
      const Vec weight = broadcast(g.weights[f * g.weight_step + j]);
#pragma GCC unroll 16
      for (int i = 0; i < SIZE; ++i) sums[f * SIZE + i] += weight * values[i];
    }
  }
#pragma GCC unroll 4
  for (int f = 0; f < DENSE_FILTERS; ++f)
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; ++i)
      store(out + f * g.out_filter + (i / COLUMNS) * g.out_pitch + (i % COLUMNS) * g.out_step,
            sums[f * SIZE + i]);
}

void gather_dense(const DenseGather& g) {
  with_offsets(g.offsets, [&](auto* offsets) {
    const auto tile = [&](auto rows, auto columns, Index row, Index column) {
      gather_dense_tile<rows, columns>(g, offsets, g.x + row * g.x_pitch + column * L,
                                       g.out + row * g.out_pitch + column * g.out_step);
    };
    Index column = 0;
    for (; column + DENSE_TILE <= g.columns; column += DENSE_TILE)
      cover_strip<1, DENSE_TILE>(g.rows, 0, column, tile);
    for (; column < g.columns; ++column) cover_strip<DENSE_TILE, 1>(g.rows, 0, column, tile);
  });
}

constexpr Index RUN = 32;  // kept weights whose sums stay in the first-level cache

template <int ROWS, int COLUMNS, class Offset>
inline void weight_tile(const WeightGradient& g, const float* x, const float* d, Index valid,
                        const Offset* offsets, Index count, float* sums) {
  constexpr int SIZE = ROWS * COLUMNS;
  Vec tile[SIZE];
#pragma GCC unroll 16
  for (int i = 0; i < SIZE; ++i) {
    tile[i] = i % COLUMNS < valid ? load(d + (i / COLUMNS) * g.d_pitch + (i % COLUMNS) * L) : Vec{};
    hold(tile[i]);
  }
  for (Index j = 0; j < count; ++j) {
    const float* from = x + Index{offsets[j]} * L;
    Vec part[4] = {load(sums + j * L)};
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; ++i)
      part[i % 4] += tile[i] * load(from + (i / COLUMNS) * g.x_pitch + (i % COLUMNS) * L);
    store(sums + j * L, (part[0] + part[1]) + (part[2] + part[3]));
  }
}

void weight_gradient(const WeightGradient& g) {
  alignas(64) float sums[RUN * L];
  for (Index start = 0; start < g.count; start += RUN) {
    const Index count = g.count - start < RUN ? g.count - start : RUN;
    std::memset(sums, 0, sizeof sums);
    with_offsets(g.offsets, [&](auto* offsets) {
      cover(g.rows, g.columns, [&](auto rows, auto columns, Index row, Index column) {
        weight_tile<rows, columns>(g, g.x + row * g.x_pitch + column * L,
                                   g.d + row * g.d_pitch + column * L, g.columns - column,
                                   offsets + start, count, sums);
      });
    });
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
