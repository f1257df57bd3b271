// How the rows of a step attend: runs of tokens with one context, against tiles of its keys and of their own.
//
// `Attention` says of which type numbers are (`Bfloat16`, `Float32`), and has `Rows`, `Keys`, `Logits`,
// `kTileKeys`, and `configure`, which prepares tile registers for a block.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace mis {

constexpr int kBlockRows = 1024;

using Integers = xla::ffi::Buffer<xla::ffi::S32>;

template <typename Attention>
struct Problem {
  using Number = typename Attention::Number;
  const Number *q, *k, *v, *k_pages, *v_pages;
  const int32_t *context_id, *context_len, *segment_start, *page_table;
  Number* out;
  int64_t tokens, heads, kv_heads, dim, pages, page_size, pages_per_context;
  int64_t window;  // positions that a token sees, its own the last
  typename Attention::Logits logits;
  bool has_tiles;

  int64_t group() const { return heads / kv_heads; }

  // The first token of its context that a token sees; none if that is not below its context_len.
  int64_t context_first(int64_t t) const {
    return std::max<int64_t>(context_len[t] + t - segment_start[t] + 1 - window, 0);
  }

  // The first new token that a token sees; none if that is beyond the token itself.
  int64_t own_first(int64_t t) const { return std::max<int64_t>(segment_start[t], t + 1 - window); }
};

// A run of tokens with one context, by their numbers among those that see anything; the unit of work is one KV head's
// rows of it.
struct Block {
  int64_t begin, end;
};

struct Work {
  std::vector<int64_t> tokens;  // that see anything
  std::vector<Block> blocks;
};

template <typename Attention>
Work cut(const Problem<Attention>& p) {
  const int64_t most = std::max<int64_t>(kBlockRows / p.group(), 1);
  Work work;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const bool sees = p.context_len[t] > 0;
    if (!sees && p.segment_start[t] > t) continue;
    const int64_t number = work.tokens.size();
    work.tokens.push_back(t);
    const bool joins = !work.blocks.empty() && number - work.blocks.back().begin < most &&
                       (!sees || p.context_id[t] == p.context_id[work.tokens[work.blocks.back().begin]]);
    if (joins) {
      work.blocks.back().end = number + 1;
    } else {
      work.blocks.push_back({number, number + 1});
    }
  }
  return work;
}

template <typename Attention>
struct Scratch {
  typename Attention::Rows rows;
  typename Attention::Keys keys;
  Buffer<int32_t> from, until;  // [rows]: the first position that a row sees, and that behind its last
};

template <typename Attention>
void attend_context(const Problem<Attention>& p, int64_t head, const int64_t* tokens, int64_t count,
                    Scratch<Attention>& scratch) {
  const int group = p.group(), dim = p.dim;
  int64_t longest = 0, earliest = INT64_MAX, context = p.context_id[tokens[0]];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = tokens[i];
    if (p.context_len[t] > longest) longest = p.context_len[t], context = p.context_id[t];
    if (p.context_first(t) < p.context_len[t]) earliest = std::min(earliest, p.context_first(t));
  }
  const int32_t* table = p.page_table + context * p.pages_per_context;
  const int64_t head_pages = head * p.pages;
  const int rows = count * group;
  int32_t *from = scratch.from.ensure(rows), *until = scratch.until.ensure(rows);
  for (int row = 0; row < rows; ++row) {
    const int64_t t = tokens[row / group];
    from[row] = p.context_first(t), until[row] = p.context_len[t];
  }
  for (int64_t start = earliest / Attention::kTileKeys * Attention::kTileKeys; start < longest; start += Attention::kTileKeys) {
    const int keys = std::min<int64_t>(Attention::kTileKeys, longest - start);
    const auto at = [&](const auto* pages, int n) {
      const int64_t position = start + n;
      return pages + ((head_pages + table[position / p.page_size]) * p.page_size + position % p.page_size) * dim;
    };
    scratch.keys.pack(keys, dim, [&](int n) { return at(p.k_pages, n); }, [&](int n) { return at(p.v_pages, n); });
    attend_tile(scratch.rows, scratch.keys, 0, rows, dim, p.logits, from, until, start, p.has_tiles);
  }
}

template <typename Attention>
void attend_own(const Problem<Attention>& p, int64_t head, const int64_t* tokens, int64_t count,
                Scratch<Attention>& scratch) {
  const int group = p.group(), dim = p.dim;
  for (int64_t i = 0, next; i < count; i = next) {
    const int64_t first = p.segment_start[tokens[i]];
    next = i + 1;
    if (first > tokens[i]) continue;
    while (next < count && p.segment_start[tokens[next]] == first) ++next;
    const int rows = (next - i) * group;
    int32_t *from = scratch.from.ensure(rows), *until = scratch.until.ensure(rows);
    for (int row = 0; row < rows; ++row) {
      const int64_t t = tokens[i + row / group];
      from[row] = p.own_first(t), until[row] = t + 1;
    }
    const int64_t end = tokens[next - 1] + 1;
    const int64_t skipped = (from[0] - first) / Attention::kTileKeys * Attention::kTileKeys;
    for (int64_t start = first + skipped; start < end; start += Attention::kTileKeys) {
      const int keys = std::min<int64_t>(Attention::kTileKeys, end - start);
      const auto at = [&](const auto* x, int n) { return x + ((start + n) * p.kv_heads + head) * dim; };
      scratch.keys.pack(keys, dim, [&](int n) { return at(p.k, n); }, [&](int n) { return at(p.v, n); });
      attend_tile(scratch.rows, scratch.keys, i * group, rows, dim, p.logits, from, until, start, p.has_tiles);
    }
  }
}

template <typename Attention>
void attend_block(const Problem<Attention>& p, int64_t head, const int64_t* tokens, int64_t count,
                  Scratch<Attention>& scratch) {
  const int64_t group = p.group(), dim = p.dim;
  const auto place = [&](int64_t i) { return (tokens[i] * p.heads + head * group) * dim; };
  scratch.rows.reset(count * group, dim);
  if (p.has_tiles) Attention::configure(count * group);
  auto* q = scratch.rows.q.data();
  for (int64_t i = 0; i < count; ++i) std::memcpy(q + i * group * dim, p.q + place(i), group * dim * sizeof(*q));
  attend_context(p, head, tokens, count, scratch);
  attend_own(p, head, tokens, count, scratch);
  const float* sum = scratch.rows.sum.data();
  for (int64_t row = 0; row < count * group; ++row) {
    const float total = scratch.rows.total_of(row);
    auto* to = p.out + place(row / group) + row % group * dim;
    const __m512 share = _mm512_set1_ps(total > 0 ? 1.0f / total : 0.0f);
    for (int64_t d = 0; d < dim; d += 16) {
      Attention::store(to + d, _mm512_mul_ps(share, _mm512_load_ps(sum + row * dim + d)));
    }
  }
}

// The call of a step's attention: arguments are those of `mis_kernels.segment_attention`.
template <typename Attention, xla::ffi::DataType kType = Attention::kType>
xla::ffi::Error attend(xla::ffi::ThreadPool pool, xla::ffi::Buffer<kType> q, xla::ffi::Buffer<kType> k,
                       xla::ffi::Buffer<kType> v, xla::ffi::Buffer<kType> k_pages, xla::ffi::Buffer<kType> v_pages,
                       Integers context_id, Integers context_len, Integers segment_start, Integers page_table,
                       Integers window, xla::ffi::ResultBuffer<kType> out, float scale, float cap, bool has_tiles) {
  const auto new_shape = q.dimensions(), cache_shape = k_pages.dimensions();
  const Problem<Attention> problem = {q.typed_data(),
                                      k.typed_data(),
                                      v.typed_data(),
                                      k_pages.typed_data(),
                                      v_pages.typed_data(),
                                      context_id.typed_data(),
                                      context_len.typed_data(),
                                      segment_start.typed_data(),
                                      page_table.typed_data(),
                                      out->typed_data(),
                                      new_shape[0],
                                      new_shape[1],
                                      k.dimensions()[1],
                                      new_shape[2],
                                      cache_shape[1],
                                      cache_shape[2],
                                      page_table.dimensions()[1],
                                      *window.typed_data(),
                                      {scale, cap},
                                      has_tiles};
  const Work work = cut(problem);
  const int64_t count = work.blocks.size(), size = problem.heads * problem.dim;
  const auto clear = [&](int64_t from, int64_t until) {
    std::fill(problem.out + from * size, problem.out + until * size, typename Attention::Number{0});
  };
  int64_t next = 0;
  for (const int64_t t : work.tokens) {
    clear(next, t);  // what lies between sees nothing
    next = t + 1;
  }
  clear(next, problem.tokens);
  const auto some = [=](int64_t unit) {
    thread_local Scratch<Attention> scratch;
    const Block block = work.blocks[unit % count];
    attend_block(problem, unit / count, work.tokens.data() + block.begin, block.end - block.begin, scratch);
  };
  for_each(pool, count * problem.kv_heads, some);
  return xla::ffi::Error::Success();
}

// How `attend` is bound.
template <typename Numbers>
auto attention_binding() {
  using Buffer = xla::ffi::Buffer<Numbers::kType>;
  return xla::ffi::Ffi::Bind()
      .template Ctx<xla::ffi::ThreadPool>()
      .template Arg<Buffer>()
      .template Arg<Buffer>()
      .template Arg<Buffer>()
      .template Arg<Buffer>()
      .template Arg<Buffer>()
      .template Arg<Integers>()
      .template Arg<Integers>()
      .template Arg<Integers>()
      .template Arg<Integers>()
      .template Arg<Integers>()
      .template Ret<Buffer>()
      .template Attr<float>("scale")
      .template Attr<float>("cap")
      .template Attr<bool>("has_tiles");
}

}  // namespace mis
