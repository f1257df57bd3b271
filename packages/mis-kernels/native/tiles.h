// One block of query rows against one tile of keys, on AVX-512, with AMX tile registers where there are some.
//
// The scheme is online softmax (arXiv 1805.02867) over tiles of keys, as in FlashAttention (arXiv
// 2205.14135). A row's numbers depend on nothing but the row and its keys: rows never meet in a sum, keys
// are added in the order of their positions, and keys that a row does not see have weight zero.

#pragma once

#include "instructions.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "buffer.h"
#include "registers.h"
#include "rows.h"
#include "vectors.h"

namespace mis {

constexpr int kTileKeys = 256;   // keys in a tile; a multiple of 32
constexpr int kVectorStrip = 56;  // rows that are worked on together without tile registers: whole blocks of vectors
constexpr float kLowest = -1e30f;
constexpr float kHeadroom = 60.0f;  // powers of 2 by which a weight may exceed 1

// Transposes 16 rows of 16 words of 32 bits, read at `rows`, into 16 vectors at `out`, `step` numbers apart.
template <typename Number>
void transpose_words(const Number* const rows[16], Number* out, int64_t step = 64 / sizeof(Number)) {
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
  for (int i = 0; i < 16; ++i) _mm512_store_si512(out + step * i, t[i]);
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
      for (int i = 0; i < 16; ++i) {
        const int n = group * 16 + i;
        rows[i] = n < count ? key(n) : zeros.data();
      }
      for (int part = 0; part < dim / 32; ++part) {
        transpose_words(rows, packed + (static_cast<size_t>(group) * (dim / 32) + part) * 512);
        for (int i = 0; i < 16; ++i) rows[i] += 32;
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

// Running state of a block of rows.
//
// Weights are powers of 2 relative to a reference of their row. That is the largest logit of the row's first keys,
// and is raised only when a later one exceeds it by kHeadroom: what the reference is makes no difference to the
// quotient, as long as nothing overflows and what is summed are the rounded weights. (FlashAttention 4 skips rescaling in the same way.)
struct Rows {
  Buffer<uint16_t> q;        // [rows, dim]
  Buffer<float> sum;         // [rows, dim]: values weighted so far
  Buffer<float> reference;   // [rows], in units of the exponent of 2
  Buffer<float> total;       // [rows, 16]: sums of weights so far, of every 16th pair of keys
  Buffer<float> logits;      // [2, kVectorStrip, 32]
  Buffer<uint16_t> weights;  // [kVectorStrip, kTileKeys]
  Buffer<float> spill;       // [16, 16]

  void reset(int rows, int dim) {
    const size_t padded = rows + kStrip;
    std::memset(q.ensure(padded * dim), 0, padded * dim * 2);
    std::memset(sum.ensure(padded * dim), 0, padded * dim * 4);
    std::memset(total.ensure(padded * 16), 0, padded * 16 * 4);
    std::fill_n(reference.ensure(padded), padded, kLowest);
    logits.ensure(2 * kVectorStrip * 32), weights.ensure(kVectorStrip * kTileKeys), spill.ensure(256);
  }

  // Raises the reference of a row to its best logit and scales what was summed so far, and the weights of this tile's
  // keys from `first` to `last` that await their values.
  void raise(int row, int dim, float best, uint16_t* weight, int first, int last) {
    const __m512 fade = exp2_of(_mm512_set1_ps(std::max(reference.data()[row] - best, -1000.0f)));
    float* to = sum.data() + static_cast<size_t>(row) * dim;
    for (int d = 0; d < dim; d += 16) _mm512_store_ps(to + d, _mm512_mul_ps(fade, _mm512_load_ps(to + d)));
    to = total.data() + row * 16;
    _mm512_store_ps(to, _mm512_mul_ps(fade, _mm512_load_ps(to)));
    for (int n = first; n < last; n += 16) {
      __m256i* at = reinterpret_cast<__m256i*>(weight + n);
      const __m512 before = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(at)), 16));
      const __m256bh faded = _mm512_cvtneps_pbh(_mm512_mul_ps(fade, before));
      _mm256_store_si256(at, reinterpret_cast<const __m256i&>(faded));
    }
    reference.data()[row] = best;
  }

  // Sum of a row's weights.
  float total_of(int row) const { return _mm512_reduce_add_ps(_mm512_load_ps(total.data() + row * 16)); }
};

// What makes logits of products of queries and keys, in powers of 2.
struct Logits {
  float scale;  // a factor, which includes log2(e)
  float cap;    // bends them to cap * tanh(logit / cap), in the same units; 0: there is none

  // Caps products of `live` rows with 32 keys, in place; returns what is left to multiply them with.
  float capped(float* products, int live) const {
    if (cap == 0) return scale;
    const __m512 factor = _mm512_set1_ps(scale / cap), caps = _mm512_set1_ps(cap);
    for (float* at = products; at < products + 32 * live; at += 16) {
      _mm512_store_ps(at, _mm512_mul_ps(caps, tanh_of(_mm512_mul_ps(factor, _mm512_load_ps(at)))));
    }
    return 1;
  }
};

// Weights of keys `begin` to `begin + 32` of a tile, whose first `skipped` keys no row sees, for the `live` rows from
// `first` on. `seen(row)` has a bit for each key that a row sees, the others get weight zero; `all` says that every row
// sees every key.
template <typename Seen>
void weigh(Rows& rows, const float* logits, int skipped, int begin, int first, int live, int dim, float scale, bool all,
           Seen seen) {
  const __m512 lowest = _mm512_set1_ps(kLowest), scales = _mm512_set1_ps(scale), limit = _mm512_set1_ps(kHeadroom);
  const __m512i one = _mm512_set1_epi16(0x3f80);
  const __m512bh ones = reinterpret_cast<const __m512bh&>(one);
  for (int row = 0; row < live; ++row) {
    const float* logit = logits + row * 32;
    uint16_t* weight = rows.weights.data() + row * kTileKeys;
    __m512 a, b;
    const auto relate = [&](float reference) {
      const __m512 zero = _mm512_set1_ps(reference);
      a = _mm512_fmsub_ps(_mm512_load_ps(logit), scales, zero);
      b = _mm512_fmsub_ps(_mm512_load_ps(logit + 16), scales, zero);
      if (!all) {
        const uint32_t mask = seen(row);
        a = _mm512_mask_mov_ps(lowest, static_cast<__mmask16>(mask), a);
        b = _mm512_mask_mov_ps(lowest, static_cast<__mmask16>(mask >> 16), b);
      }
    };
    const float& reference = rows.reference.data()[first + row];
    relate(reference);
    if (_mm512_cmp_ps_mask(_mm512_max_ps(a, b), limit, _CMP_GT_OQ)) [[unlikely]] {
      relate(0.0f);
      rows.raise(first + row, dim, _mm512_reduce_max_ps(_mm512_max_ps(a, b)), weight, skipped, begin);
      relate(reference);
    }
    const __m512bh rounded = _mm512_cvtne2ps_pbh(exp2_of(b), exp2_of(a));
    _mm512_store_si512(weight + begin, reinterpret_cast<const __m512i&>(rounded));
    float* total = rows.total.data() + (first + row) * 16;
    _mm512_store_ps(total, _mm512_dpbf16_ps(_mm512_load_ps(total), rounded, ones));
  }
}

// Adds weighted values to the sums of up to 32 rows, on tile registers; rows from `live` on are another segment's and not written.
inline void multiply_values(const uint16_t* weights, const uint16_t* v, int live, int keys, int dim, float* sum,
                            float* spill) {
  const bool both = live > 16;
  const auto store = [&](float* to, int filled, auto stored) {
    if (filled >= 16) {
      stored(to, dim * 4);
      return;
    }
    stored(spill, 64);
    for (int row = 0; row < filled; ++row) std::memcpy(to + static_cast<size_t>(row) * dim, spill + 16 * row, 64);
  };
  for (int d = 0; d < dim; d += 32) {
    float* low = sum + d;
    float* high = low + 16 * dim;
    _tile_loadd(0, low, dim * 4);
    _tile_loadd(1, low + 16, dim * 4);
    if (both) {
      _tile_loadd(2, high, dim * 4);
      _tile_loadd(3, high + 16, dim * 4);
    }
    for (int n = 0; n < keys; n += 32) {
      const uint16_t* value = v + (static_cast<size_t>(n / 32) * (dim / 16) + d / 16) * 512;
      _tile_loadd(4, weights + n, kTileKeys * 2);
      _tile_loadd(6, value, 64);
      _tile_loadd(7, value + 512, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (both) {
        _tile_loadd(5, weights + 16 * kTileKeys + n, kTileKeys * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    store(low, live, [](float* p, int stride) { _tile_stored(0, p, stride); });
    store(low + 16, live, [](float* p, int stride) { _tile_stored(1, p, stride); });
    if (both) {
      store(high, live - 16, [](float* p, int stride) { _tile_stored(2, p, stride); });
      store(high + 16, live - 16, [](float* p, int stride) { _tile_stored(3, p, stride); });
    }
  }
}

// Takes a packed tile into rows `first` to `first + count` of a block. The tile's keys are `start` and following ones,
// of which a row sees those from `from[row]` to before `until[row]`.
//
// Of groups of 32 keys before the first and behind the last that a row of a strip sees, nothing is computed: they
// would add zeros.
//
// The weights of 32 keys are computed while the logits of the next 32 are multiplied: a product takes few
// instructions and much time, so that both units of the core work at once.
inline void attend_tile(Rows& rows, const PackedKeys& keys, int first, int count, int dim, Logits of_products,
                        const int32_t* from, const int32_t* until, int start, bool has_tiles) {
  const int64_t tiles_of_key = dim / 32, tiles_of_keys = dim / 16;
  const int strip = has_tiles ? kStrip : kVectorStrip;
  for (int begin = 0; begin < count; begin += strip) {
    const int live = std::min(strip, count - begin);
    int32_t earliest = from[begin], latest = earliest, lowest = until[begin], highest = lowest;
    for (int row = 1; row < live; ++row) {
      earliest = std::min(earliest, from[begin + row]), latest = std::max(latest, from[begin + row]);
      lowest = std::min(lowest, until[begin + row]), highest = std::max(highest, until[begin + row]);
    }
    const int skipped = std::max(earliest - start, 0) / 32 * 32, unseen = latest - start;
    const int least = lowest - start, most = std::min(highest - start, kTileKeys);
    if (most <= skipped) continue;
    const uint16_t* q = rows.q.data() + static_cast<size_t>(first + begin) * dim;
    const auto logits = [&](int n) { return rows.logits.data() + n / 32 % 2 * kVectorStrip * 32; };
    const auto multiply = [&](int n) {
      const uint16_t* k = keys.k.data() + static_cast<size_t>(n) * dim;
      const Columns columns = {k, tiles_of_key * kTile, kTile};
      const auto nothing = [](int64_t) {};  // keys were packed just now
      if (has_tiles) return multiply_strip(q, dim, live, columns, tiles_of_key, true, logits(n), 32, nothing);
      multiply_rows(q, dim, live, columns, tiles_of_key, true, logits(n), 32);
    };
    const auto before = [&](int32_t position, int n) {  // bits of the keys from `n` on that lie before a position
      return static_cast<uint32_t>((uint64_t{1} << std::clamp(position - start - n, 0, 32)) - 1);
    };
    multiply(skipped);
    for (int n = skipped; n < most; n += 32) {
      if (n + 32 < most) multiply(n + 32);
      const float scale = of_products.capped(logits(n), live);
      weigh(rows, logits(n), skipped, n, first + begin, live, dim, scale, least >= n + 32 && unseen <= n,
            [&](int row) { return before(until[begin + row], n) & ~before(from[begin + row], n); });
    }
    const uint16_t* weights = rows.weights.data() + skipped;
    const uint16_t* v = keys.v.data() + static_cast<size_t>(skipped / 32) * tiles_of_keys * 512;
    const int weighted = most - skipped;
    float* sum = rows.sum.data() + static_cast<size_t>(first + begin) * dim;
    if (has_tiles) {
      multiply_values(weights, v, live, weighted, dim, sum, rows.spill.data());
      continue;
    }
    for (int d = 0; d < dim; d += 32) {
      const Columns values = {v + d / 16 * 512, 512, tiles_of_keys * 512};
      multiply_rows(weights, kTileKeys, live, values, (weighted + 31) / 32, false, sum + d, dim);
    }
  }
}

}  // namespace mis
