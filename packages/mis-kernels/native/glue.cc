// RMS norms, RoPE and the split into queries, keys and values.
// The contracts are those of mis_kernels.backends.native.calls.

#include <cstring>

#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {

constexpr int64_t kTokens = 32;  // tokens of a unit of work

inline void store(uint16_t* to, __m512 x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<const __m256i&>(rounded));
}

// Writes x / sqrt(mean(x^2) + epsilon) * weight (arXiv 1910.07467), computed in float32; `size` is a multiple of 16.
void normalise(const uint16_t* x, const float* weight, int64_t size, float epsilon, uint16_t* to) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) squares = _mm512_fmadd_ps(widened(x + i), widened(x + i), squares);
  const float mean = _mm512_reduce_add_ps(squares) / size;
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + epsilon));
  for (int64_t i = 0; i < size; i += 16) {
    store(to + i, _mm512_mul_ps(_mm512_mul_ps(widened(x + i), scale), _mm512_loadu_ps(weight + i)));
  }
}

ffi::Error rms_norm(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> x, ffi::Buffer<ffi::F32> weight,
                    ffi::ResultBuffer<ffi::U16> out, float epsilon) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  const uint16_t* from = x.typed_data();
  const float* factors = weight.typed_data();
  uint16_t* to = out->typed_data();
  for_each(pool, (rows + kTokens - 1) / kTokens, [=](int64_t unit) {
    for (int64_t row = unit * kTokens; row < std::min(rows, (unit + 1) * kTokens); ++row) {
      normalise(from + row * size, factors, size, epsilon, to + row * size);
    }
  }, false);
  return ffi::Error::Success();
}

// Rotates by the angles of a position, halves apart (arXiv 2104.09864); `sin` has the sign of each half.
void rotate(const uint16_t* x, const float* cos, const float* sin, int64_t dim, uint16_t* to) {
  for (int64_t i = 0, j = dim / 2; i < dim / 2; i += 16, j += 16) {
    const __m512 low = widened(x + i), high = widened(x + j);
    const __m512 low_turned = _mm512_mul_ps(high, _mm512_loadu_ps(sin + i));
    const __m512 high_turned = _mm512_mul_ps(low, _mm512_loadu_ps(sin + j));
    store(to + i, _mm512_fmadd_ps(low, _mm512_loadu_ps(cos + i), low_turned));
    store(to + j, _mm512_fmadd_ps(high, _mm512_loadu_ps(cos + j), high_turned));
  }
}

ffi::Error norm_rope(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> qkv, ffi::Buffer<ffi::F32> cos,
                     ffi::Buffer<ffi::F32> sin, ffi::Buffer<ffi::F32> q_norm, ffi::Buffer<ffi::F32> k_norm,
                     ffi::ResultBuffer<ffi::U16> q, ffi::ResultBuffer<ffi::U16> k, ffi::ResultBuffer<ffi::U16> v,
                     float epsilon, bool normed) {
  const auto shape = qkv.dimensions();
  const int64_t tokens = shape[0], kv_heads = shape[1], parts = shape[2], dim = shape[3];
  const uint16_t* x = qkv.typed_data();
  const float *q_weight = q_norm.typed_data(), *k_weight = k_norm.typed_data();
  const float *cosines = cos.typed_data(), *sines = sin.typed_data();
  uint16_t *to_q = q->typed_data(), *to_k = k->typed_data(), *to_v = v->typed_data();
  for_each(pool, (tokens + kTokens - 1) / kTokens, [=](int64_t unit) {
    thread_local Buffer<uint16_t> scratch;
    uint16_t* even = scratch.ensure(dim);
    for (int64_t t = unit * kTokens; t < std::min(tokens, (unit + 1) * kTokens); ++t) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        for (int64_t part = 0; part < parts; ++part) {
          const uint16_t* from = x + ((t * kv_heads + head) * parts + part) * dim;
          if (part == parts - 1) {
            std::memcpy(to_v + (t * kv_heads + head) * dim, from, dim * 2);
            continue;
          }
          const bool is_key = part == parts - 2;
          uint16_t* to = is_key ? to_k + (t * kv_heads + head) * dim
                                : to_q + ((t * kv_heads + head) * (parts - 2) + part) * dim;
          if (normed) normalise(from, is_key ? k_weight : q_weight, dim, epsilon, even);
          rotate(normed ? even : from, cosines + t * dim, sines + t * dim, dim, to);
        }
      }
    }
  }, false);
  return ffi::Error::Success();
}

}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_rms_norm, mis::rms_norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_norm_rope, mis::norm_rope,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Attr<float>("epsilon")
                                  .Attr<bool>("normed"));
