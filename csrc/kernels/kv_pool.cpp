#include "kernels/kv_pool.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace chairlift {
namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr double kMaxBytes = 0x1p46;  // of the 47 bits of address space

void check_positive(const char* name, int64_t value) {
  if (value < 1 || value > INT32_MAX) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", outside [1, 2147483647]");
  }
}

}  // namespace

KVPool::KVPool(int64_t layers, int64_t blocks, int64_t block_tokens, int64_t kv_heads, int64_t dim, KVDtype type)
    : num_layers(layers),
      num_blocks(blocks),
      block_size(block_tokens),
      num_kv_heads(kv_heads),
      head_dim(dim),
      dtype(type) {
  check_positive("num_layers", num_layers);
  check_positive("num_blocks", num_blocks);
  check_positive("num_kv_heads", num_kv_heads);
  check_positive("block_size", block_size);
  if (block_size % kTileTokens != 0) {
    throw std::invalid_argument("block_size is " + std::to_string(block_size) + "; it must be a multiple of 16");
  }
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    throw std::invalid_argument("head_dim is " + std::to_string(head_dim) +
                                "; it must be a multiple of 8, up to 256");
  }
  // Multiplied in floating point first: the exact product of hostile sizes could overflow.
  double bytes = 1;
  for (const int64_t size : {heads(), num_blocks, block_bytes()}) bytes *= static_cast<double>(size);
  if (bytes > kMaxBytes || heads() > INT32_MAX) throw std::bad_alloc();
  void* mapping = mmap(nullptr, total_bytes(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(mapping, total_bytes(), MADV_HUGEPAGE);  // a step walks more pages than the processor keeps translations of
#endif
  data = static_cast<std::byte*>(mapping);
}

KVPool::~KVPool() { munmap(data, total_bytes()); }

void KVPool::copy_block(int64_t from, int64_t to) {
  if (from == to) return;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      std::memcpy(tile(layer, to, head, 0), tile(layer, from, head, 0), static_cast<size_t>(block_bytes()));
    }
  }
}

}  // namespace chairlift
