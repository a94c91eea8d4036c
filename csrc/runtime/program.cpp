#include "runtime/program.h"

#include <chrono>

#include "runtime/context.h"

namespace chairlift {

void Program::run(Context& context, const BatchView& batch) const {
  check(batch);
  for (const Op& op : ops_) op.run(context, batch);
}

std::vector<OpTime> Program::profile(Context& context, const BatchView& batch) const {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  check(batch);
  std::vector<OpTime> times;
  times.reserve(ops_.size());
  const BusyMeter meter(context.pool());
  for (const Op& op : ops_) {
    const double busy = meter.seconds();
    const auto start = Clock::now();
    op.run(context, batch);
    const Seconds spent = Clock::now() - start;
    times.push_back({spent.count(), meter.seconds() - busy});
  }
  return times;
}

void Program::check(const BatchView& batch) const {
  for (const Op& op : ops_) op.check(batch);
}

}  // namespace chairlift
