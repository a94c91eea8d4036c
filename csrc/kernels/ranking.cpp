#include "kernels/ranking.h"

#include <algorithm>

namespace chairlift {
namespace {

// How far below the largest logit tokens are gathered, one after the other as needed. A language model has some
// hundred tokens within 8, some thousand within 12; integer weights end at 2^-40, that is 27.7 below.
constexpr float kDepths[] = {8.0f, 12.0f, 30.0f};
constexpr size_t kLastStage = 2;

}  // namespace

void Ranking::reset(const SamplingKernels& kernels, const float* logits, const float* weights, int64_t n, float max,
                    uint64_t total) {
  kernels_ = &kernels;
  logits_ = logits;
  weights_ = weights;
  n_ = n;
  max_ = max;
  sum_ = total;
  stage_ = 0;
  gather();
}

void Ranking::gather() {
  sorted_bucket_ = -1;
  last_ = kBuckets - 1;
  std::fill(count_, count_ + kBuckets, 0);
  std::fill(weight_, weight_ + kBuckets, 0);
  if (static_cast<int64_t>(ids_.size()) < n_) ids_.resize(static_cast<size_t>(n_));
  num_ids_ = kernels_->at_least(logits_, n_, max_ - kDepths[stage_], ids_.data());
  for (int64_t i = 0; i < num_ids_; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    const uint64_t weight = weight_of(id);
    const int bucket = bucket_of(logits_[id]);
    count_[bucket] += weight > 0;
    weight_[bucket] += weight;
  }
}

bool Ranking::gather_more() {
  if (stage_ == kLastStage) return false;
  ++stage_;
  gather();
  return true;
}

void Ranking::sort_bucket(int bucket) {
  if (sorted_bucket_ == bucket) return;
  sorted_bucket_ = bucket;
  sorted_.clear();
  for (int64_t i = 0; i < num_ids_; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    if (bucket_of(logits_[id]) == bucket && weight_of(id) > 0) sorted_.push_back(ranking_key(logits_[id], id));
  }
  std::sort(sorted_.begin(), sorted_.end());
}

void Ranking::cut(int bucket, int64_t count) {
  stage_ = kLastStage;  // whatever was not gathered is not kept
  last_ = bucket;
  count_[bucket] = count;
  weight_[bucket] = 0;
  for (int64_t i = 0; i < count; ++i) weight_[bucket] += weight_at(i);
  sum_ = 0;
  for (int i = 0; i <= bucket; ++i) sum_ += weight_[i];
}

int Ranking::find_weight(uint64_t* target) {
  do {
    uint64_t left = *target;
    for (int bucket = 0; bucket <= last_; left -= weight_[bucket++]) {
      if (left < weight_[bucket]) {
        *target = left;
        return bucket;
      }
    }
  } while (gather_more());
  return 0;  // not reached: targets are below the sum of what is kept
}

void Ranking::keep_top_k(int64_t k) {
  do {
    int64_t left = k;
    for (int bucket = 0; bucket <= last_; left -= count_[bucket++]) {
      if (left > count_[bucket]) continue;
      sort_bucket(bucket);
      return cut(bucket, left);
    }
  } while (gather_more());
}

void Ranking::keep_top_p(double p) {
  const double product = p * static_cast<double>(sum_);
  auto needed = static_cast<uint64_t>(product);
  needed += static_cast<double>(needed) < product;  // rounded up
  uint64_t last = std::max<uint64_t>(needed, 1) - 1;  // the unit of weight that completes what is needed
  const int bucket = find_weight(&last);
  sort_bucket(bucket);
  int64_t count = 1;
  for (uint64_t reached = weight_at(0); reached <= last; ++count) reached += weight_at(count);
  cut(bucket, count);
}

int Ranking::first_below(float weight) const {
  int first = kBuckets;
  for (int64_t i = 0; i < num_ids_; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    if (weights_[id] < weight && weight_of(id) > 0) first = std::min(first, bucket_of(logits_[id]));
  }
  return first;
}

void Ranking::keep_min_weight(float weight) {
  int bucket = first_below(weight);
  while (bucket == kBuckets && gather_more()) bucket = first_below(weight);
  if (bucket > last_) return;
  sort_bucket(bucket);
  int64_t count = 0;
  while (count < count_[bucket] && weights_[ranking_id(sorted_[static_cast<size_t>(count)])] >= weight) ++count;
  cut(bucket, count);
}

int32_t Ranking::draw(uint64_t random) {
  auto target = static_cast<uint64_t>((static_cast<unsigned __int128>(random) * sum_) >> 64);
  sort_bucket(find_weight(&target));
  int64_t i = 0;
  for (; target >= weight_at(i); ++i) target -= weight_at(i);
  return ranking_id(sorted_[static_cast<size_t>(i)]);
}

}  // namespace chairlift
