// One row's tokens in the order (logit descending, id ascending), sorted only where somebody looks.
//
// Tokens fall into buckets of 1/8 in logit below the largest one; a bucket's count and weight are known from one pass,
// and only the few buckets that hold a cut or the drawn token are ever sorted.
#pragma once

#include <cstdint>
#include <vector>

namespace chairlift {

// A sortable number: ascending keys are the order of tokens. The id is in the low half.
inline uint64_t ranking_key(float logit, int64_t id) {
  const float canonical = logit + 0.0f;  // -0 becomes 0
  uint32_t bits;
  __builtin_memcpy(&bits, &canonical, sizeof(bits));
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | static_cast<uint32_t>(id);
}

inline int32_t ranking_id(uint64_t key) { return static_cast<int32_t>(key); }

class Ranking {
 public:
  // logits: [n], none above `max`, which is finite; weights: [n], exp(logit - max) * 2^40. Both are borrowed.
  // Tokens whose integer weight is 0 can't be drawn and are left out.
  void reset(const float* logits, const float* weights, int64_t n, float max);

  void keep_top_k(int64_t k);
  void keep_top_p(double p);
  void keep_min_weight(float weight);  // of exp(logit - max) * 2^40; the largest is 2^40

  // The token at which the cumulative weight first exceeds floor(random * sum / 2^64).
  int32_t draw(uint64_t random);

 private:
  static constexpr int kBuckets = 256;

  int bucket_of(float logit) const { return static_cast<int>((max_ - logit) * 8.0f); }
  void sort_bucket(int bucket);
  void cut(int bucket, int64_t count);  // keep all before `bucket` and its first `count` tokens
  uint64_t sum() const;

  const float* logits_ = nullptr;
  const float* weights_ = nullptr;
  int64_t n_ = 0;
  float max_ = 0;
  int last_ = 0;  // the last bucket that holds kept tokens; count_ and weight_ say what is kept of it
  int64_t count_[kBuckets] = {};
  uint64_t weight_[kBuckets] = {};
  int sorted_ = -1;              // the bucket that tokens_ holds
  std::vector<uint64_t> tokens_;  // keys of that bucket, in order
};

}  // namespace chairlift
