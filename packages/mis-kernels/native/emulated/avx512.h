// The intrinsics of AVX-512 that the library uses, in plain C++, for CPUs that lack it: in place of <immintrin.h>.
//
// Names are Intel's. Each is what the instruction computes to the bit, under the settings of the thread for denormals.
// Numbers of a vector are worked on one by one, in loops that compilers turn into the vectors that there are.

#pragma once

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "flush.h"

typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef short __m512bh __attribute__((vector_size(64), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef short __m256bh __attribute__((vector_size(32), may_alias));
typedef uint16_t __mmask16;

#define _CMP_UNORD_Q 0x03
#define _CMP_GT_OQ 0x1e
#define _MM_FROUND_TO_NEAREST_INT 0x00
#define _MM_FROUND_NO_EXC 0x08

namespace mis::emulated {

// The numbers of a vector, as an array.
template <typename Number, int kCount>
struct Numbers {
  Number at[kCount];
};
using Floats = Numbers<float, 16>;
using Words = Numbers<int32_t, 16>;

template <typename To, typename From>
inline To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// A vector of `function(i)` for each of its numbers.
template <typename Vector, typename Number, typename Function>
inline Vector each(Function function) {
  Numbers<Number, sizeof(Vector) / sizeof(Number)> out;
  for (int i = 0; i < int{sizeof(Vector) / sizeof(Number)}; ++i) out.at[i] = function(i);
  return bits_of<Vector>(out);
}

template <typename Function>
inline __m512 floats(Function function) {
  return each<__m512, float>(function);
}

template <typename Function>
inline __m512i words(Function function) {
  return each<__m512i, int32_t>(function);
}

inline uint16_t rounded_to_bfloat16(float x) {
  const uint32_t bits = bits_of<uint32_t>(x), exponent = bits & 0x7f800000, fraction = bits & 0x007fffff;
  if (exponent == 0) return bits >> 16 & 0x8000;                                // zero, or denormal
  if (exponent == 0x7f800000 && fraction != 0) return bits >> 16 | 0x0040;      // NaN, quiet
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#ifndef MIS_EMULATED_ARM
// Adds to sums the products of the second numbers of each pair, then of the first (Intel's Software Developer's Manual,
// volume 2, VDPBF16PS).
[[gnu::noinline]] inline void add_pairs(Floats& sums, const Numbers<uint16_t, 32>& x, const Numbers<uint16_t, 32>& y) {
  for (int i = 0; i < 16; ++i) {
    sums.at[i] = fused(of_bfloat16(x.at[2 * i + 1]), of_bfloat16(y.at[2 * i + 1]), sums.at[i]);
    sums.at[i] = fused(of_bfloat16(x.at[2 * i]), of_bfloat16(y.at[2 * i]), sums.at[i]);
  }
}
#endif

// x times 2 to the power of a whole number.
inline float scaled(float x, float power) {
  if (!(power > -1000.0f)) return power != power ? power : x * 0.0f;
  return __builtin_ldexpf(x, static_cast<int>(power < 1000.0f ? power : 1000.0f));
}

// Combines the two halves of a vector, then of what is left, down to one number.
template <typename Function>
inline float folded(__m512 x, Function function) {
  Floats left = bits_of<Floats>(x);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) left.at[i] = function(left.at[half + i], left.at[i]);
  }
  return left.at[0];
}

// Numbers of `kSize` bytes, of which each 128 bits take two of each: `first` and the one after it of a lane.
template <typename Number>
inline __m512i interleaved(__m512i x, __m512i y, int first) {
  constexpr int kLane = 16 / sizeof(Number);
  const auto a = bits_of<Numbers<Number, 64 / sizeof(Number)>>(x), b = bits_of<Numbers<Number, 64 / sizeof(Number)>>(y);
  return each<__m512i, Number>([&](int i) {
    const int at = i / kLane * kLane + first + i % kLane / 2;
    return i % 2 ? b.at[at] : a.at[at];
  });
}

// Lanes of 128 bits: two of x, then two of y.
template <typename Vector>
inline Vector lanes(Vector x, Vector y, int choice) {
  const Words a = bits_of<Words>(x), b = bits_of<Words>(y);
  return bits_of<Vector>(words([&](int i) {
    const int lane = choice >> 2 * (i / 4) & 3;
    return (i < 8 ? a : b).at[4 * lane + i % 4];
  }));
}

}  // namespace mis::emulated

#ifdef MIS_EMULATED_ARM
#include "bfdot.h"
#endif

// Loads, stores, constants.

template <typename Vector>
inline Vector mis_loaded(const void* from) {
  Vector to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}
inline __m512 _mm512_load_ps(const void* from) { return mis_loaded<__m512>(from); }
inline __m512 _mm512_loadu_ps(const void* from) { return mis_loaded<__m512>(from); }
inline __m512i _mm512_load_si512(const void* from) { return mis_loaded<__m512i>(from); }
inline __m512i _mm512_loadu_si512(const void* from) { return mis_loaded<__m512i>(from); }
inline __m256i _mm256_load_si256(const __m256i* from) { return mis_loaded<__m256i>(from); }
inline __m256i _mm256_loadu_si256(const __m256i* from) { return mis_loaded<__m256i>(from); }
inline void _mm512_store_ps(void* to, __m512 x) { std::memcpy(to, &x, sizeof(x)); }
inline void _mm512_storeu_ps(void* to, __m512 x) { std::memcpy(to, &x, sizeof(x)); }
inline void _mm512_store_si512(void* to, __m512i x) { std::memcpy(to, &x, sizeof(x)); }
inline void _mm256_store_si256(__m256i* to, __m256i x) { std::memcpy(to, &x, sizeof(x)); }
inline void _mm256_storeu_si256(__m256i* to, __m256i x) { std::memcpy(to, &x, sizeof(x)); }
inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512 _mm512_set1_ps(float x) { return mis::emulated::floats([=](int) { return x; }); }
inline __m512i _mm512_set1_epi32(int32_t x) { return mis::emulated::words([=](int) { return x; }); }
inline __m512i _mm512_set1_epi16(int16_t x) { return mis::emulated::each<__m512i, int16_t>([=](int) { return x; }); }
inline __m512i _mm512_set1_epi8(int8_t x) { return mis::emulated::each<__m512i, int8_t>([=](int) { return x; }); }
inline __m512 _mm512_castsi512_ps(__m512i x) { return mis::emulated::bits_of<__m512>(x); }
inline __m512i _mm512_castps_si512(__m512 x) { return mis::emulated::bits_of<__m512i>(x); }

// Arithmetic on float32.

inline __m512 _mm512_add_ps(__m512 x, __m512 y) { return x + y; }
inline __m512 _mm512_sub_ps(__m512 x, __m512 y) { return x - y; }
inline __m512 _mm512_mul_ps(__m512 x, __m512 y) { return x * y; }
inline __m512 _mm512_div_ps(__m512 x, __m512 y) { return x / y; }
inline __m512 _mm512_max_ps(__m512 x, __m512 y) {
  return mis::emulated::floats([&](int i) { return x[i] > y[i] ? x[i] : y[i]; });
}
inline __m512 _mm512_min_ps(__m512 x, __m512 y) {
  return mis::emulated::floats([&](int i) { return x[i] < y[i] ? x[i] : y[i]; });
}
inline __m512 _mm512_abs_ps(__m512 x) {
  return mis::emulated::floats([&](int i) { return __builtin_fabsf(x[i]); });
}
inline __m512 _mm512_fmadd_ps(__m512 x, __m512 y, __m512 z) {
  return mis::emulated::floats([&](int i) { return mis::emulated::fused(x[i], y[i], z[i]); });
}
inline __m512 _mm512_fmsub_ps(__m512 x, __m512 y, __m512 z) {
  return mis::emulated::floats([&](int i) { return mis::emulated::fused(x[i], y[i], -z[i]); });
}
inline __m512 _mm512_roundscale_ps(__m512 x, int) {  // to whole numbers is the only use
  return mis::emulated::floats([&](int i) { return __builtin_rintf(x[i]); });
}
inline __m512 _mm512_scalef_ps(__m512 x, __m512 y) {
  return mis::emulated::floats([&](int i) { return mis::emulated::scaled(x[i], __builtin_floorf(y[i])); });
}
inline float _mm512_reduce_add_ps(__m512 x) {
  return mis::emulated::folded(x, [](float a, float b) { return a + b; });
}
inline float _mm512_reduce_max_ps(__m512 x) {
  return mis::emulated::folded(x, [](float a, float b) { return a > b ? a : b; });
}

// Masks.

inline __mmask16 _mm512_cmp_ps_mask(__m512 x, __m512 y, int predicate) {
  __mmask16 mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool is = predicate == _CMP_GT_OQ ? x[i] > y[i] : __builtin_isunordered(x[i], y[i]);
    mask |= static_cast<__mmask16>(is << i);
  }
  return mask;
}
inline __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 x) {
  return mis::emulated::floats([&](int i) { return mask >> i & 1 ? x[i] : other[i]; });
}
inline __m512 _mm512_mask_sub_ps(__m512 other, __mmask16 mask, __m512 x, __m512 y) {
  return _mm512_mask_mov_ps(other, mask, x - y);
}

// bfloat16.

inline __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh x, __m512bh y) {
  using mis::emulated::bits_of, mis::emulated::Floats, mis::emulated::Numbers;
  const mis::emulated::FlushedDenormals flushed;
  Floats to = bits_of<Floats>(sums);
  mis::emulated::add_pairs(to, bits_of<Numbers<uint16_t, 32>>(x), bits_of<Numbers<uint16_t, 32>>(y));
  return bits_of<__m512>(to);
}
inline __m256bh _mm512_cvtneps_pbh(__m512 x) {
  return mis::emulated::each<__m256bh, uint16_t>([&](int i) { return mis::emulated::rounded_to_bfloat16(x[i]); });
}
inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  return mis::emulated::each<__m512bh, uint16_t>(
      [&](int i) { return mis::emulated::rounded_to_bfloat16(i < 16 ? low[i] : high[i - 16]); });
}

// Integers.

inline __m512i _mm512_add_epi32(__m512i x, __m512i y) {
  using mis::emulated::bits_of, mis::emulated::Words;
  const Words a = bits_of<Words>(x), b = bits_of<Words>(y);
  return mis::emulated::words([&](int i) { return static_cast<int32_t>(uint32_t(a.at[i]) + uint32_t(b.at[i])); });
}
inline __m512i _mm512_sub_epi32(__m512i x, __m512i y) {
  using mis::emulated::bits_of, mis::emulated::Words;
  const Words a = bits_of<Words>(x), b = bits_of<Words>(y);
  return mis::emulated::words([&](int i) { return static_cast<int32_t>(uint32_t(a.at[i]) - uint32_t(b.at[i])); });
}
inline __m512i _mm512_slli_epi32(__m512i x, unsigned places) {
  const auto a = mis::emulated::bits_of<mis::emulated::Words>(x);
  return mis::emulated::words([&](int i) { return static_cast<int32_t>(uint32_t(a.at[i]) << places); });
}
inline __m512i _mm512_srli_epi32(__m512i x, unsigned places) {
  const auto a = mis::emulated::bits_of<mis::emulated::Words>(x);
  return mis::emulated::words([&](int i) { return static_cast<int32_t>(uint32_t(a.at[i]) >> places); });
}
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i x, __m512i y) {
  using mis::emulated::bits_of, mis::emulated::Numbers, mis::emulated::Words;
  const Words to = bits_of<Words>(sums);
  const auto a = bits_of<Numbers<uint8_t, 64>>(x);
  const auto b = bits_of<Numbers<int8_t, 64>>(y);
  return mis::emulated::words([&](int i) {
    uint32_t sum = to.at[i];
    for (int j = 4 * i; j < 4 * i + 4; ++j) sum += static_cast<uint32_t>(int32_t{a.at[j]} * b.at[j]);
    return static_cast<int32_t>(sum);
  });
}
inline __m512i _mm512_cvtepu16_epi32(__m256i x) {
  const auto a = mis::emulated::bits_of<mis::emulated::Numbers<uint16_t, 16>>(x);
  return mis::emulated::words([&](int i) { return int32_t{a.at[i]}; });
}
inline __m512i _mm512_cvtps_epi32(__m512 x) {
  return mis::emulated::words([&](int i) {
    return __builtin_fabsf(x[i]) < 0x1p31f ? static_cast<int32_t>(__builtin_rintf(x[i])) : INT32_MIN;
  });
}
inline __m512 _mm512_cvtepi32_ps(__m512i x) {
  const auto a = mis::emulated::bits_of<mis::emulated::Words>(x);
  return mis::emulated::floats([&](int i) { return static_cast<float>(a.at[i]); });
}
inline __m256i _mm512_cvtepi32_epi16(__m512i x) {
  const auto a = mis::emulated::bits_of<mis::emulated::Words>(x);
  return mis::emulated::each<__m256i, int16_t>([&](int i) { return static_cast<int16_t>(a.at[i]); });
}
inline __m128i _mm512_cvtepi32_epi8(__m512i x) {
  const auto a = mis::emulated::bits_of<mis::emulated::Words>(x);
  return mis::emulated::each<__m128i, int8_t>([&](int i) { return static_cast<int8_t>(a.at[i]); });
}

// Numbers that change their places.

inline __m512i _mm512_unpacklo_epi32(__m512i x, __m512i y) { return mis::emulated::interleaved<int32_t>(x, y, 0); }
inline __m512i _mm512_unpackhi_epi32(__m512i x, __m512i y) { return mis::emulated::interleaved<int32_t>(x, y, 2); }
inline __m512i _mm512_unpacklo_epi64(__m512i x, __m512i y) { return mis::emulated::interleaved<int64_t>(x, y, 0); }
inline __m512i _mm512_unpackhi_epi64(__m512i x, __m512i y) { return mis::emulated::interleaved<int64_t>(x, y, 1); }
inline __m512i _mm512_shuffle_i32x4(__m512i x, __m512i y, int choice) { return mis::emulated::lanes(x, y, choice); }
inline __m512 _mm512_shuffle_f32x4(__m512 x, __m512 y, int choice) { return mis::emulated::lanes(x, y, choice); }
inline __m512 _mm512_permute_ps(__m512 x, int choice) {
  return mis::emulated::floats([&](int i) { return x[i / 4 * 4 + (choice >> 2 * (i % 4) & 3)]; });
}
inline __m512i _mm512_permutex2var_epi16(__m512i x, __m512i places, __m512i y) {
  using Halves = mis::emulated::Numbers<uint16_t, 32>;
  const Halves a = mis::emulated::bits_of<Halves>(x), b = mis::emulated::bits_of<Halves>(y);
  const Halves at = mis::emulated::bits_of<Halves>(places);
  return mis::emulated::each<__m512i, uint16_t>(
      [&](int i) { return (at.at[i] & 32 ? b : a).at[at.at[i] & 31]; });
}
