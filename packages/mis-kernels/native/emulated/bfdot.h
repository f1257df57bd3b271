// How Arm's BFDOT sums pairs of products in bfloat16, in plain C++: in place of Intel's VDPBF16PS.
//
// The source is BFDotAdd of the Arm Architecture Reference Manual, where FPCR.EBF is 0: each product, the sum of both, and
// that with what was there are rounded to odd. Denormals are zero on their way in and out, too small is what is so before
// rounding, what is too large is infinite, and every NaN is the default one. No setting of the thread changes that.

#pragma once

#include <cstdint>
#include <cstring>

namespace mis::emulated {

inline uint64_t bits_of_double(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// float32 of these bits; denormals are zeros.
inline double flushed(uint32_t bits) {
  if ((bits & 0x7f800000) == 0) bits &= 0x80000000;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// x + lost, of which x is the part that float64 holds, as float32: the last bit is set if any was lost.
inline uint32_t rounded_to_odd(double x, double lost) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  constexpr int kDropped = 52 - 23;  // bits by which the fraction of float64 is longer
  const uint64_t bits = bits_of_double(x), one_more = (bits ^ bits_of_double(lost)) & kSign ? -1 : 1;
  uint64_t magnitude = bits & ~kSign;
  if (lost != 0 && magnitude % 2 == 0) magnitude += one_more;  // towards what was lost
  const uint32_t sign = bits >> 32 & 0x80000000;
  const uint32_t within = (magnitude >> kDropped) - (uint64_t{1023 - 127} << 23);
  const uint32_t odd = within | ((magnitude & ((1 << kDropped) - 1)) != 0);
  const uint32_t not_small = magnitude < bits_of_double(0x1p-126) ? 0 : odd;
  const uint32_t number = sign | (magnitude < bits_of_double(0x1p128) ? not_small : 0x7f800000);
  return x != x ? 0x7fc00000 : number;
}

// The sum of two float32. What float64 loses of it is found exactly (D. E. Knuth, The Art of Computer Programming,
// volume 2, 4.2.2, theorem B).
inline uint32_t added(uint32_t x, uint32_t y) {
  const double a = flushed(x), b = flushed(y), sum = a + b, part = sum - a;
  return rounded_to_odd(sum, (a - (sum - part)) + (b - part));
}

// The product of two bfloat16, which float64 holds.
inline uint32_t multiplied(uint16_t x, uint16_t y) {
  return rounded_to_odd(flushed(uint32_t{x} << 16) * flushed(uint32_t{y} << 16), 0);
}

[[gnu::noinline]] inline void add_pairs(Floats& sums, const Numbers<uint16_t, 32>& x, const Numbers<uint16_t, 32>& y) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = added(multiplied(x.at[2 * i], y.at[2 * i]), multiplied(x.at[2 * i + 1], y.at[2 * i + 1]));
    sums.at[i] = bits_of<float>(added(bits_of<uint32_t>(sums.at[i]), pair));
  }
}

}  // namespace mis::emulated
