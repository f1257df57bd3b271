// Logits of all tokens of a vocabulary.
// The contract is that of mis_kernels.backends.native.calls.logits.
//
// Weights lie as they were stored, a row for each token, since the first layer reads them, too. So a vector holds sums of
// every 16th pair of summands of one logit; they are added up at the end, always in the same order. In tile registers
// tokens are the rows of a product, and rows of x its columns, packed once for each call.

#include "parallel.h"
#include "tiles.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int kHeight = kRegisters / 8, kWidth = 6;  // rows and tokens whose sums are three quarters of the registers
constexpr int64_t kTokens = 192;        // of a unit of work, a multiple of kWidth and kStrip

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

void some_tokens(const uint16_t* x, int64_t rows, const uint16_t* w, int64_t depth, int64_t tokens, float* out,
                 int64_t vocab) {
  int64_t token = 0;
  for (; token + kWidth <= tokens; token += kWidth) {
    all_rows<kWidth>(x, rows, w + token * depth, depth, out + token, vocab);
  }
  for (; token < tokens; ++token) all_rows<1>(x, rows, w + token * depth, depth, out + token, vocab);
}

// Rows in tiles of 16 columns, filled up with zeros: [rows / 16, depth / 32, 16 pairs of summands, 16, 2].
void pack(const uint16_t* x, int64_t rows, int64_t depth, uint16_t* packed) {
  const std::vector<uint16_t> zeros(depth, 0);
  for (int64_t first = 0; first < rows; first += 16) {
    for (int64_t k = 0; k < depth; k += 32, packed += kTile) {
      const uint16_t* from[16];
      for (int64_t r = 0; r < 16; ++r) from[r] = (first + r < rows ? x + (first + r) * depth : zeros.data()) + k;
      transpose_words(from, packed);
    }
  }
}

// Writes products [tokens, rows], up to kStrip of each, to out [rows, tokens].
void store_turned(const float* products, int64_t tokens, int64_t rows, float* out, int64_t vocab) {
  alignas(64) float turned[16 * 16];
  for (int64_t token = 0; token < tokens; token += 16) {
    const int64_t bytes = std::min<int64_t>(16, tokens - token) * sizeof(float);
    for (int64_t first = 0; first < rows; first += 16) {
      const float* from[16];
      for (int64_t t = 0; t < 16; ++t) from[t] = products + (token + t) * kStrip + first;
      transpose_words(from, turned);
      for (int64_t r = 0; r < std::min<int64_t>(16, rows - first); ++r) {
        std::memcpy(out + (first + r) * vocab + token, turned + r * 16, bytes);
      }
    }
  }
}

void some_tokens_in_tiles(const uint16_t* packed, int64_t rows, const uint16_t* w, int64_t depth, int64_t tokens,
                          float* out, int64_t vocab) {
  alignas(64) float products[kStrip * kStrip] = {};
  for (int64_t token = 0; token < tokens; token += kStrip) {
    const int live = static_cast<int>(std::min<int64_t>(kStrip, tokens - token));
    const uint16_t* from = w + token * depth;
    configure_tiles(live);
    for (int64_t row = 0; row < rows; row += kStrip) {
      const Columns columns = {packed + row * depth, 16 * depth, kTile};
      const auto fetch = [=](int64_t tile) {
        for (int64_t t = kStrip; row == 0 && t < 2 * kStrip; ++t) {  // of the next tokens
          _mm_prefetch(reinterpret_cast<const char*>(from + t * depth + tile * 32), _MM_HINT_T1);
        }
      };
      const auto multiply = rows - row > 16 ? multiply_strip<32, uint16_t, float, decltype(fetch)>
                                            : multiply_strip<16, uint16_t, float, decltype(fetch)>;
      multiply(from, depth, live, columns, depth / 32, true, products, kStrip, fetch);
      store_turned(products, live, std::min<int64_t>(kStrip, rows - row), out + row * vocab + token, vocab);
    }
  }
}

ffi::Error logits(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> x, ffi::Buffer<ffi::U16> weight,
                  ffi::ResultBuffer<ffi::F32> out, bool has_tiles) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], vocab = weight.dimensions()[0];
  const uint16_t *from = x.typed_data(), *weights = weight.typed_data();
  Buffer<uint16_t> packed;
  if (has_tiles) {
    pack(from, rows, depth, packed.ensure((rows + 15) / 16 * 16 * depth));
    from = packed.data();
  }
  float* to = out->typed_data();
  const auto some = [=](int64_t unit) {
    const int64_t token = unit * kTokens, tokens = std::min(kTokens, vocab - token);
    const auto multiply = has_tiles ? some_tokens_in_tiles : some_tokens;
    multiply(from, rows, weights + token * depth, depth, tokens, to + token, vocab);
  };
  for_each(pool, (vocab + kTokens - 1) / kTokens, some);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_logits, mis::logits,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<bool>("has_tiles"));
