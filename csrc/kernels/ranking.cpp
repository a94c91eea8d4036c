#include "kernels/ranking.h"

#include <algorithm>

namespace chairlift {
namespace {

uint64_t fixed(float weight) { return static_cast<uint64_t>(weight); }

}  // namespace

void Ranking::reset(const float* logits, const float* weights, int64_t n, float max) {
  logits_ = logits;
  weights_ = weights;
  n_ = n;
  max_ = max;
  sorted_ = -1;
  last_ = kBuckets - 1;
  std::fill(count_, count_ + kBuckets, 0);
  std::fill(weight_, weight_ + kBuckets, 0);
  for (int64_t i = 0; i < n; ++i) {
    if (weights[i] < 1.0f) continue;  // hence a logit within 28 of the largest: bucket 223 at most
    const int bucket = bucket_of(logits[i]);
    ++count_[bucket];
    weight_[bucket] += fixed(weights[i]);
  }
}

void Ranking::sort_bucket(int bucket) {
  if (sorted_ == bucket) return;
  sorted_ = bucket;
  tokens_.clear();
  for (int64_t i = 0; i < n_; ++i) {
    if (weights_[i] >= 1.0f && bucket_of(logits_[i]) == bucket) tokens_.push_back(ranking_key(logits_[i], i));
  }
  std::sort(tokens_.begin(), tokens_.end());
}

void Ranking::cut(int bucket, int64_t count) {
  last_ = bucket;
  count_[bucket] = count;
  weight_[bucket] = 0;
  for (int64_t i = 0; i < count; ++i) {
    weight_[bucket] += fixed(weights_[ranking_id(tokens_[static_cast<size_t>(i)])]);
  }
}

uint64_t Ranking::sum() const {
  uint64_t total = 0;
  for (int bucket = 0; bucket <= last_; ++bucket) total += weight_[bucket];
  return total;
}

void Ranking::keep_top_k(int64_t k) {
  for (int bucket = 0; bucket <= last_; ++bucket) {
    if (count_[bucket] >= k) {
      sort_bucket(bucket);
      return cut(bucket, k);
    }
    k -= count_[bucket];
  }
}

void Ranking::keep_top_p(double p) {
  const double product = p * static_cast<double>(sum());
  uint64_t needed = static_cast<uint64_t>(product);
  needed += static_cast<double>(needed) < product;  // rounded up
  needed = std::max<uint64_t>(needed, 1);
  for (int bucket = 0; bucket <= last_; ++bucket) {
    if (weight_[bucket] < needed) {
      needed -= weight_[bucket];
      continue;
    }
    sort_bucket(bucket);
    int64_t count = 0;
    for (uint64_t reached = 0; reached < needed; ++count) {
      reached += fixed(weights_[ranking_id(tokens_[static_cast<size_t>(count)])]);
    }
    return cut(bucket, count);
  }
}

void Ranking::keep_min_weight(float weight) {
  int bucket = last_ + 1;  // the first that holds a token below
  for (int64_t i = 0; i < n_; ++i) {
    if (weights_[i] >= 1.0f && weights_[i] < weight) bucket = std::min(bucket, bucket_of(logits_[i]));
  }
  if (bucket > last_) return;
  sort_bucket(bucket);
  int64_t count = 0;
  while (count < count_[bucket] && weights_[ranking_id(tokens_[static_cast<size_t>(count)])] >= weight) ++count;
  cut(bucket, count);
}

int32_t Ranking::draw(uint64_t random) {
  auto target = static_cast<uint64_t>((static_cast<unsigned __int128>(random) * sum()) >> 64);
  int bucket = 0;
  while (target >= weight_[bucket]) target -= weight_[bucket++];
  sort_bucket(bucket);
  for (const uint64_t key : tokens_) {
    const uint64_t weight = fixed(weights_[ranking_id(key)]);
    if (target < weight) return ranking_id(key);
    target -= weight;
  }
  return ranking_id(tokens_.back());  // not reached: the bucket's weight exceeds the target
}

}  // namespace chairlift
