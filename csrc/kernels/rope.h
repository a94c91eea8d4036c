// Rotary embedding: the frequencies, and tables of cos and sin built once.
#pragma once

#include <cstdint>
#include <vector>

namespace chairlift {

class Context;

enum class RopeScaling : int { None, Linear, Llama3 };

struct RopeSpec {
  int64_t head_dim = 0;
  double base = 10000;
  int64_t max_positions = 0;
  RopeScaling scaling = RopeScaling::None;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_max_positions = 8192;
  std::vector<double> freq_divisors;  // [head_dim / 2], or empty
};

struct RopeTables {
  // Throws std::invalid_argument for a spec out of range.
  RopeTables(Context&, const RopeSpec&);

  int64_t max_positions, half;
  std::vector<float> cos, sin;  // [max_positions, half]
};

}  // namespace chairlift
