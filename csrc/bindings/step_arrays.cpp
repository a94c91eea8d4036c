#include "bindings/step_arrays.h"

#include <algorithm>

namespace nb = nanobind;

namespace chairlift {
namespace {

// Largest of the values and `low`, which none may be below.
template <typename T>
T checked_max(const char* name, const T* values, int64_t n, int64_t low) {
  T min = static_cast<T>(low), max = static_cast<T>(low);
  for (int64_t i = 0; i < n; ++i) {
    min = std::min(min, values[i]);
    max = std::max(max, values[i]);
  }
  require(min >= low, name, " has ", min, ", less than ", low);
  return max;
}

void check_range(const char* name, const int32_t* values, int64_t n, int64_t low, int64_t limit) {
  const int64_t max = checked_max(name, values, n, low);
  require(n == 0 || max < limit, name, " has ", max, "; the limit is ", limit - 1);
}

void check_floats(const char* name, const float* values, int64_t n, float low, float high) {
  for (int64_t i = 0; i < n; ++i) {
    require(values[i] >= low && values[i] <= high, name, "[", i, "] is ", values[i], ", outside [", low, ", ", high,
            "]");
  }
}

void check_csr(const char* name, const int32_t* start, int64_t n, int64_t total) {
  bool rising = start[0] == 0 && start[n] == total;
  for (int64_t i = 0; i < n; ++i) rising = rising && start[i] <= start[i + 1];
  require(rising, name, " must rise from 0 to ", total, " in ", n + 1, " entries");
}

}  // namespace

const HostArray& ArrayReader::load(const char* name, nb::dlpack::dtype dtype, size_t dimensions) {
  HostArray array;
  if (!nb::try_cast(source_.attr(name), array, false) || array.dtype() != dtype || array.ndim() != dimensions) {
    refuse(name, " must be a C-contiguous array with ", dimensions, " dimension(s) and the documented dtype");
  }
  arrays_.push_back(std::move(array));
  return arrays_.back();
}

const int32_t* ArrayReader::read_matrix(const char* name, int64_t rows, int64_t* columns) {
  const HostArray& array = load(name, nb::dtype<int32_t>(), 2);
  const auto length = static_cast<int64_t>(array.shape(0));
  require(length == rows, name, " has ", length, " rows, not ", rows);
  *columns = static_cast<int64_t>(array.shape(1));
  return static_cast<const int32_t*>(array.data());
}

Batch::Batch(nb::handle ragged, int64_t max_num_tokens, int64_t max_num_logits) {
  ArrayReader reader(ragged);
  view.input_ids = reader.read<int32_t>("input_ids", -1, &view.num_tokens);
  view.positions = reader.read<int32_t>("positions", view.num_tokens);
  view.slot_mapping = reader.read<int64_t>("slot_mapping", view.num_tokens);
  view.seq_lens = reader.read<int32_t>("seq_lens", -1, &view.num_reqs);
  view.query_start_loc = reader.read<int32_t>("query_start_loc", view.num_reqs + 1);
  view.block_tables = reader.read_matrix("block_tables", view.num_reqs, &view.max_blocks);
  view.logits_indices = reader.read<int32_t>("logits_indices", -1, &view.num_logits);
  arrays_ = reader.take();
  require(view.num_tokens <= max_num_tokens, "the step has ", view.num_tokens,
          " tokens, more than the arena was sized for: ", max_num_tokens, " (max_num_batched_tokens)");
  require(view.num_logits <= max_num_logits, "the step has ", view.num_logits,
          " rows of logits, more than the arena was sized for: ", max_num_logits);
  check_requests();
  check_logits_indices();
  view.max_input_id = checked_max("input_ids", view.input_ids, view.num_tokens, 0);
  view.max_slot = checked_max("slot_mapping", view.slot_mapping, view.num_tokens, 0);
  view.max_seq_len = checked_max("seq_lens", view.seq_lens, view.num_reqs, 0);
  view.max_block_id = checked_max("block_tables", view.block_tables, view.num_reqs * view.max_blocks, 0);
}

// Rows of a request are adjacent, at consecutive positions that end at its length.
void Batch::check_requests() const {
  const int32_t* start = view.query_start_loc;
  check_csr("query_start_loc", start, view.num_reqs, view.num_tokens);
  for (int64_t i = 0; i < view.num_reqs; ++i) {
    const int64_t first = int64_t{view.seq_lens[i]} - (start[i + 1] - start[i]);
    require(start[i + 1] > start[i], "query_start_loc gives request ", i, " no row");
    require(first >= 0, "seq_lens[", i, "] is ", view.seq_lens[i], ", less than the request's rows");
    for (int64_t row = start[i]; row < start[i + 1]; ++row) {
      require(view.positions[row] == first + row - start[i], "positions[", row, "] is ", view.positions[row],
              "; positions of a request must be consecutive and end at seq_lens - 1");
    }
  }
}

void Batch::check_logits_indices() const {
  int64_t previous = -1;
  for (int64_t i = 0; i < view.num_logits; ++i) {
    const int64_t row = view.logits_indices[i];
    require(row > previous && row < view.num_tokens, "logits_indices[", i, "] is ", row,
            "; they must ascend, below ", view.num_tokens);
    previous = row;
  }
}

SampleView read_sample_batch(nb::handle request, int64_t num_logits, int64_t vocab, std::vector<HostArray>& arrays) {
  constexpr float kLargest = 3e38f, kSmallest = 1e-6f;
  ArrayReader reader(request);
  SampleView view;
  int64_t bias_total = 0, history_total = 0;
  view.rows = reader.read<int32_t>("rows", -1, &view.n);
  const int64_t n = view.n;
  auto ints = [&](const char* name) { return reader.read<int32_t>(name, n); };
  auto floats = [&](const char* name, float low, float high) {
    const float* values = reader.read<float>(name, n);
    check_floats(name, values, n, low, high);
    return values;
  };
  view.target = ints("target");
  view.top_k = ints("top_k");
  view.num_logprobs = ints("num_logprobs");
  view.history_prompt_len = ints("history_prompt_len");
  view.temperature = floats("temperature", 0, kLargest);
  view.top_p = floats("top_p", 0, 1);
  view.min_p = floats("min_p", 0, 1);
  view.repetition_penalty = floats("repetition_penalty", kSmallest, kLargest);
  view.presence_penalty = floats("presence_penalty", -kLargest, kLargest);
  view.frequency_penalty = floats("frequency_penalty", -kLargest, kLargest);
  view.seed = reader.read<uint64_t>("seed", n);
  view.branch = reader.read<uint32_t>("branch", n);
  view.position = reader.read<uint32_t>("position", n);
  view.bias_start = reader.read<int32_t>("bias_start", n + 1);
  view.bias_ids = reader.read<int32_t>("bias_ids", -1, &bias_total);
  view.bias_values = reader.read<float>("bias_values", bias_total);
  view.history_start = reader.read<int32_t>("history_start", n + 1);
  view.history_ids = reader.read<int32_t>("history_ids", -1, &history_total);
  arrays = reader.take();
  check_range("rows", view.rows, n, 0, num_logits);
  check_range("target", view.target, n, -1, vocab);
  check_range("bias_ids", view.bias_ids, bias_total, 0, vocab);
  check_range("history_ids", view.history_ids, history_total, 0, vocab);
  check_csr("bias_start", view.bias_start, n, bias_total);
  check_csr("history_start", view.history_start, n, history_total);
  return view;
}

}  // namespace chairlift
