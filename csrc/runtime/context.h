// What every op is called with: the thread pool, the kernels and the weights' memory of one engine. Several may live in
// one process.
#pragma once

#include <string>

#include "arch/kernel_table.h"
#include "runtime/aligned_buffer.h"
#include "runtime/thread_pool.h"

namespace chairlift {

class Context {
 public:
  // isa: "auto" (the best this processor has) or one of isas() in runtime/isas.h. Throws std::invalid_argument for an
  // unknown or unavailable one and for num_threads < 1.
  Context(int num_threads, const std::string& isa);

  ThreadPool& pool() { return pool_; }
  const KernelTable& kernels() const { return kernels_; }
  BufferArena& weights() { return weights_; }
  int num_threads() const { return pool_.num_threads(); }

 private:
  KernelTable kernels_;
  ThreadPool pool_;
  BufferArena weights_;
};

}  // namespace chairlift
