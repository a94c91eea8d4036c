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

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  // Rounding a buffer of a few huge pages up to whole ones wastes too much.
  const size_t alignment = bytes >= 8 * kHugePage ? kHugePage : kAlignment;
  const size_t rounded = round_up(bytes == 0 ? 1 : bytes, kAlignment);
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(alignment, round_up(rounded, alignment))));
  if (!data_) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) madvise(data_.get(), round_up(rounded, alignment), MADV_HUGEPAGE);
#endif
  std::memset(data_.get(), 0, rounded);
}

void AlignedBuffer::Free::operator()(uint8_t* data) const { std::free(data); }

}  // namespace chairlift
