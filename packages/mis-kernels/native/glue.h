// RMS norms, RoPE and the split into queries, keys and values, of any type of numbers (`Bfloat16`, `Float32`).

#pragma once

#include <cmath>
#include <cstring>

#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace mis {

using Factors = xla::ffi::Buffer<xla::ffi::F32>;

constexpr int64_t kTokens = 32;  // tokens of a unit of work

// Writes x / sqrt(mean(x^2) + epsilon) * weight (arXiv 1910.07467), computed in float32; `size` is a multiple of 16.
template <typename Numbers, typename Number = typename Numbers::Number>
void normalise(const Number* x, const float* weight, int64_t size, float epsilon, Number* to) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) squares = _mm512_fmadd_ps(widened(x + i), widened(x + i), squares);
  const float mean = _mm512_reduce_add_ps(squares) / size;
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + epsilon));
  for (int64_t i = 0; i < size; i += 16) {
    Numbers::store(to + i, _mm512_mul_ps(_mm512_mul_ps(widened(x + i), scale), _mm512_loadu_ps(weight + i)));
  }
}

template <typename Numbers, xla::ffi::DataType kType = Numbers::kType>
xla::ffi::Error rms_norm(xla::ffi::ThreadPool pool, xla::ffi::Buffer<kType> x, Factors weight,
                         xla::ffi::ResultBuffer<kType> out, float epsilon) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  const auto* from = x.typed_data();
  const float* factors = weight.typed_data();
  auto* to = out->typed_data();
  for_each(pool, (rows + kTokens - 1) / kTokens, [=](int64_t unit) {
    for (int64_t row = unit * kTokens; row < std::min(rows, (unit + 1) * kTokens); ++row) {
      normalise<Numbers>(from + row * size, factors, size, epsilon, to + row * size);
    }
  });
  return xla::ffi::Error::Success();
}

// Rotates by the angles of a position, halves apart (arXiv 2104.09864); `sin` has the sign of each half.
template <typename Numbers, typename Number = typename Numbers::Number>
void rotate(const Number* x, const float* cos, const float* sin, int64_t dim, Number* to) {
  for (int64_t i = 0, j = dim / 2; i < dim / 2; i += 16, j += 16) {
    const __m512 low = widened(x + i), high = widened(x + j);
    const __m512 low_turned = _mm512_mul_ps(high, _mm512_loadu_ps(sin + i));
    const __m512 high_turned = _mm512_mul_ps(low, _mm512_loadu_ps(sin + j));
    Numbers::store(to + i, _mm512_fmadd_ps(low, _mm512_loadu_ps(cos + i), low_turned));
    Numbers::store(to + j, _mm512_fmadd_ps(high, _mm512_loadu_ps(cos + j), high_turned));
  }
}

template <typename Numbers, xla::ffi::DataType kType = Numbers::kType>
xla::ffi::Error norm_rope(xla::ffi::ThreadPool pool, xla::ffi::Buffer<kType> qkv, Factors cos, Factors sin,
                          Factors q_norm, Factors k_norm, xla::ffi::ResultBuffer<kType> q,
                          xla::ffi::ResultBuffer<kType> k, xla::ffi::ResultBuffer<kType> v, float epsilon, bool normed) {
  using Number = typename Numbers::Number;
  const auto shape = qkv.dimensions();
  const int64_t tokens = shape[0], kv_heads = shape[1], parts = shape[2], dim = shape[3];
  const Number* x = qkv.typed_data();
  const float *q_weight = q_norm.typed_data(), *k_weight = k_norm.typed_data();
  const float *cosines = cos.typed_data(), *sines = sin.typed_data();
  Number *to_q = q->typed_data(), *to_k = k->typed_data(), *to_v = v->typed_data();
  for_each(pool, (tokens + kTokens - 1) / kTokens, [=](int64_t unit) {
    thread_local Buffer<Number> scratch;
    Number* even = scratch.ensure(dim);
    for (int64_t t = unit * kTokens; t < std::min(tokens, (unit + 1) * kTokens); ++t) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        for (int64_t part = 0; part < parts; ++part) {
          const Number* from = x + ((t * kv_heads + head) * parts + part) * dim;
          if (part == parts - 1) {
            std::memcpy(to_v + (t * kv_heads + head) * dim, from, dim * sizeof(Number));
            continue;
          }
          const bool is_key = part == parts - 2;
          Number* to = is_key ? to_k + (t * kv_heads + head) * dim
                                : to_q + ((t * kv_heads + head) * (parts - 2) + part) * dim;
          if (normed) normalise<Numbers>(from, is_key ? k_weight : q_weight, dim, epsilon, even);
          rotate<Numbers>(normed ? even : from, cosines + t * dim, sines + t * dim, dim, to);
        }
      }
    }
  });
  return xla::ffi::Error::Success();
}

// How both are bound.

template <typename Numbers>
auto rms_norm_binding() {
  return xla::ffi::Ffi::Bind()
      .template Ctx<xla::ffi::ThreadPool>()
      .template Arg<xla::ffi::Buffer<Numbers::kType>>()
      .template Arg<Factors>()
      .template Ret<xla::ffi::Buffer<Numbers::kType>>()
      .template Attr<float>("epsilon");
}

template <typename Numbers>
auto norm_rope_binding() {
  using Buffer = xla::ffi::Buffer<Numbers::kType>;
  return xla::ffi::Ffi::Bind()
      .template Ctx<xla::ffi::ThreadPool>()
      .template Arg<Buffer>()
      .template Arg<Factors>()
      .template Arg<Factors>()
      .template Arg<Factors>()
      .template Arg<Factors>()
      .template Ret<Buffer>()
      .template Ret<Buffer>()
      .template Ret<Buffer>()
      .template Attr<float>("epsilon")
      .template Attr<bool>("normed");
}

}  // namespace mis
