// The CPU's instructions, as intrinsics; the only file that knows where they come from.
//
// Tests build the library a second time for CPUs without some of them, which plain C++ then stands in for:
// MIS_EMULATED_AMX for the tile registers, MIS_EMULATED_AVX512 for vectors of 512 bits.

#pragma once

#if defined(MIS_EMULATED_AVX512)
#include "emulated/avx512.h"
#elif defined(__aarch64__)
#include "arm.h"
#elif !defined(__AVX512F__)
#include "avx2.h"
#else
#include <immintrin.h>
#endif

#ifdef MIS_EMULATED_AMX
#include "emulated/amx.h"
#endif

namespace mis {

#if defined(__aarch64__)
constexpr int kRegisters = 8;  // how many vectors of 512 bits all registers hold
#elif defined(__AVX512F__) || defined(MIS_EMULATED_AVX512)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 8;
#endif

}  // namespace mis
