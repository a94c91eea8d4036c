#include "runtime/aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace chairlift {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// Rounding a buffer of a few huge pages up to whole ones wastes too much.
constexpr size_t kLarge = 8 * kHugePage;
// Of a block's end only the huge page that was begun takes memory.
constexpr size_t kBlock = 16 * kHugePage;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Memory that nobody has touched yet.
std::shared_ptr<uint8_t> allocate_raw(size_t bytes) {
  const size_t alignment = bytes >= kLarge ? kHugePage : kAlignment;
  const size_t rounded = round_up(bytes == 0 ? 1 : bytes, alignment);
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(alignment, rounded));
  if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
#endif
  return std::shared_ptr<uint8_t>(data, std::free);
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : data_(allocate_raw(bytes)), size_(bytes) {
  std::memset(data_.get(), 0, bytes);
}

AlignedBuffer BufferArena::allocate(size_t bytes) {
  const size_t rounded = round_up(bytes, kAlignment);
  if (rounded >= kLarge) return AlignedBuffer(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (block_ == nullptr || rounded > kBlock - used_) {
    block_ = allocate_raw(kBlock);
    used_ = 0;
  }
  std::shared_ptr<uint8_t> data(block_, block_.get() + used_);  // shares the block's count
  used_ += rounded;
  std::memset(data.get(), 0, bytes);
  return AlignedBuffer(std::move(data), bytes);
}

}  // namespace chairlift
