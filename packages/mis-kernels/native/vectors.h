// Functions of 16 numbers, on AVX-512.

#pragma once

#include "instructions.h"

#include <cstdint>

namespace mis {

// 2 to the power of x: a polynomial on [-1/2, 1/2], then scaling. Its relative error is below 3e-6 (least squares
// in relative error, weighted towards the largest), a thousandth of what rounding to bfloat16 adds.
inline __m512 exp2_of(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 part = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(9.5700799e-3f);
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.5917859e-2f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.4024746e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.9312179e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.9999928e-1f));
  return _mm512_scalef_ps(y, whole);
}

// exp(x), off by two units of the last place at most; 0 or infinity where that is too small or too large for float32.
// x is a whole number of times ln 2, given in two parts, and a rest, whose polynomial is that of Cephes (expf).
inline __m512 exp_of(__m512 x) {
  const __m512 limit = _mm512_set1_ps(128.0f);
  x = _mm512_max_ps(_mm512_set1_ps(-128.0f), _mm512_min_ps(limit, x));
  const __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 rest = _mm512_fmadd_ps(whole, _mm512_set1_ps(-0.693359375f), x);
  rest = _mm512_fmadd_ps(whole, _mm512_set1_ps(2.12194440e-4f), rest);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_fmadd_ps(y, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(y, whole);
}

// x / (1 + exp(-x)).
inline __m512 silu(__m512 x) {
  const __m512 power = exp2_of(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)));
  return _mm512_div_ps(x, _mm512_add_ps(power, _mm512_set1_ps(1.0f)));
}

// exp(-2 x): 0 or infinity where that is too small or too large for float32.
inline __m512 exp_of_minus_twice(__m512 x) {
  const __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(-2.88539008f)), limit = _mm512_set1_ps(200.0f);
  const __m512 low = _mm512_sub_ps(_mm512_setzero_ps(), limit);
  return exp2_of(_mm512_max_ps(low, _mm512_min_ps(limit, power)));  // of infinity, exp2_of would make NaN
}

// GELU by its approximation with tanh, x / 2 (1 + tanh(u)), which is x / (1 + exp(-2 u)) (arXiv 1606.08415).
inline __m512 gelu_tanh(__m512 x) {
  constexpr float kSlope = 0.797884561f;  // the root of 2 / pi
  const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f * kSlope), _mm512_set1_ps(kSlope));
  return _mm512_div_ps(x, _mm512_add_ps(exp_of_minus_twice(_mm512_mul_ps(x, slope)), _mm512_set1_ps(1.0f)));
}

// tanh of x, off by less than 1.5e-6. So a logit with a cap of 50 is off by less than 1e-4, and its weight by a
// twentieth of what rounding to bfloat16 adds.
inline __m512 tanh_of(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_sub_ps(_mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(exp_of_minus_twice(x), one)), one);
}

// What gates a product, if anything does; `gate_number` of `backends/native/packed.py`.
enum class Gate : int32_t { kNone, kSilu, kGeluTanh };

inline __m512 activated(Gate gate, __m512 x) { return gate == Gate::kSilu ? silu(x) : gelu_tanh(x); }

// 16 numbers in float32, of their bits in bfloat16 or as they are.
inline __m512 widened(const uint16_t* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 widened(const float* x) { return _mm512_loadu_ps(x); }

}  // namespace mis
