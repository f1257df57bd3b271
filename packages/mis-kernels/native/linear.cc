// Products of activations with weights that are packed once, in tile registers or on vectors.
// The contract is that of mis_kernels.backends.native.packed.

#include "parallel.h"
#include "rows.h"
#include "tiles.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {

constexpr int64_t kRows = 256;     // rows of a unit of work: their part of one step below stays in the second-level cache
constexpr int64_t kColumns = 128;  // columns of a unit of work, if there are enough units for all threads
constexpr int64_t kDepth = 512;    // summands of one pass: 32 columns of weights stay in the first-level cache
constexpr int64_t kFewRows = kMostRows;  // read their weights from memory once, in the order in which they lie
constexpr int64_t kTile = 512;     // numbers in a tile of weights: 32 summands of 16 columns, in pairs

// Adds x [rows, depth] times 32 packed columns, `right_of` numbers apart by 16, to c [rows, 32]; `first` overwrites c
// instead. Meanwhile the 32 columns after them are fetched into the second-level cache: they are needed next.
void multiply(const uint16_t* x, int64_t stride, int64_t rows, const uint16_t* left, int64_t right_of, int64_t depth,
              bool first, float* c, int64_t c_stride) {
  const uint16_t *right = left + right_of, *next = right + right_of;
  const int64_t share = (1024 + rows - 1) / rows;  // of `depth` cache lines, for each 32 rows and 32 summands
  int64_t line = 0;
  for (int64_t row = 0; row < rows; row += 32) {
    const uint16_t* a = x + row * stride;
    float* to = c + row * c_stride;
    if (first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, to, c_stride * 4);
      _tile_loadd(1, to + 16, c_stride * 4);
      _tile_loadd(2, to + 16 * c_stride, c_stride * 4);
      _tile_loadd(3, to + 16 * c_stride + 16, c_stride * 4);
    }
    for (int64_t part = 0; part < depth / 32; ++part) {
      _tile_loadd(4, a + part * 32, stride * 2);
      _tile_loadd(6, left + part * kTile, 64);
      _tile_loadd(7, right + part * kTile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + 16 * stride + part * 32, stride * 2);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      for (const int64_t until = std::min(line + share, depth); line < until; ++line) {
        const uint16_t* at = line < depth / 2 ? next + line * 32 : next + right_of + (line - depth / 2) * 32;
        _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
      }
    }
    _tile_stored(0, to, c_stride * 4);
    _tile_stored(1, to + 16, c_stride * 4);
    _tile_stored(2, to + 16 * c_stride, c_stride * 4);
    _tile_stored(3, to + 16 * c_stride + 16, c_stride * 4);
  }
}

struct Product {
  const uint16_t* x;        // [rows, in]
  const uint16_t* weights;  // tiles of one layer, [out / 16, in / 32, 512]; gated: of gate, then of up
  const uint16_t* residual; // [rows, out] to add before rounding, or null
  uint16_t* out;            // [rows, out]
  int64_t zeros, in, out_columns;  // rows are zeros from `zeros` on, and so are their products
  Gate gate;
  bool has_tiles;

  bool gated() const { return gate != Gate::kNone; }

  // Computes rows x columns of the output; columns begin at a multiple of 32, and rows where there are tile registers.
  void compute(int64_t row, int64_t rows_here, int64_t column, int64_t columns, Buffer<float>& sums) const {
    const int64_t halves = gated() ? 2 : 1, stride = halves * columns, column_tiles = in / 32 * kTile;
    const int64_t used = std::clamp<int64_t>(zeros - row, 0, rows_here), rows_used = has_tiles ? (used + 31) / 32 * 32 : used;
    const int64_t pass = has_tiles || rows_used > kFewRows ? kDepth : in;
    float* c = sums.ensure((rows_used + 1) * stride);
    std::fill_n(c + rows_used * stride, stride, 0.0f);
    for (int64_t begin = 0; begin < (rows_used ? in : 0); begin += pass) {
      const int64_t depth = std::min(pass, in - begin);
      for (int64_t half = 0; half < halves; ++half) {
        for (int64_t n = 0; n < columns; n += 32) {
          const uint16_t* left = weights + ((half * out_columns + column + n) / 16) * column_tiles + begin / 32 * kTile;
          const uint16_t* from = x + row * in + begin;
          float* to = c + half * columns + n;
          if (has_tiles) {
            multiply(from, in, rows_used, left, column_tiles, depth, begin == 0, to, stride);
          } else {
            multiply_rows(from, in, rows_used, {left, column_tiles, kTile}, depth / 32, begin == 0, to, stride);
          }
        }
      }
    }
    for (int64_t r = 0; r < rows_here; ++r) {
      const int64_t place = (row + r) * out_columns + column;
      uint16_t* to = out + place;
      const float* from = c + std::min(r, rows_used) * stride;
      for (int64_t n = 0; n < columns; n += 16) {
        __m512 value = _mm512_load_ps(from + n);
        if (gated()) value = _mm512_mul_ps(activated(gate, value), _mm512_load_ps(from + columns + n));
        if (residual) value = _mm512_add_ps(value, widened(residual + place + n));
        const __m256bh rounded = _mm512_cvtneps_pbh(value);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + n), reinterpret_cast<const __m256i&>(rounded));
      }
    }
  }
};

ffi::Error run(ffi::ThreadPool pool, ffi::Buffer<ffi::U16> x, ffi::Buffer<ffi::U16> weights,
               ffi::Buffer<ffi::S32> layer, ffi::Buffer<ffi::U16> residual, ffi::ResultBuffer<ffi::U16> out,
               int32_t gate, bool has_tiles) {
  const int64_t rows = x.dimensions()[0], in = x.dimensions()[1], columns = out->dimensions()[1];
  const int64_t per_layer = (gate ? 2 : 1) * columns * in;
  const Product product{.x = x.typed_data(),
                        .weights = weights.typed_data() + layer.typed_data()[0] * per_layer,
                        .residual = residual.element_count() ? residual.typed_data() : nullptr,
                        .out = out->typed_data(),
                        .zeros = rows_before_zeros(x.typed_data(), rows, in),
                        .in = in,
                        .out_columns = columns,
                        .gate = static_cast<Gate>(gate),
                        .has_tiles = has_tiles};
  const int64_t row_blocks = (rows + kRows - 1) / kRows;
  int64_t width = product.gated() ? kColumns / 2 : kColumns;
  while (width > 32 && row_blocks * (columns / width) < 4 * pool.num_threads()) width /= 2;
  const int64_t column_blocks = (columns + width - 1) / width;
  const auto some = [=](int64_t unit) {
    thread_local Buffer<float> sums;
    const int64_t row = unit / column_blocks * kRows, column = unit % column_blocks * width;
    product.compute(row, std::min(kRows, rows - row), column, std::min(width, columns - column), sums);
  };
  for_each(pool, row_blocks * column_blocks, some, has_tiles);
  return ffi::Error::Success();
}

}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_packed_linear, mis::run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Ret<ffi::Buffer<ffi::U16>>()
                                  .Attr<int32_t>("gate")
                                  .Attr<bool>("has_tiles"));
