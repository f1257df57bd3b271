// A library that stands before another one, and writes each call of its functions to a file.
//
// MIS_RECORDED_LIBRARY names the other library, and MIS_RECORDED_CALLS the folder of files. Calls with the same inputs are
// written once. The macro MIS_FUNCTIONS lists the functions: MIS_FUNCTION(name) for each.

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <sstream>

#include "calls.h"

namespace mis::recorded {
namespace {

const char* variable(const char* name) {
  if (const char* value = std::getenv(name)) return value;
  std::fprintf(stderr, "%s is not set: it is where calls are recorded, or of which library.\n", name);
  std::abort();
}

template <typename Function>
Function* other(const char* name) {
  static void* const library = dlopen(variable("MIS_RECORDED_LIBRARY"), RTLD_NOW);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  if (function != nullptr) return reinterpret_cast<Function*>(function);
  std::fprintf(stderr, "MIS_RECORDED_LIBRARY: %s.\n", dlerror());
  std::abort();
}

Array described(const XLA_FFI_Buffer& buffer) { return {buffer.dtype, {buffer.dims, buffer.dims + buffer.rank}, {}}; }

size_t size_of(const XLA_FFI_Buffer& buffer) {
  int64_t size = bytes_of(buffer.dtype);
  for (int64_t i = 0; i < buffer.rank; ++i) size *= buffer.dims[i];
  return size;
}

std::string contents(const XLA_FFI_Buffer& buffer) { return {static_cast<const char*>(buffer.data), size_of(buffer)}; }

const XLA_FFI_Buffer& buffer_of(void* given) { return *static_cast<const XLA_FFI_Buffer*>(given); }

// The argument in whose memory a result lies; below 0: none. An argument without numbers may lie anywhere.
int64_t argument_at(const XLA_FFI_CallFrame& frame, const XLA_FFI_Buffer& result) {
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const XLA_FFI_Buffer& argument = buffer_of(frame.args.args[i]);
    if (argument.data == result.data && size_of(argument) == size_of(result)) return i;
  }
  return -1;
}

// A call without what it computes.
Call asked(const char* function, const XLA_FFI_CallFrame& frame) {
  Call call{function, {}, {}, {}};
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const XLA_FFI_Buffer& buffer = buffer_of(frame.args.args[i]);
    call.arguments.push_back(described(buffer));
    call.arguments.back().bytes = contents(buffer);
  }
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    const XLA_FFI_Buffer& buffer = buffer_of(frame.rets.rets[i]);
    call.results.push_back({argument_at(frame, buffer), described(buffer)});
  }
  for (int64_t i = 0; i < frame.attrs.size; ++i) {
    const XLA_FFI_Scalar& scalar = *static_cast<const XLA_FFI_Scalar*>(frame.attrs.attrs[i]);
    const XLA_FFI_ByteSpan& name = *frame.attrs.names[i];
    const size_t size = bytes_of(scalar.dtype);
    call.attributes.push_back({{name.ptr, name.len}, scalar.dtype, {static_cast<const char*>(scalar.value), size}});
  }
  return call;
}

std::string written(Call& call) {
  std::ostringstream file;
  Archive<std::ostream>{file}(call);
  return file.str();
}

// Where a call is written; what is asked gives the name (FNV-1a of 64 bits).
std::filesystem::path path_of(const std::string& function, const std::string& asked) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : asked) digest = (digest ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  char name[17];
  std::snprintf(name, sizeof(name), "%016llx", static_cast<unsigned long long>(digest));
  return std::filesystem::path(variable("MIS_RECORDED_CALLS")) / (function + "-" + name);
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  static std::atomic<int> count{0};
  std::filesystem::path partial = path;
  partial += "." + std::to_string(getpid()) + "." + std::to_string(count++);
  std::ofstream(partial, std::ios::binary) << bytes;
  std::filesystem::rename(partial, path);
}

// Calls the function of the other library, and writes the call.
XLA_FFI_Error* record(const char* function, XLA_FFI_CallFrame* frame) {
  XLA_FFI_Handler* const handler = other<XLA_FFI_Handler>(function);
  if (frame->extension_start != nullptr || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return handler(frame);
  Call call = asked(function, *frame);
  const std::filesystem::path path = path_of(function, written(call));
  XLA_FFI_Error* const error = handler(frame);
  if (error != nullptr || std::filesystem::exists(path)) return error;
  for (int64_t i = 0; i < frame->rets.size; ++i) call.results[i].array.bytes = contents(buffer_of(frame->rets.rets[i]));
  write(path, written(call));
  return nullptr;
}

}  // namespace
}  // namespace mis::recorded

extern "C" const char* mis_emulated() { return mis::recorded::other<const char*()>("mis_emulated")(); }

#define MIS_FUNCTION(name) \
  extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { return mis::recorded::record(#name, frame); }
MIS_FUNCTIONS
