// The intrinsics of AVX-512 that float32 needs, on AVX2: for CPUs without vectors of 512 bits.
//
// A vector of 512 bits is two registers. Each function computes what the instruction of its name does, to the bit.

#pragma once

#include <immintrin.h>

#include <cstdint>

#define MIS_AVX2

namespace mis::avx2 {

struct Floats {
  __m256 low, high;
};

struct Words {
  __m256i low, high;
};

// All bits of a number where its bit of eight is set.
inline __m256 chosen(int bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), each), each));
}

// 2 to the power of whole numbers from -126 to 127.
inline __m256 power_of_2(__m256i exponent) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
}

// x, between a half and two, times 2 to the power of y, a whole number: two steps, since one factor has too few powers.
inline __m256 scaled(__m256 x, __m256 y) {
  const __m256 bounded = _mm256_max_ps(_mm256_set1_ps(-252.0f), _mm256_min_ps(_mm256_set1_ps(252.0f), y));
  const __m256i exponent = _mm256_cvtps_epi32(bounded), half = _mm256_srai_epi32(exponent, 1);
  return _mm256_mul_ps(_mm256_mul_ps(x, power_of_2(half)), power_of_2(_mm256_sub_epi32(exponent, half)));
}

// The halves of a vector, combined; then of what is left, down to one number.
template <typename Function>
inline float folded(Floats x, Function function) {
  const __m128 first = function(_mm256_castps256_ps128(x.high), _mm256_castps256_ps128(x.low));
  const __m128 second = function(_mm256_extractf128_ps(x.high, 1), _mm256_extractf128_ps(x.low, 1));
  const __m128 quarter = function(second, first), pair = function(_mm_movehl_ps(quarter, quarter), quarter);
  return _mm_cvtss_f32(function(_mm_movehdup_ps(pair), pair));
}

inline Floats loadu(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void storeu(float* to, Floats x) { _mm256_storeu_ps(to, x.low), _mm256_storeu_ps(to + 8, x.high); }
inline Floats set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.low, y.low), _mm256_add_ps(x.high, y.high)}; }
inline Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.low, y.low), _mm256_sub_ps(x.high, y.high)}; }
inline Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.low, y.low), _mm256_mul_ps(x.high, y.high)}; }
inline Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.low, y.low), _mm256_div_ps(x.high, y.high)}; }
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.low, y.low), _mm256_min_ps(x.high, y.high)}; }
inline Floats fmadd(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)};
}
inline Floats rounded(Floats x) {
  constexpr int kHow = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kHow), _mm256_round_ps(x.high, kHow)};
}
inline Floats scalef(Floats x, Floats y) { return {scaled(x.low, y.low), scaled(x.high, y.high)}; }
inline Floats mask_mov(Floats other, uint16_t mask, Floats x) {
  return {_mm256_blendv_ps(other.low, x.low, chosen(mask & 255)), _mm256_blendv_ps(other.high, x.high, chosen(mask >> 8))};
}
inline float reduce_add(Floats x) {
  return folded(x, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}
inline float reduce_max(Floats x) {
  return folded(x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}
inline Words cvtepu16_epi32(__m256i x) {
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
inline Words slli_epi32(Words x, int places) {
  return {_mm256_slli_epi32(x.low, places), _mm256_slli_epi32(x.high, places)};
}
inline Floats castsi512_ps(Words x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }

}  // namespace mis::avx2

// <immintrin.h> declares the same names for what this CPU lacks.

#undef _mm512_roundscale_ps
#define __m512 mis::avx2::Floats
#define __m512i mis::avx2::Words
#define __mmask16 uint16_t
#define _mm512_loadu_ps(from) mis::avx2::loadu(from)
#define _mm512_load_ps(from) mis::avx2::loadu(from)
#define _mm512_storeu_ps(to, x) mis::avx2::storeu(to, x)
#define _mm512_set1_ps(x) mis::avx2::set1(x)
#define _mm512_setzero_ps() mis::avx2::set1(0.0f)
#define _mm512_add_ps mis::avx2::add
#define _mm512_sub_ps mis::avx2::sub
#define _mm512_mul_ps mis::avx2::mul
#define _mm512_div_ps mis::avx2::div
#define _mm512_max_ps mis::avx2::max
#define _mm512_min_ps mis::avx2::min
#define _mm512_fmadd_ps mis::avx2::fmadd
#define _mm512_roundscale_ps(x, how) mis::avx2::rounded(x)
#define _mm512_scalef_ps mis::avx2::scalef
#define _mm512_mask_mov_ps mis::avx2::mask_mov
#define _mm512_reduce_add_ps mis::avx2::reduce_add
#define _mm512_reduce_max_ps mis::avx2::reduce_max
#define _mm512_cvtepu16_epi32 mis::avx2::cvtepu16_epi32
#define _mm512_slli_epi32 mis::avx2::slli_epi32
#define _mm512_castsi512_ps mis::avx2::castsi512_ps

// A single register, for loops over as many sums as there are registers: g++ 12 keeps pairs of them in memory.

namespace mis {

using Register = __m256;

inline Register loaded(const float* from) { return _mm256_loadu_ps(from); }
inline Register repeated(float x) { return _mm256_set1_ps(x); }
inline Register fused(Register x, Register y, Register z) { return _mm256_fmadd_ps(x, y, z); }
inline Register added(Register x, Register y) { return _mm256_add_ps(x, y); }
inline void store(float* to, Register x) { _mm256_storeu_ps(to, x); }

}  // namespace mis

// There are no tile registers: `has_tiles` is false, and nothing reaches these.

#define _tile_loadconfig(config) __builtin_trap()
#define _tile_release() __builtin_trap()
