// Products in int8, in tile registers or on vectors; the contract is that of mis_kernels.backends.native.int8.

#include <cmath>
#include <cstring>
#include <limits>

#include "parallel.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int64_t kVector = 16;  // numbers of 32 bits in a vector
constexpr int64_t kLargestBlock = 64;
constexpr int kOffset = 128;     // the instruction takes unsigned rows: their integers have this added
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

// Quantises one row of `size` numbers, a multiple of 16 and of `block`, to bytes; returns its scale, NaN if any is.
template <typename Number>
float quantize(const Number* x, int64_t size, int64_t block, float* turned, uint8_t* to) {
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
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, _mm512_set1_epi32(kOffset)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bytes);
  }
  return is_nan || std::isinf(most) ? std::numeric_limits<float>::quiet_NaN() : most / 127.0f;
}

template <typename Number>
void quantize_all(ffi::ThreadPool pool, const Number* x, int64_t rows, int64_t size, int64_t block, uint8_t* to,
                  float* scales) {
  constexpr int64_t kRowsHere = 32;
  const auto some = [=](int64_t unit) {
    thread_local Buffer<float> turned;
    for (int64_t row = unit * kRowsHere; row < std::min(rows, (unit + 1) * kRowsHere); ++row) {
      scales[row] = quantize(x + row * size, size, block, turned.ensure(size), to + row * size);
    }
  };
  for_each(pool, (rows + kRowsHere - 1) / kRowsHere, some, false);
}

ffi::Error quantize_rows(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::ResultBuffer<ffi::U8> values,
                         ffi::ResultBuffer<ffi::F32> scales, int64_t block) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  uint8_t* to = values->typed_data();
  if (x.element_type() == ffi::F32) {
    quantize_all(pool, x.typed_data<float>(), rows, size, block, to, scales->typed_data());
  } else {
    quantize_all(pool, x.typed_data<uint16_t>(), rows, size, block, to, scales->typed_data());
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

// Computes, in tile registers, 32 rows of sums and as many columns; `depth` is a multiple of 64.
void multiply_tiles(const uint8_t* x, const int8_t* weights, int64_t depth, const __m512i* start, int32_t* sums,
                    int64_t stride) {
  const int8_t* right = weights + depth * kVector;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < depth; k += 64) {
    _tile_loadd(4, x + k, depth);
    _tile_loadd(5, x + 16 * depth + k, depth);
    _tile_loadd(6, weights + k * kVector, 64);
    _tile_loadd(7, right + k * kVector, 64);
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_stored(0, sums, stride * 4);
  _tile_stored(1, sums + kVector, stride * 4);
  _tile_stored(2, sums + 16 * stride, stride * 4);
  _tile_stored(3, sums + 16 * stride + kVector, stride * 4);
  for (int r = 0; r < 32; ++r) {
    for (int t = 0; t < 2; ++t) {
      int32_t* to = sums + r * stride + t * kVector;
      _mm512_store_si512(to, _mm512_add_epi32(_mm512_load_si512(to), start[t]));
    }
  }
}

// Computes sums of rows and of kWidth times 16 columns; `stride` is between rows of sums.
template <int kWidth>
void multiply_all(const uint8_t* x, int64_t rows, const int8_t* weights, int64_t depth, int32_t* sums, int64_t stride,
                  bool has_tiles) {
  __m512i start[kWidth];  // minus what kOffset adds
  for (int t = 0; t < kWidth; ++t) {
    __m512i added = _mm512_setzero_si512();
    for (int64_t k = 0; k < depth; k += 4) {
      const __m512i w = _mm512_loadu_si512(weights + (t * depth + k) * kVector);
      added = _mm512_dpbusd_epi32(added, _mm512_set1_epi8(static_cast<char>(kOffset)), w);
    }
    start[t] = _mm512_sub_epi32(_mm512_setzero_si512(), added);
  }
  int64_t row = 0;
  for (; has_tiles && kWidth % 2 == 0 && depth % 64 == 0 && row + 32 <= rows; row += 32) {
    for (int t = 0; t < kWidth; t += 2) {
      multiply_tiles(x + row * depth, weights + t * depth * kVector, depth, start + t,
                     sums + row * stride + t * kVector, stride);
    }
  }
  for (; row + kRegisterRows <= rows; row += kRegisterRows) {
    multiply<kRegisterRows, kWidth>(x + row * depth, weights, depth, start, sums + row * stride, stride);
  }
  for (; row < rows; ++row) multiply<1, kWidth>(x + row * depth, weights, depth, start, sums + row * stride, stride);
}

struct Int8Product {
  const uint8_t* x;         // [rows, in], with kOffset
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
    const int64_t used = std::clamp<int64_t>(zeros - row, 0, rows_here);
    int32_t* sums = buffer.ensure((used + 1) * stride);
    std::fill_n(sums + used * stride, stride, 0);
    for (int64_t half = 0; half < halves; ++half) {
      for (int64_t n = 0; n < columns; n += kRegisterTiles * kVector) {
        const int8_t* w = weights + (half * out_columns + column + n) * in;
        int32_t* to = sums + half * columns + n;
        switch (std::min<int64_t>(kRegisterTiles, (columns - n) / kVector)) {
          case 4: multiply_all<4>(x + row * in, used, w, in, to, stride, has_tiles); break;
          case 3: multiply_all<3>(x + row * in, used, w, in, to, stride, has_tiles); break;
          case 2: multiply_all<2>(x + row * in, used, w, in, to, stride, has_tiles); break;
          default: multiply_all<1>(x + row * in, used, w, in, to, stride, has_tiles);
        }
      }
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

ffi::Error product(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> x, ffi::Buffer<ffi::F32> row_scales,
                   ffi::Buffer<ffi::S8> weights, ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::S32> first,
                   ffi::ResultBuffer<ffi::F32> out, int32_t gate, bool has_tiles) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], columns = out->dimensions()[1];
  const int64_t matrix = first.typed_data()[0];
  int64_t zeros = rows;  // of padding the scale is zero
  while (zeros > 0 && row_scales.typed_data()[zeros - 1] == 0) --zeros;
  const Int8Product product{.x = x.typed_data(),
                            .row_scales = row_scales.typed_data(),
                            .weights = weights.typed_data() + matrix * columns * in,
                            .scales = scales.typed_data() + matrix * columns,
                            .out = out->typed_data(),
                            .zeros = zeros,
                            .in = in,
                            .out_columns = columns,
                            .gate = static_cast<Gate>(gate),
                            .has_tiles = has_tiles};
  const int64_t row_blocks = (rows + kRows - 1) / kRows;
  int64_t width = product.gated() ? kColumns / 2 : kColumns;
  while (width > kRegisterTiles * kVector && row_blocks * (columns / width) < 4 * pool.num_threads()) width /= 2;
  const int64_t column_blocks = (columns + width - 1) / width;
  const auto some = [=](int64_t unit) {
    thread_local Buffer<int32_t> sums;
    const int64_t row = unit / column_blocks * kRows, column = unit % column_blocks * width;
    product.compute(row, std::min(kRows, rows - row), column, std::min(width, columns - column), sums);
  };
  for_each(pool, row_blocks * column_blocks, some, has_tiles);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_quantize_rows, mis::quantize_rows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("block"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_int8_product, mis::product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate")
                                  .Attr<bool>("has_tiles"));
