// A persistent thread pool: one parallel loop at a time, tiles claimed dynamically, the caller works too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace chairlift {

class ThreadPool {
 public:
  // num_threads counts the caller: num_threads - 1 workers are started. Throws std::system_error if they can't be.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(tile) once for every tile in [0, num_tiles), in any order and on any thread, and returns when all are
  // done. fn must not throw and must not call parallel_for. Calls from several threads take turns.
  template <typename Fn>
  void parallel_for(int64_t num_tiles, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run(num_tiles, [](void* context, int64_t tile) { (*static_cast<F*>(context))(tile); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  friend class BusyMeter;
  using TileFn = void (*)(void* context, int64_t tile);

  void run(int64_t num_tiles, TileFn fn, void* context);
  void open_job(int64_t num_tiles, TileFn fn, void* context);
  void close_job();
  void claim_tiles();
  void worker_main();
  void join_workers();
  bool wait_for_job(uint64_t last_job);  // false: the pool is stopping

  // The job. Written only while no worker is inside it.
  TileFn fn_ = nullptr;
  void* fn_context_ = nullptr;
  int64_t num_tiles_ = 0;

  alignas(64) std::atomic<int64_t> next_tile_{0};
  alignas(64) std::atomic<uint64_t> job_{0};  // odd while a job is open
  alignas(64) std::atomic<int> inside_{0};    // workers that may be touching the job
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> metered_{false};
  std::atomic<int64_t> busy_ns_{0};  // in tiles, added up over the threads, while metered

  std::mutex caller_mutex_;
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// While it lives, the time that each thread of a pool spends in tiles is added up. One at a time.
class BusyMeter {
 public:
  explicit BusyMeter(ThreadPool& pool) : pool_(pool) { pool_.metered_.store(true); }
  ~BusyMeter() { pool_.metered_.store(false); }
  BusyMeter(const BusyMeter&) = delete;
  BusyMeter& operator=(const BusyMeter&) = delete;

  double seconds() const { return static_cast<double>(pool_.busy_ns_.load()) * 1e-9; }  // of all loops that are over

 private:
  ThreadPool& pool_;
};

}  // namespace chairlift
