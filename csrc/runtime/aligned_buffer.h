// Zeroed memory aligned for every vector width; big buffers ask for huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace chairlift {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);  // throws std::bad_alloc
  AlignedBuffer(AlignedBuffer&&) = default;  // not copied: a copy would share the memory
  AlignedBuffer& operator=(AlignedBuffer&&) = default;

  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  friend class BufferArena;
  AlignedBuffer(std::shared_ptr<uint8_t> data, size_t bytes) : data_(std::move(data)), size_(bytes) {}

  std::shared_ptr<uint8_t> data_;
  size_t size_ = 0;
};

// Buffers that lie one behind the other in blocks of huge pages, for the many weights of a model: each alone is too
// small for huge pages, all together they are read once a step and need more address translations than the processor
// keeps. A block lives as long as a buffer in it. Any thread may allocate.
class BufferArena {
 public:
  AlignedBuffer allocate(size_t bytes);  // throws std::bad_alloc

 private:
  std::mutex mutex_;
  std::shared_ptr<uint8_t> block_;
  size_t used_ = 0;  // bytes of the block
};

}  // namespace chairlift
