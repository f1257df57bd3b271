// Products of activations with weights that are packed once, in tile registers or on vectors.
// The contract is that of mis_kernels.backends.native.packed.

#include "parallel.h"
#include "rows.h"
#include "tiles.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {

constexpr int64_t kRows = 256;     // rows of a unit of work: their part of one pass stays in the second-level cache
constexpr int64_t kColumns = 128;  // columns of a unit of work, if there are enough units for all threads
constexpr int64_t kDepth = 512;    // summands of a pass, if not all: 32 columns stay in the first-level cache

struct Product {
  const uint16_t* x;        // [rows, in]
  const uint16_t* weights;  // tiles of one layer, [out / 16, in / 32, 512]; gated: of gate, then of up
  const uint16_t* residual; // [rows, out] to add before rounding, or null
  uint16_t* out;            // [rows, out]
  int64_t zeros, in, out_columns;  // rows are zeros from `zeros` on, and so are their products
  Gate gate;
  bool has_tiles;

  bool gated() const { return gate != Gate::kNone; }

  // Computes rows x columns of the output; columns begin at a multiple of 32.
  void compute(int64_t row, int64_t rows_here, int64_t column, int64_t columns, Buffer<float>& sums) const {
    const int64_t halves = gated() ? 2 : 1, stride = halves * columns, column_tiles = in / 32 * kTile;
    const int64_t used = std::clamp<int64_t>(zeros - row, 0, rows_here);
    const int64_t rows_used = has_tiles ? rows_in_tiles(used, rows_here) : used;
    // Few rows read their weights once, in the order in which they lie. High blocks of vectors keep their sums in
    // registers: the second-level cache delivers columns faster than they are multiplied.
    const bool is_whole = has_tiles ? used <= kStrip : used <= kMostRows || kMostRows > 8;
    const int64_t pass = is_whole ? in : kDepth;
    float* c = sums.ensure((rows_used + 1) * stride);
    std::fill_n(c + rows_used * stride, stride, 0.0f);
    for (int64_t begin = 0; begin < (rows_used ? in : 0); begin += pass) {
      const int64_t depth = std::min(pass, in - begin);
      for (int64_t half = 0; half < halves; ++half) {
        for (int64_t n = 0; n < columns; n += 32) {
          const uint16_t* left = weights + ((half * out_columns + column + n) / 16) * column_tiles + begin / 32 * kTile;
          const Columns w = {left, column_tiles, kTile};
          const uint16_t* from = x + row * in + begin;
          float* to = c + half * columns + n;
          if (has_tiles) {
            multiply_in_tiles(from, in, rows_used, w, depth / 32, begin == 0, to, stride);
          } else {
            multiply_rows(from, in, rows_used, w, depth / 32, begin == 0, to, stride);
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
  for_each(pool, row_blocks * column_blocks, some);
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
