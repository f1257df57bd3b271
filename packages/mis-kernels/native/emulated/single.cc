// What tests ask of a library that is compiled for them: which instructions it emulates, how often it executed those of
// tiles, and single instructions, to be compared with their description or with those of a CPU that has them.

#include <cstdint>

#include "../registers.h"

// The instructions that this library does not need of the CPU, in the words of /proc/cpuinfo.
extern "C" const char* mis_emulated() {
  return ""
#ifdef MIS_EMULATED_AVX512
         "avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 "
#endif
#ifdef MIS_EMULATED_AMX
         "amx_tile amx_bf16 amx_int8"
#endif
      ;
}

#ifdef MIS_EMULATED_AMX
// How often tiles were configured, set to zero, loaded, stored, multiplied in bfloat16 and in int8, and
// how many rows these products had, since the last call.
extern "C" void mis_take_tile_counts(int64_t* to) {
  for (int i = 0; i < mis::emulated::kCounters; ++i) to[i] = mis::emulated::counters[i].exchange(0);
}
#endif

// c [16, 16] += a [16, 32] times b [16, 16, 2].
extern "C" void mis_tile_dpbf16ps(float* c, const uint16_t* a, const uint16_t* b) {
  static const mis::TileConfig config;
  _tile_loadconfig(&config);
  _tile_loadd(0, c, 64);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, c, 64);
  _tile_release();
}

// c [16, 16] += a [16, 64] times b [16, 16, 4].
extern "C" void mis_tile_dpbssd(int32_t* c, const int8_t* a, const int8_t* b) {
  static const mis::TileConfig config;
  _tile_loadconfig(&config);
  _tile_loadd(0, c, 64);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 64);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, c, 64);
  _tile_release();
}

// c [16] += a [16, 2] times b [16, 2], pair by pair.
extern "C" void mis_dpbf16_ps(float* c, const uint16_t* a, const uint16_t* b) {
  const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
  const __m512 sums = _mm512_dpbf16_ps(_mm512_loadu_ps(c), reinterpret_cast<const __m512bh&>(x),
                                       reinterpret_cast<const __m512bh&>(y));
  _mm512_storeu_ps(c, sums);
}

// 16 numbers of x, rounded to bfloat16.
extern "C" void mis_cvtneps_pbh(uint16_t* to, const float* x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<const __m256i&>(rounded));
}

// 16 numbers of x times 2 to the power of those of y, rounded down.
extern "C" void mis_scalef_ps(float* to, const float* x, const float* y) {
  _mm512_storeu_ps(to, _mm512_scalef_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(y)));
}
