// Numbers in bfloat16, as templates take their type.

#pragma once

#include "instructions.h"

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace mis {

struct Bfloat16 {
  using Number = uint16_t;
  static constexpr xla::ffi::DataType kType = xla::ffi::U16;

  // Rounds 16 numbers.
  static void store(uint16_t* to, __m512 x) {
    const __m256bh rounded = _mm512_cvtneps_pbh(x);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<const __m256i&>(rounded));
  }
};

}  // namespace mis
