// The tile instructions of AMX in plain C++, for CPUs that have none. They count what they do.
//
// A thread has eight registers of up to 16 rows of 64 bytes, of which `configure` says how many are used. What a CPU
// refuses, tiles that are not configured or do not match, ends the process here as there.
// The arithmetic is that of Intel's Software Developer's Manual, volume 2, as Bochs implements it, too
// (bochs/cpu/avx/amx.cc).

#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "flush.h"

namespace mis::emulated {

struct Tile {
  alignas(64) uint8_t row[16][64];  // zeros beyond its shape
  int rows = 0, bytes = 0;          // of a row
};

inline thread_local Tile tiles[8];

enum Counted { kConfigured, kZeroed, kLoaded, kStored, kMultipliedBfloat16, kMultipliedInt8, kRows, kCounters };
inline std::atomic<int64_t> counters[kCounters];

inline void count(Counted what, int64_t times = 1) { counters[what].fetch_add(times, std::memory_order_relaxed); }

inline thread_local bool is_configured = false;

[[noreturn]] inline void refuse(const char* why) {
  std::fprintf(stderr, "Emulated AMX: %s.\n", why);
  std::abort();
}

inline Tile& used(int tile) {
  if (!is_configured) refuse("an instruction of tiles without _tile_loadconfig before it");
  if (tiles[tile].rows == 0) refuse("a tile that is not configured");
  return tiles[tile];
}

// Counts a product c [rows, columns] += a [rows, summands] times b [summands / together, columns, together]. Its time
// grows with its rows.
inline void count_product(Counted what, const Tile& c, const Tile& a, const Tile& b) {
  if (a.rows != c.rows || a.bytes != 4 * b.rows || b.bytes != c.bytes) refuse("a product of tiles that do not match");
  count(what);
  count(kRows, c.rows);
}

// The layout of `config` is that of the manual: palette, start row, 14 reserved, 16 widths, 16 heights.
inline void configure(const void* config) {
  const uint8_t* bytes = static_cast<const uint8_t*>(config);
  if (bytes[0] != 1 || bytes[1] != 0) refuse("another palette than 1, or a first row");
  for (int tile = 0; tile < 8; ++tile) {
    uint16_t width;
    std::memcpy(&width, bytes + 16 + 2 * tile, sizeof(width));
    const int rows = bytes[48 + tile];
    if (rows > 16 || width > 64 || (rows == 0) != (width == 0)) refuse("a tile of no or more than 16 rows of 64 bytes");
    tiles[tile] = Tile{};
    tiles[tile].rows = rows, tiles[tile].bytes = width;
  }
  is_configured = true;
  count(kConfigured);
}

inline void release() { is_configured = false; }

inline void zero(int tile) {
  count(kZeroed);
  std::memset(used(tile).row, 0, sizeof(Tile::row));
}

inline void load(int tile, const void* from, int64_t stride) {
  count(kLoaded);
  Tile& to = used(tile);
  std::memset(to.row, 0, sizeof(Tile::row));
  for (int r = 0; r < to.rows; ++r) std::memcpy(to.row[r], static_cast<const uint8_t*>(from) + r * stride, to.bytes);
}

inline void store(int tile, void* to, int64_t stride) {
  count(kStored);
  const Tile& from = used(tile);
  for (int r = 0; r < from.rows; ++r) std::memcpy(static_cast<uint8_t*>(to) + r * stride, from.row[r], from.bytes);
}

// c [16, 16] += a [16, 32] times b [16 pairs of summands, 16 columns, 2], of these the rows and columns that c has.
[[gnu::noinline]] inline void add_bfloat16(Tile& c, const Tile& a, const Tile& b) {
  const auto number = [](const Tile& tile, int row, int i) {
    uint16_t bits;
    std::memcpy(&bits, tile.row[row] + 2 * i, sizeof(bits));
    return of_bfloat16(bits);
  };
  float columns[16][2][16];  // of each pair: the first summands, and the second ones
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 16; ++n) {
      columns[k][0][n] = number(b, k, 2 * n), columns[k][1][n] = number(b, k, 2 * n + 1);
    }
  }
  for (int m = 0; m < c.rows; ++m) {
    // The first numbers of all pairs are summed by themselves, so are the second; then these two, then what was there.
    float sums[2][16] = {};
    for (int k = 0; k < a.bytes / 4; ++k) {
      for (int i = 0; i < 2; ++i) {
        const float x = number(a, m, 2 * k + i);
        for (int n = 0; n < 16; ++n) sums[i][n] = fused(x, columns[k][i][n], sums[i][n]);
      }
    }
    float total[16];
    std::memcpy(total, c.row[m], sizeof(total));
    for (int n = 0; n < c.bytes / 4; ++n) total[n] += sums[0][n] + sums[1][n];
    std::memcpy(c.row[m], total, sizeof(total));
  }
}

inline void multiply_bfloat16(int c, int a, int b) {
  count_product(kMultipliedBfloat16, used(c), used(a), used(b));
  const FlushedDenormals flushed;
  add_bfloat16(tiles[c], tiles[a], tiles[b]);
}

// c [16, 16] += a [16, 64] times b [16 groups of four summands, 16 columns, 4], both signed. Sums wrap.
inline void multiply_int8(int c, int a, int b) {
  count_product(kMultipliedInt8, used(c), used(a), used(b));
  for (int m = 0; m < tiles[c].rows; ++m) {
    uint32_t total[16];
    std::memcpy(total, tiles[c].row[m], sizeof(total));
    for (int k = 0; k < tiles[a].bytes / 4; ++k) {
      const int8_t* x = reinterpret_cast<const int8_t*>(tiles[a].row[m]) + 4 * k;
      const int8_t* w = reinterpret_cast<const int8_t*>(tiles[b].row[k]);
      for (int n = 0; n < tiles[c].bytes / 4; ++n) {
        for (int i = 0; i < 4; ++i) total[n] += static_cast<uint32_t>(int32_t{x[i]} * w[4 * n + i]);
      }
    }
    std::memcpy(tiles[c].row[m], total, sizeof(total));
  }
}

}  // namespace mis::emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(config) mis::emulated::configure(config)
#define _tile_release() mis::emulated::release()
#define _tile_zero(tile) mis::emulated::zero(tile)
#define _tile_loadd(tile, from, stride) mis::emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) mis::emulated::store(tile, to, stride)
#define _tile_dpbf16ps(c, a, b) mis::emulated::multiply_bfloat16(c, a, b)
#define _tile_dpbssd(c, a, b) mis::emulated::multiply_int8(c, a, b)
