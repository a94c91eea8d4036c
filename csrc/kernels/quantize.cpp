// Float weights to blocks of 32 with a scale: what `--quantization` does while a model is loaded.
//
// The same bits everywhere: plain IEEE operations in one order (a sum of 32 values is 16 lanes and a tree, as in
// docs/architecture/numerics.md), no libm. ops/quantize.py is the same thing in numpy.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/half.h"
#include "kernels/packed_weight.h"
#include "kernels/row_loop.h"

namespace chairlift {
namespace {

constexpr int kValues = 32;  // of a block
constexpr int kAtOnce = 4;   // blocks that are worked on side by side, one in each lane
constexpr int64_t kWorkOfABlock = 1024;  // as floats that a loop over rows touches: it is worth about that many
constexpr float kLargest = 32768.0f;  // of a weight; a minimum fitted to it still is a 16-bit float

// The search of a 4-bit block starts from its range with this much cut off below and above, in turn, and improves
// each start this often.
constexpr float kCuts[] = {0.0f, 0.03f, 0.06f};
constexpr int kRounds = 2;

using Lanes = float __attribute__((vector_size(4 * kAtOnce)));  // one number of each block
using Bits = int32_t __attribute__((vector_size(4 * kAtOnce)));

// Blocks as w = scale * code + min; the numbers are 16-bit floats, widened.
struct Fit {
  Lanes scale, min;
  Lanes error;  // sum of squares
};

// The smallest and the largest code of a format.
struct Codes {
  float lowest, highest;
};
constexpr Codes kCodes8{-127.0f, 127.0f}, kCodes4{0.0f, 15.0f};

// Of value(0) to value(31): 16 partial sums and a tree.
template <typename Value>
Lanes sum(Value value) {
  Lanes lanes[16];
  for (int j = 0; j < 16; ++j) lanes[j] = value(j) + value(j + 16);
  for (int j = 0; j < 8; ++j) lanes[j] += lanes[j + 8];
  for (int j = 0; j < 4; ++j) lanes[j] += lanes[j + 4];
  for (int j = 0; j < 2; ++j) lanes[j] += lanes[j + 2];
  return lanes[0] + lanes[1];
}

// To the nearest 16-bit float, ties to even, for |value| < 65520: as half_from_float does it, without leaving f32.
Lanes round_to_half(Lanes value) {
  const auto bits = reinterpret_cast<Bits>(value);
  const Bits sign = bits & INT32_MIN, magnitude = bits & INT32_MAX;
  const Bits normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
  const Bits subnormal = reinterpret_cast<Bits>((reinterpret_cast<Lanes>(magnitude) + 0.5f) - 0.5f);
  return reinterpret_cast<Lanes>((magnitude < 0x38800000 ? subnormal : normal) | sign);
}

// To the nearest integer, ties to even, for |value| < 2^22: the adder rounds.
Lanes round_small(Lanes value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

// The nearest codes for a scale and minimum, and how far off they are.
Fit fit_codes(const Lanes* x, Lanes scale, Lanes min, Codes range, Lanes* codes) {
  const Lanes zero{}, inverse = scale > zero ? 1.0f / scale : zero;
  const Lanes lowest = zero + range.lowest, highest = zero + range.highest;
  for (int i = 0; i < kValues; ++i) {
    Lanes code = (x[i] - min) * inverse;
    code = code > lowest ? code : lowest;
    code = code < highest ? code : highest;
    codes[i] = round_small(code);
  }
  const auto squared_error = [&](int i) {
    const Lanes off = x[i] - (scale * codes[i] + min);
    return off * off;
  };
  return {scale, min, sum(squared_error)};
}

void keep_better(Fit& best, const Fit& fit) {
  const Bits better = fit.error < best.error;
  best.scale = better ? fit.scale : best.scale;
  best.min = better ? fit.min : best.min;
  best.error = better ? fit.error : best.error;
}

Fit fit_q8_0(const Lanes* x) {
  const Lanes zero{};
  Lanes codes[kValues], largest = zero;
  for (int i = 0; i < kValues; ++i) {
    const Lanes magnitude = x[i] < zero ? -x[i] : x[i];
    largest = largest < magnitude ? magnitude : largest;
  }
  const Lanes scale = round_to_half(largest / 127.0f);
  Fit best = fit_codes(x, scale, zero, kCodes8, codes);
  // Where the scale was rounded down by much (small ones are subnormal), the largest values are cut off.
  Lanes next;
  for (int b = 0; b < kAtOnce; ++b) {
    next[b] = float_from_half(static_cast<uint16_t>(half_from_float(scale[b]) + 1));
  }
  keep_better(best, fit_codes(x, next, zero, kCodes8, codes));
  return best;
}

// The scale and minimum with the smallest squared error for given codes, which become the codes nearest to those.
Fit least_squares(const Lanes* x, Lanes sum_x, Lanes* codes) {
  const Lanes zero{}, sum_q = sum([&](int i) { return codes[i]; });
  const Lanes sum_qq = sum([&](int i) { return codes[i] * codes[i]; });
  const Lanes sum_qx = sum([&](int i) { return codes[i] * x[i]; });
  const Lanes determinant = kValues * sum_qq - sum_q * sum_q;
  const Lanes scale = determinant > zero ? (kValues * sum_qx - sum_q * sum_x) / determinant : zero;
  const Lanes min = (sum_x - scale * sum_q) / kValues;
  return fit_codes(x, round_to_half(scale), round_to_half(min), kCodes4, codes);
}

Fit fit_q4_1(const Lanes* x) {
  Lanes codes[kValues], low = x[0], high = x[0];
  for (int i = 1; i < kValues; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  low += 0.0f;  // of -0 and 0 either may have been found
  const Lanes zero{}, width = (high + 0.0f) - low, sum_x = sum([&](int i) { return x[i]; });
  Fit best{zero, zero, zero + INFINITY};
  for (const float below : kCuts) {
    for (const float above : kCuts) {
      const Lanes scale = width * (1.0f - below - above) / 15.0f, min = low + below * width;
      keep_better(best, fit_codes(x, round_to_half(scale), round_to_half(min), kCodes4, codes));
      for (int round = 0; round < kRounds; ++round) keep_better(best, least_squares(x, sum_x, codes));
    }
  }
  return best;
}

void store_half(uint8_t* bytes, float value) {
  const uint16_t half = half_from_float(value);
  std::memcpy(bytes, &half, sizeof(half));
}

// Writes block b of the four.
void write_q8_0(const Fit& fit, const Lanes* codes, int b, uint8_t* block) {
  store_half(block, fit.scale[b]);
  for (int i = 0; i < kValues; ++i) block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(codes[i][b]));
}

void write_q4_1(const Fit& fit, const Lanes* codes, int b, uint8_t* block) {
  store_half(block, fit.scale[b]);
  store_half(block + 2, fit.min[b]);
  for (int i = 0; i < kValues / 2; ++i) {
    const auto low = static_cast<int>(codes[i][b]), high = static_cast<int>(codes[i + kValues / 2][b]);
    block[4 + i] = static_cast<uint8_t>(low | high << 4);
  }
}

void quantize_blocks(const Lanes* x, int count, TensorType to, uint8_t* out) {
  const bool eight = to == TensorType::Q8_0;
  Lanes codes[kValues];
  const Fit best = eight ? fit_q8_0(x) : fit_q4_1(x);
  fit_codes(x, best.scale, best.min, eight ? kCodes8 : kCodes4, codes);
  const int64_t block_bytes = row_bytes(to, kValues);
  for (int b = 0; b < count; ++b) (eight ? write_q8_0 : write_q4_1)(best, codes, b, out + b * block_bytes);
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

// Block `index` of a tensor, counted along rows, into lane b. Returns false for a value that is not finite, or beyond
// the largest.
bool load_block(const TensorView& source, int64_t index, int b, Lanes* x) {
  const int64_t blocks_in_row = source.in / kValues;
  const uint8_t* row = source.data + index / blocks_in_row * source.row_stride;
  bool good = true;
  for (int i = 0; i < kValues; ++i) {
    x[i][b] = load_float(source.type, row, index % blocks_in_row * kValues + i);
    good &= std::fabs(x[i][b]) <= kLargest;
  }
  return good;
}

// The first `count` of the blocks from `first` on; returns how many could be quantised before one that cannot.
int quantize_some(const TensorView& source, int64_t first, int count, TensorType to, uint8_t* out) {
  Lanes x[kValues] = {};
  for (int b = 0; b < count; ++b) {
    if (!load_block(source, first + b, b, x)) return b;
  }
  quantize_blocks(x, count, to, out + first * row_bytes(to, kValues));
  return count;
}

void lower_to(std::atomic<int64_t>& smallest, int64_t value) {
  int64_t seen = smallest;
  while (value < seen && !smallest.compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

void quantize_weight(Context& context, const TensorView& source, TensorType to, uint8_t* out) {
  const bool floats =
      source.type == TensorType::F32 || source.type == TensorType::F16 || source.type == TensorType::BF16;
  if (!floats || (to != TensorType::Q8_0 && to != TensorType::Q4_1)) {
    throw std::invalid_argument("only F32, F16 and BF16 weights are quantised, and only to Q8_0 or Q4_1");
  }
  row_bytes(to, source.in);  // throws for rows of no whole blocks
  const int64_t blocks_in_row = source.in / kValues, num_blocks = source.out * blocks_in_row;
  std::atomic<int64_t> bad_block{num_blocks};  // the first
  for_each_row(context, (num_blocks + kAtOnce - 1) / kAtOnce, kWorkOfABlock * kAtOnce, [&](int64_t batch) {
    const int64_t first = batch * kAtOnce;
    const int count = static_cast<int>(std::min<int64_t>(kAtOnce, num_blocks - first));
    const int done = quantize_some(source, first, count, to, out);
    if (done < count) lower_to(bad_block, first + done);
  });
  if (bad_block < num_blocks) {
    throw std::invalid_argument("row " + std::to_string(bad_block / blocks_in_row) +
                                " has a value that is not finite or beyond 32768 in size");
  }
}

}  // namespace chairlift
