// Calls of the library's functions as files: what was passed to one, and what it computed.
//
// A library under test writes them while the ordinary tests run (record.cc); a program for another CPU computes them again
// (repeat.cc).

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace mis::recorded {

inline int64_t bytes_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_PRED: case XLA_FFI_DataType_S8: case XLA_FFI_DataType_U8: return 1;
    case XLA_FFI_DataType_U16: return 2;
    case XLA_FFI_DataType_S32: case XLA_FFI_DataType_F32: return 4;
    case XLA_FFI_DataType_S64: return 8;
    default: break;
  }
  std::fprintf(stderr, "Numbers of XLA's type %d are not recorded: say how many bytes they have.\n", type);
  std::abort();
}

struct Array {
  XLA_FFI_DataType type;
  std::vector<int64_t> dims;
  std::string bytes;
};

struct Result {
  int64_t argument;  // in whose memory it lies; below 0: in its own
  Array array;
};

struct Attribute {
  std::string name;
  XLA_FFI_DataType type;
  std::string bytes;
};

struct Call {
  std::string function;
  std::vector<Array> arguments;
  std::vector<Result> results;
  std::vector<Attribute> attributes;
};

// Reads or writes calls: `File` is a stream of either kind, and the order of fields stands here once.
template <typename File>
class Archive {
 public:
  explicit Archive(File& file) : file_(file) {}

  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number> || std::is_enum_v<Number>>>
  void operator()(Number& number) { pass(reinterpret_cast<char*>(&number), sizeof(number)); }

  void operator()(std::string& text) {
    resize(text);
    pass(text.data(), text.size());
  }

  template <typename Element>
  void operator()(std::vector<Element>& elements) {
    resize(elements);
    for (Element& element : elements) (*this)(element);
  }

  void operator()(Array& x) { (*this)(x.type), (*this)(x.dims), (*this)(x.bytes); }
  void operator()(Result& x) { (*this)(x.argument), (*this)(x.array); }
  void operator()(Attribute& x) { (*this)(x.name), (*this)(x.type), (*this)(x.bytes); }
  void operator()(Call& x) { (*this)(x.function), (*this)(x.arguments), (*this)(x.results), (*this)(x.attributes); }

 private:
  static constexpr bool kReads = std::is_base_of_v<std::istream, File>;

  template <typename Container>
  void resize(Container& container) {
    int64_t size = container.size();
    (*this)(size);
    if (kReads) container.resize(size);
  }

  void pass(char* bytes, int64_t count) {
    if constexpr (kReads) file_.read(bytes, count);
    else file_.write(bytes, count);
  }

  File& file_;
};

}  // namespace mis::recorded
