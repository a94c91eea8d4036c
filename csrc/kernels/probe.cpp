#include "kernels/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>

#include "runtime/aligned_buffer.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr int64_t kIterations = 10000;
constexpr int64_t kBlockFloats = 1 << 14;

}  // namespace

double probe_fma_peak(Context& context, double seconds) {
  const auto fma_peak = context.kernels().probe.fma_peak;
  const auto start = std::chrono::steady_clock::now();
  double best = 0.0;
  do {  // short bursts: the best one was not interrupted
    std::atomic<int64_t> fmas{0};
    const auto burst_start = std::chrono::steady_clock::now();
    context.pool().parallel_for(int64_t{4} * context.num_threads(), [&](int64_t) {
      float sink = 0.0f;
      fmas += fma_peak(kIterations, &sink);
      volatile float kept = sink;
      static_cast<void>(kept);
    });
    best = std::max(best, static_cast<double>(fmas.load()) / seconds_since(burst_start));
  } while (seconds_since(start) < seconds);
  return best;
}

double probe_stream(Context& context, int64_t bytes, int passes) {
  if (bytes < 0) throw std::invalid_argument("bytes must not be negative");
  const AlignedBuffer buffer(static_cast<size_t>(bytes));
  const float* data = reinterpret_cast<const float*>(buffer.data());
  const int64_t num_blocks = std::max<int64_t>(1, bytes / 4 / kBlockFloats);
  const int64_t block = std::min(kBlockFloats, bytes / 4);
  const auto stream = context.kernels().probe.stream;
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    context.pool().parallel_for(num_blocks, [&](int64_t b) {
      volatile float kept = stream(data + b * block, block);
      static_cast<void>(kept);
    });
    best = std::max(best, static_cast<double>(num_blocks * block * 4) / seconds_since(start));
  }
  return best;
}

}  // namespace chairlift
