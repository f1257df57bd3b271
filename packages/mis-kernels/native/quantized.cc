// Products in int8, in tile registers or on vectors; the contract is that of mis_kernels.backends.native.int8.

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "parallel.h"
#include "registers.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int64_t kVector = 16;  // numbers of 32 bits in a vector
constexpr int64_t kLargestBlock = 64;
constexpr uint32_t kOffset = 128;  // the vectors' instruction takes unsigned weights: their integers have this added
constexpr int64_t kDepth = 1024;  // summands of one pass in tiles: 32 columns of weights stay in the first-level cache
constexpr int64_t kRows = 192, kColumns = 256;    // of a unit of work, if there are enough units for all threads
constexpr int kRegisterRows = kRegisters / 5, kRegisterTiles = 4;  // 6 rows with AVX-512: their sums are 24 registers

// Turns a block by Sylvester's Hadamard matrix: sums and differences of numbers that lie a power of 2 apart.
void turn(__m512* x, int64_t vectors) {
  for (int64_t apart = 1; apart < vectors; apart *= 2) {
    for (int64_t first = 0; first < vectors; first += 2 * apart) {
      for (int64_t i = first; i < first + apart; ++i) {
        const __m512 low = x[i], high = x[i + apart];
        x[i] = _mm512_add_ps(low, high), x[i + apart] = _mm512_sub_ps(low, high);
      }
    }
  }
  for (int64_t i = 0; i < vectors; ++i) {
    const auto add = [&](__m512 other, __mmask16 high) {
      x[i] = _mm512_mask_sub_ps(_mm512_add_ps(other, x[i]), high, other, x[i]);
    };
    add(_mm512_shuffle_f32x4(x[i], x[i], 0x4e), 0xff00);  // 8 apart
    add(_mm512_shuffle_f32x4(x[i], x[i], 0xb1), 0xf0f0);  // 4
    add(_mm512_permute_ps(x[i], 0x4e), 0xcccc);           // 2
    add(_mm512_permute_ps(x[i], 0xb1), 0xaaaa);           // 1
  }
}

// Rows of activations as products take them: turned, they are `values * scales`.
struct QuantizedRows {
  int8_t* values;   // [rows, in]
  float* scales;    // [rows], NaN if any number of the row is, or infinite
  int32_t* starts;  // [rows], what sums with weights that have kOffset added begin with
  int64_t in;

  // Quantises one row of a multiple of 16 and of `block` numbers; there is room for it in `turned`.
  template <typename Number>
  void quantize(const Number* x, int64_t row, int64_t block, float* turned) const {
    __m512 part[kLargestBlock / kVector], largest = _mm512_setzero_ps();
    const int64_t vectors = std::max(block / kVector, int64_t{1});
    __mmask16 is_nan = 0;  // maxima ignore NaN
    for (int64_t begin = 0; begin < in; begin += vectors * kVector) {
      for (int64_t i = 0; i < vectors; ++i) part[i] = widened(x + row * in + begin + i * kVector);
      if (block > 1) turn(part, vectors);
      for (int64_t i = 0; i < vectors; ++i) {
        _mm512_store_ps(turned + begin + i * kVector, part[i]);
        is_nan |= _mm512_cmp_ps_mask(part[i], part[i], _CMP_UNORD_Q);
        largest = _mm512_max_ps(largest, _mm512_abs_ps(part[i]));
      }
    }
    const float most = _mm512_reduce_max_ps(largest);
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    __m512i sums = _mm512_setzero_si512();
    for (int64_t i = 0; i < in; i += kVector) {
      const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(turned + i), inverse));  // to even
      sums = _mm512_add_epi32(sums, rounded);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + row * in + i), _mm512_cvtepi32_epi8(rounded));
    }
    scales[row] = is_nan || std::isinf(most) ? std::numeric_limits<float>::quiet_NaN() : most / 127.0f;
    starts[row] = static_cast<int32_t>(0 - kOffset * total(sums));
  }

  static uint32_t total(__m512i sums) {
    alignas(64) uint32_t each[kVector];  // unsigned: of a row with NaN they may overflow
    _mm512_store_si512(each, sums);
    return std::accumulate(each, each + kVector, 0u);
  }
};

// Rounds numbers to bfloat16, to nearest even, in the lower half of each; in integers, since a CPU may multiply int8 and
// not have bfloat16. No NaN here has bits in the half that is cut off, whose rounding would make a number of it.
__m512i rounded_bits(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_srli_epi32(_mm512_slli_epi32(bits, 15), 31);
  return _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
}

void store(float* to, __m512 x) { _mm512_storeu_ps(to, x); }
void store(uint16_t* to, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded_bits(x)));
}

// A product as it would be written, in float32.
template <typename Number>
__m512 rounded(__m512 x) {
  return std::is_same_v<Number, float> ? x : _mm512_castsi512_ps(_mm512_slli_epi32(rounded_bits(x), 16));
}

// Computes the products of rows and kWidth times 16 columns of weights, with kOffset; `stride` is between rows of sums.
template <int kHeight, int kWidth>
void multiply(const int8_t* x, const uint8_t* weights, int64_t depth, const int32_t* starts, int32_t* sums,
              int64_t stride) {
  __m512i sum[kHeight][kWidth];  // registers, if loops over rows are unrolled early: else copied to memory and back
#pragma GCC unroll 6
  for (int r = 0; r < kHeight; ++r) {
    const __m512i start = _mm512_set1_epi32(starts[r]);
    for (int t = 0; t < kWidth; ++t) sum[r][t] = start;
  }
  for (int64_t k = 0; k < depth; k += 4) {
    __m512i w[kWidth];
    for (int t = 0; t < kWidth; ++t) w[t] = _mm512_loadu_si512(weights + t * depth * kVector + k * kVector);
#pragma GCC unroll 6
    for (int r = 0; r < kHeight; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * depth + k, 4);
      const __m512i row = _mm512_set1_epi32(four);
      for (int t = 0; t < kWidth; ++t) sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], w[t], row);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kHeight; ++r) {
    for (int t = 0; t < kWidth; ++t) _mm512_store_si512(sums + r * stride + t * kVector, sum[r][t]);
  }
}

// Does so for any number of rows.
template <int kWidth>
void multiply_all(const int8_t* x, int64_t rows, const uint8_t* weights, int64_t depth, const int32_t* starts,
                  int32_t* sums, int64_t stride) {
  for (int64_t row = 0; row < rows; row += kRegisterRows) {
    const int8_t* from = x + row * depth;
    const int32_t* start = starts + row;
    int32_t* to = sums + row * stride;
    switch (std::min<int64_t>(kRegisterRows, rows - row)) {
      case 6: multiply<6, kWidth>(from, weights, depth, start, to, stride); break;
      case 5: multiply<5, kWidth>(from, weights, depth, start, to, stride); break;
      case 4: multiply<4, kWidth>(from, weights, depth, start, to, stride); break;
      case 3: multiply<3, kWidth>(from, weights, depth, start, to, stride); break;
      case 2: multiply<2, kWidth>(from, weights, depth, start, to, stride); break;
      default: multiply<1, kWidth>(from, weights, depth, start, to, stride);
    }
  }
}

// Does so for columns in multiples of 16.
void multiply_columns(const int8_t* x, int64_t rows, const uint8_t* weights, int64_t columns, int64_t depth,
                      const int32_t* starts, int32_t* sums, int64_t stride) {
  for (int64_t n = 0; n < columns; n += kRegisterTiles * kVector) {
    const uint8_t* w = weights + n * depth;
    switch (std::min<int64_t>(kRegisterTiles, (columns - n) / kVector)) {
      case 4: multiply_all<4>(x, rows, w, depth, starts, sums + n, stride); break;
      case 3: multiply_all<3>(x, rows, w, depth, starts, sums + n, stride); break;
      case 2: multiply_all<2>(x, rows, w, depth, starts, sums + n, stride); break;
      default: multiply_all<1>(x, rows, w, depth, starts, sums + n, stride);
    }
  }
}

// Does so in tile registers, with weights as they are, for a depth of a multiple of 64.
void multiply_columns_in_tiles(const int8_t* x, int64_t rows, const int8_t* weights, int64_t columns, int64_t depth,
                               int32_t* sums, int64_t stride) {
  const int64_t pass = rows <= kStrip ? depth : kDepth;  // few rows read their weights in the order in which they lie
  for (int64_t begin = 0; begin < depth; begin += pass) {
    const int64_t tiles = std::min(pass, depth - begin) / 64;
    for (int64_t n = 0; n < columns; n += 32) {
      const PackedColumns<int8_t> w = {weights + n * depth + begin * kVector, kVector * depth, 64 * kVector};
      const auto multiply = columns - n > kVector ? multiply_in_tiles<32, int8_t, int32_t> : multiply_in_tiles<16, int8_t, int32_t>;
      multiply(x + begin, depth, rows, w, tiles, begin == 0, sums + n, stride);
    }
  }
}

template <typename Number>
struct Int8Product {
  QuantizedRows rows;
  const uint8_t* weights;  // tiles of one layer, [out / 16, in / 4, 64]; gated: of gate, then of up
  const float* scales;     // [out], likewise
  const float* bias;       // likewise, to add before gating, or null
  const Number* residual;  // [rows, out] to add to the rounded product, or null
  Number* out;             // [rows, out]
  int64_t zeros, out_columns;  // rows are zeros from `zeros` on, and so are their products
  Gate gate;
  bool has_tiles;  // weights are as they are; otherwise they have kOffset added

  bool gated() const { return gate != Gate::kNone; }

  // Computes rows x columns of the output, columns in multiples of 16.
  void compute(int64_t row, int64_t rows_here, int64_t column, int64_t columns, Buffer<int32_t>& buffer) const {
    const int64_t halves = gated() ? 2 : 1, stride = halves * columns, in = rows.in;
    const int64_t live = std::clamp<int64_t>(zeros - row, 0, rows_here);
    const int64_t used = has_tiles ? rows_in_tiles(live, rows_here) : live;
    int32_t* sums = buffer.ensure((used + 1) * stride);
    std::fill_n(sums + used * stride, stride, 0);
    for (int64_t half = 0; used && half < halves; ++half) {
      const int8_t* x = rows.values + row * in;
      const uint8_t* w = weights + (half * out_columns + column) * in;
      int32_t* to = sums + half * columns;
      if (has_tiles) {
        multiply_columns_in_tiles(x, used, reinterpret_cast<const int8_t*>(w), columns, in, to, stride);
      } else {
        multiply_columns(x, used, w, columns, in, rows.starts + row, to, stride);
      }
    }
    for (int64_t r = 0; r < rows_here; ++r) {
      const __m512 row_scale = _mm512_set1_ps(rows.scales[row + r]);
      const int64_t place = (row + r) * out_columns + column;
      for (int64_t n = 0; n < columns; n += kVector) {
        const auto product = [&](int64_t half) {
          const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + std::min(r, used) * stride + half * columns + n));
          const int64_t channel = half * out_columns + column + n;
          const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(sum, row_scale), _mm512_loadu_ps(scales + channel));
          return bias ? _mm512_add_ps(scaled, _mm512_loadu_ps(bias + channel)) : scaled;
        };
        __m512 value = gated() ? _mm512_mul_ps(activated(gate, product(0)), product(1)) : product(0);
        if (residual) value = _mm512_add_ps(rounded<Number>(value), widened(residual + place + n));
        store(out + place + n, value);
      }
    }
  }
};

template <typename Number>
void multiply_with(ffi::ThreadPool pool, const Number* x, int64_t rows, int64_t block, Int8Product<Number> product) {
  constexpr int64_t kRowsTogether = 32;  // of a unit of work that quantises
  const QuantizedRows quantized = product.rows;
  for_each(pool, (rows + kRowsTogether - 1) / kRowsTogether, [=](int64_t unit) {
    thread_local Buffer<float> turned;
    const int64_t end = std::min(rows, (unit + 1) * kRowsTogether);
    for (int64_t row = unit * kRowsTogether; row < end; ++row) quantized.quantize(x, row, block, turned.ensure(quantized.in));
  });
  product.zeros = rows;  // of padding the scale is zero
  while (product.zeros > 0 && quantized.scales[product.zeros - 1] == 0) --product.zeros;
  const int64_t row_blocks = (rows + kRows - 1) / kRows, columns = product.out_columns;
  int64_t width = product.gated() ? kColumns / 2 : kColumns;
  while (width > kRegisterTiles * kVector && row_blocks * (columns / width) < 4 * pool.num_threads()) width /= 2;
  const int64_t column_blocks = (columns + width - 1) / width;
  for_each(pool, row_blocks * column_blocks, [=](int64_t unit) {
    thread_local Buffer<int32_t> sums;
    const int64_t row = unit / column_blocks * kRows, column = unit % column_blocks * width;
    product.compute(row, std::min(kRows, rows - row), column, std::min(width, columns - column), sums);
  });
}

ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weights, ffi::Buffer<ffi::F32> scales,
                   ffi::Buffer<ffi::S32> layer, ffi::Buffer<ffi::F32> bias, ffi::AnyBuffer residual,
                   ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::S8> values,
                   ffi::ResultBuffer<ffi::F32> row_scales, ffi::ResultBuffer<ffi::S32> starts, int32_t gate,
                   int64_t block) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], columns = out->dimensions()[1];
  const int64_t channels = (gate ? 2 : 1) * columns, first = layer.typed_data()[0] * channels;
  const auto run = [&](auto number) {
    using Number = decltype(number);
    const Int8Product<Number> product{
        .rows = {values->typed_data(), row_scales->typed_data(), starts->typed_data(), in},
        .weights = static_cast<const uint8_t*>(weights.untyped_data()) + first * in,
        .scales = scales.typed_data() + first,
        .bias = bias.element_count() ? bias.typed_data() : nullptr,
        .residual = residual.element_count() ? residual.typed_data<Number>() : nullptr,
        .out = out->typed_data<Number>(),
        .zeros = 0,
        .out_columns = columns,
        .gate = static_cast<Gate>(gate),
        .has_tiles = weights.element_type() == ffi::S8};
    multiply_with(pool, x.typed_data<Number>(), rows, block, product);
  };
  x.element_type() == ffi::F32 ? run(float{}) : run(uint16_t{});
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_int8_product, mis::product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::S8>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<int32_t>("gate")
                                  .Attr<int64_t>("block"));
