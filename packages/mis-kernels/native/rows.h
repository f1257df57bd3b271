// Rows times 32 packed columns, on AVX-512 with sums of two products in bfloat16.
//
// Each sum is one number of a register, to which pairs of products are added in the order of their summands. So a row's
// numbers depend on nothing but the row and the columns, whoever is computed beside it.

#pragma once

#include "instructions.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace mis {

constexpr int kMostRows = kRegisters / 2 - 2;  // 14 with AVX-512: their sums of 32 columns leave four registers
constexpr int64_t kAhead = 4096;    // bytes by which the columns of few rows, which come from memory, are fetched early

// 32 packed columns: tiles of 16 columns, of 32 summands in pairs or, in int8, of 64 in fours; see
// `backends/native/packed.py`.
template <typename Number>
struct PackedColumns {
  const Number* left;  // the first tile of the first 16
  int64_t right_of;    // numbers between it and the first tile of the other 16
  int64_t step;        // numbers between tiles of the same columns
};

using Columns = PackedColumns<uint16_t>;

// The rows of x [rows, size], in bfloat16, up to the last that is not all zeros: padding, at the end, is zeros.
inline int64_t rows_before_zeros(const uint16_t* x, int64_t rows, int64_t size) {
  for (; rows > 0; --rows) {
    const uint16_t* row = x + (rows - 1) * size;
    uint16_t found = 0;
    for (int64_t i = 0; i < size; ++i) found |= row[i];
    if (found & 0x7fff) break;  // whatever its sign
  }
  return rows;
}

// Two numbers in bfloat16, 16 times.
inline __m512bh repeated(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  const __m512i pairs = _mm512_set1_epi32(pair);
  return reinterpret_cast<const __m512bh&>(pairs);
}

template <int kHeight>
void multiply_block(const uint16_t* x, int64_t stride, Columns w, int64_t tiles, bool first, float* c,
                    int64_t c_stride) {
  __m512 left[kHeight], right[kHeight];  // registers, if loops over rows are unrolled early: else copied to memory and back
#pragma GCC unroll 14
  for (int r = 0; r < kHeight; ++r) {
    left[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * c_stride);
    right[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * c_stride + 16);
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const uint16_t *a = x + tile * 32, *from = w.left + tile * w.step, *beside = from + w.right_of;
    for (int pair = 0; pair < 16; ++pair) {
      _mm_prefetch(reinterpret_cast<const char*>(from + pair * 32) + kAhead, _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(beside + pair * 32) + kAhead, _MM_HINT_T1);
      const __m512i low = _mm512_loadu_si512(from + pair * 32), high = _mm512_loadu_si512(beside + pair * 32);
#pragma GCC unroll 14
      for (int r = 0; r < kHeight; ++r) {
        const __m512bh numbers = repeated(a + r * stride + 2 * pair);
        left[r] = _mm512_dpbf16_ps(left[r], reinterpret_cast<const __m512bh&>(low), numbers);
        right[r] = _mm512_dpbf16_ps(right[r], reinterpret_cast<const __m512bh&>(high), numbers);
      }
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < kHeight; ++r) {
    _mm512_storeu_ps(c + r * c_stride, left[r]);
    _mm512_storeu_ps(c + r * c_stride + 16, right[r]);
  }
}

using Multiply = void(const uint16_t*, int64_t, Columns, int64_t, bool, float*, int64_t);

template <size_t... kIndex>
constexpr std::array<Multiply*, sizeof...(kIndex)> blocks_of(std::index_sequence<kIndex...>) {
  return {multiply_block<kIndex + 1>...};
}

// Adds x [rows, 32 tiles] times the columns to c [rows, 32]; `first` overwrites c instead.
inline void multiply_rows(const uint16_t* x, int64_t stride, int64_t rows, Columns w, int64_t tiles, bool first,
                          float* c, int64_t c_stride) {
  static constexpr auto kBlocks = blocks_of(std::make_index_sequence<kMostRows>());
  const int64_t count = (rows + kMostRows - 1) / kMostRows;
  for (int64_t i = 0; i < count; ++i) {  // all about as high: high ones are the fastest
    const int64_t row = rows * i / count, height = rows * (i + 1) / count - row;
    kBlocks[height - 1](x + row * stride, stride, w, tiles, first, c + row * c_stride, c_stride);
  }
}

}  // namespace mis
