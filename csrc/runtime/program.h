// The operators of a forward pass, recorded once and replayed for any step: what CUDA graphs are on GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "chairlift/ops.h"

namespace chairlift {

// Which rows an activation has: one for each token of the step, or one for each row whose logits are wanted.
enum class Axis : int { Tokens, Logits };

// f32 [max_rows, width] in the arena; a step uses the first rows.
struct Activation {
  Axis axis = Axis::Tokens;
  int64_t max_rows = 0;
  int64_t width = 0;
  float* data = nullptr;

  int64_t rows(const BatchView& batch) const { return axis == Axis::Tokens ? batch.num_tokens : batch.num_logits; }
};

// What an op can't do without in one step. Weights, K and V count once; activations stay in the caches.
struct Work {
  double flops = 0;     // f32, two in a fused multiply-add
  double int8_ops = 0;  // products of 8-bit integers and their additions
  double bytes = 0;
};

// An operator bound to everything but the step. Pointers in it are borrowed: whoever records keeps their owners alive.
struct Op {
  std::string name;  // its kind and shape: ops of one name take the same time
  std::function<void(const BatchView&)> check;  // throws std::invalid_argument for a step it can't take
  std::function<void(Context&, const BatchView&)> run;
  std::function<Work(const BatchView&)> work;
};

struct OpTime {
  double seconds = 0;       // from its call to its return
  double busy_seconds = 0;  // in tiles, added up over the threads
};

class Program {
 public:
  explicit Program(std::vector<Op> ops) : ops_(std::move(ops)) {}

  const std::vector<Op>& ops() const { return ops_; }

  // Runs every op in order. Throws std::invalid_argument, before the first one runs, for a step that one can't take.
  void run(Context&, const BatchView&) const;

  // The same; tells what each op took.
  std::vector<OpTime> profile(Context&, const BatchView&) const;

  // Throws std::invalid_argument for a step that an op can't take.
  void check(const BatchView&) const;

 private:
  std::vector<Op> ops_;
};

}  // namespace chairlift
