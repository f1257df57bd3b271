// Logits of all tokens of a vocabulary.
// The contract is that of mis_kernels.backends.native.calls.logits.
//
// Weights lie as they were stored, a row for each token, since the first layer reads them, too. So a register holds
// sums of every 16th pair of summands of one logit; they are added up at the end, always in the same order.

#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int kHeight = kRegisters / 8, kWidth = 6;  // rows and tokens whose sums are three quarters of the registers
constexpr int64_t kTokens = 192;        // of a unit of work, a multiple of kWidth

inline __m512bh loaded(const uint16_t* x) {
  const __m512i bits = _mm512_loadu_si512(x);
  return reinterpret_cast<const __m512bh&>(bits);
}

template <int kRowsHere, int kTokensHere>
void dots(const uint16_t* x, const uint16_t* w, int64_t depth, float* out, int64_t vocab) {
  __m512 sum[kRowsHere][kTokensHere] = {};
  for (int64_t k = 0; k < depth; k += 32) {
    __m512bh token[kTokensHere];
    for (int t = 0; t < kTokensHere; ++t) {
      const uint16_t* at = w + t * depth + k;
      _mm_prefetch(reinterpret_cast<const char*>(at + kTokensHere * depth), _MM_HINT_T1);  // of the next tokens
      token[t] = loaded(at);
    }
    for (int r = 0; r < kRowsHere; ++r) {
      const __m512bh row = loaded(x + r * depth + k);
      for (int t = 0; t < kTokensHere; ++t) sum[r][t] = _mm512_dpbf16_ps(sum[r][t], row, token[t]);
    }
  }
  for (int r = 0; r < kRowsHere; ++r) {
    for (int t = 0; t < kTokensHere; ++t) out[r * vocab + t] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

template <int kTokensHere>
void all_rows(const uint16_t* x, int64_t rows, const uint16_t* w, int64_t depth, float* out, int64_t vocab) {
  for (int64_t row = 0; row < rows; row += kHeight) {
    const uint16_t* from = x + row * depth;
    float* to = out + row * vocab;
    switch (std::min<int64_t>(kHeight, rows - row)) {
      case 4: dots<4, kTokensHere>(from, w, depth, to, vocab); break;
      case 3: dots<3, kTokensHere>(from, w, depth, to, vocab); break;
      case 2: dots<2, kTokensHere>(from, w, depth, to, vocab); break;
      default: dots<1, kTokensHere>(from, w, depth, to, vocab);
    }
  }
}

ffi::Error logits(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> x, ffi::Buffer<ffi::U16> weight,
                  ffi::ResultBuffer<ffi::F32> out) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], vocab = weight.dimensions()[0];
  const uint16_t *from = x.typed_data(), *weights = weight.typed_data();
  float* to = out->typed_data();
  const auto some = [=](int64_t unit) {
    const int64_t end = std::min(vocab, (unit + 1) * kTokens);
    int64_t token = unit * kTokens;
    for (; token + kWidth <= end; token += kWidth) {
      all_rows<kWidth>(from, rows, weights + token * depth, depth, to + token, vocab);
    }
    for (; token < end; ++token) all_rows<1>(from, rows, weights + token * depth, depth, to + token, vocab);
  };
  for_each(pool, (vocab + kTokens - 1) / kTokens, some, false);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_logits, mis::logits,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
