// Logits of all tokens of a vocabulary, and the sums of their exponentials.
// The contracts are those of mis_kernels.backends.native.calls.logits and log_sum_exp.
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

// Rows in tiles of 16 columns, filled up with zeros to whole strips: [rows / 16, depth / 32, 16 pairs of summands, 16, 2].
const uint16_t* pack(const uint16_t* x, int64_t rows, int64_t depth, Buffer<uint16_t>& packed) {
  const std::vector<uint16_t> zeros(depth, 0);
  const int64_t padded = (rows + kStrip - 1) / kStrip * kStrip;
  uint16_t* to = packed.ensure(padded * depth);
  for (int64_t first = 0; first < padded; first += 16) {
    for (int64_t k = 0; k < depth; k += 32, to += kTile) {
      const uint16_t* from[16];
      for (int64_t r = 0; r < 16; ++r) from[r] = (first + r < rows ? x + (first + r) * depth : zeros.data()) + k;
      transpose_words(from, to);
    }
  }
  return packed.data();
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

// Multiplies up to kStrip tokens with kWidth packed rows in tile registers: products [tokens, kStrip].
template <int kWidth>
void multiply_strip_of_tokens(const uint16_t* tokens_at, int tokens, const uint16_t* packed, int64_t depth,
                              bool is_first, float* products) {
  const auto fetch = [=](int64_t tile) {
    for (int64_t t = kStrip; is_first && t < 2 * kStrip; ++t) {  // of the next tokens
      _mm_prefetch(reinterpret_cast<const char*>(tokens_at + t * depth + tile * 32), _MM_HINT_T1);
    }
  };
  const Columns columns = {packed, 16 * depth, kTile};
  configure_tiles(tokens);
  multiply_strip<kWidth>(tokens_at, depth, tokens, columns, depth / 32, true, products, kStrip, fetch);
}

void some_tokens_in_tiles(const uint16_t* packed, int64_t rows, const uint16_t* w, int64_t depth, int64_t tokens,
                          float* out, int64_t vocab) {
  alignas(64) float products[kStrip * kStrip] = {};
  for (int64_t token = 0; token < tokens; token += kStrip) {
    const int live = static_cast<int>(std::min<int64_t>(kStrip, tokens - token));
    for (int64_t row = 0; row < rows; row += kStrip) {
      const auto multiply = rows - row > 16 ? multiply_strip_of_tokens<32> : multiply_strip_of_tokens<16>;
      multiply(w + token * depth, live, packed + row * depth, depth, row == 0, products);
      store_turned(products, live, std::min<int64_t>(kStrip, rows - row), out + row * vocab + token, vocab);
    }
  }
}

ffi::Error logits(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> x, ffi::Buffer<ffi::U16> weight,
                  ffi::ResultBuffer<ffi::F32> out, bool has_tiles) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], vocab = weight.dimensions()[0];
  const uint16_t *from = x.typed_data(), *weights = weight.typed_data();
  Buffer<uint16_t> packed;
  if (has_tiles) from = pack(from, rows, depth, packed);
  float* to = out->typed_data();
  const auto some = [=](int64_t unit) {
    const int64_t token = unit * kTokens, tokens = std::min(kTokens, vocab - token);
    const auto multiply = has_tiles ? some_tokens_in_tiles : some_tokens;
    multiply(from, rows, weights + token * depth, depth, tokens, to + token, vocab);
  };
  for_each(pool, (vocab + kTokens - 1) / kTokens, some);
  return ffi::Error::Success();
}

// cap tanh(x / cap), as exact as exp_of.
__m512 capped(__m512 x, float cap) {
  const __m512 power = exp_of(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / cap))), one = _mm512_set1_ps(1.0f);
  const __m512 tanh = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(power, one)));
  return _mm512_mul_ps(_mm512_set1_ps(cap), tanh);
}

// Of 16 rows: the highest of some logits, and the sum of their exponentials relative to it.
struct Exponentials {
  __m512 highest, total;

  void store(float* to) const { _mm512_store_ps(to, highest), _mm512_store_ps(to + 16, total); }
  static Exponentials load(const float* from) { return {_mm512_load_ps(from), _mm512_load_ps(from + 16)}; }
};

// Takes logits [tokens, kStrip] of 16 rows, and leaves them capped.
Exponentials exponentials_of(float* logits, int64_t tokens, float cap) {
  const auto at = [=](int64_t token) { return logits + token * kStrip; };
  for (int64_t t = 0; cap != 0 && t < tokens; ++t) _mm512_store_ps(at(t), capped(_mm512_load_ps(at(t)), cap));
  __m512 highest = _mm512_load_ps(logits), total = _mm512_setzero_ps();
  for (int64_t t = 1; t < tokens; ++t) highest = _mm512_max_ps(highest, _mm512_load_ps(at(t)));
  for (int64_t t = 0; t < tokens; ++t) {
    total = _mm512_add_ps(total, exp_of(_mm512_sub_ps(_mm512_load_ps(at(t)), highest)));
  }
  return {highest, total};
}

// Multiplies tokens with kStrip packed rows: products [tokens, kStrip].
void multiply_tokens(const uint16_t* tokens_at, int64_t tokens, const uint16_t* packed, int64_t depth, bool is_first,
                     bool has_tiles, float* products) {
  if (!has_tiles) {
    const Columns columns = {packed, 16 * depth, kTile};
    return multiply_rows(tokens_at, depth, tokens, columns, depth / 32, true, products, kStrip);
  }
  for (int64_t token = 0; token < tokens; token += kStrip) {
    const int live = static_cast<int>(std::min<int64_t>(kStrip, tokens - token));
    multiply_strip_of_tokens<32>(tokens_at + token * depth, live, packed, depth, is_first, products + token * kStrip);
  }
}

// Each row's highest logit, and the sum of the exponentials of all relative to it. Those of a unit's tokens are found while
// they are in the cache, and put together in the order of units (online softmax, arXiv 1805.02867). Rows lie side by
// side in vectors, and never meet.
ffi::Error exponentials(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> x, ffi::Buffer<ffi::U16> weight,
                        ffi::ResultBuffer<ffi::F32> highest, ffi::ResultBuffer<ffi::F32> total, float cap,
                        bool has_tiles) {
  const int64_t depth = x.dimensions()[1], vocab = weight.dimensions()[0];
  const int64_t rows = rows_before_zeros(x.typed_data(), x.dimensions()[0], depth);
  const int64_t units = (vocab + kTokens - 1) / kTokens, groups = (rows + 15) / 16;
  std::fill_n(highest->typed_data(), x.dimensions()[0], 0.0f);  // logits of zeros
  std::fill_n(total->typed_data(), x.dimensions()[0], static_cast<float>(vocab));
  Buffer<uint16_t> packed;
  Buffer<float> found;  // [groups, units]
  const uint16_t *from = pack(x.typed_data(), rows, depth, packed), *weights = weight.typed_data();
  float* parts = found.ensure(groups * units * 32);
  const auto some = [=](int64_t unit) {
    alignas(64) static thread_local float logits[kTokens * kStrip];
    const int64_t token = unit * kTokens, tokens = std::min(kTokens, vocab - token);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t half = group % 2;
      if (half == 0) {
        const uint16_t* packed_at = from + group * 16 * depth;
        multiply_tokens(weights + token * depth, tokens, packed_at, depth, group == 0, has_tiles, logits);
      }
      exponentials_of(logits + half * 16, tokens, cap).store(parts + (group * units + unit) * 32);
    }
  };
  for_each(pool, groups ? units : 0, some);
  for (int64_t group = 0; group < groups; ++group) {
    const float* part = parts + group * units * 32;
    Exponentials all = Exponentials::load(part);
    for (int64_t unit = 1; unit < units; ++unit) {
      const Exponentials next = Exponentials::load(part + unit * 32);
      const __m512 most = _mm512_max_ps(all.highest, next.highest);
      const __m512 before = _mm512_mul_ps(all.total, exp_of(_mm512_sub_ps(all.highest, most)));
      all = {most, _mm512_fmadd_ps(next.total, exp_of(_mm512_sub_ps(next.highest, most)), before)};
    }
    alignas(64) float values[32];
    all.store(values);
    std::copy_n(values, std::min<int64_t>(16, rows - group * 16), highest->typed_data() + group * 16);
    std::copy_n(values + 16, std::min<int64_t>(16, rows - group * 16), total->typed_data() + group * 16);
  }
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_exponentials, mis::exponentials,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("cap")
                                  .Attr<bool>("has_tiles"));
