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

// Most operations a second that bursts of `kernel` reach on all threads.
template <typename Sink>
double best_rate(Context& context, int64_t (*kernel)(int64_t, Sink*), double seconds) {
  const auto start = std::chrono::steady_clock::now();
  double best = 0.0;
  do {  // short bursts: the best one was not interrupted
    std::atomic<int64_t> operations{0};
    const auto burst_start = std::chrono::steady_clock::now();
    context.pool().parallel_for(int64_t{4} * context.num_threads(), [&](int64_t) {
      Sink sink = 0;
      operations += kernel(kIterations, &sink);
      volatile Sink kept = sink;
      static_cast<void>(kept);
    });
    best = std::max(best, static_cast<double>(operations.load()) / seconds_since(burst_start));
  } while (seconds_since(start) < seconds);
  return best;
}

}  // namespace

double probe_fma_peak(Context& context, double seconds) {
  return best_rate(context, context.kernels().probe.fma_peak, seconds);
}

double probe_int8_peak(Context& context, double seconds) {
  return best_rate(context, context.kernels().probe.int8_peak, seconds);
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
