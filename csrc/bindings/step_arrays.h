// A step's arrays as they come from Python: checked once, then borrowed by every op.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/checks.h"
#include "chairlift/ops.h"
#include "kernels/sampling.h"

namespace chairlift {

using HostArray = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;

// Attributes of a Python object as arrays of a dtype and a shape; keeps them alive.
class ArrayReader {
 public:
  explicit ArrayReader(nanobind::handle source) : source_(source) {}

  // Throws std::invalid_argument naming the attribute. count < 0: any length.
  template <typename T>
  const T* read(const char* name, int64_t count, int64_t* count_out = nullptr) {
    const HostArray& array = load(name, nanobind::dtype<T>(), 1);
    const auto length = static_cast<int64_t>(array.shape(0));
    require(count < 0 || length == count, name, " has ", length, " entries, not ", count);
    if (count_out != nullptr) *count_out = length;
    return static_cast<const T*>(array.data());
  }

  const int32_t* read_matrix(const char* name, int64_t rows, int64_t* columns);

  std::vector<HostArray> take() { return std::move(arrays_); }

 private:
  const HostArray& load(const char* name, nanobind::dlpack::dtype dtype, size_t dimensions);

  nanobind::handle source_;
  std::vector<HostArray> arrays_;
};

// A RaggedBatch, checked against its own rules.
class Batch {
 public:
  Batch(nanobind::handle ragged, int64_t max_num_tokens, int64_t max_num_logits);

  BatchView view;

 private:
  void check_requests() const;
  void check_logits_indices() const;

  std::vector<HostArray> arrays_;
};

// A SampleBatch, checked for `num_logits` rows of `vocab` logits. `arrays` keeps the memory alive.
SampleView read_sample_batch(nanobind::handle request, int64_t num_logits, int64_t vocab,
                             std::vector<HostArray>& arrays);

}  // namespace chairlift
