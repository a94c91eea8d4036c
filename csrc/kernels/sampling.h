// Sampling: one entry of a step's SampleBatch at a time, each a pure function of its logits row and parameters.
//
// Order: bias and bans, penalties, temperature, top-k, top-p, min-p, draw.
//   * An entry's weights are exp(logit - largest) as f32, times 2^40, truncated to integers. From there on everything
//     is exact integer arithmetic, so the result doesn't depend on the order in which sums are made.
//   * Tokens are ordered by (logit descending, id ascending). top-k keeps the first k; top-p the shortest prefix whose
//     weight reaches ceil(top_p * sum) (the product in f64, of what top-k kept); min-p cuts before the first token
//     whose f32 weight is below min_p. At least one token is always kept.
//   * The draw takes the first token whose cumulative weight exceeds floor(random * sum / 2^64), see philox.h.
//   * Temperature 0 takes the highest logit, ties to the lowest id, NaN never; when every token is banned, id 0.
//     So does a temperature so small that dividing by it overflows.
// Logprobs are the log-softmax of the raw logits, summed in f64 over 16 lanes.
#pragma once

#include <cstdint>

namespace chairlift {

class Context;

// Borrowed arrays, all checked; [n] unless said otherwise. Field meanings: ops/interface.py SampleBatch.
struct SampleView {
  int64_t n = 0;
  int64_t max_logprobs = 0;  // columns of top_ids and top_logprobs
  const int32_t *rows = nullptr, *target = nullptr, *top_k = nullptr, *num_logprobs = nullptr;
  const float *temperature = nullptr, *top_p = nullptr, *min_p = nullptr;
  const float *repetition_penalty = nullptr, *presence_penalty = nullptr, *frequency_penalty = nullptr;
  const uint64_t* seed = nullptr;
  const uint32_t *branch = nullptr, *position = nullptr;
  const int32_t *bias_start = nullptr, *history_start = nullptr;  // [n + 1]
  const int32_t* bias_ids = nullptr;                              // [bias_start[n]]
  const float* bias_values = nullptr;                             // [bias_start[n]]
  const int32_t* history_prompt_len = nullptr;
  const int32_t* history_ids = nullptr;  // [history_start[n]]

  int32_t* token_ids = nullptr;
  float* logprobs = nullptr;
  int32_t* ranks = nullptr;
  int32_t* top_ids = nullptr;     // [n, max_logprobs]
  float* top_logprobs = nullptr;  // [n, max_logprobs]
};

// logits: [*, vocab], not changed
void sample(Context&, const float* logits, int64_t vocab, const SampleView&);

}  // namespace chairlift
