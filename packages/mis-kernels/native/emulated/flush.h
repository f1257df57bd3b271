// How the instructions for bfloat16 add and multiply, whatever the thread's settings are.

#pragma once

#include <xmmintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mis::emulated {

// While one lives, sums round to the nearest number, ties to even, and denormals are zero on their way in and out:
// "round to nearest even", DAZ and FTZ of VDPBF16PS and TDPBF16PS, "MXCSR is not consulted" (Intel's Software
// Developer's Manual, volume 2). What is computed meanwhile must stand in a function that is not inlined: compilers know
// no order of a sum and this register.
class FlushedDenormals {
 public:
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(kFlushed); }
  ~FlushedDenormals() { _mm_setcsr(before_); }
  FlushedDenormals(const FlushedDenormals&) = delete;
  FlushedDenormals& operator=(const FlushedDenormals&) = delete;

 private:
  static constexpr unsigned kFlushed = 0x9fc0;  // FTZ, DAZ, all exceptions masked, to the nearest
  const unsigned before_;
};

inline float of_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, sizeof(x));
  return x;
}

// x * y + z, rounded once.
inline float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

}  // namespace mis::emulated
