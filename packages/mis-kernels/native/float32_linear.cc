// Products of activations with weights that are packed once, in float32.
// The contract is that of mis_kernels.backends.native.packed.

#include <cstring>

#include "float32.h"
#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int64_t kRows = 224;     // rows of a unit of work: their part of one step below stays in the second-level cache
constexpr int64_t kColumns = 128;  // columns of a unit of work, if there are enough units for all threads
constexpr int64_t kDepth = 256;    // summands of one pass: 32 columns of weights stay in the first-level cache, and sums
                                   // of sums are more exact than one of all
constexpr int64_t kPadding = 16;   // numbers between copied rows: those a page apart would meet in one set of the cache

struct Float32Product {
  const float* x;         // [rows, in]
  const float* weights;   // of one layer, [out / 16, in, 16]; gated: of gate, then of up
  const float* residual;  // [rows, out] to add, or null
  float* out;             // [rows, out]
  int64_t in, out_columns;
  Gate gate;

  bool gated() const { return gate != Gate::kNone; }

  // Computes rows x columns of the output, columns in multiples of 32.
  void compute(int64_t row, int64_t rows, int64_t column, int64_t columns, Buffer<float>& copied,
               Buffer<float>& buffer) const {
    const int64_t halves = gated() ? 2 : 1, stride = halves * columns;
    float* sums = buffer.ensure(rows * stride);
    const bool few = rows <= kHeight;  // they read their weights once, in the order in which they lie
    const int64_t passes = few ? 1 : (in + kDepth - 1) / kDepth, part = few ? in : std::min(in, kDepth);
    float* some = copied.ensure(rows * (part + kPadding));
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t from = pass * part, until = std::min(in, from + part);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(some + r * (part + kPadding), x + (row + r) * in + from, (until - from) * sizeof(float));
      }
      for (int64_t half = 0; half < halves; ++half) {
        for (int64_t n = 0; n < columns; n += 32) {
          const float* first = weights + (half * out_columns + column + n) * in;
          for (int64_t begin = from; begin < until; begin += kDepth) {
            multiply_float32(some + begin - from, part + kPadding, rows, {first + begin * kVector, in * kVector, kVector},
                             std::min(kDepth, until - begin), begin == 0, sums + half * columns + n, stride);
          }
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t place = (row + r) * out_columns + column;
      for (int64_t n = 0; n < columns; n += kVector) {
        __m512 value = _mm512_loadu_ps(sums + r * stride + n);
        if (gated()) value = _mm512_mul_ps(activated(value), _mm512_loadu_ps(sums + r * stride + columns + n));
        if (residual) value = _mm512_add_ps(value, _mm512_loadu_ps(residual + place + n));
        _mm512_storeu_ps(out + place + n, value);
      }
    }
  }

  // The gate of 16 numbers, as exact as float32 is: x / (1 + exp(-y)), where y is x, or 2 u of GELU (`gelu_tanh`).
  __m512 activated(__m512 x) const {
    constexpr float kSlope = -1.595769122f;  // minus twice the root of 2 / pi
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f * kSlope), _mm512_set1_ps(kSlope));
    const __m512 power = _mm512_mul_ps(x, gate == Gate::kSilu ? _mm512_set1_ps(-1.0f) : slope);
    return _mm512_div_ps(x, _mm512_add_ps(one, exp_of(power)));
  }
};

ffi::Error run(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> weights, ffi::Buffer<ffi::S32> layer,
               ffi::Buffer<ffi::F32> residual, ffi::ResultBuffer<ffi::F32> out, int32_t gate) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], columns = out->dimensions()[1];
  const int64_t per_layer = (gate ? 2 : 1) * columns * in;
  const Float32Product product{.x = x.typed_data(),
                               .weights = weights.typed_data() + layer.typed_data()[0] * per_layer,
                               .residual = residual.element_count() ? residual.typed_data() : nullptr,
                               .out = out->typed_data(),
                               .in = in,
                               .out_columns = columns,
                               .gate = static_cast<Gate>(gate)};
  const int64_t row_blocks = (rows + kRows - 1) / kRows;
  int64_t width = product.gated() ? kColumns / 2 : kColumns;
  while (width > 32 && row_blocks * (columns / width) < 4 * pool.num_threads()) width /= 2;
  const int64_t column_blocks = (columns + width - 1) / width;
  const auto some = [=](int64_t unit) {
    thread_local Buffer<float> copied, sums;
    const int64_t row = unit / column_blocks * kRows, column = unit % column_blocks * width;
    product.compute(row, std::min(kRows, rows - row), column, std::min(width, columns - column), copied, sums);
  };
  for_each(pool, row_blocks * column_blocks, some);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_float32_packed_linear, mis::run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate"));
