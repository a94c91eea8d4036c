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
    run(num_tiles, 1, call_of(fn), address_of(fn));
  }

  // The same, but each thread starts with a stretch of tiles of its own, the same part of [0, num_tiles) in every
  // loop, and helps the others afterwards. What it wrote in the loop before is then still in its own caches.
  template <typename Fn>
  void parallel_for_local(int64_t num_tiles, Fn&& fn) {
    run(num_tiles, num_threads(), call_of(fn), address_of(fn));
  }

 private:
  friend class BusyMeter;
  using TileFn = void (*)(void* context, int64_t tile);

  // Adjacent tiles, handed out in ascending order.
  struct alignas(64) Stretch {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  template <typename Fn>
  static TileFn call_of(Fn&) {
    return [](void* context, int64_t tile) { (*static_cast<Fn*>(context))(tile); };
  }
  template <typename Fn>
  static void* address_of(Fn& fn) {
    return const_cast<void*>(static_cast<const void*>(&fn));
  }

  void run(int64_t num_tiles, int num_stretches, TileFn fn, void* context);
  void open_job(int64_t num_tiles, int num_stretches, TileFn fn, void* context);
  void close_job();
  void claim_tiles(int thread);
  void worker_main(int thread);
  void join_workers();
  bool wait_for_job(uint64_t last_job);  // false: the pool is stopping

  // The job. Written only while no worker is inside it.
  TileFn fn_ = nullptr;
  void* fn_context_ = nullptr;
  int num_stretches_ = 0;
  std::vector<Stretch> stretches_;  // room for one per thread

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
