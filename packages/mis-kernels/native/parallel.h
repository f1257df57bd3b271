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
#include "tile_config.h"
#include "xla/ffi/api/ffi.h"

namespace mis {

// Work that any number of threads share; the last reference may be a task that came too late to do anything.
template <typename Unit>
struct Shared {
  Unit unit;
  const int64_t size;
  std::atomic<int64_t> next{0}, done{0};

  Shared(Unit unit, int64_t size) : unit(std::move(unit)), size(size) {}

  void run() {
    for (int64_t i; (i = next.fetch_add(1)) < size;) {
      unit(i);
      done.fetch_add(1, std::memory_order_release);
    }
    release_tiles();
  }
};

// Calls unit(0) to unit(size - 1), each once, on this thread and those of the pool; returns when all are done.
// A unit that needs tile registers configures them (`configure_tiles`); they are released here.
template <typename Unit>
void for_each(xla::ffi::ThreadPool pool, int64_t size, Unit unit) {
  auto shared = std::make_shared<Shared<Unit>>(std::move(unit), size);
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), size) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->run(); });
  shared->run();
  while (shared->done.load(std::memory_order_acquire) < size) std::this_thread::yield();
}

}  // namespace mis
