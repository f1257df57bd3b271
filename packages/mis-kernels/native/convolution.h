// The short causal convolution before a gated delta rule, with SiLU, on AVX-512: some channels, chunk after chunk.

#pragma once

#include <array>

#include "tiles.h"

namespace mis {

// Writes `size` numbers, whole vectors, that `function` makes of the place of a vector's first one.
template <typename Function>
void each(int64_t size, float* to, Function function) {
  for (int64_t i = 0; i < size; i += 16) _mm512_storeu_ps(to + i, function(i));
}

template <typename Number>
void copy(const Number* from, int64_t size, float* to) {
  each(size, to, [&](int64_t i) { return widened(from + i); });
}

// Fetches numbers into the second-level cache. It is always inlined, as must be what calls nothing else: the compiler
// drops calls of functions that only fetch.
template <typename Number>
[[gnu::always_inline]] inline void fetch(const Number* from, int64_t size) {
  for (int64_t i = 0; i < size; i += 64 / sizeof(Number)) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
  }
}

// What the convolution of a layer takes. Numbers are float, or uint16_t: bits of bfloat16.
template <typename Number>
struct Inputs {
  const Number* rows;   // [tokens, channels]
  const float* kernel;  // [channels, taps]
  float* last;          // [slots, taps - 1, channels]: the last inputs of sequences
  int64_t channels, taps;
};

// Neighbours among the channels.
struct Part {
  int64_t first, size, own;  // own: place of the first one among those of all parts that are convolved
};

template <typename Number>
class Convolution {
 public:
  Convolution(const Inputs<Number>& inputs, std::array<Part, 3> parts)
      : inputs_(inputs), parts_(parts), channels_(parts[2].own + parts[2].size), before_(inputs.taps - 1) {
    float* kernel = kernel_.ensure(inputs.taps * channels_);
    for (const Part& part : parts_) {
      for (int64_t i = 0; i < part.size; ++i) {
        for (int64_t tap = 0; tap < inputs.taps; ++tap) {
          kernel[tap * channels_ + part.own + i] = inputs.kernel[(part.first + i) * inputs.taps + tap];
        }
      }
    }
    edge_.ensure(2 * before_ * channels_);
    start_from_nothing();
  }

  // The rows before the next chunk are zeros. Without a start, they are those that the last chunk left.
  void start_from_nothing() { std::fill_n(edge_.data(), before_ * channels_, 0.0f); }

  void start_from(int64_t slot) {
    for_edge([&](int64_t row, const Part& part, float* own) { copy(stored(slot, row, part), part.size, own); });
  }

  // Makes a chunk of rows the current one.
  void begin(int64_t first, int64_t rows) {
    first_ = first, rows_ = rows;
    for_edge([&](int64_t row, const Part& part, float* own) {
      if (row < rows) copy(input(row, part), part.size, own + before_ * channels_);
    });
  }

  // Leaves the last inputs of the current chunk to the next one.
  void end() {
    for_edge([&](int64_t row, const Part& part, float* own) {
      const int64_t from = rows_ - before_ + row;
      if (from < 0) copy(own + rows_ * channels_, part.size, own);
      else copy(input(from, part), part.size, own);
    });
  }

  // Stores what `end` left.
  void store(int64_t slot) {
    for_edge([&](int64_t row, const Part& part, float* own) { copy(own, part.size, stored(slot, row, part)); });
  }

  // 16 channels of a row of the chunk, from a place on in a part.
  __m512 at(int64_t row, const Part& part, int64_t place) const {
    const float* factors = kernel_.data() + part.own + place;
    if (row >= before_) return mixed(input(row - before_, part) + place, inputs_.channels, factors);
    return mixed(edge_.data() + row * channels_ + part.own + place, channels_, factors);
  }

  // Fetches inputs of any row of the step. Rows lie far apart: no CPU foresees them.
  [[gnu::always_inline]] void fetch_row(int64_t row) const {
    for (const Part& part : parts_) fetch(inputs_.rows + row * inputs_.channels + part.first, part.size);
  }

 private:
  const Number* input(int64_t row, const Part& part) const {
    return inputs_.rows + (first_ + row) * inputs_.channels + part.first;
  }

  float* stored(int64_t slot, int64_t row, const Part& part) const {
    return inputs_.last + (slot * before_ + row) * inputs_.channels + part.first;
  }

  // Calls function(row, part, its numbers) for the rows before a chunk, oldest first.
  template <typename Function>
  void for_edge(Function function) {
    for (int64_t row = 0; row < before_; ++row) {
      for (const Part& part : parts_) function(row, part, edge_.data() + row * channels_ + part.own);
    }
  }

  template <typename Input>
  __m512 mixed(const Input* from, int64_t step, const float* factors) const {
    __m512 sum = _mm512_mul_ps(widened(from), _mm512_loadu_ps(factors));
    for (int64_t tap = 1; tap < inputs_.taps; ++tap) {
      sum = _mm512_fmadd_ps(widened(from + tap * step), _mm512_loadu_ps(factors + tap * channels_), sum);
    }
    const __m512 power = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), sum));
    return _mm512_div_ps(sum, _mm512_add_ps(power, _mm512_set1_ps(1.0f)));
  }

  const Inputs<Number>& inputs_;
  const std::array<Part, 3> parts_;
  const int64_t channels_, before_;  // of all parts; rows before a chunk
  Buffer<float> kernel_;             // [taps, channels]
  Buffer<float> edge_;               // [2, taps - 1, channels]: the rows before a chunk, and its first ones
  int64_t first_ = 0, rows_ = 0;     // of the current chunk
};

}  // namespace mis
