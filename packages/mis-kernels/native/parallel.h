// Units of work shared by the threads of XLA's pool.

#pragma once

#include "instructions.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "buffer.h"
#include "xla/ffi/api/ffi.h"

namespace mis {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
  TileConfig() {
    for (int i = 0; i < 8; ++i) bytes_per_row[i] = 64, rows[i] = 16;
  }
};

// Work that any number of threads share; the last reference may be a task that came too late to do anything.
template <typename Unit>
struct Shared {
  const bool has_tiles;
  Unit unit;
  const int64_t size;
  std::atomic<int64_t> next{0}, done{0};

  Shared(Unit unit, int64_t size, bool has_tiles) : has_tiles(has_tiles), unit(std::move(unit)), size(size) {}

  void run() {
    static const TileConfig config;
    bool configured = false;
    for (int64_t i; (i = next.fetch_add(1)) < size;) {
      if (has_tiles && !configured) _tile_loadconfig(&config), configured = true;
      unit(i);
      done.fetch_add(1, std::memory_order_release);
    }
    if (configured) _tile_release();
  }
};

// Calls unit(0) to unit(size - 1), each once, on this thread and those of the pool; returns when all are done.
// A thread's tile registers, where the CPU has some, are configured as `TileConfig` says.
template <typename Unit>
void for_each(xla::ffi::ThreadPool pool, int64_t size, Unit unit, bool has_tiles = true) {
  auto shared = std::make_shared<Shared<Unit>>(std::move(unit), size, has_tiles);
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), size) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->run(); });
  shared->run();
  while (shared->done.load(std::memory_order_acquire) < size) std::this_thread::yield();
}

}  // namespace mis
