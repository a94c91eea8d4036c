#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/double_math.h"
#include "kernels/philox.h"
#include "kernels/ranking.h"
#include "kernels/scratch.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

// One entry on its logits row. Reused by a thread for entry after entry, so that memory is.
class Sampler {
 public:
  void run(const SamplingKernels& kernels, const float* logits, int64_t vocab, const SampleView& view, int64_t entry) {
    kernels_ = &kernels;
    vocab_ = vocab;
    view_ = &view;
    entry_ = entry;
    raw_ = logits + view.rows[entry] * vocab;
    const int32_t token = view.target[entry] >= 0 ? view.target[entry] : choose();
    view.token_ids[entry] = token;
    if (view.num_logprobs[entry] >= 0) score(token);
  }

 private:
  int32_t choose() {
    const float* adjusted = has_adjustments() ? adjust() : raw_;
    if (view_->temperature[entry_] <= 0) return highest(adjusted);
    float* scaled = scaled_.floats(static_cast<size_t>(vocab_));
    const float max = kernels_->divide(adjusted, vocab_, view_->temperature[entry_], scaled);
    if (!std::isfinite(max)) return highest(adjusted);  // every token banned, or a quotient too large for f32
    return draw(scaled, max);
  }

  int32_t draw(const float* scaled, float max) {
    float* weights = weights_.floats(static_cast<size_t>(vocab_));
    const uint64_t total = kernels_->weights(scaled, vocab_, max, weights);
    ranking_.reset(*kernels_, scaled, weights, vocab_, max, total);
    const int32_t top_k = view_->top_k[entry_];
    const float top_p = view_->top_p[entry_], min_p = view_->min_p[entry_];
    if (top_k > 0 && top_k < vocab_) ranking_.keep_top_k(top_k);
    if (top_p < 1) ranking_.keep_top_p(static_cast<double>(top_p));
    if (min_p > 0) ranking_.keep_min_weight(min_p * kFixedOne);
    return ranking_.draw(philox_u64(view_->seed[entry_], view_->branch[entry_], view_->position[entry_]));
  }

  // Highest logit, ties to the lowest id; id 0 when there is nothing but -inf and NaN.
  int32_t highest(const float* logits) const {
    const int64_t id = kernels_->find(logits, vocab_, kernels_->max(logits, vocab_));
    return id < vocab_ ? static_cast<int32_t>(id) : 0;
  }

  bool has_adjustments() const {
    return view_->bias_start[entry_ + 1] > view_->bias_start[entry_] ||
           view_->history_start[entry_ + 1] > view_->history_start[entry_];
  }

  // The row after bias, bans and penalties; a copy.
  const float* adjust() {
    float* logits = adjusted_.floats(static_cast<size_t>(vocab_));
    std::memcpy(logits, raw_, static_cast<size_t>(vocab_) * sizeof(float));
    for (int32_t i = view_->bias_start[entry_]; i < view_->bias_start[entry_ + 1]; ++i) {
      logits[view_->bias_ids[i]] += view_->bias_values[i];
    }
    penalize(logits);
    return logits;
  }

  // Repetition: on every distinct token of the history. Presence and frequency: on the output part of it.
  void penalize(float* logits) {
    const int32_t* history = view_->history_ids + view_->history_start[entry_];
    const int64_t length = view_->history_start[entry_ + 1] - view_->history_start[entry_];
    if (length == 0) return;
    counts_.resize(static_cast<size_t>(vocab_), kUnseen);
    distinct_.clear();
    for (int64_t i = 0; i < length; ++i) {
      int32_t& count = counts_[static_cast<size_t>(history[i])];
      if (count == kUnseen) {
        count = 0;
        distinct_.push_back(history[i]);
      }
      if (i >= view_->history_prompt_len[entry_]) ++count;
    }
    for (const int32_t id : distinct_) {
      int32_t& count = counts_[static_cast<size_t>(id)];
      logits[id] = penalized(logits[id], count);
      count = kUnseen;
    }
  }

  float penalized(float logit, int32_t count) const {
    const float repetition = view_->repetition_penalty[entry_];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count == 0) return logit;
    logit -= view_->frequency_penalty[entry_] * static_cast<float>(count);
    return logit - view_->presence_penalty[entry_];
  }

  void score(int32_t token) {
    const float max = kernels_->max(raw_, vocab_);
    const double log_sum = log_f64(kernels_->sum_exp(raw_, vocab_, max));
    auto logprob = [&](int32_t id) {
      return static_cast<float>(static_cast<double>(raw_[id]) - static_cast<double>(max) - log_sum);
    };
    view_->logprobs[entry_] = logprob(token);
    view_->ranks[entry_] = static_cast<int32_t>(1 + kernels_->count_ahead(raw_, vocab_, token));
    find_best(std::min<int64_t>(view_->num_logprobs[entry_], vocab_), max);
    for (size_t i = 0; i < best_.size(); ++i) {
      const size_t at = static_cast<size_t>(entry_ * view_->max_logprobs) + i;
      view_->top_ids[at] = ranking_id(best_[i]);
      view_->top_logprobs[at] = logprob(ranking_id(best_[i]));
    }
  }

  // best_ = keys of the first `count` tokens in order, looked for ever further below the largest logit.
  void find_best(int64_t count, float max) {
    candidates_.resize(static_cast<size_t>(vocab_));
    int64_t found = 0;
    for (const float depth : {6.0f, 20.0f}) {
      if (found < count) found = kernels_->at_least(raw_, vocab_, max - depth, candidates_.data());
    }
    if (found < count) {
      found = vocab_;
      std::iota(candidates_.begin(), candidates_.end(), 0);
    }
    best_.clear();
    for (int64_t i = 0; i < found; ++i) {
      const int32_t id = candidates_[static_cast<size_t>(i)];
      best_.push_back(ranking_key(raw_[id], id));
    }
    std::partial_sort(best_.begin(), best_.begin() + count, best_.end());
    best_.resize(static_cast<size_t>(count));
  }

  static constexpr int32_t kUnseen = -1;

  const SamplingKernels* kernels_ = nullptr;
  const SampleView* view_ = nullptr;
  const float* raw_ = nullptr;  // [vocab]
  int64_t vocab_ = 0;
  int64_t entry_ = 0;
  Scratch adjusted_, scaled_, weights_;  // [vocab] each
  std::vector<int32_t> candidates_;
  std::vector<int32_t> counts_;    // [vocab] occurrences in the output; kUnseen between entries
  std::vector<int32_t> distinct_;  // ids with a count
  std::vector<uint64_t> best_;
  Ranking ranking_;
};

}  // namespace

void sample(Context& context, const float* logits, int64_t vocab, const SampleView& view) {
  const SamplingKernels& kernels = context.kernels().step.sampling;
  context.pool().parallel_for(view.n, [&](int64_t entry) {
    static thread_local Sampler sampler;
    sampler.run(kernels, logits, vocab, view, entry);
  });
}

}  // namespace chairlift
