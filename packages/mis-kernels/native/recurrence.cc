// The gated delta rule over the chunks of a step, with the convolution before it.
// The contract is that of mis_kernels.gated_delta.
//
// The unit of work is a key head with its value heads: it computes all chunks in the order of the list and shares no
// state with another. The updates of a chunk's rows are one unit lower triangular system (DeltaNet, arXiv 2406.06484;
// with decays: Gated Delta Networks, arXiv 2412.06464), which is solved row by row; all else are products.

#include "convolution.h"
#include "matrices.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace mis {
namespace {

constexpr int64_t kChunk = 64;          // most rows of a chunk, `CHUNK` of mis_kernels.recurrence
constexpr int64_t kCarried = -1;        // likewise; below it: `EMPTY`
constexpr float kLeastDecay = -128.0f;  // log of a decay that is zero in float32; sums of such numbers stay finite

template <typename Number>
struct Problem {
  Inputs<Number> inputs;
  const float *decay, *rate;  // [tokens, value_heads]
  float* memory;              // [slots, value_heads, key_dim, value_dim]
  const int32_t *rows, *lens, *reads, *writes;
  float* out;  // [tokens, value_heads, value_dim]
  int64_t tokens, slots, chunks, key_heads, value_heads, key_dim, value_dim;

  int64_t group() const { return value_heads / key_heads; }
  bool stores(int64_t chunk) const { return writes[chunk] < slots; }
  bool keeps(int64_t chunk) const { return stores(chunk) || (chunk + 1 < chunks && reads[chunk + 1] == kCarried); }
};

// How memory fades within a chunk.
struct Fades {
  alignas(64) float between[kChunk][kChunk] = {};  // to the first of two rows from the second, or zero
  alignas(64) float from_start[kChunk];            // to each row from the chunk's begin

  // Logarithms are added up from one row to another. As differences of sums from the chunk's begin they would lose
  // digits after a strong decay.
  void compute(const float* decay, int64_t step, int64_t rows) {
    alignas(64) float sums[kChunk];
    std::fill_n(sums, kChunk, -1e30f);
    float sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const float log = std::max(decay[row * step], kLeastDecay);
      from_start[row] = sum += log;
      for (int64_t i = 0; i <= row; i += 16) {
        _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), _mm512_set1_ps(log)));
      }
      sums[row] = 0;
      for (int64_t i = 0; i <= row; i += 16) _mm512_store_ps(between[row] + i, exp_of(_mm512_load_ps(sums + i)));
    }
    for (int64_t i = 0; i < rows; i += 16) _mm512_store_ps(from_start + i, exp_of(_mm512_load_ps(from_start + i)));
  }
};

// Memory of one thread.
struct Scratch {
  Fades fades;
  Buffer<float> both;       // [2, kChunk, key_dim]: queries, then keys
  Buffer<float> turned;     // [key_dim, kChunk]: keys
  Buffer<float> overlaps;   // [2, kChunk, kChunk]: of queries with keys, then of keys with keys
  Buffer<float> values;     // [kChunk, value_dim]: what is new of each row
  Buffer<float> of_memory;  // [2, kMostRows, value_dim]: what memory has at a block's queries, then at its keys
  Buffer<float> faded;      // [2, kMostRows, kChunk]: a block's overlaps as far as rows fade; of keys, minus the system
  Buffer<float> memory;     // [value heads of the unit, key_dim, value_dim]: what the last chunk left, if in no slot
};

void multiply(float* numbers, int64_t size, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  each(size, numbers, [&](int64_t i) { return _mm512_mul_ps(factors, _mm512_loadu_ps(numbers + i)); });
}

// A key head and its value heads.
template <typename Number>
class Unit {
 public:
  Unit(const Problem<Number>& problem, int64_t head, Scratch& scratch)
      : p_(problem),
        query_part_{head * p_.key_dim, p_.key_dim, 0},
        key_part_{(p_.key_heads + head) * p_.key_dim, p_.key_dim, p_.key_dim},
        value_part_{2 * p_.key_heads * p_.key_dim + head * p_.group() * p_.value_dim, p_.group() * p_.value_dim,
                    2 * p_.key_dim},
        convolution_(p_.inputs, {query_part_, key_part_, value_part_}),
        first_head_(head * p_.group()),
        scratch_(scratch) {
    scratch.both.ensure(2 * kChunk * p_.key_dim), scratch.turned.ensure(p_.key_dim * kChunk);
    scratch.overlaps.ensure(2 * kChunk * kChunk), scratch.values.ensure(kChunk * p_.value_dim);
    scratch.of_memory.ensure(2 * kMostRows * p_.value_dim), scratch.faded.ensure(2 * kMostRows * kChunk);
    scratch.memory.ensure(p_.group() * p_.key_dim * p_.value_dim);
  }

  // Computes the next chunk of the list.
  void compute(int64_t chunk) {
    const int64_t rows = p_.lens[chunk], read = p_.reads[chunk], size = p_.key_dim * p_.value_dim;
    const auto slot = [&](int64_t number) { return p_.memory + (number * p_.value_heads + first_head_) * size; };
    const float* start = read == kCarried ? left_ : read < 0 ? nullptr : slot(read);
    float* left = p_.stores(chunk) ? slot(p_.writes[chunk]) : scratch_.memory.data();
    chunk_ = chunk;
    if (read >= 0) convolution_.start_from(read);
    else if (read != kCarried) convolution_.start_from_nothing();
    convolution_.begin(p_.rows[chunk], rows);
    mix_queries_and_keys(rows);
    multiply_keys(rows);
    for (int64_t i = 0; i < p_.group(); ++i) {
      const Summands memory{start ? start + i * size : nullptr, p_.value_dim};
      compute_value_head(i, rows, memory);
      if (p_.keeps(chunk)) learn(rows, memory, {left + i * size, p_.value_dim});
    }
    left_ = left;
    convolution_.end();
    if (p_.stores(chunk)) convolution_.store(p_.writes[chunk]);
  }

 private:
  // Row of a chunk in an array [tokens, value_heads, ...], from the unit's first head on.
  int64_t row_of_heads(int64_t chunk, int64_t row) const {
    return (p_.rows[chunk] + row) * p_.value_heads + first_head_;
  }

  // Fetches a row of the next chunk, and where its results go.
  [[gnu::always_inline]] void fetch_next(int64_t row) const {
    const int64_t next = chunk_ + 1;
    if (next == p_.chunks || row >= p_.lens[next]) return;
    convolution_.fetch_row(p_.rows[next] + row);
    fetch(p_.out + row_of_heads(next, row) * p_.value_dim, value_part_.size);
  }

  Sums queries() const { return {scratch_.both.data(), p_.key_dim}; }
  Sums keys() const { return {scratch_.both.data() + kChunk * p_.key_dim, p_.key_dim}; }

  void mix_queries_and_keys(int64_t rows) {
    const float root = std::sqrt(static_cast<float>(p_.key_dim));
    for (int64_t row = 0; row < rows; ++row) {
      fetch_next(row);
      mix_to_length(row, query_part_, 1.0f / root, queries().row(row));
      mix_to_length(row, key_part_, 1.0f, keys().row(row));
    }
  }

  void mix_to_length(int64_t row, const Part& part, float length, float* to) const {
    __m512 squares = _mm512_setzero_ps();
    each(part.size, to, [&](int64_t i) {
      const __m512 x = convolution_.at(row, part, i);
      squares = _mm512_fmadd_ps(x, x, squares);
      return x;
    });
    multiply(to, part.size, length / std::sqrt(_mm512_reduce_add_ps(squares) + 1e-6f));
  }

  // Multiplies queries and keys with the keys up to their own, and some more.
  void multiply_keys(int64_t rows) {
    float* turned = scratch_.turned.data();
    for (int64_t i = 0; i < rows; i += 16) {
      for (int64_t d = 0; d < p_.key_dim; d += 16) {
        const float* from[16];
        for (int64_t j = 0; j < 16; ++j) from[j] = keys().row(std::min(i + j, rows - 1)) + d;
        transpose_words(from, turned + d * kChunk + i, kChunk);
      }
    }
    const Sums of_queries{scratch_.overlaps.data(), kChunk}, of_keys = of_queries.from_row(kChunk);
    for_blocks(rows, [&](int64_t row, int64_t height) {
      const int64_t columns = (row + height + 15) / 16 * 16;
      const Summands all{turned, kChunk};
      sum_products(height, columns, {}, queries().from_row(row), all, p_.key_dim, of_queries.from_row(row));
      sum_products(height, columns, {}, keys().from_row(row), all, p_.key_dim, of_keys.from_row(row));
    });
  }

  // Writes what the rows of a value head find, and keeps what is new of them.
  void compute_value_head(int64_t number, int64_t rows, Summands memory) {
    const int64_t size = p_.value_dim, depth = memory.at ? p_.key_dim : 0, first = row_of_heads(chunk_, 0) + number;
    const float *decay = p_.decay + first, *rate = p_.rate + first;
    const Sums values{scratch_.values.data(), size}, out{p_.out + first * size, p_.value_heads * size};
    const Sums at_queries{scratch_.of_memory.data(), size}, at_keys = at_queries.from_row(kMostRows);
    const Sums seen{scratch_.faded.data(), kChunk}, minus_system = seen.from_row(kMostRows);
    scratch_.fades.compute(decay, p_.value_heads, rows);
    for_blocks(rows, [&](int64_t begin, int64_t height) {
      const int64_t end = begin + height;
      sum_products(height, size, {}, queries().from_row(begin), memory, depth, at_queries);
      sum_products(height, size, {}, keys().from_row(begin), memory, depth, at_keys);
      for (int64_t row = begin; row < end; ++row) {
        const float fade = scratch_.fades.from_start[row], rate_of_row = rate[row * p_.value_heads];
        multiply(at_queries.row(row - begin), size, fade);
        learn_value(row, number, rate_of_row, fade, at_keys.row(row - begin), values.row(row));
        fade_overlaps(row, end, rate_of_row, seen.row(row - begin), minus_system.row(row - begin));
      }
      const Sums own = values.from_row(begin);
      sum_products<true>(height, size, {own}, minus_system, values, begin, own);
      sum_products(height, size, {at_queries}, seen, values, end, out.from_row(begin));
    });
  }

  // What a row would learn if none came before it in its chunk: `known` is what memory has at its key.
  void learn_value(int64_t row, int64_t number, float rate, float fade, const float* known, float* to) const {
    const __m512 rates = _mm512_set1_ps(rate), fades = _mm512_set1_ps(fade);
    each(p_.value_dim, to, [&](int64_t i) {
      const __m512 value = convolution_.at(row, value_part_, number * p_.value_dim + i);
      return _mm512_mul_ps(rates, _mm512_sub_ps(value, _mm512_mul_ps(fades, _mm512_loadu_ps(known + i))));
    });
  }

  // The factors of the new values before `end` in what a row finds, and in what it has to learn.
  void fade_overlaps(int64_t row, int64_t end, float rate, float* seen, float* minus_system) const {
    const float *of_query = scratch_.overlaps.data() + row * kChunk, *of_key = of_query + kChunk * kChunk;
    const __m512 minus = _mm512_set1_ps(-rate);
    const auto faded = [&](const float* overlap, int64_t i) {
      return _mm512_mul_ps(_mm512_loadu_ps(overlap + i), _mm512_load_ps(scratch_.fades.between[row] + i));
    };
    each(end, seen, [&](int64_t i) { return faded(of_query, i); });
    each(end, minus_system, [&](int64_t i) { return _mm512_mul_ps(minus, faded(of_key, i)); });
  }

  // Makes the memory of a value head after a chunk of that before it.
  void learn(int64_t rows, Summands memory, Sums left) {
    const Sums values{scratch_.values.data(), p_.value_dim};
    const Fades& fades = scratch_.fades;
    for (int64_t row = 0; row < rows; ++row) multiply(values.row(row), p_.value_dim, fades.between[rows - 1][row]);
    for_blocks(p_.key_dim, [&](int64_t row, int64_t height) {
      const Start before{memory.at ? memory.from_row(row) : memory, fades.from_start[rows - 1]};
      const Factors turned{keys().at + row, 1, p_.key_dim};
      sum_products(height, p_.value_dim, before, turned, values, rows, left.from_row(row));
    });
  }

  const Problem<Number>& p_;
  const Part query_part_, key_part_, value_part_;
  Convolution<Number> convolution_;
  const int64_t first_head_;  // of the unit's value heads
  Scratch& scratch_;
  int64_t chunk_ = 0;
  const float* left_ = nullptr;  // memory after the chunk before; null: zeros
};

// Rows of no chunk are zeros.
template <typename Number>
void clear_others(const Problem<Number>& p) {
  std::vector<bool> computed(p.tokens, false);
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    std::fill_n(computed.begin() + p.rows[chunk], p.lens[chunk], true);
  }
  const int64_t size = p.value_heads * p.value_dim;
  for (int64_t row = 0; row < p.tokens; ++row) {
    if (!computed[row]) std::fill_n(p.out + row * size, size, 0.0f);
  }
}

template <typename Number>
void compute_chunks(ffi::ThreadPool pool, const Problem<Number>& problem) {
  clear_others(problem);
  const auto some = [=](int64_t head) {
    thread_local Scratch scratch;
    Unit<Number> unit(problem, head, scratch);
    for (int64_t chunk = 0; chunk < problem.chunks; ++chunk) unit.compute(chunk);
  };
  for_each(pool, problem.key_heads, some);
}

ffi::Error gated_delta(ffi::ThreadPool pool, ffi::AnyBuffer inputs, ffi::Buffer<ffi::F32> decay,
                       ffi::Buffer<ffi::F32> rate, ffi::Buffer<ffi::F32> kernel, ffi::Buffer<ffi::F32>,
                       ffi::Buffer<ffi::F32>, ffi::Buffer<ffi::S32> rows, ffi::Buffer<ffi::S32> lens,
                       ffi::Buffer<ffi::S32> reads, ffi::Buffer<ffi::S32> writes, ffi::Buffer<ffi::S32> count,
                       ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::F32> memory,
                       ffi::ResultBuffer<ffi::F32> last, int32_t key_heads) {
  const auto slots = memory->dimensions();
  const auto compute = [&](const auto* numbers) {
    using Number = std::decay_t<decltype(*numbers)>;
    const Inputs<Number> all = {numbers, kernel.typed_data(), last->typed_data(), inputs.dimensions()[1],
                                kernel.dimensions()[1]};
    compute_chunks(pool, Problem<Number>{.inputs = all,
                                         .decay = decay.typed_data(),
                                         .rate = rate.typed_data(),
                                         .memory = memory->typed_data(),
                                         .rows = rows.typed_data(),
                                         .lens = lens.typed_data(),
                                         .reads = reads.typed_data(),
                                         .writes = writes.typed_data(),
                                         .out = out->typed_data(),
                                         .tokens = inputs.dimensions()[0],
                                         .slots = slots[0],
                                         .chunks = *count.typed_data(),
                                         .key_heads = key_heads,
                                         .value_heads = slots[1],
                                         .key_dim = slots[2],
                                         .value_dim = slots[3]});
  };
  if (inputs.element_type() == ffi::F32) {
    compute(inputs.typed_data<float>());
  } else {
    compute(inputs.typed_data<uint16_t>());
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace mis

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_gated_delta, mis::gated_delta,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("key_heads"));
