#include "runtime/thread_pool.h"

#include <chrono>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace chairlift {
namespace {

// The machine is shared with the front end and its clients, so an idle thread gives its core back soon; the spin
// only has to bridge the gap between two ops of a step.
constexpr auto kSpinTime = std::chrono::microseconds(40);
constexpr int kSpinsPerClockRead = 16;

void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until done() or the spin time is over; returns the last done().
template <typename Done>
bool spin_until(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if (done()) return true;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

// How this thread rounds and what it does with denormals. Every thread that computes uses IEEE defaults (round to
// nearest, denormals kept), whatever it inherited.
#if defined(__x86_64__)
constexpr uint64_t kIeeeDefaults = 0x1f80;
uint64_t float_settings() { return _mm_getcsr() & ~0x3fu; }  // without the flags of past operations
void set_float_settings(uint64_t settings) { _mm_setcsr(static_cast<unsigned>(settings)); }
#elif defined(__aarch64__)
constexpr uint64_t kIeeeDefaults = 0;
uint64_t float_settings() {
  uint64_t settings;
  asm volatile("mrs %0, fpcr" : "=r"(settings));
  return settings;
}
void set_float_settings(uint64_t settings) { asm volatile("msr fpcr, %0" : : "r"(settings)); }
#else
constexpr uint64_t kIeeeDefaults = 0;
uint64_t float_settings() { return kIeeeDefaults; }
void set_float_settings(uint64_t) {}
#endif

// The caller is somebody else's thread: its settings are put back afterwards.
class FloatDefaults {
 public:
  FloatDefaults() : saved_(float_settings()) {
    if (saved_ != kIeeeDefaults) set_float_settings(kIeeeDefaults);
  }
  ~FloatDefaults() {
    if (saved_ != kIeeeDefaults) set_float_settings(saved_);
  }

 private:
  uint64_t saved_;
};

// Adds the time that it lives to a sum, if there is one.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<int64_t>* sum) : sum_(sum) {
    if (sum_ != nullptr) start_ = Clock::now();
  }
  ~Stopwatch() {
    if (sum_ != nullptr) sum_->fetch_add(std::chrono::nanoseconds(Clock::now() - start_).count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<int64_t>* sum_;
  Clock::time_point start_;
};

}  // namespace

ThreadPool::ThreadPool(int num_threads) : stretches_(static_cast<size_t>(num_threads)) {
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_main(i); });
  } catch (...) {  // the system allows no more threads
    join_workers();
    throw;
  }
}

ThreadPool::~ThreadPool() { join_workers(); }

void ThreadPool::join_workers() {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t num_tiles, int num_stretches, TileFn fn, void* context) {
  if (num_tiles <= 0) return;
  FloatDefaults float_defaults;
  if (num_tiles == 1 || workers_.empty()) {
    const Stopwatch watch(metered_.load() ? &busy_ns_ : nullptr);
    for (int64_t tile = 0; tile < num_tiles; ++tile) fn(context, tile);
    return;
  }
  std::lock_guard<std::mutex> lock(caller_mutex_);
  open_job(num_tiles, num_stretches, fn, context);
  claim_tiles(0);
  close_job();
}

void ThreadPool::open_job(int64_t num_tiles, int num_stretches, TileFn fn, void* context) {
  fn_ = fn;
  fn_context_ = context;
  num_stretches_ = num_stretches;
  for (int i = 0; i < num_stretches; ++i) {
    Stretch& stretch = stretches_[static_cast<size_t>(i)];
    stretch.next.store(num_tiles * i / num_stretches, std::memory_order_relaxed);
    stretch.end = num_tiles * (i + 1) / num_stretches;
  }
  job_.fetch_add(1);
  if (sleeping_.load() > 0) {
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }  // a worker between its last look and its sleep sees the job
    wake_.notify_all();
  }
}

// A worker enters with inside_ += 1, then looks whether the job is open. Both sides are sequentially consistent, so
// either the worker sees the job closed and leaves, or the caller sees the worker inside and waits for it. Nobody
// waits for workers that are still asleep.
void ThreadPool::close_job() {
  job_.fetch_add(1);
  auto all_left = [this] { return inside_.load() == 0; };
  while (!spin_until(all_left)) std::this_thread::yield();  // a worker lost its core in the middle of a tile
}

void ThreadPool::claim_tiles(int thread) {
  const Stopwatch watch(metered_.load() ? &busy_ns_ : nullptr);
  for (int i = 0; i < num_stretches_; ++i) {
    Stretch& stretch = stretches_[static_cast<size_t>((thread + i) % num_stretches_)];
    for (;;) {
      const int64_t tile = stretch.next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= stretch.end) break;
      fn_(fn_context_, tile);
    }
  }
}

void ThreadPool::worker_main(int thread) {
  set_float_settings(kIeeeDefaults);
  uint64_t last_job = 0;
  while (wait_for_job(last_job)) {
    inside_.fetch_add(1);
    const uint64_t job = job_.load();
    if (job & 1) {
      claim_tiles(thread);
      last_job = job;
    }
    inside_.fetch_sub(1);
  }
}

bool ThreadPool::wait_for_job(uint64_t last_job) {
  auto ready = [this, last_job] {
    const uint64_t job = job_.load();
    return ((job & 1) && job != last_job) || stop_.load();
  };
  if (!spin_until(ready)) {
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, ready);
    sleeping_.fetch_sub(1);
  }
  return !stop_.load();
}

}  // namespace chairlift
