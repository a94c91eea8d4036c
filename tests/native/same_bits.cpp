// Compares the linear kernels of instruction sets with the generic ones, bit by bit, through the public ops:
//   same_bits ISA...
// For processors that only an emulator runs, where Python would take too long; the Python tests do the same and more.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "chairlift/ops.h"
#include "kernels/half.h"
#include "kernels/packed_weight.h"
#include "runtime/context.h"

using namespace chairlift;

namespace {

using Random = std::mt19937;

constexpr TensorType kTypes[] = {TensorType::F32,  TensorType::F16,  TensorType::BF16,
                                 TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0};
constexpr ComputeDtype kComputeDtypes[] = {ComputeDtype::F32, ComputeDtype::Int8};
constexpr GateActivation kActivations[] = {GateActivation::Silu, GateActivation::GeluTanh};
constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 30};
constexpr int64_t kIns[] = {32, 224, 416};
constexpr int64_t kOuts[] = {5, 16, 84};

std::vector<float> random_floats(Random& random, int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Every bit pattern of a quantum; scales of ordinary size.
std::vector<uint8_t> random_rows(Random& random, TensorType type, int64_t out, int64_t in) {
  const int64_t bytes = row_bytes(type, in);
  std::vector<uint8_t> rows(static_cast<size_t>(out * bytes));
  const int64_t unit = type == TensorType::F32 ? 4 : type == TensorType::Q4_0 ? 18 : type == TensorType::Q4_1 ? 20
                     : type == TensorType::Q8_0 ? 34 : 2;
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(unit)) {
    const float value = normal(random), other = normal(random);
    const uint16_t halves[2] = {half_from_float(0.1f * value), half_from_float(0.1f * other)};
    for (size_t j = 0; j < static_cast<size_t>(unit); ++j) rows[i + j] = static_cast<uint8_t>(random());
    if (type == TensorType::F32) std::memcpy(&rows[i], &value, 4);
    if (type == TensorType::BF16) {
      const auto top = static_cast<uint16_t>(float_to_bits(value) >> 16);
      std::memcpy(&rows[i], &top, 2);
    }
    if (unit != 4 && type != TensorType::BF16) std::memcpy(&rows[i], halves, type == TensorType::Q4_1 ? 4 : 2);
  }
  return rows;
}

void require_equal(const std::string& what, const std::vector<float>& got, const std::vector<float>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool both_nan = std::isnan(expected[i]) && std::isnan(got[i]);
    if (both_nan || float_to_bits(expected[i]) == float_to_bits(got[i])) continue;
    throw std::runtime_error(what + ": value " + std::to_string(i) + " is " + std::to_string(got[i]) +
                             ", the generic kernel gives " + std::to_string(expected[i]));
  }
}

// The same op on every context.
struct Comparison {
  Context generic{1, "generic"};
  std::vector<std::unique_ptr<Context>> others;
  int64_t num_compared = 0;

  template <typename Op>
  void run(const std::string& what, int64_t size, const Op& op) {
    std::vector<float> expected(static_cast<size_t>(size)), got(expected);
    op(generic, expected.data());
    for (const auto& other : others) {
      op(*other, got.data());
      require_equal(other->kernels().isa + (", " + what), got, expected);
    }
    num_compared += size;
  }
};

std::string name_of(TensorType type, ComputeDtype compute, int64_t out, int64_t in, int64_t rows) {
  return "type " + std::to_string(static_cast<int>(type)) + ", compute dtype " +
         std::to_string(static_cast<int>(compute)) + ", [" + std::to_string(out) + ", " + std::to_string(in) +
         "], rows " + std::to_string(rows);
}

void compare_shape(Comparison& comparison, Random& random, TensorType type, ComputeDtype compute, int64_t out,
                   int64_t in) {
  const std::vector<uint8_t> weights[2] = {random_rows(random, type, out, in), random_rows(random, type, out, in)};
  TensorView views[2];
  for (int i = 0; i < 2; ++i) views[i] = {type, out, in, weights[i].data(), row_bytes(type, in)};
  const PackedWeight w = pack_linear(comparison.generic, {views[0]}, compute);
  const PackedWeight gated = pack_gated_linear(comparison.generic, views[0], views[1], compute);
  for (int64_t rows : kRows) {
    const std::vector<float> x = random_floats(random, rows * in);
    const std::string name = name_of(type, compute, out, in, rows);
    comparison.run("linear, " + name, rows * out,
                   [&](Context& context, float* y) { linear(context, x.data(), rows, w, y, false); });
    for (GateActivation activation : kActivations) {
      comparison.run("gated_linear, " + name, rows * out, [&](Context& context, float* y) {
        gated_linear(context, x.data(), rows, gated, activation, y);
      });
    }
  }
}

// Gates of every size, infinities and NaN: the exponential's range.
void compare_gates(Comparison& comparison) {
  std::vector<float> gate, up(4096, 1.0f);
  for (int i = 0; i < 4096; ++i) gate.push_back(static_cast<float>(i - 2048) / 16.0f);
  gate[0] = INFINITY, gate[1] = -INFINITY, gate[2] = NAN, gate[3] = 1e-40f;
  for (int activation = 0; activation < 2; ++activation) {
    comparison.run("gate", 4096, [&](Context& context, float* y) {
      context.kernels().linear.gate[activation](gate.data(), up.data(), 4096, y);
    });
  }
}

void compare_all(Comparison& comparison) {
  Random random(1);
  compare_gates(comparison);
  for (TensorType type : kTypes) {
    for (ComputeDtype compute : kComputeDtypes) {
      if (compute == ComputeDtype::Int8 && type <= TensorType::BF16) continue;  // stays floats
      for (int64_t out : kOuts) {
        for (int64_t in : kIns) compare_shape(comparison, random, type, compute, out, in);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Comparison comparison;
    for (int i = 1; i < argc; ++i) comparison.others.push_back(std::make_unique<Context>(2, argv[i]));
    compare_all(comparison);
    std::printf("%lld values equal\n", static_cast<long long>(comparison.num_compared));
    for (const auto& other : comparison.others) {
      const LinearKernels& linear = other->kernels().linear;
      std::printf("%s: linear %s, linear int8 %s\n", other->kernels().isa, linear.origin, linear.integer_origin);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
