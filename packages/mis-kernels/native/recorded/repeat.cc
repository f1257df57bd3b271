// Computes recorded calls again on aarch64, and compares the bits of all results.
//
// The first argument names the library, and the others are the files of calls. Of each function it prints how many calls
// were computed, and of each call with other bits where the first of these are. NaN is equal to NaN, whatever its sign and
// fraction.

#include <dlfcn.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "calls.h"

// What a call gets of XLA besides its arguments: threads. They flush denormals, as XLA's do.
struct XLA_FFI_ExecutionContext {
  struct Task {
    XLA_FFI_Task* function;
    void* data;
  };

  static constexpr int64_t kThreads = 2;

  XLA_FFI_ExecutionContext() {
    for (std::thread& thread : threads_) thread = std::thread([this] { work(); });
  }
  ~XLA_FFI_ExecutionContext() {
    for (size_t i = 0; i < threads_.size(); ++i) schedule({nullptr, nullptr});
    for (std::thread& thread : threads_) thread.join();
  }

  void schedule(Task task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(task);
    added_.notify_one();
  }

  static void flush_denormals() {
    constexpr uint64_t kFlushed = 1 << 24;  // FZ
    asm volatile("msr fpcr, %0" : : "r"(kFlushed));
  }

 private:
  void work() {
    flush_denormals();
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      added_.wait(lock, [this] { return !tasks_.empty(); });
      const Task task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      if (task.function == nullptr) return;
      task.function(task.data);
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<Task> tasks_;
  std::array<std::thread, kThreads - 1> threads_;  // beside that which calls
};

struct XLA_FFI_Error {
  std::string message;
};

namespace mis::recorded {
namespace {

XLA_FFI_Api api() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; };
  api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
    args->message = args->error->message.c_str();
  };
  api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
  api.XLA_FFI_ThreadPool_Schedule = [](XLA_FFI_ThreadPool_Schedule_Args* args) -> XLA_FFI_Error* {
    args->ctx->schedule({args->task, args->data});
    return nullptr;
  };
  api.XLA_FFI_ThreadPool_NumThreads = [](XLA_FFI_ThreadPool_NumThreads_Args* args) -> XLA_FFI_Error* {
    *args->num_threads = XLA_FFI_ExecutionContext::kThreads;
    return nullptr;
  };
  return api;
}

// The bytes of an array, at addresses that are multiples of 64, as XLA's are.
class Memory {
 public:
  explicit Memory(const std::string& bytes) : Memory(bytes.size()) { std::memcpy(data_, bytes.data(), bytes.size()); }
  explicit Memory(size_t size) : data_(static_cast<char*>(std::aligned_alloc(64, (size + 127) / 64 * 64))) {
    std::memset(data_, 0x5a, size);  // no result
  }
  Memory(const Memory&) = delete;
  ~Memory() { std::free(data_); }
  char* data() { return data_; }

 private:
  char* const data_;
};

template <typename Bits>
Bits bits_of(const char* number) {
  Bits bits;
  std::memcpy(&bits, number, sizeof(bits));
  return bits;
}

bool is_nan(XLA_FFI_DataType type, const char* number) {
  switch (type) {
    case XLA_FFI_DataType_F32: return (bits_of<uint32_t>(number) & 0x7fffffff) > 0x7f800000;
    case XLA_FFI_DataType_U16: return (bits_of<uint16_t>(number) & 0x7fff) > 0x7f80;  // all such results are bfloat16
    default: return false;
  }
}

// Returns where two arrays differ first; below 0: nowhere.
int64_t difference(const Array& expected, const char* found) {
  const int64_t size = bytes_of(expected.type), count = expected.bytes.size() / size;
  for (int64_t i = 0; i < count; ++i) {
    const char *x = expected.bytes.data() + i * size, *y = found + i * size;
    if (std::memcmp(x, y, size) != 0 && !(is_nan(expected.type, x) && is_nan(expected.type, y))) return i;
  }
  return -1;
}

// A call as XLA passes it.
class Frame {
 public:
  Frame(Call& call, const XLA_FFI_Api& api, XLA_FFI_ExecutionContext& context) : call_(call) {
    for (Array& argument : call.arguments) add(argument, memory_.emplace_back(argument.bytes).data());
    for (Result& result : call.results) {
      const bool shared = result.argument >= 0;
      if (!shared) memory_.emplace_back(result.array.bytes.size());
      add(result.array, shared ? buffers_[result.argument].data : memory_.back().data());
    }
    for (XLA_FFI_Buffer& buffer : buffers_) pointers_.push_back(&buffer);
    for (Attribute& attribute : call.attributes) {
      names_.push_back({attribute.name.data(), attribute.name.size()});
      scalars_.push_back({attribute.type, attribute.bytes.data()});
    }
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
    for (XLA_FFI_Scalar& scalar : scalars_) scalar_pointers_.push_back(&scalar);
    argument_types_.assign(call.arguments.size(), XLA_FFI_ArgType_BUFFER);
    result_types_.assign(call.results.size(), XLA_FFI_RetType_BUFFER);
    attribute_types_.assign(names_.size(), XLA_FFI_AttrType_SCALAR);
    frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame_.api = &api;
    frame_.ctx = &context;
    frame_.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame_.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, int64_t(argument_types_.size()), argument_types_.data(),
                   pointers_.data()};
    frame_.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, int64_t(result_types_.size()), result_types_.data(),
                   pointers_.data() + argument_types_.size()};
    frame_.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, int64_t(names_.size()), attribute_types_.data(),
                    name_pointers_.data(), scalar_pointers_.data()};
  }

  // Returns whether the function computes what was recorded; prints where it does not.
  bool repeats(XLA_FFI_Handler* function, const char* file) {
    if (const XLA_FFI_Error* error = function(&frame_)) {
      std::printf("%s: %s\n", file, error->message.c_str());
      delete error;
      return false;
    }
    for (size_t i = 0; i < call_.results.size(); ++i) {
      const Array& expected = call_.results[i].array;
      const int64_t at = difference(expected, static_cast<char*>(buffers_[call_.arguments.size() + i].data));
      if (at < 0) continue;
      std::printf("%s: result %zu has other bits at %lld\n", file, i, static_cast<long long>(at));
      return false;
    }
    return true;
  }

 private:
  void add(Array& array, void* data) {
    const int64_t rank = array.dims.size();
    buffers_.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, array.type, data, rank, array.dims.data()});
  }

  Call& call_;
  std::deque<Memory> memory_;
  std::deque<XLA_FFI_Buffer> buffers_;  // of arguments, then of results
  std::vector<void*> pointers_, scalar_pointers_;
  std::vector<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_Scalar> scalars_;
  std::vector<XLA_FFI_ArgType> argument_types_;
  std::vector<XLA_FFI_RetType> result_types_;
  std::vector<XLA_FFI_AttrType> attribute_types_;
  XLA_FFI_CallFrame frame_{};
};

int repeat_all(void* library, int count, char** files) {
  const XLA_FFI_Api xla = api();
  XLA_FFI_ExecutionContext context;
  context.flush_denormals();
  std::map<std::string, int> computed;
  bool same = true;
  for (int i = 0; i < count; ++i) {
    std::ifstream file(files[i], std::ios::binary);
    Call call;
    Archive<std::ifstream>{file}(call);
    void* function = file ? dlsym(library, call.function.c_str()) : nullptr;
    if (function == nullptr) {
      std::printf("%s: no function %s, or the file is not whole\n", files[i], call.function.c_str());
      same = false;
      continue;
    }
    same &= Frame(call, xla, context).repeats(reinterpret_cast<XLA_FFI_Handler*>(function), files[i]);
    ++computed[call.function];
  }
  for (const auto& [function, calls] : computed) std::printf("%s %d\n", function.c_str(), calls);
  return same ? 0 : 1;
}

}  // namespace
}  // namespace mis::recorded

int main(int count, char** arguments) {
  void* library = dlopen(count > 1 ? arguments[1] : "", RTLD_NOW);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 2;
  }
  return mis::recorded::repeat_all(library, count - 2, arguments + 2);
}
