// Products in the tile registers of AMX: up to 32 rows, as many as there are, times 32 columns.
//
// A tile's product works row by row, and takes time for each row. So registers are configured with the rows that a product
// has, and a row's numbers depend on nothing but the row and the columns, whoever is computed beside it.

#pragma once

#include <algorithm>

#include "rows.h"
#include "tile_config.h"

namespace mis {

constexpr int64_t kTile = 512;  // numbers in a tile of columns: 32 summands of 16 columns, in pairs

// Numbers of registers are part of an instruction's name, so that no function can take them.
#define MIS_MULTIPLY_REGISTERS(Number, c, a, b) \
  {                                             \
    if constexpr (sizeof(Number) == 1) {        \
      _tile_dpbssd(c, a, b);                    \
    } else {                                    \
      _tile_dpbf16ps(c, a, b);                  \
    }                                           \
  }

// Adds x [rows, summands of all tiles] times the columns to c [rows, 32]; `first` overwrites c instead. Numbers are bits of
// bfloat16 with sums in float32, or int8 with exact sums. Registers are configured for these rows. Of `kWidth` 16, only the
// first 16 columns are there. `fetch(tile)` is called before each of the tiles.
template <int kWidth = 32, typename Number, typename Sum, typename Fetch>
void multiply_strip(const Number* x, int64_t stride, int rows, PackedColumns<Number> w, int64_t tiles, bool first, Sum* c,
                    int64_t c_stride, Fetch fetch) {
  constexpr bool kRight = kWidth == 32;
  constexpr int64_t kSummands = 64 / sizeof(Number), kBytes = sizeof(Number);
  const bool below = rows > 16;
  Sum* lower = c + 16 * c_stride;
  if (first) {
    _tile_zero(0);
    if constexpr (kRight) _tile_zero(1);
    if (below) _tile_zero(2);
    if (kRight && below) _tile_zero(3);
  } else {
    _tile_loadd(0, c, c_stride * 4);
    if constexpr (kRight) _tile_loadd(1, c + 16, c_stride * 4);
    if (below) _tile_loadd(2, lower, c_stride * 4);
    if (kRight && below) _tile_loadd(3, lower + 16, c_stride * 4);
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    fetch(tile);
    const Number *a = x + tile * kSummands, *from = w.left + tile * w.step;
    _tile_loadd(4, a, stride * kBytes);
    _tile_loadd(6, from, 64);
    if constexpr (kRight) _tile_loadd(7, from + w.right_of, 64);
    MIS_MULTIPLY_REGISTERS(Number, 0, 4, 6)
    if (below) _tile_loadd(5, a + 16 * stride, stride * kBytes);
    if constexpr (kRight) MIS_MULTIPLY_REGISTERS(Number, 1, 4, 7)
    if (below) MIS_MULTIPLY_REGISTERS(Number, 2, 5, 6)
    if (kRight && below) MIS_MULTIPLY_REGISTERS(Number, 3, 5, 7)
  }
  _tile_stored(0, c, c_stride * 4);
  if constexpr (kRight) _tile_stored(1, c + 16, c_stride * 4);
  if (below) _tile_stored(2, lower, c_stride * 4);
  if (kRight && below) _tile_stored(3, lower + 16, c_stride * 4);
}

#undef MIS_MULTIPLY_REGISTERS

// Does so for any number of rows, with columns whose tiles lie one after the other.
//
// Columns of few rows come from memory and are fetched as far ahead as those of `multiply_rows`. Columns of many stay in
// the first-level cache; meanwhile the columns after them are fetched into the second-level cache.
template <int kWidth = 32, typename Number, typename Sum>
void multiply_in_tiles(const Number* x, int64_t stride, int64_t rows, PackedColumns<Number> w, int64_t tiles, bool first,
                       Sum* c, int64_t c_stride) {
  constexpr int64_t kLine = 64 / sizeof(Number), kNumbers = 16 * kLine;  // in a cache line, and in a tile
  const auto fetch_line = [](const Number* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T1);
  };
  if (rows <= kStrip) {
    configure_tiles(static_cast<int>(rows));
    multiply_strip<kWidth>(x, stride, static_cast<int>(rows), w, tiles, first, c, c_stride, [=](int64_t tile) {
      const Number* ahead = w.left + tile * kNumbers + kAhead / static_cast<int64_t>(sizeof(Number));
      for (int64_t line = 0; line < 16; ++line) {
        fetch_line(ahead + line * kLine);
        if (kWidth == 32) fetch_line(ahead + w.right_of + line * kLine);
      }
    });
    return;
  }
  const Number* next = w.left + 2 * w.right_of;
  const int64_t lines = 32 * tiles, share = (1024 + rows - 1) / rows;  // of those, for each strip and tile
  int64_t line = 0;
  for (int64_t row = 0; row < rows; row += kStrip) {
    const int live = static_cast<int>(std::min<int64_t>(kStrip, rows - row));
    configure_tiles(live);
    multiply_strip<kWidth>(x + row * stride, stride, live, w, tiles, first, c + row * c_stride, c_stride, [&](int64_t) {
      for (const int64_t until = std::min(line + share, lines); line < until; ++line) {
        fetch_line(line < lines / 2 ? next + line * kLine : next + w.right_of + (line - lines / 2) * kLine);
      }
    });
  }
}

// How many of `rows` rows are multiplied of which `used` are not zeros: strips of many are whole, where rows of zeros fill
// them, since configuring another would take as long.
inline int64_t rows_in_tiles(int64_t used, int64_t rows) {
  return used <= kStrip ? used : std::min((used + kStrip - 1) / kStrip * kStrip, rows);
}

}  // namespace mis
