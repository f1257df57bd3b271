// The tile instructions of AMX in plain C++, for CPUs that have none. They count what they do.
//
// A thread has eight registers of 16 rows of 64 bytes; `configure` takes no other shape. What a CPU refuses, tiles that are
// not configured, ends the process here as there.
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
  alignas(64) uint8_t row[16][64];
};

inline thread_local Tile tiles[8];

enum Counted { kConfigured, kZeroed, kLoaded, kStored, kMultipliedBfloat16, kMultipliedInt8, kCounters };
inline std::atomic<int64_t> counters[kCounters];

inline void count(Counted what) { counters[what].fetch_add(1, std::memory_order_relaxed); }

inline thread_local bool is_configured = false;

[[noreturn]] inline void refuse(const char* why) {
  std::fprintf(stderr, "Emulated AMX: %s.\n", why);
  std::abort();
}

inline void need_configured() {
  if (!is_configured) refuse("an instruction of tiles without _tile_loadconfig before it");
}

// The layout of `config` is that of the manual: palette, start row, 14 reserved, 16 widths, 16 heights.
inline void configure(const void* config) {
  const uint8_t* bytes = static_cast<const uint8_t*>(config);
  if (bytes[0] != 1 || bytes[1] != 0) refuse("another palette than 1, or a first row");
  for (int tile = 0; tile < 8; ++tile) {
    uint16_t width;
    std::memcpy(&width, bytes + 16 + 2 * tile, sizeof(width));
    if (width != 64 || bytes[48 + tile] != 16) refuse("a tile of another shape than 16 rows of 64 bytes");
    std::memset(&tiles[tile], 0, sizeof(Tile));
  }
  is_configured = true;
  count(kConfigured);
}

inline void release() { is_configured = false; }

inline void zero(int tile) {
  need_configured();
  count(kZeroed);
  std::memset(&tiles[tile], 0, sizeof(Tile));
}

inline void load(int tile, const void* from, int64_t stride) {
  need_configured();
  count(kLoaded);
  for (int r = 0; r < 16; ++r) std::memcpy(tiles[tile].row[r], static_cast<const uint8_t*>(from) + r * stride, 64);
}

inline void store(int tile, void* to, int64_t stride) {
  need_configured();
  count(kStored);
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles[tile].row[r], 64);
}

// c [16, 16] += a [16, 32] times b [16 pairs of summands, 16 columns, 2].
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
  for (int m = 0; m < 16; ++m) {
    // The first numbers of all pairs are summed by themselves, so are the second; then these two, then what was there.
    float sums[2][16] = {};
    for (int k = 0; k < 16; ++k) {
      for (int i = 0; i < 2; ++i) {
        const float x = number(a, m, 2 * k + i);
        for (int n = 0; n < 16; ++n) sums[i][n] = fused(x, columns[k][i][n], sums[i][n]);
      }
    }
    float total[16];
    std::memcpy(total, c.row[m], sizeof(total));
    for (int n = 0; n < 16; ++n) total[n] += sums[0][n] + sums[1][n];
    std::memcpy(c.row[m], total, sizeof(total));
  }
}

inline void multiply_bfloat16(int c, int a, int b) {
  need_configured();
  count(kMultipliedBfloat16);
  const FlushedDenormals flushed;
  add_bfloat16(tiles[c], tiles[a], tiles[b]);
}

// c [16, 16] += a [16, 64], unsigned, times b [16 groups of four summands, 16 columns, 4], signed. Sums wrap.
inline void multiply_int8(int c, int a, int b) {
  need_configured();
  count(kMultipliedInt8);
  for (int m = 0; m < 16; ++m) {
    uint32_t total[16];
    std::memcpy(total, tiles[c].row[m], sizeof(total));
    for (int k = 0; k < 16; ++k) {
      const uint8_t* x = tiles[a].row[m] + 4 * k;
      const int8_t* w = reinterpret_cast<const int8_t*>(tiles[b].row[k]);
      for (int n = 0; n < 16; ++n) {
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
#undef _tile_dpbusd
#define _tile_loadconfig(config) mis::emulated::configure(config)
#define _tile_release() mis::emulated::release()
#define _tile_zero(tile) mis::emulated::zero(tile)
#define _tile_loadd(tile, from, stride) mis::emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) mis::emulated::store(tile, to, stride)
#define _tile_dpbf16ps(c, a, b) mis::emulated::multiply_bfloat16(c, a, b)
#define _tile_dpbusd(c, a, b) mis::emulated::multiply_int8(c, a, b)
