#include "runtime/context.h"

#include <stdexcept>

#include "runtime/isas.h"

namespace chairlift {
namespace {

constexpr int kMaxThreads = 1024;

int checked_threads(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + "; it must be between 1 and " +
                                std::to_string(kMaxThreads));
  }
  return num_threads;
}

}  // namespace

Context::Context(int num_threads, const std::string& isa)
    : kernels_(kernel_table(isa)), pool_(checked_threads(num_threads)) {}

}  // namespace chairlift
