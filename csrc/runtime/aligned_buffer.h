// Zeroed memory aligned for every vector width; big buffers ask for huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace chairlift {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);  // throws std::bad_alloc

  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(uint8_t* data) const;
  };
  std::unique_ptr<uint8_t[], Free> data_;
  size_t size_ = 0;
};

}  // namespace chairlift
