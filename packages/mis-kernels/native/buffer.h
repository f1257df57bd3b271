// Memory that a thread keeps from one unit of work to the next.

#pragma once

#include <cstdlib>

namespace mis {

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

}  // namespace mis
