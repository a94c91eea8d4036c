// What the machine can do at most, measured with the threads and instructions the kernels use.
#pragma once

#include <cstdint>

namespace chairlift {

class Context;

// Fused multiply-adds a second over all threads, from registers: the best burst in this time.
double probe_fma_peak(Context&, double seconds);

// The same of products of 8-bit integers.
double probe_int8_peak(Context&, double seconds);

// Bytes a second read over all threads from a buffer of this size, best of `passes`.
double probe_stream(Context&, int64_t bytes, int passes);

}  // namespace chairlift
