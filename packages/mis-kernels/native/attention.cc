// Attention of packed new tokens to their paged contexts and their own segments, in tile registers or on vectors.
// The contract is that of mis_kernels.segment_attention.

#include "bfloat16.h"
#include "blocks.h"
#include "tiles.h"

namespace mis {

struct Bfloat16Attention : Bfloat16 {
  using Rows = mis::Rows;
  using Keys = PackedKeys;
  static constexpr int kTileKeys = mis::kTileKeys;

  // Has tile registers take the rows of a block: single tokens have few.
  static void configure(int64_t rows) { configure_tiles(rows <= 16 ? static_cast<int>(rows) : kStrip); }

  // Powers of 2, and not of e.
  struct Logits : mis::Logits {
    static constexpr float kLog2E = 1.44269504f;
    Logits(float scale, float cap) : mis::Logits{scale * kLog2E, cap * kLog2E} {}
  };
};

}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_segment_attention, mis::attend<mis::Bfloat16Attention>,
                              mis::attention_binding<mis::Bfloat16>());
