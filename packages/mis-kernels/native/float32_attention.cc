// Attention of packed new tokens to their paged contexts and their own segments, in float32.
// The contract is that of mis_kernels.segment_attention.
//
// The scheme is online softmax (arXiv 1805.02867) over tiles of keys, as in FlashAttention (arXiv 2205.14135). A row's
// numbers depend on nothing but the row and its keys: rows never meet in a sum, keys are added in the order of their
// positions, and keys that a row does not see have weight zero.

#include "blocks.h"
#include "float32.h"
#include "vectors.h"

namespace mis {

constexpr int kStripRows = kRegisters >= 32 ? 28 : 24;  // whose logits are worked on together: a multiple of kHeight
constexpr int kTileKeys = 256;  // keys in a tile; a multiple of 32
constexpr int kKeysStride = kTileKeys + kVector;        // numbers between rows of logits
constexpr float kNothing = -1e30f;

// Keys and values of one tile: 16 keys, or 16 numbers of a value, side by side.
struct Float32Keys {
  Buffer<float> k;  // [kTileKeys / 16, dim, 16]
  Buffer<float> v;  // [dim / 16, kTileKeys, 16]

  // Packs `count` keys; `key(i)` and `value(i)` are the addresses of their `dim` numbers. Rounded up to a multiple of
  // 32 keys with zeros.
  template <typename Key, typename Value>
  void pack(int count, int dim, Key key, Value value) {
    float *keys = k.ensure(kTileKeys * dim), *values = v.ensure(kTileKeys * dim);
    const __m512 zero = _mm512_setzero_ps();
    for (int n = 0; n < (count + 31) / 32 * 32; ++n) {
      const bool is_there = n < count;
      const float *from = is_there ? key(n) : nullptr, *from_value = is_there ? value(n) : nullptr;
      float* to = keys + n / kVector * dim * kVector + n % kVector;
      for (int d = 0; d < dim; ++d) to[d * kVector] = is_there ? from[d] : 0.0f;
      for (int d = 0; d < dim; d += kVector) {
        _mm512_storeu_ps(values + d * kTileKeys + n * kVector, is_there ? _mm512_loadu_ps(from_value + d) : zero);
      }
    }
  }
};

// Running state of a block of rows.
struct Float32Rows {
  Buffer<float> q;          // [rows, dim]
  Buffer<float> sum;        // [rows, dim]: values weighted so far
  Buffer<float> reference;  // [rows]: the largest logit so far
  Buffer<float> total;      // [rows, 16]: sums of weights so far, of every 16th key
  Buffer<float> weights;    // [kStripRows, kKeysStride]: logits, then weights

  void reset(int rows, int dim) {
    q.ensure(rows * dim);
    std::fill_n(sum.ensure(rows * dim), rows * dim, 0.0f);
    std::fill_n(total.ensure(rows * kVector), rows * kVector, 0.0f);
    std::fill_n(reference.ensure(rows), rows, kNothing);
    weights.ensure(kStripRows * kKeysStride);
  }

  // Raises the reference of a row and scales what was summed so far.
  void raise(int row, int dim, float largest) {
    const __m512 fade = exp_of(_mm512_set1_ps(std::max(reference.data()[row] - largest, -1000.0f)));
    float* to = sum.data() + static_cast<size_t>(row) * dim;
    for (int d = 0; d < dim; d += kVector) _mm512_storeu_ps(to + d, _mm512_mul_ps(fade, _mm512_loadu_ps(to + d)));
    to = total.data() + row * kVector;
    _mm512_storeu_ps(to, _mm512_mul_ps(fade, _mm512_loadu_ps(to)));
    reference.data()[row] = largest;
  }

  // Sum of a row's weights.
  float total_of(int row) const { return _mm512_reduce_add_ps(_mm512_loadu_ps(total.data() + row * kVector)); }
};

// What makes logits of products of queries and keys.
struct Float32Logits {
  float scale;  // a factor
  float cap;    // bends them to cap * tanh(logit / cap); 0: there is none

  __m512 operator()(__m512 products) const {
    if (cap == 0) return _mm512_mul_ps(products, _mm512_set1_ps(scale));
    const __m512 one = _mm512_set1_ps(1.0f), caps = _mm512_set1_ps(cap);
    const __m512 power = exp_of(_mm512_mul_ps(products, _mm512_set1_ps(-2.0f * scale / cap)));
    const __m512 halves = _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(one, power));
    return _mm512_mul_ps(caps, _mm512_sub_ps(halves, one));
  }
};

struct Float32Attention : Float32 {
  using Rows = Float32Rows;
  using Keys = Float32Keys;
  using Logits = Float32Logits;
  static constexpr int kTileKeys = mis::kTileKeys;

  static void configure(int64_t) {}
};

// Makes weights of the products of a row with keys `begin` to `end` of a tile, a multiple of 16, of which it sees those
// from `from` to before `until`, and adds them to the row's total.
void weigh(Float32Rows& rows, float* products, int row, int dim, const Float32Logits& of_products, int begin, int end,
           int from, int until) {
  if (std::max(from, begin) >= std::min(until, end)) return std::fill(products + begin, products + end, 0.0f);
  __m512 largest = _mm512_set1_ps(kNothing);
  for (int n = begin; n < end; n += kVector) {
    const auto before = [&](int key) { return (uint32_t{1} << std::clamp(key - n, 0, kVector)) - 1; };
    const __mmask16 seen = before(until) & ~before(from);
    const __m512 logits = _mm512_mask_mov_ps(_mm512_set1_ps(kNothing), seen, of_products(_mm512_loadu_ps(products + n)));
    _mm512_storeu_ps(products + n, logits);
    largest = _mm512_max_ps(logits, largest);
  }
  const float most = _mm512_reduce_max_ps(largest);
  if (most > rows.reference.data()[row]) rows.raise(row, dim, most);
  const __m512 reference = _mm512_set1_ps(rows.reference.data()[row]);
  float* total = rows.total.data() + row * kVector;
  __m512 sum = _mm512_loadu_ps(total);
  for (int n = begin; n < end; n += kVector) {
    const __m512 weights = exp_of(_mm512_sub_ps(_mm512_loadu_ps(products + n), reference));
    _mm512_storeu_ps(products + n, weights);
    sum = _mm512_add_ps(sum, weights);
  }
  _mm512_storeu_ps(total, sum);
}

// Takes a packed tile into rows `first` to `first + count` of a block. The tile's keys are `start` and following ones,
// of which a row sees those from `from[row]` to before `until[row]`.
//
// Of groups of 32 keys before the first and behind the last that a row of a strip sees, nothing is computed: they
// would add zeros.
inline void attend_tile(Float32Rows& rows, const Float32Keys& keys, int first, int count, int dim,
                        const Float32Logits& of_products, const int32_t* from, const int32_t* until, int start, bool) {
  for (int begin = 0; begin < count; begin += kStripRows) {
    const int live = std::min(kStripRows, count - begin);
    const int32_t earliest = *std::min_element(from + begin, from + begin + live);
    const int32_t latest = *std::max_element(until + begin, until + begin + live);
    const int skipped = std::max(earliest - start, 0) / 32 * 32, most = std::min(latest - start, kTileKeys);
    if (most <= skipped) continue;
    const int end = (most + 31) / 32 * 32, row = first + begin;
    float* weights = rows.weights.data();
    const float* q = rows.q.data() + static_cast<size_t>(row) * dim;
    for (int n = skipped; n < end; n += 32) {
      const Float32Columns some = {keys.k.data() + static_cast<size_t>(n) * dim, int64_t{dim} * kVector, kVector};
      multiply_float32(q, dim, live, some, dim, true, weights + n, kKeysStride);
    }
    for (int r = 0; r < live; ++r) {
      weigh(rows, weights + r * kKeysStride, row + r, dim, of_products, skipped, end, from[begin + r] - start,
            until[begin + r] - start);
    }
    float* sum = rows.sum.data() + static_cast<size_t>(row) * dim;
    for (int d = 0; d < dim; d += 32) {
      const float* values = keys.v.data() + static_cast<size_t>(d) * kTileKeys + skipped * kVector;
      const Float32Columns some = {values, int64_t{kTileKeys} * kVector, kVector};
      multiply_float32(weights + skipped, kKeysStride, live, some, end - skipped, false, sum + d, dim);
    }
  }
}

}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_float32_segment_attention, mis::attend<mis::Float32Attention>,
                              mis::attention_binding<mis::Float32>());
