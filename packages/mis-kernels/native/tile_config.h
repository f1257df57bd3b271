// How the tile registers of a thread are configured.

#pragma once

#include "instructions.h"

#include <cstdint>

namespace mis {

constexpr int kStrip = 32;       // rows that are worked on together: two tile registers

// Of `rows` rows, up to kStrip: registers 0, 1 and 4 have the first 16, registers 2, 3 and 5 the others, if there are
// any. Registers 6 and 7 have columns.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};

  explicit TileConfig(int count = kStrip) {
    const auto have = [&](int tile, int height) {
      if (height > 0) bytes_per_row[tile] = 64, rows[tile] = static_cast<uint8_t>(height);
    };
    for (int tile : {0, 1, 4}) have(tile, count < 16 ? count : 16);
    for (int tile : {2, 3, 5}) have(tile, count - 16);
    for (int tile : {6, 7}) have(tile, 16);
  }
};

inline thread_local int configured_rows = 0;  // of this thread's registers; 0: it has none

// Has this thread's registers take so many rows, if they do not yet: configuring takes as long as a dozen products.
inline void configure_tiles(int rows) {
  if (rows == configured_rows) return;
  const TileConfig config(rows);
  _tile_loadconfig(&config);
  configured_rows = rows;
}

inline void release_tiles() {
  if (configured_rows) _tile_release();
  configured_rows = 0;
}

}  // namespace mis
