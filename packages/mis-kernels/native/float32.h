// Rows times columns in float32, on the vectors that there are.
//
// Each sum is one number of a register. Products are added to it in the order of their summands, each rounded once, and
// then it is added to what is there. So a row's numbers depend on nothing but the row and the columns, and are the same
// on every CPU.

#pragma once

#include "instructions.h"

#include <array>
#include <cstdint>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace mis {

#ifndef MIS_AVX2
using Register = __m512;

inline Register loaded(const float* from) { return _mm512_loadu_ps(from); }
inline Register repeated(float x) { return _mm512_set1_ps(x); }
inline Register fused(Register x, Register y, Register z) { return _mm512_fmadd_ps(x, y, z); }
inline Register added(Register x, Register y) { return _mm512_add_ps(x, y); }
inline void store(float* to, Register x) { _mm512_storeu_ps(to, x); }
#endif

// Numbers in float32, as templates take their type.
struct Float32 {
  using Number = float;
  static constexpr xla::ffi::DataType kType = xla::ffi::F32;

  static void store(float* to, __m512 x) { _mm512_storeu_ps(to, x); }
};

constexpr int kVector = 16;                                  // columns that lie side by side
constexpr int kNumbers = sizeof(Register) / sizeof(float);   // columns of a register
constexpr int kBeside = kRegisters >= 32 ? 2 : kVector / kNumbers;  // registers of columns that are worked on together
constexpr int kHeight = kRegisters >= 32 ? 14 : 6;  // rows, whose sums leave a quarter of the registers or less

// Columns of which 16 lie side by side for each summand; see `backends/native/packed.py`.
struct Float32Columns {
  const float* first;  // of the first summand
  int64_t beside;      // numbers between 16 columns and the next
  int64_t step;        // numbers between summands
};

template <int kRows>
void multiply_float32_block(const float* x, int64_t stride, Float32Columns w, int64_t depth, bool is_first, float* c,
                            int64_t c_stride) {
  constexpr int64_t kAhead = 2048;  // bytes by which columns, which may come from memory, are fetched early
  Register sums[kRows][kBeside];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kBeside; ++i) sums[r][i] = repeated(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Register columns[kBeside];
    for (int i = 0; i < kBeside; ++i) {
      const int column = i * kNumbers;
      const float* at = w.first + k * w.step + column / kVector * w.beside + column % kVector;
      if (column % kVector == 0) _mm_prefetch(reinterpret_cast<const char*>(at) + kAhead, _MM_HINT_T1);
      columns[i] = loaded(at);
    }
    for (int r = 0; r < kRows; ++r) {
      const Register number = repeated(x[r * stride + k]);
      for (int i = 0; i < kBeside; ++i) sums[r][i] = fused(columns[i], number, sums[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kBeside; ++i) {
      float* to = c + r * c_stride + i * kNumbers;
      store(to, is_first ? sums[r][i] : added(loaded(to), sums[r][i]));
    }
  }
}

using MultiplyFloat32 = void(const float*, int64_t, Float32Columns, int64_t, bool, float*, int64_t);

template <size_t... kIndex>
constexpr std::array<MultiplyFloat32*, sizeof...(kIndex)> float32_blocks(std::index_sequence<kIndex...>) {
  return {multiply_float32_block<kIndex + 1>...};
}

constexpr auto kFloat32Blocks = float32_blocks(std::make_index_sequence<kHeight>());

// Adds x [rows, depth] times 32 columns to c [rows, 32]; `is_first` overwrites c instead.
inline void multiply_float32(const float* x, int64_t stride, int64_t rows, Float32Columns w, int64_t depth,
                             bool is_first, float* c, int64_t c_stride) {
  const int64_t count = (rows + kHeight - 1) / kHeight;
  for (int64_t i = 0; i < count; ++i) {  // all about as high: high ones are the fastest
    const int64_t row = rows * i / count, height = rows * (i + 1) / count - row;
    for (int column = 0; column < 32; column += kBeside * kNumbers) {
      const Float32Columns some = {w.first + column / kVector * w.beside, w.beside, w.step};
      kFloat32Blocks[height - 1](x + row * stride, stride, some, depth, is_first, c + row * c_stride + column, c_stride);
    }
  }
}

}  // namespace mis
