// Products in int8, in tile registers or on vectors; the contract is that of mis_kernels.backends.native.int8.

#include <cmath>
#include <cstring>
#include <limits>

#include "parallel.h"
#include "registers.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int64_t kVector = 16;  // numbers of 32 bits in a vector
constexpr int64_t kLargestBlock = 64;
constexpr int kOffset = 128;     // the vectors' instruction takes unsigned rows: their integers have this added
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

// Quantises one row of `size` numbers, a multiple of 16 and of `block`, to bytes that have an
// offset added; returns its scale, NaN if any is.
template <typename Number>
float quantize(const Number* x, int64_t size, int64_t block, int offset, float* turned, uint8_t* to) {
  __m512 part[kLargestBlock / kVector], largest = _mm512_setzero_ps();
  const int64_t vectors = std::max(block / kVector, int64_t{1});
  __mmask16 is_nan = 0;  // maxima ignore NaN
  for (int64_t begin = 0; begin < size; begin += vectors * kVector) {
    for (int64_t i = 0; i < vectors; ++i) part[i] = widened(x + begin + i * kVector);
    if (block > 1) turn(part, vectors);
    for (int64_t i = 0; i < vectors; ++i) {
      _mm512_store_ps(turned + begin + i * kVector, part[i]);
      is_nan |= _mm512_cmp_ps_mask(part[i], part[i], _CMP_UNORD_Q);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(part[i]));
    }
  }
  const float most = _mm512_reduce_max_ps(largest);
  const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
  for (int64_t i = 0; i < size; i += kVector) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(turned + i), inverse));  // to even
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, _mm512_set1_epi32(offset)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bytes);
  }
  return is_nan || std::isinf(most) ? std::numeric_limits<float>::quiet_NaN() : most / 127.0f;
}

template <typename Number>
void quantize_all(ffi::ThreadPool pool, const Number* x, int64_t rows, int64_t size, int64_t block, int offset,
                  uint8_t* to, float* scales) {
  constexpr int64_t kRowsHere = 32;
  const auto some = [=](int64_t unit) {
    thread_local Buffer<float> turned;
    for (int64_t row = unit * kRowsHere; row < std::min(rows, (unit + 1) * kRowsHere); ++row) {
      scales[row] = quantize(x + row * size, size, block, offset, turned.ensure(size), to + row * size);
    }
  };
  for_each(pool, (rows + kRowsHere - 1) / kRowsHere, some);
}

ffi::Error quantize_rows(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> values,
                         ffi::ResultBuffer<ffi::F32> scales, int64_t block) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  uint8_t* to = static_cast<uint8_t*>(values->untyped_data());
  const int offset = values->element_type() == ffi::S8 ? 0 : kOffset;
  if (x.element_type() == ffi::F32) {
    quantize_all(pool, x.typed_data<float>(), rows, size, block, offset, to, scales->typed_data());
  } else {
    quantize_all(pool, x.typed_data<uint16_t>(), rows, size, block, offset, to, scales->typed_data());
  }
  return ffi::Error::Success();
}

// Adds the products of rows and 16 columns of weights, `depth` summands, to sums that begin as `start`.
template <int kHeight, int kWidth>
void multiply(const uint8_t* x, const int8_t* weights, int64_t depth, const __m512i* start, int32_t* sums,
              int64_t stride) {
  __m512i sum[kHeight][kWidth];
  for (int r = 0; r < kHeight; ++r) {
    for (int t = 0; t < kWidth; ++t) sum[r][t] = start[t];
  }
  for (int64_t k = 0; k < depth; k += 4) {
    __m512i w[kWidth];
    for (int t = 0; t < kWidth; ++t) w[t] = _mm512_loadu_si512(weights + t * depth * kVector + k * kVector);
    for (int r = 0; r < kHeight; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * depth + k, 4);
      const __m512i row = _mm512_set1_epi32(four);
      for (int t = 0; t < kWidth; ++t) sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], row, w[t]);
    }
  }
  for (int r = 0; r < kHeight; ++r) {
    for (int t = 0; t < kWidth; ++t) _mm512_store_si512(sums + r * stride + t * kVector, sum[r][t]);
  }
}

// Computes sums of rows, with kOffset, and of kWidth times 16 columns; `stride` is between rows of sums.
template <int kWidth>
void multiply_all(const uint8_t* x, int64_t rows, const int8_t* weights, int64_t depth, int32_t* sums, int64_t stride) {
  __m512i added[kWidth];  // by kOffset
  for (int t = 0; t < kWidth; ++t) added[t] = _mm512_setzero_si512();
  for (int64_t k = 0; k < depth; k += 4) {
    for (int t = 0; t < kWidth; ++t) {
      const __m512i w = _mm512_loadu_si512(weights + (t * depth + k) * kVector);
      added[t] = _mm512_dpbusd_epi32(added[t], _mm512_set1_epi8(static_cast<char>(kOffset)), w);
    }
  }
  __m512i start[kWidth];
  for (int t = 0; t < kWidth; ++t) start[t] = _mm512_sub_epi32(_mm512_setzero_si512(), added[t]);
  for (int64_t row = 0; row < rows; row += kRegisterRows) {
    const uint8_t* from = x + row * depth;
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

// Computes sums of rows and of columns, in multiples of 16.
void multiply_columns(const uint8_t* x, int64_t rows, const int8_t* weights, int64_t columns, int64_t depth,
                      int32_t* sums, int64_t stride) {
  for (int64_t n = 0; n < columns; n += kRegisterTiles * kVector) {
    const int8_t* w = weights + n * depth;
    switch (std::min<int64_t>(kRegisterTiles, (columns - n) / kVector)) {
      case 4: multiply_all<4>(x, rows, w, depth, sums + n, stride); break;
      case 3: multiply_all<3>(x, rows, w, depth, sums + n, stride); break;
      case 2: multiply_all<2>(x, rows, w, depth, sums + n, stride); break;
      default: multiply_all<1>(x, rows, w, depth, sums + n, stride);
    }
  }
}

// Does so in tile registers, for a depth of a multiple of 64.
void multiply_columns_in_tiles(const uint8_t* x, int64_t rows, const int8_t* weights, int64_t columns, int64_t depth,
                               int32_t* sums, int64_t stride) {
  const int8_t* integers = reinterpret_cast<const int8_t*>(x);
  const int64_t pass = rows <= kStrip ? depth : kDepth;  // few rows read their weights in the order in which they lie
  for (int64_t begin = 0; begin < depth; begin += pass) {
    const int64_t tiles = std::min(pass, depth - begin) / 64;
    for (int64_t n = 0; n < columns; n += 32) {
      const PackedColumns<int8_t> w = {weights + n * depth + begin * kVector, kVector * depth, 64 * kVector};
      const auto multiply = columns - n > kVector ? multiply_in_tiles<32, int8_t, int32_t> : multiply_in_tiles<16, int8_t, int32_t>;
      multiply(integers + begin, depth, rows, w, tiles, begin == 0, sums + n, stride);
    }
  }
}

struct Int8Product {
  const uint8_t* x;         // [rows, in], with kOffset or, in tile registers, as int8
  const float* row_scales;  // [rows]
  const int8_t* weights;    // tiles of one weight, [out / 16, in / 4, 64]; gated: of gate, then of up
  const float* scales;      // [out], likewise
  float* out;               // [rows, out]
  int64_t zeros, in, out_columns;  // rows are zeros from `zeros` on, and so are their products
  Gate gate;
  bool has_tiles;

  bool gated() const { return gate != Gate::kNone; }

  // Computes rows x columns of the output, columns in multiples of 16.
  void compute(int64_t row, int64_t rows_here, int64_t column, int64_t columns, Buffer<int32_t>& buffer) const {
    const int64_t halves = gated() ? 2 : 1, stride = halves * columns;
    const int64_t live = std::clamp<int64_t>(zeros - row, 0, rows_here);
    const int64_t used = has_tiles ? rows_in_tiles(live, rows_here) : live;
    int32_t* sums = buffer.ensure((used + 1) * stride);
    std::fill_n(sums + used * stride, stride, 0);
    for (int64_t half = 0; used && half < halves; ++half) {
      const int8_t* w = weights + (half * out_columns + column) * in;
      (has_tiles ? multiply_columns_in_tiles : multiply_columns)(x + row * in, used, w, columns, in,
                                                                  sums + half * columns, stride);
    }
    for (int64_t r = 0; r < rows_here; ++r) {
      const __m512 row_scale = _mm512_set1_ps(row_scales[row + r]);
      for (int64_t n = 0; n < columns; n += kVector) {
        const auto scaled = [&](int64_t half) {
          const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + std::min(r, used) * stride + half * columns + n));
          const __m512 scale = _mm512_loadu_ps(scales + half * out_columns + column + n);
          return _mm512_mul_ps(_mm512_mul_ps(sum, row_scale), scale);
        };
        const __m512 value = gated() ? _mm512_mul_ps(activated(gate, scaled(0)), scaled(1)) : scaled(0);
        _mm512_storeu_ps(out + (row + r) * out_columns + column + n, value);
      }
    }
  }
};

ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> row_scales,
                   ffi::Buffer<ffi::S8> weights, ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::S32> first,
                   ffi::ResultBuffer<ffi::F32> out, int32_t gate) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], columns = out->dimensions()[1];
  const int64_t matrix = first.typed_data()[0];
  int64_t zeros = rows;  // of padding the scale is zero
  while (zeros > 0 && row_scales.typed_data()[zeros - 1] == 0) --zeros;
  const Int8Product product{.x = static_cast<const uint8_t*>(x.untyped_data()),
                            .row_scales = row_scales.typed_data(),
                            .weights = weights.typed_data() + matrix * columns * in,
                            .scales = scales.typed_data() + matrix * columns,
                            .out = out->typed_data(),
                            .zeros = zeros,
                            .in = in,
                            .out_columns = columns,
                            .gate = static_cast<Gate>(gate),
                            .has_tiles = x.element_type() == ffi::S8};
  const int64_t row_blocks = (rows + kRows - 1) / kRows;
  int64_t width = product.gated() ? kColumns / 2 : kColumns;
  while (width > kRegisterTiles * kVector && row_blocks * (columns / width) < 4 * pool.num_threads()) width /= 2;
  const int64_t column_blocks = (columns + width - 1) / width;
  const auto some = [=](int64_t unit) {
    thread_local Buffer<int32_t> sums;
    const int64_t row = unit / column_blocks * kRows, column = unit % column_blocks * width;
    product.compute(row, std::min(kRows, rows - row), column, std::min(width, columns - column), sums);
  };
  for_each(pool, row_blocks * column_blocks, some);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_quantize_rows, mis::quantize_rows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("block"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_int8_product, mis::product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate"));
