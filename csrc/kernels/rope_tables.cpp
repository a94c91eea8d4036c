#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/double_math.h"
#include "kernels/rope.h"
#include "kernels/row_loop.h"

namespace chairlift {
namespace {

constexpr double kTwoPi = 6.28318530717958647693;
constexpr int64_t kMaxPositions = 1 << 20;  // what sin_cos_f64 reduces exactly

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void check(const RopeSpec& spec) {
  require(spec.head_dim >= 8 && spec.head_dim % 8 == 0,
          "head_dim is " + std::to_string(spec.head_dim) + "; it must be a multiple of 8");
  require(spec.max_positions >= 1 && spec.max_positions <= kMaxPositions,
          "max_positions is " + std::to_string(spec.max_positions) + ", outside [1, 1048576]");
  require(std::isfinite(spec.base) && spec.base >= 1,
          "the rope base is " + std::to_string(spec.base) + "; it must be at least 1");
  require(std::isfinite(spec.factor) && spec.factor > 0,
          "the rope scaling factor is " + std::to_string(spec.factor) + "; it must be positive");
  require(spec.scaling != RopeScaling::Llama3 || spec.high_freq_factor > spec.low_freq_factor,
          "high_freq_factor must be larger than low_freq_factor");
  const auto half = static_cast<size_t>(spec.head_dim / 2);
  require(spec.freq_divisors.empty() || spec.freq_divisors.size() == half,
          std::to_string(spec.freq_divisors.size()) + " rope divisors for " + std::to_string(half) + " pairs");
  for (const double divisor : spec.freq_divisors) {
    require(std::isfinite(divisor) && divisor >= 1e-3,
            "a rope divisor is " + std::to_string(divisor) + "; it must be positive");
  }
}

// Llama 3.1: short wavelengths stay, long ones are divided by `factor`, those between are blended.
double llama3(double frequency, const RopeSpec& spec) {
  const double turns = spec.original_max_positions * frequency / kTwoPi;  // over the original context
  double keep = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
  keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
  return keep * frequency + (1 - keep) * frequency / spec.factor;
}

// Radians per position of each pair.
std::vector<double> inverse_frequencies(const RopeSpec& spec) {
  std::vector<double> result(static_cast<size_t>(spec.head_dim / 2));
  const double log_base = log_f64(spec.base);
  for (size_t i = 0; i < result.size(); ++i) {
    double frequency = exp_f64(-2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim) * log_base);
    if (spec.scaling == RopeScaling::Linear) frequency /= spec.factor;
    if (spec.scaling == RopeScaling::Llama3) frequency = llama3(frequency, spec);
    if (!spec.freq_divisors.empty()) frequency /= spec.freq_divisors[i];
    result[i] = frequency;
  }
  return result;
}

}  // namespace

RopeTables::RopeTables(Context& context, const RopeSpec& spec) {
  check(spec);
  max_positions = spec.max_positions;
  half = spec.head_dim / 2;
  const std::vector<double> frequency = inverse_frequencies(spec);
  for (const double f : frequency) {
    require(f * static_cast<double>(max_positions) < static_cast<double>(kMaxPositions),
            "the largest rope angle is out of range: too many positions for these frequencies");
  }
  cos.resize(static_cast<size_t>(max_positions * half));
  sin.resize(cos.size());
  for_each_row(context, max_positions, 16 * half, [&](int64_t position) {
    for (int64_t i = 0; i < half; ++i) {
      const SinCos value = sin_cos_f64(static_cast<double>(position) * frequency[static_cast<size_t>(i)]);
      cos[static_cast<size_t>(position * half + i)] = static_cast<float>(value.cos);
      sin[static_cast<size_t>(position * half + i)] = static_cast<float>(value.sin);
    }
  });
}

}  // namespace chairlift
