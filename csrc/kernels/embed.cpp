// Rows of a packed table, gathered and dequantised.
#include <stdexcept>

#include "kernels/panel_weight.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

template <Layout layout>
void unpack_lane(const uint8_t* panel, int64_t lane, int64_t in, float* y) {
  for (int64_t k = 0; k < in; ++k) y[k] = panel_weight<layout>(panel, k, lane);
}

using UnpackLane = void (*)(const uint8_t*, int64_t, int64_t, float*);

UnpackLane unpack_lane_of(Layout layout) {
  switch (layout) {
    case Layout::Group4: return unpack_lane<Layout::Group4>;
    case Layout::Group8: return unpack_lane<Layout::Group8>;
    case Layout::F16: return unpack_lane<Layout::F16>;
    case Layout::BF16: return unpack_lane<Layout::BF16>;
    case Layout::F32: return unpack_lane<Layout::F32>;
    case Layout::Int4: return unpack_lane<Layout::Int4>;
    case Layout::Int8: return unpack_lane<Layout::Int8>;
  }
  throw std::logic_error("unknown layout");
}

const Segment& segment_of(const PackedWeight& w, int64_t row) {
  const Segment* found = &w.segments[0];
  for (const Segment& segment : w.segments) {
    if (segment.first_out <= row) found = &segment;
  }
  return *found;
}

void embed_row(const PackedWeight& w, int64_t row, float* y) {
  const Segment& segment = segment_of(w, row);
  const int64_t local = row - segment.first_out;
  unpack_lane_of(segment.layout)(segment.panel(local / kPanelWidth), local % kPanelWidth, w.in, y);
}

}  // namespace

void embed(Context& context, const int32_t* ids, int64_t num_ids, const PackedWeight& w, float* y) {
  context.pool().parallel_for(num_ids, [&](int64_t i) { embed_row(w, ids[i], y + i * w.in); });
}

}  // namespace chairlift
