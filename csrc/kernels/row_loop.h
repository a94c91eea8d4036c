// Parallel loops over independent rows, in chunks big enough to be worth a thread's attention.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/context.h"

namespace chairlift {

constexpr int64_t kChunkFloats = 32768;  // touched by one chunk: some microseconds
constexpr int64_t kChunksPerThread = 4;  // at least, so that few rows are shared out evenly too

// Calls fn(row) for every row; `row_floats` says about how many floats a row touches.
template <typename Fn>
void for_each_row(Context& context, int64_t rows, int64_t row_floats, Fn&& fn) {
  const int64_t num_chunks = kChunksPerThread * context.num_threads();
  const int64_t even = (rows + num_chunks - 1) / num_chunks;
  const int64_t chunk = std::max<int64_t>(1, std::min(even, kChunkFloats / std::max<int64_t>(1, row_floats)));
  context.pool().parallel_for_local((rows + chunk - 1) / chunk, [&](int64_t tile) {
    const int64_t end = std::min(rows, (tile + 1) * chunk);
    for (int64_t row = tile * chunk; row < end; ++row) fn(row);
  });
}

}  // namespace chairlift
