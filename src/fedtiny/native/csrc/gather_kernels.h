// The convolution itself: sums of shifted rows. Forward, input gradient and linear layers all use it.
#pragma once
#include "vectors.h"

namespace fedtiny {
namespace {

template <int ROWS, int COLUMNS>
inline void gather_tile(const Gather& g, const float* x, float* out) {
  Vec sums[ROWS * COLUMNS] = {};
  for (Index j = 0; j < g.count; ++j) {
    const float* from = x + g.offsets[j];
    const Vec weight = broadcast(g.weights[j]);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * COLUMNS; ++i)
      sums[i] += weight * load(from + (i / COLUMNS) * g.x_pitch + (i % COLUMNS) * L);
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * COLUMNS; ++i)
    store(out + (i / COLUMNS) * g.out_pitch + (i % COLUMNS) * g.out_step, sums[i]);
}

template <int ROWS, int COLUMNS>
inline void gather_strip(const Gather& g, Index row, Index column) {
  for (; row + ROWS <= g.rows; row += ROWS)
    gather_tile<ROWS, COLUMNS>(g, g.x + row * g.x_pitch + column * L,
                               g.out + row * g.out_pitch + column * g.out_step);
  if constexpr (ROWS > 1)
    if (row < g.rows) gather_strip<ROWS / 2, COLUMNS>(g, row, column);
}

// How many columns to do at once. A few too many may be done: scratch has room beside each row.
inline int strip_width(Index columns) {
  int width = TILE;
  while (width > columns) width /= 2;
  if (width < TILE && 4 * (2 * width - columns) <= 2 * width) width *= 2;
  return width;
}

void gather(const Gather& g) {
  for (Index column = 0; column < g.columns;) {
    const int width = strip_width(g.columns - column);
    switch (width) {
      case 1: gather_strip<TILE, 1>(g, 0, column); break;
      case 2: gather_strip<TILE / 2, 2>(g, 0, column); break;
      case 4: gather_strip<TILE / 4, 4>(g, 0, column); break;
      case 8: gather_strip<TILE / 8, 8>(g, 0, column); break;
      default: gather_strip<1, TILE>(g, 0, column); break;
    }
    column += width;
  }
}

}  // namespace
}  // namespace fedtiny
