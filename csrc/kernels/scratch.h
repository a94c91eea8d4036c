// Memory that a thread reuses from call to call, aligned for vectors. It holds nothing between calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace chairlift {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Room for `count` floats; what was there is lost.
  float* floats(size_t count) {
    const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = std::aligned_alloc(64, bytes);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return static_cast<float*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace chairlift
