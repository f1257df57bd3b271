// The intrinsics of AVX-512 that the library uses, on NEON: in place of <immintrin.h> on aarch64.
//
// Names are Intel's. A vector of 512 bits is four registers. Each function computes what Intel's instruction does, to the
// bit, except that pairs of products in bfloat16 are summed as Arm's BFDOT does, and that denormals are zero only where
// the thread's settings say so: XLA's threads flush them.

#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

// The numbers of any of these types may be read as those of another, as with Intel's.
struct [[gnu::may_alias]] __m512 {
  float32x4_t part[4];
};
struct [[gnu::may_alias]] __m512i {
  int32x4_t part[4];
};
struct [[gnu::may_alias]] __m512bh {
  bfloat16x8_t part[4];
};
struct [[gnu::may_alias]] __m256i {
  uint16x8_t part[2];
};
struct [[gnu::may_alias]] __m256bh {
  bfloat16x8_t part[2];
};
struct [[gnu::may_alias]] __m128i {
  int8x16_t part[1];
};
typedef uint16_t __mmask16;

#define _CMP_UNORD_Q 0x03
#define _CMP_GT_OQ 0x1e
#define _MM_FROUND_TO_NEAREST_INT 0x00
#define _MM_FROUND_NO_EXC 0x08
#define _MM_HINT_T1 2
#define _mm_prefetch(address, hint) __builtin_prefetch(address, 0, hint)

namespace mis::neon {

template <typename Function>
inline __m512 floats(Function part) {
  return {{part(0), part(1), part(2), part(3)}};
}

template <typename Function>
inline __m512i words(Function part) {
  return {{part(0), part(1), part(2), part(3)}};
}

// Whole registers, copied so that the compiler knows that numbers of any type may lie there.
template <typename Vector>
inline Vector loaded(const void* from) {
  Vector to;
  int at = 0;
  for (auto& part : to.part) std::memcpy(&part, static_cast<const char*>(from) + 16 * at++, 16);
  return to;
}

template <typename Vector>
inline void store(void* to, const Vector& x) {
  int at = 0;
  for (const auto& part : x.part) std::memcpy(static_cast<char*>(to) + 16 * at++, &part, 16);
}

// The bits of a mask, one for each number of a part, and all bits of a number where its bit is set.
inline uint32x4_t bits() { return uint32x4_t{1, 2, 4, 8}; }
inline uint32x4_t chosen(__mmask16 mask, int part) { return vtstq_u32(vdupq_n_u32(mask >> 4 * part), bits()); }

// The halves of a vector, combined; then of what is left, down to one number.
template <typename Function>
inline float folded(__m512 x, Function function) {
  const float32x4_t quarter = function(function(x.part[3], x.part[1]), function(x.part[2], x.part[0]));
  const float32x4_t pair = function(vextq_f32(quarter, quarter, 2), quarter);
  return vgetq_lane_f32(function(vdupq_laneq_f32(pair, 1), pair), 0);
}

inline float32x4_t larger(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }  // of NaN, y

// x times 2 to the power of a whole number below 512, up or down, rounded once.
inline float32x2_t scaled(float32x2_t x, int32x2_t power) {
  const int64x2_t exponent = vshlq_n_s64(vaddq_s64(vmovl_s32(power), vdupq_n_s64(1023)), 52);
  return vcvt_f32_f64(vmulq_f64(vcvt_f64_f32(x), vreinterpretq_f64_s64(exponent)));
}

inline bfloat16x8_t rounded(float32x4_t low, float32x4_t high) {
  return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high);
}

inline int16x8_t narrowed(int32x4_t low, int32x4_t high) { return vcombine_s16(vmovn_s32(low), vmovn_s32(high)); }

}  // namespace mis::neon

// Loads, stores, constants.

inline __m512 _mm512_load_ps(const void* from) { return mis::neon::loaded<__m512>(from); }
inline __m512 _mm512_loadu_ps(const void* from) { return mis::neon::loaded<__m512>(from); }
inline __m512i _mm512_load_si512(const void* from) { return mis::neon::loaded<__m512i>(from); }
inline __m512i _mm512_loadu_si512(const void* from) { return mis::neon::loaded<__m512i>(from); }
inline __m256i _mm256_load_si256(const __m256i* from) { return mis::neon::loaded<__m256i>(from); }
inline __m256i _mm256_loadu_si256(const __m256i* from) { return mis::neon::loaded<__m256i>(from); }
inline void _mm512_store_ps(void* to, __m512 x) { mis::neon::store(to, x); }
inline void _mm512_storeu_ps(void* to, __m512 x) { mis::neon::store(to, x); }
inline void _mm512_store_si512(void* to, __m512i x) { mis::neon::store(to, x); }
inline void _mm256_store_si256(__m256i* to, __m256i x) { mis::neon::store(to, x); }
inline void _mm256_storeu_si256(__m256i* to, __m256i x) { mis::neon::store(to, x); }
inline void _mm_storeu_si128(__m128i* to, __m128i x) { mis::neon::store(to, x); }
inline __m512 _mm512_set1_ps(float x) {
  return mis::neon::floats([=](int) { return vdupq_n_f32(x); });
}
inline __m512i _mm512_set1_epi32(int32_t x) {
  return mis::neon::words([=](int) { return vdupq_n_s32(x); });
}
inline __m512i _mm512_set1_epi16(int16_t x) {
  int32_t number = x;
  asm("" : "+r"(number));  // g++ 12 must not know it: of ones of bfloat16 it would make those of half precision
  return mis::neon::words([=](int) { return vreinterpretq_s32_s16(vdupq_n_s16(number)); });
}
inline __m512i _mm512_set1_epi8(int8_t x) {
  return mis::neon::words([=](int) { return vreinterpretq_s32_s8(vdupq_n_s8(x)); });
}
inline __m512 _mm512_setzero_ps() { return _mm512_set1_ps(0.0f); }
inline __m512i _mm512_setzero_si512() { return _mm512_set1_epi32(0); }
inline __m512 _mm512_castsi512_ps(__m512i x) {
  return mis::neon::floats([&](int i) { return vreinterpretq_f32_s32(x.part[i]); });
}
inline __m512i _mm512_castps_si512(__m512 x) {
  return mis::neon::words([&](int i) { return vreinterpretq_s32_f32(x.part[i]); });
}

// Arithmetic on float32.

inline __m512 _mm512_add_ps(__m512 x, __m512 y) {
  return mis::neon::floats([&](int i) { return vaddq_f32(x.part[i], y.part[i]); });
}
inline __m512 _mm512_sub_ps(__m512 x, __m512 y) {
  return mis::neon::floats([&](int i) { return vsubq_f32(x.part[i], y.part[i]); });
}
inline __m512 _mm512_mul_ps(__m512 x, __m512 y) {
  return mis::neon::floats([&](int i) { return vmulq_f32(x.part[i], y.part[i]); });
}
inline __m512 _mm512_div_ps(__m512 x, __m512 y) {
  return mis::neon::floats([&](int i) { return vdivq_f32(x.part[i], y.part[i]); });
}
inline __m512 _mm512_max_ps(__m512 x, __m512 y) {
  return mis::neon::floats([&](int i) { return mis::neon::larger(x.part[i], y.part[i]); });
}
inline __m512 _mm512_min_ps(__m512 x, __m512 y) {
  return mis::neon::floats(
      [&](int i) { return vbslq_f32(vcltq_f32(x.part[i], y.part[i]), x.part[i], y.part[i]); });
}
inline __m512 _mm512_abs_ps(__m512 x) {
  return mis::neon::floats([&](int i) { return vabsq_f32(x.part[i]); });
}
inline __m512 _mm512_fmadd_ps(__m512 x, __m512 y, __m512 z) {
  return mis::neon::floats([&](int i) { return vfmaq_f32(z.part[i], x.part[i], y.part[i]); });
}
inline __m512 _mm512_fmsub_ps(__m512 x, __m512 y, __m512 z) {
  return mis::neon::floats([&](int i) { return vfmaq_f32(vnegq_f32(z.part[i]), x.part[i], y.part[i]); });
}
inline __m512 _mm512_roundscale_ps(__m512 x, int) {  // to whole numbers is the only use
  return mis::neon::floats([&](int i) { return vrndnq_f32(x.part[i]); });
}
inline __m512 _mm512_scalef_ps(__m512 x, __m512 y) {  // both are finite, or x is NaN
  return mis::neon::floats([&](int i) {
    const int32x4_t most = vdupq_n_s32(500), power = vcvtmq_s32_f32(y.part[i]);
    const int32x4_t exponent = vmaxq_s32(vnegq_s32(most), vminq_s32(most, power));
    return vcombine_f32(mis::neon::scaled(vget_low_f32(x.part[i]), vget_low_s32(exponent)),
                        mis::neon::scaled(vget_high_f32(x.part[i]), vget_high_s32(exponent)));
  });
}
inline float _mm512_reduce_add_ps(__m512 x) {
  return mis::neon::folded(x, [](float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); });
}
inline float _mm512_reduce_max_ps(__m512 x) { return mis::neon::folded(x, mis::neon::larger); }

// Masks.

inline __mmask16 _mm512_cmp_ps_mask(__m512 x, __m512 y, int predicate) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    const float32x4_t a = x.part[i], b = y.part[i];
    const uint32x4_t ordered = vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b));
    const uint32x4_t is = predicate == _CMP_GT_OQ ? vcgtq_f32(a, b) : vmvnq_u32(ordered);
    mask |= vaddvq_u32(vandq_u32(is, mis::neon::bits())) << 4 * i;
  }
  return mask;
}
inline __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 x) {
  return mis::neon::floats([&](int i) { return vbslq_f32(mis::neon::chosen(mask, i), x.part[i], other.part[i]); });
}
inline __m512 _mm512_mask_sub_ps(__m512 other, __mmask16 mask, __m512 x, __m512 y) {
  return _mm512_mask_mov_ps(other, mask, _mm512_sub_ps(x, y));
}

// bfloat16.

inline __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh x, __m512bh y) {
  return mis::neon::floats([&](int i) { return vbfdotq_f32(sums.part[i], x.part[i], y.part[i]); });
}
inline __m256bh _mm512_cvtneps_pbh(__m512 x) {
  return {{mis::neon::rounded(x.part[0], x.part[1]), mis::neon::rounded(x.part[2], x.part[3])}};
}
inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  const __m256bh first = _mm512_cvtneps_pbh(low), second = _mm512_cvtneps_pbh(high);
  return {{first.part[0], first.part[1], second.part[0], second.part[1]}};
}

// Integers.

inline __m512i _mm512_add_epi32(__m512i x, __m512i y) {
  return mis::neon::words([&](int i) { return vaddq_s32(x.part[i], y.part[i]); });
}
inline __m512i _mm512_sub_epi32(__m512i x, __m512i y) {
  return mis::neon::words([&](int i) { return vsubq_s32(x.part[i], y.part[i]); });
}
inline __m512i _mm512_slli_epi32(__m512i x, unsigned places) {
  return mis::neon::words([&](int i) { return vshlq_s32(x.part[i], vdupq_n_s32(places)); });
}
inline __m512i _mm512_srli_epi32(__m512i x, unsigned places) {
  return mis::neon::words([&](int i) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x.part[i]), vdupq_n_s32(-static_cast<int>(places))));
  });
}
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i x, __m512i y) {
  return mis::neon::words([&](int i) {
    return vusdotq_s32(sums.part[i], vreinterpretq_u8_s32(x.part[i]), vreinterpretq_s8_s32(y.part[i]));
  });
}
inline __m512i _mm512_cvtepu16_epi32(__m256i x) {
  return mis::neon::words([&](int i) {
    const uint16x8_t from = x.part[i / 2];
    return vreinterpretq_s32_u32(i % 2 ? vmovl_high_u16(from) : vmovl_u16(vget_low_u16(from)));
  });
}
inline __m512i _mm512_cvtps_epi32(__m512 x) {  // of what is too large, and of NaN, Intel makes the smallest number
  return mis::neon::words([&](int i) {
    const uint32x4_t fits = vcaltq_f32(x.part[i], vdupq_n_f32(0x1p31f));
    return vbslq_s32(fits, vcvtnq_s32_f32(x.part[i]), vdupq_n_s32(INT32_MIN));
  });
}
inline __m512 _mm512_cvtepi32_ps(__m512i x) {
  return mis::neon::floats([&](int i) { return vcvtq_f32_s32(x.part[i]); });
}
inline __m256i _mm512_cvtepi32_epi16(__m512i x) {
  const auto half = [&](int i) { return vreinterpretq_u16_s16(mis::neon::narrowed(x.part[i], x.part[i + 1])); };
  return {{half(0), half(2)}};
}
inline __m128i _mm512_cvtepi32_epi8(__m512i x) {
  const int8x8_t low = vmovn_s16(mis::neon::narrowed(x.part[0], x.part[1]));
  return {{vcombine_s8(low, vmovn_s16(mis::neon::narrowed(x.part[2], x.part[3])))}};
}

// Numbers that change their places.

inline __m512i _mm512_unpacklo_epi32(__m512i x, __m512i y) {
  return mis::neon::words([&](int i) { return vzip1q_s32(x.part[i], y.part[i]); });
}
inline __m512i _mm512_unpackhi_epi32(__m512i x, __m512i y) {
  return mis::neon::words([&](int i) { return vzip2q_s32(x.part[i], y.part[i]); });
}
inline __m512i _mm512_unpacklo_epi64(__m512i x, __m512i y) {
  return mis::neon::words([&](int i) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(x.part[i]), vreinterpretq_s64_s32(y.part[i])));
  });
}
inline __m512i _mm512_unpackhi_epi64(__m512i x, __m512i y) {
  return mis::neon::words([&](int i) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(x.part[i]), vreinterpretq_s64_s32(y.part[i])));
  });
}
inline __m512i _mm512_shuffle_i32x4(__m512i x, __m512i y, int choice) {
  return mis::neon::words([&](int i) { return (i < 2 ? x : y).part[choice >> 2 * i & 3]; });
}
inline __m512 _mm512_shuffle_f32x4(__m512 x, __m512 y, int choice) {
  return mis::neon::floats([&](int i) { return (i < 2 ? x : y).part[choice >> 2 * i & 3]; });
}
inline __m512 _mm512_permute_ps(__m512 x, int choice) {
  return mis::neon::floats([&](int i) {
    const float32x4_t a = x.part[i];
    return float32x4_t{a[choice & 3], a[choice >> 2 & 3], a[choice >> 4 & 3], a[choice >> 6 & 3]};
  });
}
inline __m512i _mm512_permutex2var_epi16(__m512i x, __m512i places, __m512i y) {
  const auto table = [](const __m512i& from) {
    const auto bytes = [&](int i) { return vreinterpretq_u8_s32(from.part[i]); };
    return uint8x16x4_t{{bytes(0), bytes(1), bytes(2), bytes(3)}};
  };
  return mis::neon::words([&](int i) {
    const uint16x8_t place = vandq_u16(vreinterpretq_u16_s32(places.part[i]), vdupq_n_u16(63));
    // Of each number's two bytes: twice the number's place, and the one after it. A table has none beyond its end.
    const uint16x8_t at = vaddq_u16(vmulq_n_u16(place, 0x0202), vdupq_n_u16(0x0100));
    const uint8x16_t bytes = vreinterpretq_u8_u16(at);
    const uint8x16_t first = vqtbl4q_u8(table(x), bytes);
    return vreinterpretq_s32_u8(vqtbx4q_u8(first, table(y), vsubq_u8(bytes, vdupq_n_u8(64))));
  });
}

// There are no tile registers: `has_tiles` is false, and nothing reaches these.

inline void _tile_loadconfig(const void*) { __builtin_trap(); }
inline void _tile_release() { __builtin_trap(); }
inline void _tile_zero(int) { __builtin_trap(); }
inline void _tile_loadd(int, const void*, int64_t) { __builtin_trap(); }
inline void _tile_stored(int, void*, int64_t) { __builtin_trap(); }
inline void _tile_dpbf16ps(int, int, int) { __builtin_trap(); }
inline void _tile_dpbssd(int, int, int) { __builtin_trap(); }
