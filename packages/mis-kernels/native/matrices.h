// Sums of products in float32, on AVX-512: blocks of rows whose sums stay in registers.
//
// Each sum is one number of a register, to which products are added in the order of their summands. So a row's numbers
// depend on nothing but its factors and the summands, whoever is computed beside it.

#pragma once

#include "rows.h"
#include "vectors.h"

namespace mis {

// Number (row, i) is `at[row * row_step + i * step]`.
template <typename Number>
struct Matrix {
  Number* at;
  int64_t row_step, step;

  Matrix(Number* at, int64_t row_step, int64_t step = 1) : at(at), row_step(row_step), step(step) {}
  Matrix(const Matrix<std::remove_const_t<Number>>& other) : Matrix(other.at, other.row_step, other.step) {}

  Number* row(int64_t number) const { return at + number * row_step; }
  Matrix from_row(int64_t number) const { return {row(number), row_step, step}; }
  Matrix from_column(int64_t number) const { return {at + number * step, row_step, step}; }
};

using Factors = Matrix<const float>;
using Summands = Matrix<const float>;  // rows of whole vectors, as sums are
using Sums = Matrix<float>;

// What sums are before anything is added: numbers times `scale`; of none, zeros.
struct Start {
  Summands numbers = {nullptr, 0};
  float scale = 1.0f;
};

// Makes sums of a start and of factors [kHeight, depth] times summands [depth, 16 kWidth]. If it solves, the next
// summands, and the last, are these sums themselves: each is final when those before it are added.
template <int kHeight, int kWidth, bool kSolves>
void sum_block(Start start, Factors factors, Summands summands, int64_t depth, Sums sums) {
  __m512 sum[kHeight][kWidth];
  const __m512 scale = _mm512_set1_ps(start.scale);
  for (int r = 0; r < kHeight; ++r) {
    for (int w = 0; w < kWidth; ++w) {
      sum[r][w] = _mm512_setzero_ps();
      if (start.numbers.at) sum[r][w] = _mm512_mul_ps(scale, _mm512_loadu_ps(start.numbers.row(r) + 16 * w));
    }
  }
  const auto factor = [&](int r, int64_t i) {
    return _mm512_set1_ps(factors.at[r * factors.row_step + i * factors.step]);
  };
  for (int64_t i = 0; i < depth; ++i) {
    __m512 summand[kWidth];
    for (int w = 0; w < kWidth; ++w) summand[w] = _mm512_loadu_ps(summands.row(i) + 16 * w);
    for (int r = 0; r < kHeight; ++r) {
      const __m512 x = factor(r, i);
      for (int w = 0; w < kWidth; ++w) sum[r][w] = _mm512_fmadd_ps(x, summand[w], sum[r][w]);
    }
  }
  if constexpr (kSolves) {
#pragma GCC unroll 14
    for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 14
      for (int r = i + 1; r < kHeight; ++r) {
        const __m512 x = factor(r, depth + i);
        for (int w = 0; w < kWidth; ++w) sum[r][w] = _mm512_fmadd_ps(x, sum[i][w], sum[r][w]);
      }
    }
  }
  for (int r = 0; r < kHeight; ++r) {
    for (int w = 0; w < kWidth; ++w) _mm512_storeu_ps(sums.row(r) + 16 * w, sum[r][w]);
  }
}

using SumBlock = void(Start, Factors, Summands, int64_t, Sums);

template <int kWidth, bool kSolves, size_t... kIndex>
constexpr std::array<SumBlock*, sizeof...(kIndex)> blocks_of(std::index_sequence<kIndex...>) {
  return {sum_block<kIndex + 1, kWidth, kSolves>...};
}

// Does so for up to kMostRows rows of `columns` sums, a multiple of 16.
template <bool kSolves = false>
void sum_products(int64_t height, int64_t columns, Start start, Factors factors, Summands summands, int64_t depth,
                  Sums sums) {
  static constexpr auto kNarrow = blocks_of<1, kSolves>(std::make_index_sequence<kMostRows>());
  static constexpr auto kWide = blocks_of<2, kSolves>(std::make_index_sequence<kMostRows>());
  for (int64_t column = 0; column < columns; column += 32) {
    SumBlock* const block = (column + 32 <= columns ? kWide : kNarrow)[height - 1];
    const Start here = {start.numbers.at ? start.numbers.from_column(column) : start.numbers, start.scale};
    block(here, factors, summands.from_column(column), depth, sums.from_column(column));
  }
}

// Calls block(first, height) for rows in blocks of up to kMostRows, all about as high: high ones are the fastest.
template <typename Block>
void for_blocks(int64_t rows, Block block) {
  const int64_t count = (rows + kMostRows - 1) / kMostRows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = rows * i / count;
    block(first, rows * (i + 1) / count - first);
  }
}

}  // namespace mis
