// One block of query rows against one tile of keys, on AMX tile registers and AVX-512.
//
// The scheme is online softmax (arXiv 1805.02867) over tiles of keys, as in FlashAttention (arXiv
// 2205.14135). A row's numbers depend on nothing but the row and its keys: rows never meet in a sum, keys
// are added in the order of their positions, and keys that a row does not see have weight zero.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mis {

constexpr int kTileKeys = 256;   // keys in a tile; a multiple of 32
constexpr int kStrip = 32;       // rows whose logits are worked on together: two tile registers
constexpr float kLowest = -1e30f;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
  TileConfig() {
    for (int i = 0; i < 8; ++i) bytes_per_row[i] = 64, rows[i] = 16;
  }
};

// Memory of one thread, aligned for whole vectors.
template <typename T>
class Buffer {
 public:
  T* ensure(size_t count) {
    if (count > size_) {
      std::free(data_);
      size_ = count;
      data_ = static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
    }
    return data_;
  }
  T* data() const { return data_; }
  ~Buffer() { std::free(data_); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Transposes 16 rows of 16 words of 32 bits, read at `rows`, into 16 consecutive vectors at `out`.
inline void transpose_words(const uint16_t* const rows[16], uint16_t* out) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(rows[i]);
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // r[4 g + i] holds, per 128-bit lane l, word 4 l + i of rows 4 g to 4 g + 3
    const __m512i a = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88), b = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd), d = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    t[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
  for (int i = 0; i < 16; ++i) _mm512_store_si512(out + 32 * i, t[i]);
}

// Keys and values of one tile in the order in which the tile registers take their second operand.
struct PackedKeys {
  Buffer<uint16_t> k, v;

  // Packs `count` keys; `key(i)` and `value(i)` are the addresses of their `dim` numbers. Rounded up to a
  // multiple of 32 keys with zeros.
  template <typename Key, typename Value>
  void pack(int count, int dim, Key key, Value value) {
    static const std::vector<uint16_t> zeros(1024, 0);
    const int padded = (count + 31) / 32 * 32;
    uint16_t* packed = k.ensure(static_cast<size_t>(kTileKeys) * dim);
    const uint16_t* rows[16];
    for (int group = 0; group < padded / 16; ++group) {
      for (int part = 0; part < dim / 32; ++part) {
        for (int i = 0; i < 16; ++i) {
          const int n = group * 16 + i;
          rows[i] = (n < count ? key(n) : zeros.data()) + part * 32;
        }
        transpose_words(rows, packed + (static_cast<size_t>(group) * (dim / 32) + part) * 512);
      }
    }
    packed = v.ensure(static_cast<size_t>(kTileKeys) * dim);
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 16; ++i) {
      low[2 * i] = i, low[2 * i + 1] = 32 + i;
      high[2 * i] = 16 + i, high[2 * i + 1] = 48 + i;
    }
    const __m512i first = _mm512_load_si512(low), second = _mm512_load_si512(high);
    for (int n = 0; n < padded; n += 2) {
      const uint16_t* a = n < count ? value(n) : zeros.data();
      const uint16_t* b = n + 1 < count ? value(n + 1) : zeros.data();
      uint16_t* out = packed + static_cast<size_t>(n / 32) * (dim / 16) * 512 + (n % 32) / 2 * 32;
      for (int part = 0; part < dim / 32; ++part) {
        const __m512i x = _mm512_loadu_si512(a + part * 32), y = _mm512_loadu_si512(b + part * 32);
        _mm512_store_si512(out + (2 * part) * 512, _mm512_permutex2var_epi16(x, first, y));
        _mm512_store_si512(out + (2 * part + 1) * 512, _mm512_permutex2var_epi16(x, second, y));
      }
    }
  }
};

// 2 to the power of x: a polynomial on [-1/2, 1/2], then scaling. Its relative error is below 3e-6 (least squares
// in relative error, weighted towards the largest), a thousandth of what rounding to bfloat16 adds.
inline __m512 exp2_of(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 part = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(9.5700799e-3f);
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.5917859e-2f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.4024746e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.9312179e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.9999928e-1f));
  return _mm512_scalef_ps(y, whole);
}

// Running state of a block of rows.
struct Rows {
  Buffer<uint16_t> q;        // [rows, dim]
  Buffer<float> sum;         // [rows, dim]: values weighted so far
  Buffer<float> highest;     // [rows]: largest logit so far, in units of the exponent of 2
  Buffer<float> total;       // [rows]: sum of weights so far
  Buffer<float> logits;      // [2, kStrip, kTileKeys]
  Buffer<uint16_t> weights;  // [kStrip, kTileKeys]
  Buffer<float> spill;       // [16, 16]

  void reset(int rows, int dim) {
    const size_t padded = rows + kStrip;
    std::memset(q.ensure(padded * dim), 0, padded * dim * 2);
    std::memset(sum.ensure(padded * dim), 0, padded * dim * 4);
    std::fill_n(highest.ensure(padded), padded, kLowest);
    std::fill_n(total.ensure(padded), padded, 0.0f);
    logits.ensure(2 * kStrip * kTileKeys), weights.ensure(kStrip * kTileKeys), spill.ensure(256);
  }
};

// Softmax of one row's logits over the first `visible` of `padded` keys; the rest get weight zero.
inline void weigh_row(Rows& rows, const float* logit, uint16_t* weight, int row, int visible, int padded, int dim,
                      float scale) {
  const __m512 lowest = _mm512_set1_ps(kLowest), scales = _mm512_set1_ps(scale);
  if (visible <= 0) {
    std::memset(weight, 0, padded * 2);
    return;
  }
  const int whole = visible / 16;
  const __mmask16 rest = static_cast<__mmask16>((1u << (visible % 16)) - 1);
  __m512 best0 = lowest, best1 = lowest;
  int i = 0;
  for (; i + 1 < whole; i += 2) {
    best0 = _mm512_max_ps(best0, _mm512_load_ps(logit + 16 * i));
    best1 = _mm512_max_ps(best1, _mm512_load_ps(logit + 16 * i + 16));
  }
  if (i < whole) best0 = _mm512_max_ps(best0, _mm512_load_ps(logit + 16 * i));
  if (rest) best1 = _mm512_max_ps(best1, _mm512_mask_load_ps(lowest, rest, logit + 16 * whole));
  const float best = _mm512_reduce_max_ps(_mm512_max_ps(best0, best1)) * scale;
  float* highest = rows.highest.data() + row;
  float* total = rows.total.data() + row;
  if (best > *highest) {
    const float fade = _mm512_cvtss_f32(exp2_of(_mm512_set1_ps(std::max(*highest - best, -1000.0f))));
    float* sum = rows.sum.data() + static_cast<size_t>(row) * dim;
    const __m512 fades = _mm512_set1_ps(fade);
    for (int d = 0; d < dim; d += 16) _mm512_store_ps(sum + d, _mm512_mul_ps(fades, _mm512_load_ps(sum + d)));
    *total *= fade;
    *highest = best;
  }
  const __m512 shift = _mm512_set1_ps(-*highest);
  __m512 sum0 = _mm512_setzero_ps(), sum1 = _mm512_setzero_ps();
  for (int n = 0; n < padded / 16; n += 2) {
    __m512 a = exp2_of(_mm512_fmadd_ps(_mm512_load_ps(logit + 16 * n), scales, shift));
    __m512 b = exp2_of(_mm512_fmadd_ps(_mm512_load_ps(logit + 16 * n + 16), scales, shift));
    if (n + 2 > whole) {
      const auto seen = [&](int at) { return at < whole ? __mmask16(0xffff) : at == whole ? rest : __mmask16(0); };
      a = _mm512_maskz_mov_ps(seen(n), a), b = _mm512_maskz_mov_ps(seen(n + 1), b);
    }
    sum0 = _mm512_add_ps(sum0, a), sum1 = _mm512_add_ps(sum1, b);
    _mm512_store_si512(weight + 16 * n, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
  }
  *total += _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
}

// Logits of `live` rows at `q` with every packed key, 32 keys at a time; `between` is called after each.
template <typename Between>
void multiply_keys(const uint16_t* q, const uint16_t* k, int live, int padded, int dim, float* logits,
                   Between between) {
  const int steps = dim / 32;
  const bool both = live > 16;
  for (int n = 0; n < padded; n += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const uint16_t* left = k + static_cast<size_t>(n / 16) * steps * 512;
    const uint16_t* right = left + steps * 512;
    for (int part = 0; part < steps; ++part) {
      _tile_loadd(4, q + part * 32, dim * 2);
      _tile_loadd(6, left + part * 512, 64);
      _tile_loadd(7, right + part * 512, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (both) {
        _tile_loadd(5, q + 16 * dim + part * 32, dim * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, logits + n, kTileKeys * 4);
    _tile_stored(1, logits + n + 16, kTileKeys * 4);
    if (both) {
      _tile_stored(2, logits + 16 * kTileKeys + n, kTileKeys * 4);
      _tile_stored(3, logits + 16 * kTileKeys + n + 16, kTileKeys * 4);
    }
    between();
  }
}

// Adds weighted values to the sums of up to 16 rows; rows from `filled` on are not written.
inline void multiply_values(const uint16_t* weights, const uint16_t* v, int filled, int padded, int dim, float* sum,
                            float* spill) {
  // Rows past the last are another segment's: they must not even be written back.
  const auto store = [&](float* to, auto stored) {
    if (filled == 16) {
      stored(to, dim * 4);
      return;
    }
    stored(spill, 64);
    for (int row = 0; row < filled; ++row) std::memcpy(to + static_cast<size_t>(row) * dim, spill + 16 * row, 64);
  };
  for (int d = 0; d < dim; d += 64) {
    const bool whole = dim - d >= 64;  // otherwise 32 columns are left
    _tile_loadd(0, sum + d, dim * 4);
    _tile_loadd(1, sum + d + 16, dim * 4);
    if (whole) {
      _tile_loadd(2, sum + d + 32, dim * 4);
      _tile_loadd(3, sum + d + 48, dim * 4);
    }
    for (int n = 0; n < padded; n += 32) {
      const uint16_t* value = v + (static_cast<size_t>(n / 32) * (dim / 16) + d / 16) * 512;
      _tile_loadd(4, weights + n, kTileKeys * 2);
      _tile_loadd(5, value, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, value + 512, 64);
      _tile_dpbf16ps(1, 4, 6);
      if (whole) {
        _tile_loadd(7, value + 1024, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, value + 1536, 64);
        _tile_dpbf16ps(3, 4, 5);
      }
    }
    store(sum + d, [](float* p, int stride) { _tile_stored(0, p, stride); });
    store(sum + d + 16, [](float* p, int stride) { _tile_stored(1, p, stride); });
    if (whole) {
      store(sum + d + 32, [](float* p, int stride) { _tile_stored(2, p, stride); });
      store(sum + d + 48, [](float* p, int stride) { _tile_stored(3, p, stride); });
    }
  }
}

// Takes a packed tile into rows `first` to `first + count` of a block. `visible(row)` says how many of the
// tile's keys a row sees, `packed` how many are packed. `scale` includes log2(e).
//
// The logits of one strip are multiplied while those of the strip before are weighed: a product takes few
// instructions and much time, so that both units of the core work at once.
template <typename Visible>
void attend_tile(Rows& rows, const PackedKeys& keys, int first, int count, int packed, int dim, float scale,
                 Visible visible) {
  const int padded = (packed + 31) / 32 * 32;
  const int rows_between = (kStrip * 32 + padded - 1) / padded;
  float* logits[2] = {rows.logits.data(), rows.logits.data() + kStrip * kTileKeys};
  uint16_t* weights = rows.weights.data();
  int weighed = 0;
  const auto weigh = [&](int begin, int until) {
    const int live = std::min(kStrip, count - begin);
    for (; weighed < std::min(until, live); ++weighed) {
      weigh_row(rows, logits[begin / kStrip % 2] + weighed * kTileKeys, weights + weighed * kTileKeys,
                first + begin + weighed, visible(begin + weighed), padded, dim, scale);
    }
  };
  const auto finish = [&](int begin) {
    const int live = std::min(kStrip, count - begin);
    weigh(begin, kStrip);
    for (int row = live; row < (live > 16 ? 32 : 16); ++row) std::memset(weights + row * kTileKeys, 0, padded * 2);
    for (int row = 0; row < live; row += 16) {
      multiply_values(weights + row * kTileKeys, keys.v.data(), std::min(16, live - row), padded, dim,
                      rows.sum.data() + static_cast<size_t>(first + begin + row) * dim, rows.spill.data());
    }
    weighed = 0;
  };
  for (int begin = 0; begin < count; begin += kStrip) {
    const uint16_t* q = rows.q.data() + static_cast<size_t>(first + begin) * dim;
    multiply_keys(q, keys.k.data(), std::min(kStrip, count - begin), padded, dim, logits[begin / kStrip % 2], [&] {
      if (begin > 0) weigh(begin - kStrip, weighed + rows_between);
    });
    if (begin > 0) finish(begin - kStrip);
  }
  finish((count - 1) / kStrip * kStrip);
}

}  // namespace mis
