#include "arch/neondot/linear.h"

#include "arch/neon/integer_tiles.h"

namespace chairlift {
namespace {

struct DotProduct {
  static constexpr int kMaxRows = 6;
  using Sum = int32x4_t;

  static CHAIRLIFT_INLINE void add(Sum& sum, int8x16_t w, int8x16_t q) { sum = vdotq_s32(sum, w, q); }
  static CHAIRLIFT_INLINE int32x4_t total(const Sum& sum) { return sum; }
};

}  // namespace

namespace neondot {

void panels_int4(const PanelTask& task) { integer_panels<DotProduct, Int4>(task); }
void panels_int8(const PanelTask& task) { integer_panels<DotProduct, Int8>(task); }

int64_t int8_peak(int64_t iterations, int32_t* sink) {
  const int8x16_t w = vdupq_n_s8(15), x = vdupq_n_s8(-1);
  int32x4_t sums[16];
  for (int j = 0; j < 16; ++j) sums[j] = vdupq_n_s32(0);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) sums[j] = vdotq_s32(sums[j], w, x);
  }
  for (int j = 0; j < 16; ++j) *sink ^= vaddvq_s32(sums[j]);
  return iterations * 16 * 16;
}

}  // namespace neondot

void register_neondot_linear(KernelTable& table) {
  table.linear.integer_origin = "neondot";
  table.linear.panels[static_cast<int>(Layout::Int4)] = neondot::panels_int4;
  table.linear.panels[static_cast<int>(Layout::Int8)] = neondot::panels_int8;
  table.probe.int8_peak = neondot::int8_peak;
}

}  // namespace chairlift
