// A weight as Python hands it over, checked once and then borrowed.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings/checks.h"
#include "kernels/packed_weight.h"

namespace chairlift {

using PartBytes = nanobind::ndarray<const uint8_t, nanobind::ndim<2>, nanobind::device::cpu>;
using Part = std::tuple<TensorType, int64_t, PartBytes>;  // type, values in a row, [out, row_bytes]

// Throws std::invalid_argument when a row is not as long as its type and number of values say.
inline TensorView tensor_view(const Part& part) {
  const auto& [type, in, data] = part;
  const int64_t expected = row_bytes(type, in);
  const auto columns = static_cast<int64_t>(data.shape(1));
  require(columns == expected && (columns <= 1 || data.stride(1) == 1), "a row of ", in, " values takes ", expected,
          " adjacent bytes, got ", columns, " with stride ", data.stride(1));
  require(data.shape(0) > 0, "a linear weight needs at least one output");
  return {type, static_cast<int64_t>(data.shape(0)), in, data.data(), data.stride(0)};
}

}  // namespace chairlift
