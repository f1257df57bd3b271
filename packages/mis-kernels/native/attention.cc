// Attention of packed new tokens to their paged contexts and their own segments, in tile registers or on vectors.
// The contract is that of mis_kernels.segment_attention.

#include "blocks.h"
#include "tiles.h"

namespace mis {

struct Bfloat16Attention {
  using Number = uint16_t;
  using Rows = mis::Rows;
  using Keys = PackedKeys;
  static constexpr int kTileKeys = mis::kTileKeys;

  // Powers of 2, and not of e.
  struct Logits : mis::Logits {
    static constexpr float kLog2E = 1.44269504f;
    Logits(float scale, float cap) : mis::Logits{scale * kLog2E, cap * kLog2E} {}
  };

  static void store(uint16_t* to, __m512 x) {
    const __m256bh rounded = _mm512_cvtneps_pbh(x);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<const __m256i&>(rounded));
  }
};

}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_segment_attention, (mis::attend<mis::Bfloat16Attention, xla::ffi::U16>),
                              mis::attention_binding<xla::ffi::U16>());
