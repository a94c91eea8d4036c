// Float weights to blocks of 32 with a scale: what `--quantization` does while a model is loaded.
//
// The same bits everywhere: plain IEEE operations in one order (a sum of 32 values is 16 lanes and a tree, as in
// docs/architecture/numerics.md), no libm. ops/quantize.py is the same thing in numpy.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "kernels/packed_weight.h"
#include "kernels/row_loop.h"

namespace chairlift {
namespace {

constexpr int kValues = 32;
constexpr int kLanes = 16;
constexpr float kLargest = 32768.0f;  // of a weight; a minimum fitted to it still is a 16-bit float

// The search of a 4-bit block starts from its range with this much cut off below and above, in turn, and improves
// each start this often.
constexpr float kCuts[] = {0.0f, 0.03f, 0.06f};
constexpr int kRounds = 2;

// A block's values as w = scale * code + min.
struct Fit {
  uint16_t scale = 0, min = 0;  // 16-bit floats
  float error = 0.0f;           // sum of squares
  float codes[kValues] = {};
};

// The largest and the smallest code of a format.
struct Codes {
  float lowest, highest;
};

float sum(const float* values) {
  float lanes[kLanes];
  for (int j = 0; j < 16; ++j) lanes[j] = values[j] + values[j + 16];
  for (int j = 0; j < 8; ++j) lanes[j] += lanes[j + 8];
  for (int j = 0; j < 4; ++j) lanes[j] += lanes[j + 4];
  for (int j = 0; j < 2; ++j) lanes[j] += lanes[j + 2];
  return lanes[0] + lanes[1];
}

float sum_of_products(const float* a, const float* b) {
  float products[kValues];
  for (int i = 0; i < kValues; ++i) products[i] = a[i] * b[i];
  return sum(products);
}

// To nearest, ties to even, for |value| < 2^22: the adder rounds.
float round_small(float value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

// The nearest codes for a scale and minimum, and how far off they are.
Fit fit_codes(const float* x, uint16_t scale, uint16_t min, Codes range) {
  Fit fit;
  fit.scale = scale;
  fit.min = min;
  const float step = float_from_half(scale), low = float_from_half(min);
  const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
  float errors[kValues];
  for (int i = 0; i < kValues; ++i) {
    float code = (x[i] - low) * inverse;
    code = code > range.lowest ? code : range.lowest;
    code = code < range.highest ? code : range.highest;
    fit.codes[i] = round_small(code);
    const float off = x[i] - (step * fit.codes[i] + low);
    errors[i] = off * off;
  }
  fit.error = sum(errors);
  return fit;
}

void keep_better(Fit& best, const Fit& fit) {
  if (fit.error < best.error) best = fit;
}

Fit fit_q8_0(const float* x) {
  constexpr Codes kRange{-127.0f, 127.0f};
  float largest = 0.0f;
  for (int i = 0; i < kValues; ++i) largest = std::max(largest, std::fabs(x[i]));
  const uint16_t scale = half_from_float(largest / 127.0f);
  Fit best = fit_codes(x, scale, 0, kRange);
  // Where the scale was rounded down by much (small ones are subnormal), the largest values are cut off.
  keep_better(best, fit_codes(x, static_cast<uint16_t>(scale + 1), 0, kRange));
  return best;
}

// The scale and minimum with the smallest squared error for given codes, rounded to 16 bits.
Fit least_squares(const float* x, float sum_x, const Fit& fit) {
  const float sum_q = sum(fit.codes), sum_qq = sum_of_products(fit.codes, fit.codes);  // exact
  const float sum_qx = sum_of_products(fit.codes, x);
  const float determinant = kValues * sum_qq - sum_q * sum_q;
  const float scale = determinant > 0.0f ? (kValues * sum_qx - sum_q * sum_x) / determinant : 0.0f;
  const float min = (sum_x - scale * sum_q) / kValues;
  return fit_codes(x, half_from_float(scale), half_from_float(min), {0.0f, 15.0f});
}

Fit fit_q4_1(const float* x) {
  float low = x[0], high = x[0];
  for (int i = 1; i < kValues; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  low += 0.0f;  // of -0 and 0 either may have been found
  const float width = (high + 0.0f) - low, sum_x = sum(x);
  Fit best;
  best.error = INFINITY;
  for (const float below : kCuts) {
    for (const float above : kCuts) {
      const float scale = width * (1.0f - below - above) / 15.0f, min = low + below * width;
      Fit fit = fit_codes(x, half_from_float(scale), half_from_float(min), {0.0f, 15.0f});
      keep_better(best, fit);
      for (int round = 0; round < kRounds; ++round) {
        fit = least_squares(x, sum_x, fit);
        keep_better(best, fit);
      }
    }
  }
  return best;
}

void store_half(uint8_t* bytes, uint16_t half) { std::memcpy(bytes, &half, sizeof(half)); }

void write_q8_0(const float* x, uint8_t* block) {
  const Fit fit = fit_q8_0(x);
  store_half(block, fit.scale);
  for (int i = 0; i < kValues; ++i) block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(fit.codes[i]));
}

void write_q4_1(const float* x, uint8_t* block) {
  const Fit fit = fit_q4_1(x);
  store_half(block, fit.scale);
  store_half(block + 2, fit.min);
  for (int i = 0; i < kLanes; ++i) {
    const auto low = static_cast<int>(fit.codes[i]), high = static_cast<int>(fit.codes[i + kLanes]);
    block[4 + i] = static_cast<uint8_t>(low | high << 4);
  }
}

template <typename T>
T load_at(const uint8_t* row, int64_t index) {
  T value;
  std::memcpy(&value, row + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float load_float(TensorType type, const uint8_t* row, int64_t index) {
  if (type == TensorType::F32) return load_at<float>(row, index);
  const uint16_t bits = load_at<uint16_t>(row, index);
  return type == TensorType::F16 ? float_from_half(bits) : float_from_bfloat(bits);
}

// Returns false for a value that is not finite, or beyond the largest.
bool quantize_row(const TensorView& source, int64_t row, TensorType to, uint8_t* out) {
  const uint8_t* data = source.data + row * source.row_stride;
  const int64_t block_bytes = row_bytes(to, kValues);
  for (int64_t first = 0; first < source.in; first += kValues, out += block_bytes) {
    float x[kValues];
    bool good = true;
    for (int i = 0; i < kValues; ++i) {
      x[i] = load_float(source.type, data, first + i);
      good &= std::fabs(x[i]) <= kLargest;
    }
    if (!good) return false;
    to == TensorType::Q8_0 ? write_q8_0(x, out) : write_q4_1(x, out);
  }
  return true;
}

}  // namespace

void quantize_weight(Context& context, const TensorView& source, TensorType to, uint8_t* out) {
  const bool floats =
      source.type == TensorType::F32 || source.type == TensorType::F16 || source.type == TensorType::BF16;
  if (!floats || (to != TensorType::Q8_0 && to != TensorType::Q4_1)) {
    throw std::invalid_argument("only F32, F16 and BF16 weights are quantised, and only to Q8_0 or Q4_1");
  }
  const int64_t bytes = row_bytes(to, source.in);
  std::vector<uint8_t> bad(static_cast<size_t>(source.out), 0);
  for_each_row(context, source.out, 32 * source.in, [&](int64_t row) {
    bad[static_cast<size_t>(row)] = !quantize_row(source, row, to, out + row * bytes);
  });
  const auto first = std::find(bad.begin(), bad.end(), 1);
  if (first != bad.end()) {
    throw std::invalid_argument("row " + std::to_string(first - bad.begin()) +
                                " has a value that is not finite or beyond 32768 in size");
  }
}

}  // namespace chairlift
