// One row's tokens in the order (logit descending, id ascending), looked at only as far down as somebody asks.
//
// Only the head of the order (what lies within 8 of the largest logit) is gathered at first; of the rest the total
// weight is enough, until a cut or a draw falls there and more is gathered. Gathered tokens lie in buckets of 1/8 in
// logit, whose counts and weights are known, and only the few buckets that hold a cut or the drawn token are ever
// sorted. Weights are integers, so none of this can change a result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/step_kernels.h"

namespace chairlift {

// A sortable number: ascending keys are the order of tokens, NaN last like -inf. The id is in the low half.
inline uint64_t ranking_key(float logit, int64_t id) {
  const float canonical = logit == logit ? logit + 0.0f : -__builtin_inff();  // -0 becomes 0
  uint32_t bits;
  __builtin_memcpy(&bits, &canonical, sizeof(bits));
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | static_cast<uint32_t>(id);
}

inline int32_t ranking_id(uint64_t key) { return static_cast<int32_t>(key); }

class Ranking {
 public:
  // logits: [n], none above `max`, which is finite; weights: [n], exp(logit - max) * 2^40. Both are borrowed.
  // total: sum of the truncated weights. Tokens whose integer weight is 0 can't be drawn and are left out.
  void reset(const SamplingKernels&, const float* logits, const float* weights, int64_t n, float max, uint64_t total);

  void keep_top_k(int64_t k);
  void keep_top_p(double p);
  void keep_min_weight(float weight);  // at most 2^40

  // The token at which the cumulative weight first exceeds floor(random * sum / 2^64).
  int32_t draw(uint64_t random);

 private:
  static constexpr int kBuckets = 256;

  int bucket_of(float logit) const { return std::min(static_cast<int>((max_ - logit) * 8.0f), kBuckets - 1); }
  uint64_t weight_of(int32_t id) const { return static_cast<uint64_t>(static_cast<int64_t>(weights_[id])); }
  uint64_t weight_at(int64_t i) const { return weight_of(ranking_id(sorted_[static_cast<size_t>(i)])); }

  void gather();
  bool gather_more();  // false: nothing is left to gather
  void sort_bucket(int bucket);
  void cut(int bucket, int64_t count);  // keep all before `bucket` and its first `count` tokens
  int find_weight(uint64_t* target);    // bucket that holds it; the target becomes relative to that bucket
  int first_below(float weight) const;  // first bucket with a token of a smaller weight, or kBuckets

  const SamplingKernels* kernels_ = nullptr;
  const float* logits_ = nullptr;
  const float* weights_ = nullptr;
  int64_t n_ = 0;
  float max_ = 0;
  size_t stage_ = 0;  // how deep tokens are gathered
  uint64_t sum_ = 0;  // weight of what is kept
  int last_ = 0;      // last bucket that holds kept tokens; count_ and weight_ say what is kept of it
  int64_t count_[kBuckets] = {};
  uint64_t weight_[kBuckets] = {};
  std::vector<int32_t> ids_;  // [>= n]; the first num_ids_ are gathered, ascending
  int64_t num_ids_ = 0;
  int sorted_bucket_ = -1;
  std::vector<uint64_t> sorted_;  // keys of that bucket, in order
};

}  // namespace chairlift
